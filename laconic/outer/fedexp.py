"""FedExP (Jhunjhunwala, Wang and Joshi, 2023): the more workers disagree, the longer the step.

η = max(1, Σ pₖ‖Δₖ‖² / (2(‖Δ‖² + ε)));  W ← W − ηΔ,  Δ = Σ pₖΔₖ

The norms are of the whole model. pₖ is worker k's share of the weights: 1/K if all count the same,
which gives the paper's formula, and 0 if it is absent. Workers that agree, or a single one, give
η = 1, which is averaging. ε bounds η where the mean delta nearly vanishes; it is in the units of
‖Δ‖². The paper's steps may oscillate, so it judges the mean of the last two iterates; here, as for
all optimizers, it is the last.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from laconic.errors import LaconicError
from laconic.outer.base import OuterOptimizer
from laconic.outer.relative import mean_of_squares, squared_norms


def fedexp(eps: float = 1e-3) -> OuterOptimizer:
    """Averaging with an extrapolated step; it needs the norm of every worker's delta."""

    def update(
        updates: Any,  # the mean delta
        state: Any,
        params: Any = None,
        *,
        worker_deltas: Any = None,
        worker_squares: Any = None,
        weights: Any = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        del params, extra
        if worker_squares is None:
            if worker_deltas is None:
                raise LaconicError(
                    "fedexp needs the norm of every worker's delta and was given the mean alone: "
                    "take fedavgm, or call update(..., worker_squares=...)."
                )
            worker_squares = squared_norms(worker_deltas)
        mean_square = mean_of_squares(_total(worker_squares), weights)
        below = 2 * (_total(squared_norms(jax.tree.map(lambda d: d[None], updates)))[0] + eps)
        eta = jnp.maximum(1.0, mean_square / jnp.where(below > 0, below, jnp.inf))
        return jax.tree.map(lambda d: -eta.astype(d.dtype) * d, updates), state

    init = lambda params: optax.EmptyState()
    return OuterOptimizer(optax.GradientTransformationExtraArgs(init, update), "norms")


def _total(squares: Any) -> jax.Array:
    """The sum over all tensors [K]."""
    return jax.tree.reduce(operator.add, squares)
