"""Averaging is W − Δ to the bit; Nesterov momentum and SlowMo step like their twins."""

import jax.numpy as jnp
import numpy as np
import optax

from laconic.outer.base import from_optax
from laconic.outer.momentum import average, nesterov, slowmo
from tests import reference as ref
from tests.outer.trees import (
    SMALL,
    assert_close,
    assert_rounds_like,
    random_deltas,
    random_tree,
    run_outer,
)


def test_average_like_the_twin():
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


def test_nesterov_like_the_twin():
    assert_rounds_like(
        nesterov(learning_rate=0.3, momentum=0.8), ref.Nesterov(lr=0.3, beta=0.8), 1e-6
    )


def test_the_defaults_are_those_of_diloco():
    assert_rounds_like(nesterov(), ref.Nesterov(lr=0.7, beta=0.9), 1e-6)


def test_slowmo_like_the_twin():
    assert_rounds_like(
        slowmo(gamma=0.3, alpha=0.7, beta=0.9), ref.SlowMo(alpha=0.7, beta=0.9, gamma=0.3), 1e-6
    )


def test_gamma_may_be_a_schedule_over_rounds():
    twin = ref.SlowMo(alpha=1.0, beta=0.8, gamma=0.0)

    def before_round(t: int) -> None:
        twin.gamma = 0.5 / (1 + t)

    outer = slowmo(gamma=lambda t: 0.5 / (1.0 + jnp.asarray(t, jnp.float32)), alpha=1.0, beta=0.8)
    assert_rounds_like(outer, twin, 1e-6, before_round)


def test_at_a_constant_gamma_it_is_momentum():
    params, mean_T = (
        random_tree(SMALL, 3),
        {name: d[:, 0] for name, d in random_deltas(SMALL, 20, 1, 4).items()},
    )
    ours, changes, _ = run_outer(slowmo(gamma=0.1, alpha=0.8, beta=0.95), params, mean_T)
    theirs, their_changes, _ = run_outer(from_optax(optax.sgd(0.8, momentum=0.95)), params, mean_T)
    assert_close(ours, theirs, 1e-6)
    assert_close(changes, their_changes, 1e-6)


def test_a_schedule_keeps_the_dtype_of_the_weights():
    params = {name: jnp.asarray(x, jnp.bfloat16) for name, x in random_tree(SMALL, 5).items()}
    mean_T = {
        name: jnp.asarray(d[:, 0], jnp.bfloat16)
        for name, d in random_deltas(SMALL, 3, 1, 6).items()
    }
    constant, _, _ = run_outer(slowmo(gamma=0.5, alpha=1.0, beta=0.5), params, mean_T)
    scheduled, _, _ = run_outer(
        slowmo(gamma=optax.constant_schedule(0.5), alpha=1.0, beta=0.5), params, mean_T
    )
    halved, _, _ = run_outer(
        slowmo(gamma=lambda t: jnp.full((), 0.5, jnp.float32), alpha=1.0, beta=0.5), params, mean_T
    )
    for name in params:
        assert constant[name].dtype == scheduled[name].dtype == halved[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(constant[name], halved[name])
        np.testing.assert_array_equal(constant[name], scheduled[name])
