"""Truncated backpropagation through the unroll: a check of the other estimators, and a baseline.

The gradient of a truncation's mean loss with respect to φ, with the run's state at its start held
constant. Exact where a truncation is a whole run; biased, like truncated ES, where it is not. It
stores the whole unroll, so keep it short.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.errors import require_positive
from laconic.meta.estimator import (
    Clock,
    GradientEstimator,
    Horizon,
    Metrics,
    begin_all,
    group_keys,
    start_clocks,
    tick,
    where_N,
)
from laconic.meta.problem import InnerProblem, capped
from laconic.outer.learned import Theta


class Runs(NamedTuple):
    """N runs, leaves [N, …], and their clocks."""

    runs: Any
    clock: Clock


def backprop(
    problem: InnerProblem,
    *,
    pairs: int = 8,
    truncation: int = 50,
    sigma: float = 0.01,
    horizon: Horizon = Horizon(),
    reset_diverged: bool = True,
) -> GradientEstimator:
    """Truncated backpropagation over `pairs` single runs; it has no perturbations, so `sigma` plays
    no part."""
    del sigma
    require_positive(pairs=pairs, truncation=truncation)
    horizon.check_truncation(truncation)

    def loss(theta: Theta, run: Any) -> tuple[jax.Array, Any]:
        run, losses_T = problem.unroll(theta, run, problem.draw(run, truncation))
        return jnp.mean(capped(losses_T, problem.ceiling)), run

    def init(theta: Theta, key: jax.Array) -> Runs:
        clock = start_clocks(pairs, horizon, jax.random.fold_in(key, 0))
        keys_N3 = group_keys(clock, jax.random.fold_in(key, 1))
        return Runs(begin_all(problem, theta, keys_N3[:, 1], clock), clock)

    def estimate(theta: Theta, state: Runs, key: jax.Array) -> tuple[Theta, Runs, Metrics]:
        keys_N3 = group_keys(state.clock, key)
        (losses_N, runs), gradients_N = jax.vmap(
            partial(jax.value_and_grad(loss, has_aux=True), theta)
        )(state.runs)
        hopeless_N = (losses_N >= problem.ceiling * (1 - 1e-6)) & reset_diverged | ~jnp.isfinite(
            losses_N
        )
        clock, over_N = tick(state.clock, truncation, hopeless_N, horizon, keys_N3[:, 2])
        runs = where_N(over_N, begin_all(problem, theta, keys_N3[:, 1], clock), runs)
        # Behind the ceiling a diverged run's gradient is 0·∞: such a run teaches nothing.
        sound_N = jax.vmap(lambda g: jnp.isfinite(optax.tree.norm(g)))(gradients_N)
        gradients_N = where_N(sound_N, gradients_N, jax.tree.map(jnp.zeros_like, gradients_N))
        gradient = jax.tree.map(lambda g: jnp.mean(g, axis=0), gradients_N)
        return gradient, Runs(runs, clock), Metrics(losses_N, over_N)

    return GradientEstimator(init, estimate)
