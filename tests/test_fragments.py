"""Rounds in fragments against a float64 twin that goes step by step, and against plain rounds."""

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import Client, gradient_client, local_client
from laconic.compress import parse_compressor
from laconic.federated.clients import proximal_client, scaffold_client
from laconic.fragments import (
    Cut,
    Fragments,
    fragment_bits,
    fragmented_round,
    init_fragments,
    message_of,
    owners,
)
from laconic.method import Setting
from laconic.outer import OUTER, LearnedOptimizer, OuterOptimizer
from laconic.outer.base import told
from laconic.round import Server, communication_round
from laconic.workers import Meshed, Simulated, worker_mesh
from tests import reference as ref
from tests import reference_compress as codec
from tests import reference_relative as relative
from tests import tiny
from tests.outer.trees import QUICK, assert_close, float64, random_theta
from tests.reference_fragments import streaming
from tests.tiny import ADAMW, GAMMA, SGD, TASK, K, draw, first_state, set_up
from tests.zoo.made import LOPT_R, weights

H, T = 6, 5
NAMES = {  # b1, b2, w1 and w2 have 6, 2, 30 and 12 numbers
    1: [["b1", "b2", "w1", "w2"]],
    2: [["b1", "b2", "w1"], ["w2"]],
    3: [["b1", "b2"], ["w1"], ["w2"]],
    4: [["b1"], ["b2"], ["w1"], ["w2"]],
}
LOPT_A = LearnedOptimizer("lopt-a", deepest=1)
THETA, THETA_K = random_theta(39, 1, True), random_theta(38 + K, 5, True)
RELATIVE = weights(LOPT_R)


def run(workers: Any, outer: OuterOptimizer, fragments: Fragments, task=TASK, rounds: int = T):
    """(global weights after each round, minibatches, losses) and the last state."""
    server = Server(outer)
    state = init_fragments(task, workers, server, fragments, K, jax.random.key(0))

    def body(state, items):
        state, losses = fragmented_round(workers, server, state, items, fragments)
        return state, (state.shared, losses)

    items = draw(state, K, H, rounds)
    last, seen = jax.jit(lambda *a: jax.lax.scan(body, *a), compiler_options=QUICK)(state, items)
    shared, losses = jax.device_get(seen)
    return shared, jax.device_get(items.batches), losses, last


def plain(rule: Any):
    """A twin that sees the mean."""
    return lambda params, deltas: rule.step(params, ref.weighted_mean(deltas))


def relative_twin():
    tensors: dict[str, Any] = {}

    def step(params, deltas):
        mean, new = ref.weighted_mean(deltas), {}
        for name, p in params.items():
            tensor = tensors.setdefault(name, relative.Tensor(p.shape))
            known = {"workers": K, "local_steps": H, "rounds": T, "rate": 0.75, "momentum": 0.5}
            seen = {**known, "deltas": deltas[name]}
            move = relative.step(float64(RELATIVE), tensor, mean[name], p, **seen)
            new[name] = p - move
        return new

    return step


def learned_twin(kind: ref.Kind, theta: Any, share: float = 1.0):
    rule: list[Any] = []

    def step(params, deltas):
        if not rule:
            rule.append(ref.Learned(kind, float64(theta), ref.ada_init(params)))
        new = rule[0].step(params, ref.weighted_mean(deltas), deltas)
        return {n: p + share * (new[n] - p) for n, p in params.items()}

    return step


# F, τ, α, outer optimizer, local optimizer, compressor, twin of the outer optimizer
CASES: dict[str, tuple[int, int, float, OuterOptimizer, Any, str, Any]] = {
    "averaging, whole": (1, 2, 0.25, OUTER["average"].make(), SGD, "dense", ref.Average),
    "Nesterov": (2, 3, 0.5, OUTER["nesterov"].make(), SGD, "dense", lambda: ref.Nesterov(0.7, 0.9)),
    "at once": (3, 0, 0.5, OUTER["nesterov"].make(), SGD, "dense", lambda: ref.Nesterov(0.7, 0.9)),
    "SlowMo, AdamW": (
        4,
        1,
        0.0,
        OUTER["slowmo"].make(gamma=GAMMA, alpha=0.9, beta=0.6),
        ADAMW,
        "dense",
        lambda: ref.SlowMo(0.9, 0.6, GAMMA),
    ),
    "top-k": (2, 2, 0.3, OUTER["average"].make(), SGD, "topk:0.2+ef", ref.Average),
    "LOpt-A": (3, 1, 0.5, LOPT_A(THETA), SGD, "dense", None),
    "LAgg-A": (2, 1, 0.5, LearnedOptimizer("lagg-a", K)(THETA_K), SGD, "dense", None),
    "lopt-r": (3, 2, 0.5, told(LOPT_R(RELATIVE), K, H, T), SGD, "dense", None),
}


def twins_of(name: str, F: int, make: Any) -> list[Any]:
    if name == "LOpt-A":  # two matrices in the whole model: half of a step, in every fragment
        return [learned_twin("lopt_a", THETA, 0.5) for _ in range(F)]
    if name == "LAgg-A":
        return [learned_twin("lagg_a", THETA_K) for _ in range(F)]
    if name == "lopt-r":
        return [relative_twin() for _ in range(F)]
    return [plain(make()) for _ in range(F)]


@pytest.mark.parametrize("name", CASES)
def test_rounds_in_fragments_of(name):
    F, delay, mix, outer, local, spec, make = CASES[name]
    fragments = Fragments(F, delay, mix)
    with tiny.lenient(local is ADAMW):
        workers = set_up(outer, local, spec)[0]
        shared, batches, losses, last = run(workers, outer, fragments)
        start = first_state(workers, Server(OUTER["average"].make())).shared.params
    seen: list[float] = []

    def grad(params: Any, rows: np.ndarray) -> Any:
        value, grads = tiny.loss_and_gradient(params, rows)
        seen.append(value)
        return grads

    top = lambda tree: codec.topk_global(tree, 0.2)
    send = [[codec.ErrorFeedback(top) for _ in range(K)] for _ in range(F)]
    history, own = streaming(
        float64(jax.device_get(start)),
        grad,
        batches,
        GAMMA,
        NAMES[F],
        delay,
        mix,
        twins_of(name, F, make),
        [codec.AdamW(0.003, weight_decay=0.1) for _ in range(K)] if local is ADAMW else None,
        None if spec == "dense" else send,
    )
    for t in range(T):
        assert_close({n: x[t] for n, x in shared.params.items()}, history[t], 1e-5, f"round {t}")
    by_step = np.moveaxis(losses, 1, 2).reshape(-1)  # the twin goes by step, then by worker
    np.testing.assert_allclose(by_step, seen, rtol=1e-5)
    clients = jax.device_get(last.clients)
    for k in range(K):
        assert_close({n: x[k] for n, x in clients.params.items()}, own[k], 1e-5, f"worker {k}")
    assert int(last.round) == T
    if spec != "dense":
        for f, k in itertools.product(range(F), range(K)):
            residual = {n: x[k] for n, x in clients.residuals[f][0].items() if x is not None}
            assert_close(residual, send[f][k].e, 1e-5, f"residual {f} of worker {k}")


SAME: dict[str, tuple[OuterOptimizer, Any, str, bool]] = {
    "averaging": (OUTER["average"].make(), SGD, "dense", False),
    "model state": (OUTER["slowmo"].make(), SGD, "dense", True),
    "moments and residuals": (OUTER["fedadam"].make(), ADAMW, "topk:0.3+int8+ef", False),
    "gathered": (LearnedOptimizer("lagg-a", K)(THETA_K), SGD, "int4", False),
    "norms": (OUTER["fedexp"].make(), SGD, "dense", False),
}


@pytest.mark.parametrize("name", SAME)
def test_one_fragment_without_delay_and_mix_is_the_plain_round_to_the_last_bit(name):
    outer, local, spec, stateful = SAME[name]
    with tiny.lenient(local is ADAMW):
        task = tiny.stateful_task() if stateful else TASK
        workers, server = set_up(outer, local, spec, task)
        state = first_state(workers, server, task=task)
        ours = init_fragments(task, workers, server, Fragments(), K, jax.random.key(0))
        quick = QUICK if name == "gathered" else None
        usual = jax.jit(partial(communication_round, workers, server), compiler_options=quick)
        whole = partial(fragmented_round, workers, server, fragments=Fragments())
        step = jax.jit(whole, compiler_options=quick)
        for _ in range(4):
            items = draw(state, K, 3)
            state, losses = usual(state, items)
            ours, in_legs = step(ours, items)
            same = ours.clients.local, ours.clients.residuals[0], ours.outer[0]
            jax.tree.map(
                np.testing.assert_array_equal,
                (ours.shared, same, in_legs),
                (state.shared, (*state.clients, state.outer), losses),
            )


def test_statistics_travel_with_the_last_fragment_and_are_mixed():
    task = tiny.stateful_task()
    workers = set_up(OUTER["average"].make(), task=task)[0]
    fragments = Fragments(2, 2, 0.25)
    shared, batches, _, last = run(workers, OUTER["average"].make(), fragments, task, 3)
    own, whole = [np.zeros(5) for _ in range(K)], np.zeros(5)
    for t, h in itertools.product(range(3), range(H)):
        for k in range(K):
            mean = tiny.X[batches[t, k, h]].astype(np.float64).mean(axis=0)
            own[k] = 0.9 * own[k] + 0.1 * mean
        if h + 1 == 2 and t > 0:
            own = [0.25 * x + 0.75 * whole for x in own]
        if h + 1 == H:
            whole = np.mean(own, axis=0)
            np.testing.assert_allclose(shared.model_state["mean"][t], whole, rtol=1e-5)
    assert_close(last.clients.model_state["mean"], np.stack(own), 1e-5)
    # a counter arrives as it was sent: H a round, and the steps since are counted again
    assert shared.model_state["seen"].tolist() == [6, 10, 14]


@pytest.mark.parametrize("name", ["LAgg-A", "top-k"])
def test_a_mesh_does_what_the_simulation_does(name):
    F, delay, mix, outer, local, spec, _ = CASES[name]
    client, compressor = local_client(TASK, local.optax()), parse_compressor(spec)
    fragments = Fragments(F, delay, mix)
    one = run(Simulated(client, compressor), outer, fragments)
    many = run(Meshed(client, compressor, worker_mesh(4)), outer, fragments)
    for x, y in ((one[2], many[2]), (one[0].params, many[0].params)):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), x, y)


def test_uneven_weights_count():
    workers, server = set_up(OUTER["average"].make())
    state = init_fragments(TASK, workers, server, Fragments(2), K, jax.random.key(0))
    items = draw(state, K, 2)._replace(weights=jnp.array([1.0, 0.0, 3.0, 0.0]))
    whole = partial(fragmented_round, workers, server, fragments=Fragments(2))
    step = jax.jit(whole, compiler_options=QUICK)
    ours = step(state, items)[0]
    few = jax.tree.map(lambda x: x[jnp.array([0, 2, 2, 2])], (items.batches, items.keys))
    again = items._replace(batches=few[0], keys=few[1], weights=None)
    twin = step(state, again)[0]
    assert_close(ours.shared.params, float64(twin.shared.params), 1e-6)


# --- when, and which ------------------------------------------------------------------------------


@pytest.mark.parametrize(("H", "F", "delay"), [(4, 1, 3), (10, 3, 3), (7, 7, 1), (12, 5, 0)])
def test_every_fragment_is_sent_once_a_round_and_arrives_after_the_delay(H, F, delay):
    fragments = Fragments(F, delay, 0.5)
    legs = fragments.legs(H)
    assert [leg.first for leg in legs] == [0, *(leg.last for leg in legs[:-1])]
    assert legs[-1].last == H
    sent = {leg.sent: leg.last for leg in legs if leg.sent is not None}
    assert [sent[f] for f in range(F)] == [math.ceil((f + 1) * H / F) for f in range(F)]
    found = {leg.arrives: leg.last + H * leg.late for leg in legs if leg.arrives is not None}
    assert found == ({f: sent[f] + delay for f in range(F)} if delay else {})


def test_fragments_are_in_order_and_the_largest_is_as_small_as_can_be():
    rng = np.random.default_rng(0)
    for _ in range(60):
        sizes = rng.integers(1, 40, rng.integers(1, 9)).tolist()
        for F in range(1, len(sizes) + 1):
            found = owners(sizes, F)
            assert sorted(set(found)) == list(range(F))
            assert found == sorted(found)
            largest = max(
                sum(s for s, f in zip(sizes, found, strict=True) if f == g) for g in found
            )
            cuts = itertools.combinations(range(1, len(sizes)), F - 1)
            spans = [itertools.pairwise((0, *cut, len(sizes))) for cut in cuts]
            assert largest == min(max(sum(sizes[a:b]) for a, b in span) for span in spans)


def test_a_model_is_cut_and_put_together():
    params = {n: np.full(s, i) for i, (n, s) in enumerate(tiny.SHAPES.items())}
    for F, names in NAMES.items():
        cut = Cut.of(params, F)
        for f, part in enumerate(cut.parts(params)):
            assert [n for n in sorted(part) if part[n] is not None] == names[f]
        new = jax.tree.map(lambda x: x + 10, cut.part(params, F - 1))
        back = cut.put(params, F - 1, new)
        moved = {n for n in params if not np.array_equal(back[n], params[n])}
        assert moved == set(names[F - 1])


@pytest.mark.parametrize("spec", ["dense", "topk:0.2+int8+ef"])
def test_bits_are_those_of_the_messages(spec):
    workers, server = set_up(OUTER["average"].make(), spec=spec)
    state = init_fragments(TASK, workers, server, Fragments(3), K, jax.random.key(0))
    one = jax.tree.map(lambda x: x[0], state.clients)
    cut, sent = Cut.of(state.shared.params, 3), 0
    for f in range(3):
        message, _ = message_of(workers.compressor, state.shared, one, cut, f, jax.random.key(1))
        sent += sum(8 * np.asarray(x).nbytes for x in jax.tree.leaves(message.delta))
    assert fragment_bits(workers.compressor, state.shared.params, 3) == sent


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "H", "says"),
    [
        ((0, 0, 0.0), 4, "at least one fragment"),
        ((2, -1, 0.0), 4, "counts local steps"),
        ((2, 1, 1.0), 4, "below 1"),
        ((2, 1, math.nan), 4, "below 1"),
        ((5, 0, 0.0), 4, "no room for 5 fragments"),
        ((2, 3, 0.0), 4, "a delay of at most 2, got 3"),
        ((1, 4, 0.0), 4, "a delay of at most 3, got 4"),
        ((3, 3, 0.0), 8, "a delay of at most 2, got 3"),
    ],
)
def test_what_cannot_be_is_refused(given, H, says, raises_clearly):
    with raises_clearly(says):
        Fragments(*given).legs(H)


def test_settings_with_workers_that_leave_are_refused(raises_clearly):
    with raises_clearly("all of them must stay"):
        Setting(workers=4, local_steps=4, missing=1, fragments=Fragments(2))
    with raises_clearly("a delay of at most 2"):
        Setting(workers=4, local_steps=4, fragments=Fragments(2, 3))


def test_workers_that_cannot_stop_in_a_round_are_refused(raises_clearly):
    of: Any = lambda client: Simulated(client, parse_compressor("dense"))
    server = Server(OUTER["average"].make())
    start = lambda client: init_fragments(
        TASK, of(client), server, Fragments(2), K, jax.random.key(0)
    )
    own: Any = Client(lambda shared: (), lambda *seen: None)  # pyright: ignore[reportArgumentType]
    for client in (
        gradient_client(TASK),
        scaffold_client(TASK, SGD.optax(), 0.3),
        proximal_client(TASK, SGD.optax(), 0.1),
        own,
    ):
        with raises_clearly("not for methods without local steps", "FedProx, SCAFFOLD"):
            start(client)
    with raises_clearly("4 tensors cannot be cut into 5 fragments"):
        workers = set_up(OUTER["average"].make())[0]
        init_fragments(TASK, workers, server, Fragments(5), K, jax.random.key(0))


def test_a_population_is_refused(raises_clearly):
    workers, server = set_up(OUTER["average"].make())
    state = init_fragments(TASK, workers, server, Fragments(2), K, jax.random.key(0))
    items = draw(state, K, 2)
    for more in ({"ids": jnp.arange(K)}, {"present": jnp.ones(K)}):
        with raises_clearly("workers that stay"):
            fragmented_round(workers, server, state, items._replace(**more), Fragments(2))
