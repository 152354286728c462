"""Averaging is W − Δ, to the last bit."""

import numpy as np
import optax

from laconic.outer.average import average
from laconic.outer.base import from_optax
from tests import reference as ref
from tests.outer.trees import SMALL, assert_rounds_like, random_deltas, random_tree, run_outer


def test_like_the_twin():
    assert_rounds_like(average(), ref.Average(), 1e-6)


def test_it_is_sgd_of_rate_one():
    params, mean_T = (
        random_tree(SMALL, 3),
        {name: d[:, 0] for name, d in random_deltas(SMALL, 20, 1, 4).items()},
    )
    ours, _, _ = run_outer(average(), params, mean_T)
    theirs, _, _ = run_outer(from_optax(optax.sgd(1.0)), params, mean_T)
    for name, start in params.items():
        expected, now = [], start
        for delta in mean_T[name]:
            now = now - delta
            expected.append(now)
        np.testing.assert_array_equal(ours[name], np.stack(expected))
        np.testing.assert_array_equal(ours[name], theirs[name])
