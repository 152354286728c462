"""What every gradient estimator of the registry promises, whatever it does."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.meta.estimator import GradientEstimator, Horizon, Metrics
from laconic.meta.problem import InnerProblem
from laconic.meta.train import ESTIMATORS
from tests.meta.quadratic import CALM, CEILING, STORMY, begin, draw, flatten, unflatten, unroll
from tests.outer.trees import QUICK

GROUPS = 6
SETTINGS: dict[str, Any] = {"truncation": 3, "sigma": 0.1, "horizon": Horizon(4, 10)}


# Those of heads need a problem with a head: tests/meta/test_shifts.py.
@pytest.fixture(params=[name for name, entry in ESTIMATORS.items() if not entry.heads])
def name(request):
    return request.param


class Subject:
    """An estimator with its compiled functions, and how often they were traced."""

    def __init__(self, name: str):
        self.estimator: GradientEstimator = ESTIMATORS[name].make(STORMY, pairs=GROUPS, **SETTINGS)
        self.traces = 0
        self.init = jax.jit(self.estimator.init, compiler_options=QUICK)
        self.estimate = jax.jit(self._estimate, compiler_options=QUICK)

    def _estimate(self, theta: Any, state: Any, key: jax.Array) -> Any:
        self.traces += 1
        return self.estimator.estimate(theta, state, key)


@cache
def subject(name: str) -> Subject:
    return Subject(name)


def bits(tree: Any) -> list[np.ndarray]:
    """All leaves as arrays, keys too."""
    key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if key(x) else x) for x in jax.tree.leaves(tree)]


def kinds(tree: Any) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def steps(name: str, count: int, seed: int = 0, theta: Any = None) -> list[Any]:
    """(gradient, state, metrics) of some steps from a new start."""
    member, theta, key = (
        subject(name),
        unflatten() if theta is None else theta,
        jax.random.key(seed),
    )
    state, seen = member.init(theta, key), []
    for j in range(count):
        seen.append(member.estimate(theta, state, jax.random.fold_in(key, 100 + j)))
        state = seen[-1][1]
    return seen


def test_one_trace_serves_every_step(name):
    member, key = subject(name), jax.random.key(0)
    state = member.init(unflatten(), key)
    traces = []
    for j in range(3):
        gradient, after, metrics = member.estimate(unflatten(), state, jax.random.fold_in(key, j))
        traces.append(member.traces)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert kinds(after) == kinds(state)
        assert kinds(gradient) == kinds(unflatten())
        assert isinstance(metrics, Metrics)
        assert kinds(tuple(metrics)) == (((GROUPS,), jnp.float32), ((GROUPS,), jnp.bool))
        state = after
    assert traces == [traces[0]] * 3
    assert traces[0] > 0


def test_groups_come_first_in_every_leaf_of_the_state(name):
    for count in (1, GROUPS):
        estimator = ESTIMATORS[name].make(STORMY, pairs=count, **SETTINGS)
        state = jax.eval_shape(estimator.init, unflatten(), jax.random.key(0))
        assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {count}


def test_gradients_and_states_stay_finite_in_a_storm(name):
    seen = steps(name, 8)
    for gradient, state, metrics in seen:
        for leaf in bits((gradient, state, metrics)):
            assert np.all(np.isfinite(leaf))
        assert np.all(np.asarray(metrics.loss) <= CEILING * (1 + 1e-6))
        assert np.any(flatten(gradient) != 0)
    resets = np.array([metrics.reset for _, _, metrics in seen])
    assert np.all(resets.any(axis=0))
    assert not np.all(resets)


def test_the_same_key_gives_the_same_bits_and_another_key_others(name):
    mine, again, other = (steps(name, 2, seed) for seed in (3, 3, 4))
    for a, b in zip(bits(mine), bits(again), strict=True):
        np.testing.assert_array_equal(a, b)
    for j in range(2):
        assert np.all(flatten(mine[j][0]) != flatten(other[j][0]))


def test_halves_of_the_groups_give_halves_of_the_gradient(name):
    """So groups may lie on any device, and a mean over devices is the whole gradient."""
    member, key = subject(name), jax.random.key(9)
    state = steps(name, 2)[-1][1]
    halves = [
        jax.tree.map(lambda x, part=part: x[part], state) for part in (slice(0, 3), slice(3, None))
    ]
    whole = member.estimate(unflatten(), state, key)
    parts = [member.estimate(unflatten(), half, key) for half in halves]
    mean = np.mean([flatten(part[0]) for part in parts], axis=0)
    np.testing.assert_allclose(mean, flatten(whole[0]), rtol=1e-5)
    assert np.all(np.abs(flatten(parts[0][0]) - flatten(parts[1][0])) > 1e-3 * np.abs(mean))
    for a, b, both in zip(*map(bits, (parts[0][1:], parts[1][1:], whole[1:])), strict=True):
        np.testing.assert_allclose(np.concatenate([a, b]), both, rtol=1e-5)


def test_the_state_is_arrays_of_plain_types(name):
    state = steps(name, 1)[0][1]
    for leaf in jax.tree.leaves(state):
        assert isinstance(leaf, jax.Array)
        assert jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or leaf.dtype in (
            jnp.float32,
            jnp.int32,
        )


def test_a_diverged_run_begins_anew_and_spoils_nothing(name):
    """Learning rates of e³⁰ overflow within a truncation: the losses are high, then the weights ∞,
    then all is NaN."""
    wild = unflatten() | {"log_rates": jnp.full(3, 30.0)}
    seen = steps(name, 3, theta=wild)
    lost = np.zeros(GROUPS, bool)
    for gradient, state, metrics in seen:
        reset = np.asarray(metrics.reset)
        finite = np.all(
            [np.isfinite(leaf).reshape(GROUPS, -1).all(axis=1) for leaf in bits(state)], axis=0
        )
        assert np.all(finite[reset])
        assert np.all(reset[lost])  # a second truncation is all at the ceiling
        assert np.all(np.isfinite(flatten(gradient)))
        lost = ~finite
    assert any(not np.all(np.asarray(metrics.reset)) for _, _, metrics in seen)


def test_hopeless_runs_go_on_if_asked_to(name):
    """With `reset_diverged=False` only its length ends a run, though all its losses are at the
    ceiling."""

    def hopeless(theta: Any, run: Any, items: Any) -> Any:
        after, losses_T = unroll(theta, run, items)
        return after, jnp.full_like(losses_T, jnp.nan)

    problem = InnerProblem(begin, draw, hopeless, CEILING)
    estimator = ESTIMATORS[name].make(problem, pairs=GROUPS, reset_diverged=False, **SETTINGS)
    state = jax.jit(estimator.init, compiler_options=QUICK)(unflatten(), jax.random.key(0))
    estimate, resets = jax.jit(estimator.estimate, compiler_options=QUICK), []
    for j in range(4):
        due = np.asarray(state.clock.done) + SETTINGS["truncation"] >= np.asarray(
            state.clock.horizon
        )
        _, state, metrics = estimate(unflatten(), state, jax.random.key(j))
        np.testing.assert_allclose(metrics.loss, CEILING, rtol=1e-6)
        np.testing.assert_array_equal(metrics.reset, due)
        resets.append(due)
    assert 0 < np.mean(resets) < 1


def test_a_truncation_fits_into_the_longest_run(name, raises_clearly):
    make = ESTIMATORS[name].make
    with raises_clearly("11", "10"):
        make(CALM, truncation=11, horizon=Horizon(4, 10))
    make(CALM, truncation=10, horizon=Horizon(4, 10))


@pytest.mark.parametrize("count", ["pairs", "truncation"])
def test_counts_are_positive(name, count, raises_clearly):
    for bad in (0, -2):
        with raises_clearly(count, str(bad)):
            ESTIMATORS[name].make(CALM, **{count: bad})


def test_the_registry_says_what_it_holds(name):
    entry = ESTIMATORS[name]
    assert isinstance(entry.make(CALM), GradientEstimator)
    assert entry.summary.strip()
    assert "\n" not in entry.summary
