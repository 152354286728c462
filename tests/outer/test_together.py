"""The step of lopt-r in two passes over all tensors: the twin's, and the plain one's state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.outer.relative import RelativeOptimizer, squared_norms
from laconic.outer.together import together
from tests.outer.test_relative import (
    DELTAS,
    GATED,
    PARAMS,
    SPEC,
    TOLD,
    WEIGHTS,
    means_of,
    twin,
)
from tests.outer.trees import QUICK, assert_close, random_relative, text_for_cuda


def run(tx: Any, deltas: Any, weights: Any, gathered: bool) -> Any:
    """Changes and states of all rounds, leaves [T, …]."""

    def body(carry: Any, now: Any) -> Any:
        params, state = carry
        seen = {"worker_squares": squared_norms(now[1])} if gathered else {}
        changes, state = tx.update(now[0], state, params, weights=weights, **seen)
        return (optax.apply_updates(params, changes), state), (changes, state)

    scan = lambda *now: jax.lax.scan(body, (PARAMS, tx.init(PARAMS)), now)[1]
    return jax.jit(scan, compiler_options=QUICK)(means_of(deltas, weights), deltas)


@pytest.mark.parametrize(
    ("weights", "gathered", "told", "spec"),
    [
        (None, False, {}, SPEC),
        (None, True, TOLD, RelativeOptimizer(rate=1.0, momentum=0.5)),
        (WEIGHTS, True, {"workers": 4}, GATED),
    ],
)
def test_its_rounds_are_the_twins(weights, gathered, told, spec):
    deltas = jax.tree.map(jnp.asarray, DELTAS)
    theta = random_relative(spec.shapes, 7)
    known = {} if weights is not None else told  # K is counted where there are weights
    changes, _ = run(together(spec, theta, **known), deltas, weights, gathered)
    for t, expected in enumerate(twin(theta, DELTAS, weights, gathered, spec, **told)):
        assert_close({n: x[t] for n, x in changes.items()}, expected, 1e-5, f"round {t}")


@pytest.mark.parametrize("accumulators", ["float32", "bfloat16"])
def test_its_state_is_the_plain_ones(accumulators):
    deltas = jax.tree.map(jnp.asarray, DELTAS)
    theta = random_relative(SPEC.shapes, 3)
    plain = SPEC(theta, accumulators=accumulators).tx
    states = [
        run(tx, deltas, None, False)[1]
        for tx in (together(SPEC, theta, accumulators=accumulators), plain)
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    rtol = 1e-5 if accumulators == "float32" else 2e-2
    for ours, theirs in zip(*map(jax.tree.leaves, states), strict=True):
        assert ours.dtype == theirs.dtype
        size = np.max(np.abs(np.asarray(theirs, np.float64)))
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), np.asarray(theirs, np.float64), atol=rtol * size
        )


def test_each_tensor_is_one_reduction():
    params = {str(i): jnp.ones((3, 4)) for i in range(9)}
    tx = together(SPEC, random_relative(SPEC.shapes, 1))
    text = text_for_cuda(lambda p: tx.update(p, tx.init(p), p), params)
    assert text.count("stablehlo.reduce(") == len(params)


def test_a_model_without_tensors_has_a_step():
    tx: Any = together(SPEC, random_relative(SPEC.shapes, 1))
    _, state = tx.update({}, tx.init({}), {})
    assert int(state.round) == 1
