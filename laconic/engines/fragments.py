"""Training in fragments between processes: the exchange of one runs on a thread while the local
steps go on.

An *exchange* is what a plain round is to the loop: local steps, quorum, gather, guard and outer
step, commit. In fragments there are F of them a round, one for each fragment, and `Replica.round`
counts exchanges. Exchange e is of fragment f = e mod F. Before it a worker takes the steps from the
arrival of the last fragment to the sending of this one, during it the τ steps to its arrival; then
it waits for what has not arrived and mixes it in. So nothing is in flight between two exchanges,
which is where checkpoints are made and where a worker goes on that took over a state: from the
global weights.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.client import Message, Shared
from laconic.data.feed import Streamed
from laconic.engines.base import Digest
from laconic.engines.local_workers import LocalWorkers, Seconds
from laconic.engines.replica import Programs, Replica, fingerprint, name_of
from laconic.engines.topology import GATHER, REDUCE, Topology
from laconic.engines.wire import HEADER, Layout, fill_frame
from laconic.fragments import (
    Cut,
    Fragments,
    WorkerState,
    check_client,
    init_worker,
    message_of,
    mixed,
    walk,
)
from laconic.method import Method
from laconic.outer.base import for_parts
from laconic.round import Items, RoundState, draw_items, worker_keys
from laconic.tasks.base import Task


class Stretch(NamedTuple):
    """Local steps `first` to `last` of a round."""

    round: int
    first: int
    last: int


class Walking(NamedTuple):
    """The workers of this process between two exchanges: their states, and their losses of the
    round they are in [mine, H], NaN for steps not taken."""

    state: WorkerState
    losses: jax.Array


class _Part(Programs):
    """The programs of a model that is fragment f alone: messages, guard and outer step."""

    def __init__(self, task: Task, cut: Cut, f: int, *given: Any):
        self._cut = cut
        self._f = f
        self._last = f == cut.count - 1

        def init(key: jax.Array) -> Any:
            params, model_state = task.init(key)
            return cut.part(params, f), model_state if self._last else ()

        super().__init__(replace(task, init=init), *given)

    def part(self, replica: Replica) -> Replica:
        """The fragment, with its outer state, and what is usual for its messages."""
        f, (params, model_state) = self._f, replica.shared
        shared = Shared(self._cut.part(params, f), model_state if self._last else ())
        return replica._replace(shared=shared, outer=replica.outer[f], guard=replica.guard[f])

    def put(self, replica: Replica, part: Replica) -> Replica:
        """The whole with this fragment advanced."""
        f, shared = self._f, replica.shared
        params = self._cut.put(shared.params, f, part.shared.params)
        model_state = part.shared.model_state if self._last else shared.model_state
        outer = (*replica.outer[:f], part.outer, *replica.outer[f + 1 :])
        guards: Any = (*replica.guard[:f], part.guard, *replica.guard[f + 1 :])
        return Replica(Shared(params, model_state), outer, part.round, guards, part.accepted_K)

    def _run(
        self, task: Task, shared: Any, round: jax.Array, clients: Any, streamed: Any, mine: Any
    ) -> tuple[Message, Any, jax.Array]:
        """Only the shape of a message is asked for: `FragmentPrograms` makes them."""
        encode, key = self.method.compressor.encode, jax.random.key(0)
        one = lambda residual: Message(encode(shared.params, residual, key)[0], shared.model_state)
        message = jax.vmap(one, axis_size=len(mine))(clients.residual)
        return self.sent(message, shared.params), clients, round


class FragmentPrograms:
    """What `Programs` is to a plain round, for exchanges of fragments."""

    def __init__(
        self,
        task: Task,
        method: Method,
        K: int,
        H: int,
        B: int,
        seed: int,
        mine: tuple[int, ...],
        limit: float,
        fragments: Fragments,
        exchange: str = GATHER,
    ):
        check_client(method.client(task))
        params = jax.eval_shape(task.init, jax.random.key(0))[0]
        self.cut = Cut.of(params, fragments.count)
        self.fragments = fragments
        self.exchanges = fragments.count
        self.sends = fragments.sends(H)
        part_of = replace(method, outer=for_parts(method.outer, params))
        given = (part_of, K, H, B, seed, mine, limit, (), exchange)
        self._parts = [_Part(task, self.cut, f, *given) for f in range(fragments.count)]
        self.task = jax.device_put(task)
        self.method, self.K, self.H, self.B = method, K, H, B
        self.mine = jnp.asarray(mine, jnp.int32)
        self.frame = max(part.frame for part in self._parts)
        self.room = max(part.room for part in self._parts)
        ways = [part.topology for part in self._parts]
        kinds = "+".join(sorted({way.kind for way in ways}))
        self.topology = Topology(kinds, sum(way.sent for way in ways))
        self.structure = tuple(part.layout.structure for part in self._parts)
        self.message_bits = sum(part.message_bits for part in self._parts)
        self._key = jax.random.fold_in(jax.random.key(seed), 1)
        self._steps = jax.jit(self._walk, static_argnames=("first", "last"))
        self._sent = jax.jit(self._message, static_argnames="f")
        self._arrived = jax.jit(self._mix, static_argnames="f")
        self._digest = jax.jit(fingerprint)
        self.replica_layout = Layout.of(jax.eval_shape(lambda: self.start()[0]))

    def at(self, exchange: int) -> _Part:
        """The programs of an exchange's fragment."""
        return self._parts[exchange % self.exchanges]

    def start(self) -> tuple[Replica, Walking]:
        """The replica before the first exchange, and this process's workers."""
        parts = [part.start()[0] for part in self._parts]
        params = self.cut.joined([part.shared.params for part in parts])
        shared = Shared(params, parts[-1].shared.model_state)
        outer = tuple(part.outer for part in parts)
        guards: Any = tuple(part.guard for part in parts)
        replica = Replica(shared, outer, parts[0].round, guards, parts[0].accepted_K)
        client, mine = self.method.client(self.task), len(self.mine)
        one = init_worker(client, self.method.compressor, shared, self.cut)
        state = jax.tree.map(lambda x: jnp.broadcast_to(x, (mine, *jnp.shape(x))), one)
        return replica, Walking(state, jnp.full((mine, self.H), jnp.nan, jnp.float32))

    def placed(self, tree: Any) -> Any:
        """A pytree on the device."""
        return jax.device_put(tree)

    def digest(self, replica: Replica) -> Digest:
        """The name of a state: a hash of its fingerprint and structure."""
        return name_of(self.replica_layout, self._digest(replica))

    def before(self, exchange: int) -> Stretch:
        """The local steps from the last arrival to this exchange."""
        now, f = divmod(exchange, self.exchanges)
        sent = self.sends[f - 1] if f else 0
        return Stretch(now, sent + (self.fragments.delay if exchange else 0), self.sends[f])

    def during(self, exchange: int) -> Stretch:
        """The local steps from this exchange to its arrival."""
        now, f = divmod(exchange, self.exchanges)
        if f == self.exchanges - 1:
            return Stretch(now + 1, 0, self.fragments.delay)
        return Stretch(now, self.sends[f], self.sends[f] + self.fragments.delay)

    def walked(self, replica: Replica, own: Walking, stretch: Stretch, streamed: Any) -> Walking:
        """The workers after some local steps."""
        now, first, last = stretch
        if first == last:
            return own
        given = self.task, replica.shared, own, jnp.int32(now), streamed, self.mine
        return self._steps(*given, first, last)

    def messages(self, replica: Replica, own: Walking, exchange: int) -> tuple[Message, Walking]:
        """The messages of an exchange, and the workers once these are delivered."""
        now, f = divmod(exchange, self.exchanges)
        message, state = self._sent(replica.shared, own.state, jnp.int32(now), self.mine, f)
        return message, own._replace(state=state)

    def arrived(self, replica: Replica, state: WorkerState, exchange: int) -> WorkerState:
        """The workers once this exchange's fragment has arrived."""
        return self._arrived(replica.shared, state, exchange % self.exchanges)

    def _items(self, task: Task, round: jax.Array, streamed: Any, mine: jax.Array) -> Items:
        now = RoundState(Shared(()), (), (), round, self._key)  # pyright: ignore[reportArgumentType]
        if isinstance(task.feed, Streamed):
            return Items(streamed, worker_keys(now, mine))
        everyone = draw_items(task.feed, now, self.K, self.H, self.B)
        return jax.tree.map(lambda x: x[mine], Items(everyone.batches, everyone.keys))

    def _walk(
        self,
        task: Task,
        shared: Shared,
        own: Walking,
        round: jax.Array,
        streamed: Any,
        mine: jax.Array,
        first: int,
        last: int,
    ) -> Walking:
        client, items = self.method.client(task), self._items(task, round, streamed, mine)

        def one(state: WorkerState, batches: Any, key: jax.Array) -> tuple[WorkerState, jax.Array]:
            return walk(client, shared, state, batches, first, key)

        batches = jax.tree.map(lambda x: x[:, first:last], items.batches)
        state, losses = jax.vmap(one)(own.state, batches, items.keys)
        fresh = jnp.full_like(own.losses, jnp.nan) if first == 0 else own.losses
        return Walking(state, fresh.at[:, first:last].set(losses.astype(jnp.float32)))

    def _message(
        self, shared: Shared, state: WorkerState, round: jax.Array, mine: jax.Array, f: int
    ) -> tuple[Message, WorkerState]:
        now = RoundState(Shared(()), (), (), round, self._key)  # pyright: ignore[reportArgumentType]
        keys = worker_keys(now, mine)
        if not isinstance(self.task.feed, Streamed):  # as `draw_items` splits them
            keys = jax.vmap(jax.random.split)(keys)[:, 1]
        one = lambda own, key: message_of(self.method.compressor, shared, own, self.cut, f, key)
        message, state = jax.vmap(one)(state, keys)
        return self._parts[f].sent(message, self.cut.part(shared.params, f)), state

    def _mix(self, shared: Shared, state: WorkerState, f: int) -> WorkerState:
        return jax.vmap(lambda own: mixed(shared, own, self.cut, f, self.fragments.mix))(state)


class FragmentWorkers(LocalWorkers):
    """The workers `mine` between exchanges; `round` is the exchange of their messages."""

    clients: Walking
    _programs: FragmentPrograms

    def __init__(self, *given: Any, last: Callable[[], int]):
        super().__init__(*given)
        self._ends = last  # the number of exchanges, once they are done
        self._network = ThreadPoolExecutor(1, thread_name_prefix="laconic-exchange")
        self._before: Walking | None = None  # when the message was made
        self._ahead: Walking | None = None  # since then
        self._round = (-1, None)

    def compute(self, replica: Replica, origin: Digest, seconds: Seconds) -> None:
        """The steps before an exchange and the signed messages."""
        now, programs = int(replica.round), self._programs
        if self._signed and self.round == now:
            return
        stretch = programs.before(now)
        with seconds.spent("compute"):
            own = programs.walked(replica, self.clients, stretch, self._batches(stretch.round))
            message, self._ahead = programs.messages(replica, own, now)
            self._before = own
            message, losses = jax.device_get((message, own.losses))
        with seconds.spent("check"):
            for i, worker in enumerate(self._mine):
                tree = jax.tree.map(lambda x, i=i: x[i], (message.extra, message.delta))
                taken = losses[i, : stretch.last]
                loss = float(np.nanmean(taken)) if np.any(np.isfinite(taken)) else float("nan")
                header = self._header(0, worker, now, origin, float(message.weight[i]), loss)
                frame = self._rooms[worker]
                layout = programs.at(now).layout
                frame[HEADER:] = (
                    0  # another fragment was here, and pieces are measured to their end
                )
                fill_frame(layout, header, tree, frame[: layout.frame])
                self._signed[worker] = self._threads.submit(self._sign, frame, now)
        self.round = now

    def rehearse(self, replica: Replica) -> None:
        """Compile the programs of a whole round, whose results are thrown away."""
        programs, own = self._programs, self.clients
        streamed = self._batches(programs.before(int(replica.round)).round)
        for f in range(programs.exchanges):
            exchange = f + programs.exchanges  # of a round that is not the first
            for stretch in (programs.before(exchange), programs.during(exchange)):
                programs.walked(replica, own, stretch, streamed)
            programs.messages(replica, own, exchange)
            programs.arrived(replica, own.state, exchange)
            part = programs.at(f)
            if part.topology.kind == REDUCE:
                continue
            found = [part.absent] * programs.K
            none = np.ones(programs.K, np.float32), np.zeros(programs.K, np.int32)
            judged = part.judge(replica, found, *none)
            part.outer(replica, found, none[0], judged)

    def during(self, exchange: Callable[[], Any], replica: Replica, seconds: Seconds) -> Any:
        """What the exchange on its thread gives; meanwhile the steps to the arrival are taken."""
        waiting = self._network.submit(exchange)
        now = int(replica.round)
        try:
            if self._ahead is not None and now + 1 < self._ends():
                stretch = self._programs.during(now)
                with seconds.spent("compute"):
                    batches = self._batches(stretch.round) if stretch.first < stretch.last else None
                    self._ahead = jax.block_until_ready(
                        self._programs.walked(replica, self._ahead, stretch, batches)
                    )
        finally:
            found = waiting.result()
        return found

    def settle(self, replica: Replica, healed: bool) -> None:
        """After the exchange: keep a residual only if its message counted, and take in what
        arrived; from a state that was taken over go on with the global weights."""
        if self._ahead is None or self._before is None:
            return
        state, losses = self._ahead
        delivered = np.asarray(replica.accepted_K)[list(self._mine)] == self.round
        pick = lambda n, o: jnp.where(delivered.reshape(-1, *[1] * (n.ndim - 1)), n, o)
        residuals = jax.tree.map(pick, state.residuals, self._before.state.residuals)
        state = state._replace(residuals=residuals)
        if healed:
            everyone = lambda new, own: jnp.broadcast_to(new, own.shape)
            own = (state.params, state.model_state)
            params, model_state = jax.tree.map(everyone, tuple(replica.shared), own)
            state = state._replace(params=params, model_state=model_state)
            losses = jnp.full_like(losses, jnp.nan)
        else:
            state = self._programs.arrived(replica, state, self.round)
        self.clients = Walking(state, losses)
        self._before = self._ahead = None
        self._signed = {}

    def close(self) -> None:
        """Stop reading ahead, and wait for the exchange."""
        self._network.shutdown()
        super().close()

    def _batches(self, now: int) -> Any:
        """A stream's batches of a round, which several stretches share."""
        if self._round[0] != now:
            self._round = (now, self._stream.batches(now))
        return self._round[1]
