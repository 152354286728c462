"""Averaging and momentum on the server.

average:  W ← W − Δ                            local SGD (Stich, 2019)
fedavgm:  u ← βu + Δ;  W ← W − ηu              FedAvgM (Hsu et al., 2019)
nesterov: u ← βu + Δ;  W ← W − α(Δ + βu)       DiLoCo's outer step (Douillard et al., 2024)
slowmo:   u ← βu + Δ/γ;  W ← W − αγu           SlowMo (Wang et al., 2019), γ the local rate
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.outer.base import OuterOptimizer, from_optax, transform


def average() -> OuterOptimizer:
    """The mean of the workers' weights; it has nothing to tune."""
    return from_optax(optax.sgd(1.0))


def fedavgm(eta: float = 1.0, beta: float = 0.9) -> OuterOptimizer:
    """Server momentum; β = 0 and η = 1 are FedAvg."""
    return from_optax(optax.sgd(eta, momentum=beta))


def nesterov(learning_rate: float = 0.7, momentum: float = 0.9) -> OuterOptimizer:
    """Nesterov momentum, by default with DiLoCo's constants; DiLoCo runs AdamW on the workers."""
    return from_optax(optax.sgd(learning_rate, momentum=momentum, nesterov=True))


class SlowMoState(NamedTuple):
    """The slow momentum u, and the number of rounds taken."""

    u: Any
    rounds: jax.Array


def slowmo(
    gamma: optax.ScalarOrSchedule = 0.1, alpha: float = 1.0, beta: float = 0.95
) -> OuterOptimizer:
    """`gamma` may be a schedule over rounds; if constant: `optax.sgd(alpha, momentum=beta)`."""

    def init(params: Any) -> SlowMoState:
        return SlowMoState(jax.tree.map(jnp.zeros_like, params), jnp.int32(0))

    def update(delta: Any, state: SlowMoState, params: Any) -> tuple[Any, SlowMoState]:
        rate = gamma(state.rounds) if callable(gamma) else gamma
        u = jax.tree.map(lambda u, d: beta * u + d / jnp.asarray(rate, d.dtype), state.u, delta)
        step = jax.tree.map(lambda u: -alpha * jnp.asarray(rate, u.dtype) * u, u)
        return step, SlowMoState(u, state.rounds + 1)

    return OuterOptimizer(transform(init, update))
