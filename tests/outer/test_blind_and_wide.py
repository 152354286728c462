"""Learned optimizers that do without some features, and φ of few workers made φ of many."""

import jax
import numpy as np
import pytest

from laconic.outer.learned import LearnedOptimizer
from tests import reference as ref
from tests.outer.cases import Case, step
from tests.outer.trees import QUICK, SMALL, assert_close, float64

ALONE = ("parameter", "time")


def one_round(spec, case, round_t=0):
    mean, deltas = case.at(round_t)
    state = spec(case.theta).tx.init(case.params)
    run = jax.jit(lambda *args: step(spec, *args), compiler_options=QUICK)
    return run(case.theta, case.params, state, mean, deltas)


@pytest.mark.parametrize(("architecture", "workers"), [("lopt", None), ("lagg", 4)])
def test_a_step_of_deltas_alone_is_the_twins_with_zeros_for_the_rest(architecture, workers):
    spec = LearnedOptimizer(architecture, workers, blind=ALONE)
    case = Case(spec, SMALL)
    theta = float64(case.theta)
    theta["w0"][spec.deltas :] = 0
    mean, deltas = case.at(0)
    twin = ref.Learned(architecture, theta, 0, "shifted")
    expected = twin.step(float64(case.params), float64(mean), float64(deltas))
    found, _, _ = one_round(spec, case)
    assert_close(found, expected, 1e-5, "weights")
    seeing = LearnedOptimizer(architecture, workers)
    other, _, _ = one_round(seeing, case)
    assert any(not np.allclose(other[name], found[name]) for name in found)


def test_neither_the_parameter_nor_the_round_changes_what_it_does():
    spec = LearnedOptimizer("lopt", blind=ALONE)
    case = Case(spec, SMALL)
    outer = spec(case.theta)
    mean, _ = case.at(0)
    state = outer.tx.init(case.params)
    first, state = outer.tx.update(mean, state, case.params)
    doubled = jax.tree.map(lambda p: 2 * p + 1, case.params)
    second, _ = outer.tx.update(mean, state, doubled)
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_fresh_weights_are_zero_where_it_is_blind_and_as_wide_as_what_it_sees():
    spec = LearnedOptimizer("lagg", 8, hidden=256, blind=ALONE)
    w0 = np.asarray(spec.init(jax.random.key(0))["w0"])
    assert not w0[8:].any()
    # a normal cut off at ±2σ has 0.88 of σ; σ is 1/√8 for eight inputs that are seen
    assert w0[:8].std() == pytest.approx(0.88 / 8**0.5, rel=0.05)
    assert np.abs(w0).max() <= 2 / 8**0.5


def test_an_unknown_feature_is_refused(raises_clearly):
    with raises_clearly("tiem", "time"):
        LearnedOptimizer("lopt", blind=("tiem",))
    with raises_clearly("rsqrt_v"):  # lopt has no accumulators
        LearnedOptimizer("lopt", blind=("rsqrt_v",))


@pytest.mark.parametrize("architecture", ["lagg-a", "lagg"])
def test_where_workers_agree_a_widened_one_takes_the_same_steps(architecture):
    few = LearnedOptimizer(architecture, 4)
    many = LearnedOptimizer(architecture, 12)
    case = Case(few, SMALL)
    mean, deltas = case.at(0)
    thrice = {name: np.repeat(d, 3, axis=0) for name, d in deltas.items()}
    theta = many.widened(case.theta, 4)
    many.check(theta)
    state = many(theta).tx.init(case.params)
    run = jax.jit(lambda *args: step(many, *args), compiler_options=QUICK)
    wide, _, _ = run(theta, case.params, state, mean, thrice)
    narrow, _, _ = one_round(few, case)
    assert_close(wide, float64(narrow), 1e-5, "weights")


@pytest.mark.parametrize(("few", "many"), [(8, 12), (8, 4)])
def test_only_a_multiple_of_workers_can_begin_from_fewer(few, many, raises_clearly):
    theta = LearnedOptimizer("lagg-a", few).init(jax.random.key(0))
    with raises_clearly("multiple", str(few), str(many)):
        LearnedOptimizer("lagg-a", many).widened(theta, few)
