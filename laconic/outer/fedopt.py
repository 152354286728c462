"""The adaptive federated servers of Reddi et al. (2020), with Δ in the place of a gradient.

m ← β₁m + (1−β₁)Δ
v ← v + Δ²                          FedAdagrad
v ← v − (1−β₂)Δ² sign(v − Δ²)       FedYogi
v ← β₂v + (1−β₂)Δ²                  FedAdam
W ← W − η m / (√v + τ)

No bias correction, τ outside the root, and v starts at τ² (their condition is v₀ ≥ τ²), so
`optax.adam` is not FedAdam.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.outer.base import OuterOptimizer, transform


class FedOptState(NamedTuple):
    """First and second moments of Δ."""

    m: Any
    v: Any


def fedadagrad(
    eta: float = 0.01, tau: float = 1e-3, beta1: float = 0.9, v0: float | None = None
) -> OuterOptimizer:
    """Squares only ever add up. `v0` defaults to τ²."""
    return _adaptive(lambda v, square: v + square, eta, tau, beta1, v0)


def fedyogi(
    eta: float = 0.01,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v0: float | None = None,
) -> OuterOptimizer:
    """The second moment moves by at most (1−β₂)Δ² a round, whichever way it must go."""
    return _adaptive(
        lambda v, square: v - (1 - beta2) * square * jnp.sign(v - square), eta, tau, beta1, v0
    )


def fedadam(
    eta: float = 0.01,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v0: float | None = None,
) -> OuterOptimizer:
    """An exponential average of squares."""
    return _adaptive(lambda v, square: beta2 * v + (1 - beta2) * square, eta, tau, beta1, v0)


def _adaptive(
    second_moment: Callable[[jax.Array, jax.Array], jax.Array],
    eta: float,
    tau: float,
    beta1: float,
    v0: float | None,
) -> OuterOptimizer:
    start = tau**2 if v0 is None else v0

    def init(params: Any) -> FedOptState:
        return FedOptState(
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(lambda p: jnp.full_like(p, start), params),
        )

    def update(delta: Any, state: FedOptState, params: Any) -> tuple[Any, FedOptState]:
        m = jax.tree.map(lambda m, d: beta1 * m + (1 - beta1) * d, state.m, delta)
        v = jax.tree.map(lambda v, d: second_moment(v, d * d), state.v, delta)
        return jax.tree.map(lambda m, v: -eta * m / (jnp.sqrt(v) + tau), m, v), FedOptState(m, v)

    return OuterOptimizer(transform(init, update))
