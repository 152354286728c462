"""SlowMo (Wang et al., 2019): slow momentum over the local steps.

u ← βu + Δ/γ;  W ← W − αγu, with u₀ = 0 and γ the local learning rate of the round.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.outer.base import OuterOptimizer, transform


class SlowMoState(NamedTuple):
    """The slow momentum u, and the number of rounds taken."""

    u: Any
    rounds: jax.Array


def slowmo(
    gamma: optax.ScalarOrSchedule = 0.1, alpha: float = 1.0, beta: float = 0.95
) -> OuterOptimizer:
    """`gamma` may be a schedule over rounds; at a constant γ this is `optax.sgd(alpha,
    momentum=beta)`."""

    def init(params: Any) -> SlowMoState:
        return SlowMoState(jax.tree.map(jnp.zeros_like, params), jnp.int32(0))

    def update(delta: Any, state: SlowMoState, params: Any) -> tuple[Any, SlowMoState]:
        rate = gamma(state.rounds) if callable(gamma) else gamma
        u = jax.tree.map(lambda u, d: beta * u + d / jnp.asarray(rate, d.dtype), state.u, delta)
        return jax.tree.map(lambda u: -alpha * jnp.asarray(rate, u.dtype) * u, u), SlowMoState(
            u, state.rounds + 1
        )

    return OuterOptimizer(transform(init, update))
