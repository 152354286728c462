"""NoLoCo (Kolehmainen et al., 2025): no mean over all workers, only random pairs.

Worker i keeps weights φᵢ and a momentum δᵢ of its own. From φᵢ it takes H local steps to θᵢ, and of
two workers i and j that meet

    δᵢ ← α·δᵢ + β·mean(θ − φ) − γ·(φᵢ − mean(φ))        φᵢ ← φᵢ + δᵢ

where means are over the two. The last term draws them together. Pairs are drawn anew each round; of
an odd number one worker stays alone. The shared weights are the mean of all φ, which the pulls do
not move, and are only looked at.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.client import (
    Client,
    Message,
    Peers,
    Shared,
    State,
    beginning,
    local_steps,
    work_of,
)
from laconic.compress import tree_bits
from laconic.errors import LaconicError
from laconic.tasks.base import Params, Task

Number = float | jax.Array


class Apart(NamedTuple):
    """A worker's own φ and δ, how far its local steps went, and its optimizer's state."""

    params: Params
    momentum: Params
    moved: Params  # θ − φ
    local: State


def noloco_client(
    task: Task,
    optimizer: optax.GradientTransformation,
    alpha: Number,
    beta: Number,
    gamma: Number,
) -> Client:
    """A worker with weights of its own, which meets one other at the end of a round."""
    walk = local_steps(task, optimizer, None)

    def init(shared: Shared) -> Apart:
        if jax.tree.leaves(shared.model_state):
            raise LaconicError(
                f"noloco exchanges weights in pairs, and {task.name} also has statistics, such as "
                "BatchNorm's, which would need a mean over all workers: take a task without them."
            )
        zeros = jax.tree.map(jnp.zeros_like, shared.params)
        return Apart(shared.params, zeros, zeros, optimizer.init(shared.params))

    def run(
        shared: Shared, state: Apart, items: State, key: jax.Array
    ) -> tuple[Message, Apart, jax.Array]:
        own = shared._replace(params=state.params)
        end, losses_H = walk(own, beginning(own, state.local), (), work_of(items), key)
        moved = jax.tree.map(jnp.subtract, end.params, state.params)
        # The mean of these over all workers is how far the mean of their weights moves.
        delta = jax.tree.map(lambda d, m: -(alpha * d + beta * m), state.momentum, moved)
        return Message(delta), state._replace(moved=moved, local=end.local), losses_H

    def meet(states_K: Apart, here_K: jax.Array, round_t: jax.Array, key: jax.Array) -> Apart:
        partner_K = pairs(key, here_K.shape[0])
        both = lambda x_K: (x_K + x_K[partner_K]) / 2
        momentum_K = jax.tree.map(
            lambda d, m, p: alpha * d + beta * both(m) - gamma * (p - both(p)),
            states_K.momentum,
            states_K.moved,
            states_K.params,
        )
        params_K = jax.tree.map(jnp.add, states_K.params, momentum_K)
        return states_K._replace(params=params_K, momentum=momentum_K)

    def bits(shared: Shared) -> int:
        return 2 * tree_bits(shared.params)  # φ and θ − φ

    return Client(init, run, peers=Peers(meet, bits, instead=True))


def pairs(key: jax.Array, K: int) -> jax.Array:
    """Whom each worker meets [K]: itself, if it stays alone."""
    order_K = jax.random.permutation(key, K)
    ones, others = order_K[0 : K - 1 : 2], order_K[1::2]
    return jnp.arange(K).at[ones].set(others).at[others].set(ones)
