"""The workers of this process: their states, their data, and their signed messages of the current
round."""

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Streamed
from laconic.engines.base import Digest, Quorum
from laconic.engines.pieces import Facts
from laconic.engines.replica import Measured, Programs, Replica
from laconic.engines.topology import REDUCE
from laconic.engines.wire import (
    EMPTY,
    HEADER,
    Header,
    Seal,
    fill_frame,
    header_of,
    new_frame,
    sign_frame,
)
from laconic.errors import LaconicError
from laconic.round import ClientState

Found = TypeVar("Found")


@dataclass
class Seconds:
    """Where a round's time went; `quorum` is waiting for the others, `store` writing to disk."""

    compute: float = 0.0
    quorum: float = 0.0
    gather: float = 0.0
    check: float = 0.0
    outer: float = 0.0
    store: float = 0.0

    @contextmanager
    def spent(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to one of the fields."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


class Signed(NamedTuple):
    """A message in its room: signed whole, with its body on the device, measured when it was
    signed; or, if it travels in pieces, what its card says."""

    room: np.ndarray
    measured: Measured | None
    facts: Facts | None = None


def sign_whole(seal: Seal, programs: Programs, room: np.ndarray) -> Signed:
    """The message in a room as one that travels whole."""
    frame = room[: programs.layout.frame]
    measured = programs.measure(seal.fold_key, frame[HEADER:])
    sign_frame(seal, frame, np.asarray(measured.folded))
    return Signed(room, measured)


class LocalWorkers:
    """The workers `mine`; `clients` are their states (leaves [mine, …]), `round` that of their
    messages."""

    def __init__(
        self,
        programs: Programs,
        seal: Seal,
        mine: tuple[int, ...],
        clients: ClientState,
        threads: ThreadPoolExecutor,
    ):
        self.clients = programs.placed(clients)
        self.round = -1
        self._programs = programs
        self._seal = seal
        self._mine = mine
        self._threads = threads
        self._signed: dict[int, Future[Signed]] = {}
        self._next: ClientState | None = None
        # One frame a worker, for all rounds: an exchange ends only when its last byte has left, and
        # allocating memory in every round takes longer than filling it.
        self._rooms = {worker: new_frame(programs.room) for worker in mine}
        self._stream = _Stream(programs, np.asarray(mine))

    def compute(self, replica: Replica, origin: Digest, seconds: Seconds) -> None:
        """Local steps and signed messages, once for each state; a retry finds them done."""
        now = int(replica.round)
        if self._signed and self.round == now:
            return
        with seconds.spent("compute"):
            batches = self._stream.batches(now)
            message, self._next, losses = self._programs.local(replica, self.clients, batches)
            message, losses = jax.device_get((message, losses))
        with seconds.spent("check"):
            for i, worker in enumerate(self._mine):
                tree = jax.tree.map(lambda x, i=i: x[i], (message.extra, message.delta))
                weight, loss = float(message.weight[i]), float(losses[i].mean())
                header = self._header(0, worker, now, origin, weight, loss)
                room = self._rooms[worker]
                fill_frame(self._programs.layout, header, tree, room)
                # signed while the quorum is awaited
                self._signed[worker] = self._threads.submit(self._sign, room, now)
        self.round = now

    def rehearse(self, replica: Replica) -> None:
        """Compile what `compute` does not."""

    def during(self, exchange: Callable[[], Found], replica: Replica, seconds: Seconds) -> Found:
        """What the exchange gives; between plain rounds there is nothing to do meanwhile."""
        return exchange()

    def _sign(self, room: np.ndarray, now: int) -> Signed:
        """The message at the beginning of a room, measured, and signed if it travels whole."""
        programs = self._programs.at(now)
        if programs.topology.kind == REDUCE:
            return Signed(room, None, programs.facts(self._seal, room))
        return sign_whole(self._seal, programs, room)

    def signed(self) -> dict[int, Signed]:
        """The messages."""
        return {worker: future.result() for worker, future in self._signed.items()}

    def _header(
        self, flags: int, worker: int, now: int, origin: Digest, weight: float, loss: float
    ) -> Header:
        layout = self._programs.at(now).layout
        size = 0 if flags & EMPTY else layout.size
        run, structure = self._seal.run, layout.structure
        return Header(flags, run, structure, origin, now, worker, weight, loss, size)

    def nothing(self, quorum: Quorum) -> dict[int, Signed]:
        """Messages that add nothing, of workers that are only catching up."""
        found = {}
        for worker in self._mine:
            header = self._header(EMPTY, worker, quorum.round, quorum.digest, 0.0, 0.0)
            room = new_frame(self._programs.room)
            programs = self._programs.at(quorum.round)
            fill_frame(programs.layout, header, frame=room[: programs.layout.frame])
            in_pieces = programs.topology.kind == REDUCE
            empty = Signed(room, None, programs.card.empty())
            found[worker] = empty if in_pieces else self._sign(room, quorum.round)
        return found

    def late(self, quorum: Quorum) -> dict[int, Signed]:
        """The messages of the round before, signed anew for this one. Their Δ are what the weights
        of that round moved by."""
        self.round, layout = quorum.round, self._programs.at(quorum.round).layout
        for worker, one in self.signed().items():
            room = one.room
            header = header_of(room)._replace(round=self.round, origin=quorum.digest)
            fill_frame(layout, header, frame=room[: layout.frame])
            self._signed[worker] = self._threads.submit(self._sign, room, self.round)
        return self.signed()

    def settle(self, replica: Replica, healed: bool) -> None:
        """After the round: keep a worker's new state only if its message counted. The next round
        begins from the shared state, whether that was taken over (`healed`) or not."""
        if self._next is not None and int(replica.round) > self.round:
            delivered = np.asarray(replica.accepted_K)[list(self._mine)] == self.round
            pick = lambda n, o: jnp.where(delivered.reshape(-1, *[1] * (n.ndim - 1)), n, o)
            if delivered.all():
                self.clients = self._next
            else:
                self.clients = jax.tree.map(pick, self._next, self.clients)
        self._next = None  # what was not settled belongs to a state that nobody follows
        self._signed = {}

    def close(self) -> None:
        """Stop reading ahead."""
        self._stream.close()


class _Stream:
    """A stream's batches for this process's workers; None for data drawn on the device."""

    def __init__(self, programs: Programs, mine: np.ndarray):
        self._programs = programs
        self._mine = mine
        self._source: Generator[Any, None, None] | None = None
        self._next = -1

    def batches(self, now: int) -> Any:
        feed = self._programs.task.feed
        if not isinstance(feed, Streamed):
            return None
        if self._source is None or now != self._next:  # at the start, or a state was taken over
            self.close()
            self._source = feed.rounds(self._programs.K, self._programs.H, skip=now)
        self._next = now + 1
        batches = next(self._source, None)
        if batches is None:
            raise LaconicError(
                f"the stream ended before round {now + 1}. Ask for fewer rounds or let it repeat."
            )
        return jax.tree.map(lambda x: x[self._mine], batches)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
