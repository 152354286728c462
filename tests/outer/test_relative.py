"""lopt-r against its float64 twin, and what its form promises whatever φ is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.outer.relative import RelativeOptimizer
from laconic.workers import weighted_mean
from tests import reference_relative as ref
from tests.outer.trees import QUICK, SHAPES, assert_close, random_deltas, random_tree

K, ROUNDS = 5, 20
SPEC = RelativeOptimizer()
PARAMS = random_tree(SHAPES, 0)
DELTAS = random_deltas(SHAPES, ROUNDS, K, 1)  # leaves [T, K, …]
WEIGHTS = jnp.array([1.0, 2.0, 0.0, 1.0, 0.5])
TOLD = {"workers": 5, "local_steps": 30, "rounds": 15}


def random_theta(seed: int, spec: RelativeOptimizer = SPEC) -> Any:
    """φ whose outputs reach most of their range."""
    rng = np.random.default_rng(seed)
    draw = lambda shape: np.asarray(rng.normal(size=shape) / shape[0] ** 0.5, np.float32)
    return {name: draw(shape) for name, shape in spec.shapes.items()}


THETA = random_theta(7)


def run(
    spec: Any, theta: Any, params: Any, means: Any, seen: Any, weights: Any, **told: Any
) -> Any:
    """Changes and states of all rounds, by a scan; `seen` are keywords of update, leaves [T, …]."""
    tx = spec(theta, **told).tx

    def body(carry: Any, now: Any) -> Any:
        params, state = carry
        changes, state = tx.update(now[0], state, params, weights=weights, **now[1])
        return (optax.apply_updates(params, changes), state), (changes, state)

    return jax.lax.scan(body, (params, tx.init(params)), (means, seen))[1]


def means_of(deltas: Any, weights: Any = None) -> Any:
    return jax.vmap(lambda d: weighted_mean(d, jnp.ones(K) if weights is None else weights))(deltas)


def twin(
    theta: Any, deltas: Any, weights: Any, gathered: bool, spec: Any = SPEC, **told: Any
) -> Any:
    """The changes of all rounds, by the twin."""
    shares = np.ones(K) if weights is None else np.asarray(weights, np.float64)
    found = []
    params = {name: np.float64(p) for name, p in PARAMS.items()}
    tensors = {name: ref.Tensor(p.shape) for name, p in PARAMS.items()}
    for t in range(ROUNDS):
        changes = {}
        for name, p in params.items():
            each = np.asarray(deltas[name][t], np.float64)
            mean = np.tensordot(shares / shares.sum(), each, 1)
            seen = {"deltas": each if gathered else None, "weights": weights}
            nominal = {"rate": spec.rate, "momentum": spec.momentum}
            changes[name] = -ref.step(theta, tensors[name], mean, p, **seen, **told, **nominal)
            params[name] = p + changes[name]
        found.append(changes)
    return found


@pytest.mark.parametrize(
    ("weights", "gathered", "told", "spec"),
    [
        (None, False, {}, SPEC),
        (None, False, TOLD, RelativeOptimizer(rate=1.0, momentum=0.5)),
        (None, True, TOLD, SPEC),
        (WEIGHTS, True, {"workers": 4}, RelativeOptimizer(rate=0.3, momentum=0.99)),
    ],
)
def test_rounds_in_a_scan_are_the_twins(weights, gathered, told, spec):
    deltas = jax.tree.map(jnp.asarray, DELTAS)
    seen = {"worker_deltas": deltas} if gathered else {}
    known = {} if weights is not None else told  # K is counted where there are weights
    changes, _ = jax.jit(
        lambda params: run(spec, THETA, params, means_of(deltas, weights), seen, weights, **known),
        compiler_options=QUICK,
    )(PARAMS)
    for t, expected in enumerate(twin(THETA, DELTAS, weights, gathered, spec, **told)):
        assert_close({n: x[t] for n, x in changes.items()}, expected, 1e-5, f"round {t}")
