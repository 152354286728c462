"""Every input of the learned optimizers' MLP, column by column, against the twin's matrix.

The optimizer is a black box here: a φ whose MLP says d = x_j, for each j, shows what it sees.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.outer import features
from laconic.outer.learned import LearnedOptimizer
from tests import reference as ref
from tests.outer.cases import LOPT_A, ROUNDS, Case, assert_accumulators, name_of
from tests.outer.trees import QUICK, SHAPES, assert_close, float64


def echoes(spec: LearnedOptimizer, decay: np.ndarray) -> dict[str, Any]:
    """φ for each of the F inputs (leaves [F, …]): two units pass x and −x through the relus, d is
    their difference."""
    F = spec.inputs
    theta = {"w0": np.zeros((F, F, 32)), "w1": np.zeros((F, 32, 32)), "w2": np.zeros((F, 32, 2))}
    for j in range(F):
        theta["w0"][j, j, :2] = [1, -1]
        theta["w1"][j, 0, 0] = theta["w1"][j, 1, 1] = 1
        theta["w2"][j, :2, 0] = [1, -1]
    theta |= {
        "b0": np.zeros((F, 32)),
        "b1": np.zeros((F, 32)),
        "b2": np.zeros((F, 2)),
        "decay": np.tile(decay, (F, 1)),
    }
    return {name: np.asarray(x, np.float32) for name, x in theta.items()}


def seen_by(spec: LearnedOptimizer, decay: np.ndarray) -> Any:
    """A compiled (params, state, mean, deltas) → (the [n, F] matrix of each tensor, the next
    state)."""

    def one(theta: Any, params: Any, state: Any, mean: Any, deltas: Any) -> Any:
        return spec(theta).tx.update(mean, state, params, worker_deltas=deltas)

    def run(*args: Any) -> Any:
        changes, states = jax.vmap(one, in_axes=(0, None, None, None, None))(
            echoes(spec, decay), *args
        )
        inputs = jax.tree.map(lambda x_F: x_F.reshape(spec.inputs, -1).T / -0.001, changes)
        return inputs, jax.tree.map(lambda x_F: x_F[0], states)

    return jax.jit(run, compiler_options=QUICK)


@pytest.mark.parametrize("spec", [LOPT_A, LearnedOptimizer("lagg-a", 4, time="paper")], ids=name_of)
def test_every_feature_of_every_tensor(spec):
    case = Case(spec, seed=50)
    params, betas, twin = (
        float64(case.params),
        ref.betas_of(float64(case.theta)),
        ref.ada_init(float64(case.params)),
    )
    see, state = seen_by(spec, case.theta["decay"]), case.init()
    time: Any = spec.time
    for t in range(ROUNDS):
        mean, deltas = case.at(t)
        matrices, state = jax.device_get(see(case.params, state, mean, deltas))
        worker_deltas = float64(deltas) if spec.gathers else None
        expected, twin = ref.ada_features(
            params, twin, float64(mean), betas, t, time, worker_deltas=worker_deltas
        )
        for name, x in expected.items():
            assert x.shape == (max(1, np.size(case.params[name])), spec.inputs)
            for column in range(spec.inputs):
                what = f"round {t}, column {column} of {name}"
                assert_close(matrices[name][:, column], x[:, column], 1e-5, what)


def test_a_tensor_that_did_not_move_has_finite_features():
    """1e-30 is added to Δ² before the factored means, so that they are never 0; v is plain."""
    case = Case(LOPT_A)
    zero: dict[str, Any] = {name: np.zeros(s, np.float32) for name, s in SHAPES.items()}
    expected, twin = ref.ada_features(
        float64(case.params),
        ref.ada_init(float64(zero)),
        float64(zero),
        ref.betas_of(float64(case.theta)),
        0,
    )
    matrices, state = jax.device_get(
        seen_by(LOPT_A, case.theta["decay"])(case.params, case.init(), zero, None)
    )
    for name, x in expected.items():
        assert_accumulators(state.ada[name], twin, name)
        assert_close(matrices[name], x, 1e-5, name)


def test_decay_offsets_are_exact_and_capped():
    offsets = np.array([0.0, 0.1, -0.2, 0.0, 0.5, 0.03, -0.01], np.float32)
    expected = 1 - ref.betas_of({"decay": offsets.astype(np.float64)})
    np.testing.assert_allclose(
        np.asarray(features.decays(jnp.asarray(offsets)), np.float64), expected, rtol=3e-7
    )
    assert features.decays(jnp.asarray(offsets))[4] == 1.0  # 0.1·e⁵ would be past 1, and β negative
