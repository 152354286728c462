"""Every optimizer of optax that the package offers by name can take an outer step."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from laconic.outer.base import by_name, optax_names
from tests.outer.trees import SMALL, random_deltas, random_tree, run_outer


def test_the_usual_ones_are_offered():
    assert {
        "sgd",
        "adam",
        "adamw",
        "adagrad",
        "rmsprop",
        "lion",
        "lamb",
        "adafactor",
        "yogi",
    } <= set(optax_names())


@pytest.mark.parametrize("name", optax_names())
def test_it_takes_finite_steps(name):
    params, mean_T = (
        random_tree(SMALL, 1),
        {n: d[:, 0] for n, d in random_deltas(SMALL, 2, 1, 2).items()},
    )
    with jax.numpy_dtype_promotion("standard"):  # optax raises β to an integer power
        after, _, _ = run_outer(by_name(name, 0.01), params, mean_T)
    for n, start in params.items():
        assert np.all(np.isfinite(after[n]))
        assert np.any(after[n][-1] != start)
        assert after[n].dtype == start.dtype


def test_the_name_and_the_rate_are_used():
    params, mean_T = (
        random_tree(SMALL, 1),
        {n: d[:, 0] for n, d in random_deltas(SMALL, 2, 1, 2).items()},
    )
    after, _, _ = run_outer(by_name("lion", 0.02), params, mean_T)
    lion = optax.lion(0.02)
    now: Any = params
    state: Any = lion.init(params)
    for t in range(2):
        updates, state = lion.update({n: d[t] for n, d in mean_T.items()}, state, now)
        now = optax.apply_updates(now, updates)
    for n, x in after.items():
        np.testing.assert_allclose(x[-1], np.asarray(now[n]), rtol=1e-6)


def test_errors(raises_clearly):
    with raises_clearly("unknown optax optimizer 'adamv'", "Did you mean 'adam"):
        by_name("adamv")
    with raises_clearly("unknown optax optimizer 'lbfgs'"):
        by_name("lbfgs")
    for rate in (0.0, -1.0, float("nan")):
        with raises_clearly("learning rate of sgd must be positive"):
            by_name("sgd", rate)
