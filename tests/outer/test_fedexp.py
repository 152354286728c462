"""FedExP steps like its twin, and is averaging where the paper says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic import parse_method
from laconic.client import Shared
from laconic.outer.fedexp import fedexp
from laconic.round import Server, communication_round, draw_items, init_round
from laconic.workers import Simulated, weighted_mean
from tests import reference as ref
from tests import tiny
from tests.outer.trees import QUICK, SHAPES, assert_close, float64, random_deltas, random_tree

K, ROUNDS = 5, 6
EQUAL, UNLIKE = [1.0] * K, [1.0, 0.0, 2.5, 0.0, 1.0]


def stepped(outer, params, deltas, weights):
    mean = weighted_mean(deltas, jnp.asarray(weights))
    seen = {"worker_deltas": deltas, "weights": jnp.asarray(weights)}
    updates, _ = jax.jit(outer.tx.update, compiler_options=QUICK)(mean, (), params, **seen)
    return jax.tree.map(jnp.add, params, updates), mean, updates


@pytest.mark.parametrize("weights", [EQUAL, UNLIKE], ids=["equal", "unlike"])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 10.0])
def test_like_the_twin(eps, weights):
    params, twin = random_tree(SHAPES, 1), ref.FedExP(eps)
    expected, lengths = float64(params), []
    for seed in range(ROUNDS):
        deltas = {name: d[0] for name, d in random_deltas(SHAPES, 1, K, seed).items()}
        for d in deltas.values():  # workers that disagree more and more
            d += seed * np.random.default_rng(seed).normal(size=d.shape).astype(np.float32)
        params, mean, updates = stepped(fedexp(eps), params, deltas, weights)
        expected = twin.step(expected, float64(deltas), weights)
        assert_close(params, expected, 2e-6, f"round {seed}")
        lengths.append(float(-updates["scalar"] / mean["scalar"]))
    assert min(lengths) == pytest.approx(1.0)
    assert max(lengths) > 1.05 or eps == 10.0


def test_the_papers_formula_by_hand():
    """Two workers at right angles: Σ‖Δₖ‖² = 25, ‖Δ‖² = 25/4, so η = 25 / (2·2·(25/4)) = 1; with
    opposite third entries the mean does not change and η = (25 + 2·7²) / 25."""
    deltas = {"w": jnp.asarray([[3.0, 0.0, 7.0], [0.0, 4.0, -7.0]])}
    for given, eta in ((deltas["w"].at[:, 2].set(0.0), 1.0), (deltas["w"], 123 / 25)):
        _, mean, updates = stepped(fedexp(0.0), {"w": jnp.zeros(3)}, {"w": given}, [1.0, 1.0])
        np.testing.assert_allclose(updates["w"], -eta * mean["w"], rtol=1e-6)


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_agreement_one_worker_and_nothing_at_all_are_averaging(eps):
    params = random_tree(SHAPES, 3)
    one = {name: d[0] for name, d in random_deltas(SHAPES, 1, 1, 4).items()}
    same = {name: np.repeat(d, K, axis=0) for name, d in one.items()}
    still = {name: np.zeros_like(d) for name, d in same.items()}
    for deltas in (one, same, still):
        count = len(deltas["vector"])
        _, mean, updates = stepped(fedexp(eps), params, deltas, [1.0] * count)
        assert_close(updates, {name: -np.asarray(m) for name, m in mean.items()}, 1e-6)
    _, _, nobody = stepped(fedexp(eps), params, same, [0.0] * K)
    assert all((np.asarray(x) == 0).all() for x in nobody.values())


def test_it_cannot_step_on_the_mean_alone(raises_clearly):
    with raises_clearly("fedexp needs the norm of every worker's delta", "worker_squares"):
        fedexp().tx.update({"w": jnp.zeros(2)}, ())


def test_a_round_hands_it_every_delta():
    task, method = tiny.task(), parse_method("fedexp:gamma=0.5,eps=0", K)
    workers, server = Simulated(method.client(task), method.compressor), Server(method.outer)
    state = init_round(task, workers, server, K, jax.random.key(0))
    items = draw_items(task.feed, state, K, 3, 1)  # one example a step: workers disagree
    new, _ = jax.jit(
        lambda s, i: communication_round(workers, server, s, i), compiler_options=QUICK
    )(state, items)
    run = jax.vmap(
        lambda c, b, k: workers.client.run(Shared(state.shared.params), c, b, k)[0].delta
    )
    deltas = run(state.clients.local, items.batches, items.keys)
    expected = ref.FedExP(0.0).step(float64(state.shared.params), float64(deltas), [1.0] * K)
    assert_close(new.shared.params, expected, 1e-5)
