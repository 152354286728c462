"""DES-LOC (Iacob et al., 2025): weights every round, AdamW's moments at longer periods.

A second moment changes more slowly than a first one, and that more slowly than the weights, so the
mean over workers of each is taken less often. With both periods 1 this is Local Adam, with endless
ones every worker keeps its own moments, as in DiLoCo.
"""

import jax
import jax.numpy as jnp
import optax

from laconic.client import Client, Peers, Shared, State, local_client
from laconic.compress import tree_bits
from laconic.means import weighted_mean
from laconic.tasks.base import Task


def desloc_client(
    task: Task, optimizer: optax.GradientTransformation, first: int, second: int
) -> Client:
    """`local_client` whose first moments m become their mean over the workers after every `first`
    rounds, and the second moments v after every `second`; the optimizer is one of Adam's kind."""
    periods = {"mu": first, "nu": second}

    def meet(states_K: State, here_K: jax.Array, round_t: jax.Array, key: jax.Array) -> State:
        for name, period in periods.items():
            due = (round_t + 1) % period == 0
            own_K = optax.tree_utils.tree_get(states_K, name)
            mean = weighted_mean(own_K, here_K)
            # with nobody there is nothing to average
            averaged = due & (jnp.sum(here_K) > 0)
            new_K = jax.tree.map(lambda x, m, now=averaged: jnp.where(now, m, x), own_K, mean)
            states_K = optax.tree_utils.tree_set(states_K, **{name: new_K})
        return states_K

    def bits(shared: Shared) -> int:
        return sum(-(-tree_bits(shared.params) // period) for period in periods.values())

    # Fragments have no end of a round at which everyone meets.
    return local_client(task, optimizer)._replace(steps=None, peers=Peers(meet, bits))
