"""The communication round, where everything meets (Algorithm 1).

A round is `local steps → compress → combine → outer step`. Each of K workers starts from the shared
weights W, takes H steps of its own and sends Δ = W − W_H, compressed or not. The server decodes the
messages, combines them (a weighted mean, and for worker-aware optimizers every Δ as well) and takes
one step of an outer optimizer with the mean Δ in the place of a gradient. So averaging is
`optax.sgd(1.0)`, DiLoCo is Nesterov momentum, and a learned optimizer is just one more member of
the same family.

Both phases are pure. The simulator and the mesh trace the whole of `communication_round`; engines
that talk between processes call `local_phase` and `outer_phase` themselves, with the network in
between.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.client import Client, Controlled, Message, Shared
from laconic.compress import Compressor
from laconic.data.feed import Resident
from laconic.outer.base import OuterOptimizer, outer_step
from laconic.tasks.base import Task
from laconic.workers import Combined, Workers, positive

PRESENCE = (1 << 20) + 1  # a round's stream beside the workers' own, whose ids are smaller


class ClientState(NamedTuple):
    """What stays with a client from round to round: its optimizer's state and its compressor's
    residual."""

    local: Any
    residual: Any


class Items(NamedTuple):
    """What one round hands to each worker (leaves [K, …]).

    `ids` are stable client ids: they select client states by value, never by rank; None means
    client k is worker k. `present` is 1 or 0 for each worker; None means everyone. An absent worker
    has weight 0 and keeps its old state. `weights` are how much each counts in the mean; None means
    all the same.
    """

    batches: Any
    keys: jax.Array
    ids: jax.Array | None = None
    present: jax.Array | None = None
    weights: jax.Array | None = None


class RoundState(NamedTuple):
    """Everything that is carried from round to round. `key` is the run's seed and never changes."""

    shared: Shared  # or `Controlled`
    clients: ClientState  # leaves [clients, …]
    outer: Any
    round: jax.Array
    key: jax.Array


class Server(NamedTuple):
    """The outer optimizer, and how the averaged `Message.extra` becomes the new model state.

    `share_of_clients` is K over the population: 1 when everyone takes part. Of the workers' changes
    of their control variates the shared one takes that share, which keeps it the mean of all
    clients' own.
    """

    outer: OuterOptimizer
    absorb: Callable[[Any, Any, float], Any] = lambda shared, mean_extra, share_of_clients: (
        mean_extra
    )
    share_of_clients: float = 1.0


def communication_round(
    workers: Workers, server: Server, state: RoundState, items: Items
) -> tuple[RoundState, jax.Array]:
    """One round of Algorithm 1 → the next state and the local losses [K, H]."""
    clients_K = (
        state.clients if items.ids is None else jax.tree.map(lambda c: c[items.ids], state.clients)
    )

    def phase(shared: Any, client: ClientState, item: tuple) -> Any:
        return local_phase(workers.client, workers.compressor, shared, client, *item)

    mapped = workers.map(phase)(state.shared, clients_K, (items.batches, items.keys))  # lines 2-8
    messages, new_clients_K, losses_KH = mapped
    messages, clients = _deliver(state, items, messages, clients_K, new_clients_K)
    combined = workers.combine(messages, server.outer.combine, state.shared.params)  # line 9
    new = outer_phase(server, state, combined, clients)  # lines 10-11
    if items.present is not None:  # a round in which nobody was there moves nothing
        somebody = jnp.sum(combined.weights_K) > 0
        shared, outer = jax.tree.map(
            lambda n, o: jnp.where(somebody, n, o),
            (new.shared, new.outer),
            (state.shared, state.outer),
        )
        new = new._replace(shared=shared, outer=outer)
    return new, losses_KH


def local_phase(
    client: Client,
    compressor: Compressor,
    shared: Any,
    state: ClientState,
    batches: Any,
    key: jax.Array,
) -> tuple[Message, ClientState, jax.Array]:
    """One worker: its H local steps and the encoding of its message."""
    run_key, encode_key = jax.random.split(key)
    message, local, losses_H = client.run(shared, state.local, batches, run_key)
    payload, residual = compressor.encode(message.delta, state.residual, encode_key)
    return message._replace(delta=payload), ClientState(local, residual), losses_H


def outer_phase(
    server: Server, state: RoundState, combined: Combined, clients: ClientState
) -> RoundState:
    """The server's step on the combined messages."""
    gathered = {"worker_deltas": combined.worker_deltas, "weights": combined.weights_K}
    params, outer = outer_step(
        server.outer, combined.mean_delta, state.outer, state.shared.params, **gathered
    )
    model_state = server.absorb(state.shared, combined.extra, server.share_of_clients)
    shared: Any = state.shared._replace(params=params, model_state=model_state)
    if isinstance(shared, Controlled):
        part = server.share_of_clients
        shared = shared._replace(
            control=jax.tree.map(lambda c, d: c + part * d, shared.control, combined.control)
        )
    return RoundState(shared, clients, outer, state.round + 1, state.key)


def init_round(
    task: Task, workers: Workers, server: Server, clients: int, key: jax.Array
) -> RoundState:
    """The state before the first round, for a population of `clients`."""
    shared = Shared(*task.init(jax.random.fold_in(key, 0)))
    one = ClientState(workers.client.init(shared), workers.compressor.init(shared.params))
    everyone = jax.tree.map(lambda x: jnp.broadcast_to(x, (clients, *jnp.shape(x))), one)
    outer = server.outer.tx.init(shared.params)
    return RoundState(
        workers.client.begin(shared), everyone, outer, jnp.int32(0), jax.random.fold_in(key, 1)
    )


def worker_keys(state: RoundState, ids_K: jax.Array) -> jax.Array:
    """One key a worker, from (seed, round, worker id) alone: where a worker runs changes nothing."""
    round_key = jax.random.fold_in(state.key, state.round)
    return jax.vmap(lambda i: jax.random.fold_in(round_key, i))(ids_K)


def draw_present(state: RoundState, K: int, missing: int) -> jax.Array:
    """Who takes part in this round [K] when exactly `missing` workers do not, others in every
    round."""
    key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), PRESENCE)
    return (jax.random.permutation(key, K) >= missing).astype(jnp.float32)


def draw_items(feed: Resident, state: RoundState, K: int, H: int, B: int) -> Items:
    """This round's minibatches for K workers, H of B examples each, drawn from resident data."""
    keys_K2 = jax.vmap(jax.random.split)(worker_keys(state, jnp.arange(K)))
    batches = jax.vmap(lambda key: feed.sample(key, (H, B)))(keys_K2[:, 0])
    return Items(batches, keys_K2[:, 1])


def presence(state: RoundState, K: int, dropout: float) -> jax.Array:
    """Who takes part in this round [K]: each with probability 1 − dropout, and always somebody."""
    key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), PRESENCE)
    uniform_K = jax.random.uniform(key, (K,))
    return ((uniform_K >= dropout) | (uniform_K == jnp.max(uniform_K))).astype(jnp.float32)


def mean_loss(losses_KH: jax.Array, present_K: jax.Array | None) -> jax.Array:
    """The mean of a round's local losses, over the workers that were there."""
    if present_K is None:
        return jnp.mean(losses_KH)
    return jnp.sum(jnp.where(present_K > 0, jnp.mean(losses_KH, axis=1), 0)) / positive(
        jnp.sum(present_K)
    )


def mean_losses(losses_KH: jax.Array, present_K: jax.Array | None) -> jax.Array:
    """Each worker's mean local loss [K]; an absent one's is the mean of those that were there."""
    losses_K = jnp.mean(losses_KH, axis=1)
    if present_K is None:
        return losses_K
    return jnp.where(present_K > 0, losses_K, mean_loss(losses_KH, present_K))


def _deliver(
    state: RoundState, items: Items, messages: Message, old_K: ClientState, new_K: ClientState
) -> tuple[Message, ClientState]:
    """Weight 0 for the absent, whose state stays as it was; then every client state back to its own
    place."""
    if items.weights is not None:
        messages = messages._replace(weight=messages.weight * items.weights)
    if items.present is not None:
        present_K = items.present.astype(jnp.float32)
        here_K = present_K > 0
        messages = messages._replace(weight=messages.weight * present_K)
        new_K = jax.tree.map(
            lambda n, o: jnp.where(here_K.reshape(-1, *[1] * (n.ndim - 1)), n, o), new_K, old_K
        )
    if items.ids is None:
        return messages, new_K
    return messages, jax.tree.map(lambda c, n: c.at[items.ids].set(n), state.clients, new_K)
