"""The communication round against Algorithm 1 in float64, fed with the same minibatches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import LocalOptimizer
from laconic.outer import OUTER, LearnedOptimizer, OuterOptimizer
from laconic.round import Items, RoundState, Server, communication_round, worker_keys
from laconic.workers import Simulated
from tests import reference as ref
from tests import reference_compress as twin
from tests import tiny
from tests.outer.trees import QUICK, assert_close, float64, random_theta
from tests.tiny import ADAMW, GAMMA, SGD, TASK, B, H, K, draw, first_state, set_up

T = 10


def run_rounds(workers: Simulated, server: Server, state: RoundState, rounds: int = T) -> Any:
    """(shared state, minibatches, losses) of every round, leaves [rounds, …]; the last state."""

    def body(state: RoundState, items: Items) -> Any:
        state, losses = communication_round(workers, server, state, items)
        return state, (state.shared, losses)

    items = draw(state, K, H, rounds)
    last, (shared, losses) = jax.jit(lambda *a: jax.lax.scan(body, *a), compiler_options=QUICK)(
        state, items
    )
    return jax.device_get((shared, items.batches, losses)), last


THETA_A = random_theta(38 + K, 5, True)
METHODS: dict[str, tuple[OuterOptimizer, Any, str, Any]] = {
    "local SGD": (OUTER["average"].make(), SGD, "dense", lambda params: ref.Average()),
    "SlowMo": (
        OUTER["slowmo"].make(gamma=GAMMA, alpha=0.9, beta=0.6),
        SGD,
        "dense",
        lambda params: ref.SlowMo(0.9, 0.6, GAMMA),
    ),
    "FedAdam": (OUTER["fedadam"].make(eta=0.02), SGD, "dense", lambda params: ref.FedAdam(0.02)),
    "DiLoCo": (OUTER["nesterov"].make(), ADAMW, "dense", lambda params: ref.Nesterov(0.7, 0.9)),
    "top-k": (OUTER["average"].make(), SGD, "topk:0.2+ef", lambda params: ref.Average()),
    "LAgg-A": (
        LearnedOptimizer("lagg-a", K)(THETA_A, scale=1.0),
        SGD,
        "dense",
        lambda params: ref.Learned("lagg_a", float64(THETA_A), ref.ada_init(params)),
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_ten_rounds_of(name):
    outer, local, spec, make_twin = METHODS[name]
    with tiny.lenient(local is ADAMW):
        workers, server = set_up(outer, local, spec)
        state = first_state(workers, server)
        (shared, batches, losses), last = run_rounds(workers, server, state)
    start = float64(jax.device_get(state.shared.params))
    send = (
        [twin.ErrorFeedback(lambda tree: twin.topk_global(tree, 0.2)) for _ in range(K)]
        if spec != "dense"
        else None
    )
    adamw = [twin.AdamW(0.003, weight_decay=0.1) for _ in range(K)] if local is ADAMW else None
    seen: list[float] = []

    def grad(params: Any, rows: np.ndarray) -> Any:
        value, grads = tiny.loss_and_gradient(params, rows)
        seen.append(value)
        return grads

    history = ref.algorithm_1(
        start, grad, batches, GAMMA, make_twin(start), locals_K=adamw, send_K=send
    )
    for t in range(T):
        assert_close(
            {n: x[t] for n, x in shared.params.items()}, history[t + 1], 1e-5, f"round {t}"
        )
    np.testing.assert_allclose(losses.reshape(-1), seen, rtol=1e-5)
    assert int(last.round) == T
    if send:
        for k, worker in enumerate(send):
            residual = {n: x[k] for n, x in jax.device_get(last.clients.residual[0]).items()}
            assert_close(residual, worker.e, 1e-5, f"residual of worker {k}")


@pytest.mark.parametrize(("gamma", "mixed"), [(0.3, False), (0.5, False), (0.5, True)])
def test_one_worker_of_one_step_is_plain_sgd(gamma, mixed):
    """W − (W − W₁) is W₁ to the last bit: where it would round, W₁ was rounded the same way before.

    At γ = ½ the product γg is exact, so that fusing it with the subtraction cannot change a bit
    either.
    """
    workers, server = set_up(OUTER["average"].make(), LocalOptimizer("sgd", gamma))
    state = first_state(workers, server, clients=1)
    if mixed:
        sizes = {"w1": 1e-4, "b1": 30.0, "w2": 1e-2, "b2": 1e-6}
        params = {n: sizes[n] * x for n, x in state.shared.params.items()}
        state = state._replace(shared=state.shared._replace(params=params))

    def both(carry: Any, items: Items) -> Any:
        state, plain = carry
        state = communication_round(workers, server, state, items)[0]
        batch = TASK.feed.take(items.batches[:, 0])
        grads = jax.vmap(jax.grad(tiny.loss), (None, 0))(plain, batch)  # as the round's worker
        plain = jax.tree.map(lambda p, g: p - gamma * g[0], plain, grads)
        return (state, plain), (state.shared.params, plain)

    run = jax.jit(lambda s, items: jax.lax.scan(both, (s, s.shared.params), items)[1])
    ours, plain = jax.device_get(run(state, draw(state, 1, 1, 50)))
    for name in plain:
        assert np.any(plain[name][-1] != plain[name][0])
        if gamma == 0.5:
            np.testing.assert_array_equal(ours[name], plain[name])
        for t in range(50):
            assert_close(ours[name][t], plain[name][t], 1e-6, f"round {t} {name}")


def test_model_state_travels_as_extra_and_is_averaged():
    task = tiny.stateful_task()
    workers, server = set_up(OUTER["average"].make(), task=task, spec="topk:0.5")
    state = first_state(workers, server, task=task)
    (shared, batches, _), _ = run_rounds(workers, server, state, rounds=4)
    mean = np.zeros(5)
    for t in range(4):
        ends = []
        for k in range(K):
            own = mean
            for rows in batches[t, k]:
                own = 0.9 * own + 0.1 * tiny.X[rows].astype(np.float64).mean(axis=0)
            ends.append(own)
        mean = np.mean(ends, axis=0)
        assert_close(shared.model_state["mean"][t], mean, 1e-5, f"round {t}")
        assert shared.model_state["seen"][t] == H * (t + 1)  # a counter is not averaged


def test_the_server_decides_what_becomes_of_extra():
    task = tiny.stateful_task()
    workers, _ = set_up(OUTER["average"].make(), task=task)
    slow = lambda shared, extra, share: jax.tree.map(
        lambda o, n: o + n.astype(o.dtype) * int(4 * share), shared, extra
    )
    plain = Server(OUTER["average"].make())
    moved = Server(
        OUTER["average"].make(),
        lambda s, e, share: slow(s.model_state, e, share),
        share_of_clients=0.5,
    )
    state = first_state(workers, plain, task=task)
    state = state._replace(
        shared=state.shared._replace(model_state={"mean": jnp.ones(5), "seen": jnp.int32(5)})
    )
    items = draw(state)
    both = lambda s, i: [communication_round(workers, server, s, i)[0] for server in (plain, moved)]
    as_it_is, absorbed = jax.jit(both, compiler_options=QUICK)(state, items)
    assert int(absorbed.shared.model_state["seen"]) == 5 + 2 * (5 + H)
    np.testing.assert_allclose(
        absorbed.shared.model_state["mean"], 1 + 2 * as_it_is.shared.model_state["mean"], rtol=1e-6
    )


def test_a_worker_draws_from_its_seed_round_and_id_alone():
    workers, server = set_up(OUTER["average"].make())
    state = first_state(workers, server)
    four, eight = draw(state, 4), draw(state, 8)
    np.testing.assert_array_equal(four.batches, eight.batches[:4])
    np.testing.assert_array_equal(
        jax.random.key_data(four.keys), jax.random.key_data(eight.keys[:4])
    )
    np.testing.assert_array_equal(
        jax.random.key_data(worker_keys(state, jnp.array([3, 1]))),
        jax.random.key_data(worker_keys(state, jnp.arange(5))[jnp.array([3, 1])]),
    )
    assert (
        len({x.tobytes() for x in np.asarray(eight.batches)}) == 8
    )  # no two workers share their minibatches
    later = draw(state._replace(round=jnp.int32(1)), 4)
    other = draw(first_state(workers, server, seed=1), 4)
    again = draw(first_state(workers, server), 4)
    for k in range(4):
        assert np.any(later.batches[k] != four.batches[k])
        assert np.any(other.batches[k] != four.batches[k])
    np.testing.assert_array_equal(again.batches, four.batches)
    assert four.batches.shape == (4, H, B)
    assert np.all((four.batches >= 0) & (four.batches < 64))


def test_the_first_state_depends_on_the_seed_and_the_population():
    workers, server = set_up(OUTER["slowmo"].make(), ADAMW, "topk:0.5+ef")
    state = first_state(workers, server, clients=7)
    assert {x.shape[0] for x in jax.tree.leaves(state.clients)} == {7}
    assert int(state.round) == 0
    other = first_state(workers, server, clients=7, seed=1)
    assert np.any(state.shared.params["w1"] != other.shared.params["w1"])
    assert np.any(jax.random.key_data(state.key) != jax.random.key_data(other.key))
    assert optax.tree.norm(state.clients.residual[0]) == 0
