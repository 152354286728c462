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
from laconic.means import positive
from laconic.outer.base import OuterOptimizer, outer_step
from laconic.tasks.base import Task
from laconic.workers import Combined, Workers

PRESENCE = (1 << 20) + 1  # a round's stream beside the workers' own, whose ids are smaller
PEERS = PRESENCE + 1


class ClientState(NamedTuple):
    """What a client keeps between rounds: its optimizer's state, its compressor's residual."""

    local: Any
    residual: Any


class Items(NamedTuple):
    """What one round gives to each worker; all leaves are [K, …].

    Args:
        batches: the minibatches of the H local steps, or the row indices of resident data.
        keys: one random key a worker.
        ids: stable client ids, which select client states; None: client k is worker k.
        present: 1 or 0 for each worker; None: all are present. An absent worker has weight 0 and
            keeps its old state.
        weights: how much each worker counts in the mean; None: all the same.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from laconic import Items
        >>> items = Items(jnp.zeros((2, 3, 4), int), jax.random.split(jax.random.key(0), 2))
        >>> items.batches.shape  # two workers, three local steps of four examples
        (2, 3, 4)
    """

    batches: Any
    keys: jax.Array
    ids: jax.Array | None = None
    present: jax.Array | None = None
    weights: jax.Array | None = None


class RoundState(NamedTuple):
    """Everything that is carried from round to round; `init_round` makes the first one.

    Args:
        shared: the model's parameters and state, `Shared` or `Controlled`.
        clients: every client's own state, leaves [clients, …].
        outer: the outer optimizer's state.
        round: how many rounds have been taken.
        key: the run's random key; it never changes.

    Example:
        >>> import jax
        >>> from laconic import RoundState
        >>> RoundState(shared=(), clients=(), outer=(), round=0, key=jax.random.key(0)).round
        0
    """

    shared: Shared  # or `Controlled`
    clients: ClientState  # leaves [clients, …]
    outer: Any
    round: jax.Array
    key: jax.Array


class Server(NamedTuple):
    """The server's side of a round.

    Args:
        outer: the outer optimizer.
        absorb: (shared, averaged `Message.extra`, share_of_clients) → the new model state.
        share_of_clients: K over the population, 1 if all take part. The shared control variate
            takes this share of the workers' mean change, so it stays the mean of all clients' own.

    Example:
        >>> from laconic import OUTER, Server
        >>> server = Server(OUTER["nesterov"].make(learning_rate=0.7))
    """

    outer: OuterOptimizer
    absorb: Callable[[Any, Any, float], Any] = lambda shared, mean_extra, share_of_clients: (
        mean_extra
    )
    share_of_clients: float = 1.0


def communication_round(
    workers: Workers, server: Server, state: RoundState, items: Items
) -> tuple[RoundState, jax.Array]:
    """One round of Algorithm 1: local steps → compress → combine → outer step.

    Args:
        workers: where the workers run, `Simulated` on one device or `Meshed` over several.
        server: the outer optimizer.
        state: the state after the round before.
        items: the minibatches and keys of this round.

    Returns:
        The next state, and the local losses [K, H]. The function is pure: jit or scan it.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import laconic
        >>> data = {"x": jnp.arange(8.0), "y": 3 * jnp.arange(8.0)}
        >>> loss = lambda w, batch: jnp.mean((w * batch["x"] - batch["y"]) ** 2)
        >>> task = laconic.plain_task("line", lambda key: jnp.zeros(()), loss, data)
        >>> client = laconic.local_client(task, optax.sgd(0.01))
        >>> workers = laconic.Simulated(client, laconic.parse_compressor("dense"))
        >>> server = laconic.Server(laconic.OUTER["average"].make())
        >>> state = laconic.init_round(task, workers, server, clients=4, key=jax.random.key(0))
        >>> for _ in range(5):
        ...     items = laconic.draw_items(task.feed, state, K=4, H=10, B=4)
        ...     state, losses = laconic.communication_round(workers, server, state, items)
        >>> losses.shape, round(float(state.shared.params), 2)
        ((4, 10), 3.0)
    """
    clients_K = state.clients
    if items.ids is not None:
        clients_K = jax.tree.map(lambda c: c[items.ids], state.clients)

    def phase(shared: Any, client: ClientState, item: tuple) -> Any:
        return local_phase(workers.client, workers.compressor, shared, client, *item)

    mapped = workers.map(phase)(state.shared, clients_K, (items.batches, items.keys))  # lines 2-8
    messages, new_clients_K, losses_KH = mapped
    new_clients_K = _met(workers.client, state, items, new_clients_K)
    messages, clients = _deliver(state, items, messages, clients_K, new_clients_K)
    combined = workers.combine(messages, server.outer.combine, state.shared.params)  # line 9
    new = outer_phase(server, state, combined, clients)  # lines 10-11
    # A round without any worker changes nothing; a robust mean may leave out all of them.
    if items.present is not None or workers.aggregate is not None:
        any_present = jnp.sum(combined.weights_K) > 0
        shared, outer = jax.tree.map(
            lambda n, o: jnp.where(any_present, n, o),
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
    params, outer = outer_step(
        server.outer,
        combined.mean_delta,
        state.outer,
        state.shared.params,
        worker_deltas=combined.worker_deltas,
        worker_squares=combined.worker_squares,
        weights=combined.weights_K,
    )
    model_state = server.absorb(state.shared, combined.extra, server.share_of_clients)
    shared: Any = state.shared._replace(params=params, model_state=model_state)
    if isinstance(shared, Controlled):
        part = server.share_of_clients
        control = jax.tree.map(lambda c, d: c + part * d, shared.control, combined.control)
        shared = shared._replace(control=control)
    return RoundState(shared, clients, outer, state.round + 1, state.key)


def init_round(
    task: Task, workers: Workers, server: Server, clients: int, key: jax.Array
) -> RoundState:
    """The state before the first round.

    Args:
        task: gives the first parameters.
        workers: their client and compressor decide what a client remembers.
        server: its outer optimizer's state starts here.
        clients: how many clients there are; at least as many as workers in a round.
        key: the seed of the whole run.

    Returns:
        A `RoundState` at round 0.

    Example:
        >>> import jax
        >>> import optax
        >>> import laconic
        >>> task = laconic.make_task("digits-mlp")
        >>> client = laconic.local_client(task, optax.sgd(0.1))
        >>> workers = laconic.Simulated(client, laconic.parse_compressor("topk:0.1+ef"))
        >>> server = laconic.Server(laconic.OUTER["slowmo"].make())
        >>> int(laconic.init_round(task, workers, server, 8, jax.random.key(0)).round)
        0
    """
    shared = Shared(*task.init(jax.random.fold_in(key, 0)))
    one = ClientState(workers.client.init(shared), workers.compressor.init(shared.params))
    everyone = jax.tree.map(lambda x: jnp.broadcast_to(x, (clients, *jnp.shape(x))), one)
    outer = server.outer.tx.init(shared.params)
    run_key = jax.random.fold_in(key, 1)
    return RoundState(workers.client.begin(shared), everyone, outer, jnp.int32(0), run_key)


def worker_keys(state: RoundState, ids_K: jax.Array) -> jax.Array:
    """One key a worker, from (seed, round, worker id) alone, so the engine changes nothing."""
    round_key = jax.random.fold_in(state.key, state.round)
    return jax.vmap(lambda i: jax.random.fold_in(round_key, i))(ids_K)


def draw_present(state: RoundState, K: int, missing: int) -> jax.Array:
    """Which workers take part in this round [K]: all but `missing`, drawn anew in every round."""
    key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), PRESENCE)
    return (jax.random.permutation(key, K) >= missing).astype(jnp.float32)


def draw_items(feed: Resident, state: RoundState, K: int, H: int, B: int) -> Items:
    """This round's minibatches and keys, drawn from resident data.

    Args:
        feed: the data, as `task.feed`.
        state: the state before the round; its key and round seed the draw.
        K: how many workers.
        H: how many local steps each takes.
        B: how many examples a step sees.

    Returns:
        `Items` for `communication_round`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from laconic import Resident, RoundState, draw_items
        >>> feed = Resident({"train": np.arange(10.0)})
        >>> state = RoundState((), (), (), 0, jax.random.key(0))
        >>> draw_items(feed, state, K=2, H=3, B=4).batches.shape
        (2, 3, 4)
    """
    keys_K2 = jax.vmap(jax.random.split)(worker_keys(state, jnp.arange(K)))
    batches = jax.vmap(lambda key: feed.sample(key, (H, B)))(keys_K2[:, 0])
    return Items(batches, keys_K2[:, 1])


def presence(state: RoundState, K: int, dropout: float) -> jax.Array:
    """Which workers take part [K]: each with probability 1 − dropout, and always at least one."""
    key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), PRESENCE)
    uniform_K = jax.random.uniform(key, (K,))
    return ((uniform_K >= dropout) | (uniform_K == jnp.max(uniform_K))).astype(jnp.float32)


def mean_loss(losses_KH: jax.Array, present_K: jax.Array | None) -> jax.Array:
    """The mean of a round's local losses, over the workers that were there."""
    if present_K is None:
        return jnp.mean(losses_KH)
    total = jnp.sum(jnp.where(present_K > 0, jnp.mean(losses_KH, axis=1), 0))
    return total / positive(jnp.sum(present_K))


def mean_losses(losses_KH: jax.Array, present_K: jax.Array | None) -> jax.Array:
    """Each worker's mean local loss [K]; an absent one's is the mean of those that were there."""
    losses_K = jnp.mean(losses_KH, axis=1)
    if present_K is None:
        return losses_K
    return jnp.where(present_K > 0, losses_K, mean_loss(losses_KH, present_K))


def _met(client: Client, state: RoundState, items: Items, clients_K: ClientState) -> ClientState:
    """The workers' own states after what they exchange with each other."""
    if client.peers is None:
        return clients_K
    K = items.keys.shape[0]
    here_K = jnp.ones(K) if items.present is None else items.present.astype(jnp.float32)
    key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), PEERS)
    return clients_K._replace(local=client.peers.meet(clients_K.local, here_K, state.round, key))


def _deliver(
    state: RoundState, items: Items, messages: Message, old_K: ClientState, new_K: ClientState
) -> tuple[Message, ClientState]:
    """Give absent workers weight 0 and their old state, and put client states back by id."""
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
