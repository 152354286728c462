"""The workers of this process: their states, their data, and the signed message of the round that
is under way."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Streamed
from laconic.engines.base import Digest, Quorum
from laconic.engines.replica import Programs, Replica, Seen
from laconic.engines.report import Seconds
from laconic.engines.wire import EMPTY, HEADER, Header, Seal, fill_frame, new_frame, sign_frame
from laconic.errors import LaconicError
from laconic.round import ClientState


class Signed(NamedTuple):
    """A signed message, and what was seen of it when it was signed."""

    frame: np.ndarray
    seen: Seen


class Local:
    """`clients` (leaves [mine, …]) belong to worker ids; their messages are those of `round`, once
    computed."""

    def __init__(
        self,
        programs: Programs,
        seal: Seal,
        mine: tuple[int, ...],
        clients: ClientState,
        threads: ThreadPoolExecutor,
    ):
        self.clients, self.round, self._threads = clients, -1, threads
        self._signed: dict[int, Future[Signed]] = {}
        self._programs, self._seal, self._mine = programs, seal, mine
        self._next: ClientState | None = None
        # Two frames a worker, in turn: the last round's may still be on its way when the next is
        # written, and to ask for new memory in every round takes longer than to fill it.
        self._rooms = {
            worker: [new_frame(programs.layout.frame) for _ in range(2)] for worker in mine
        }
        self._stream = _Stream(programs, np.asarray(mine))

    def compute(self, replica: Replica, origin: Digest, seconds: Seconds) -> None:
        """Local steps and signed messages, once for each state; a retry finds them done."""
        now = int(replica.round)
        if self._signed and self.round == now:
            return
        with seconds.spent("compute"):
            message, self._next, losses = self._programs.local(
                replica, self.clients, self._stream.batches(now)
            )
            message, losses = jax.device_get((message, losses))
        with seconds.spent("check"):
            for i, worker in enumerate(self._mine):
                tree = jax.tree.map(lambda x, i=i: x[i], (message.delta, message.extra))
                header = self._header(
                    0, worker, now, origin, float(message.weight[i]), float(losses[i].mean())
                )
                frame = fill_frame(
                    self._programs.layout, header, tree, self._rooms[worker][now % 2]
                )
                self._signed[worker] = self._threads.submit(
                    self._sign, frame
                )  # while the quorum is awaited
        self.round = now

    def _sign(self, frame: np.ndarray) -> Signed:
        seen = self._programs.look(self._seal.fold_key, frame[HEADER:])
        return Signed(sign_frame(self._seal, frame, np.asarray(seen.folded)), seen)

    def signed(self) -> dict[int, Signed]:
        """The messages."""
        return {worker: future.result() for worker, future in self._signed.items()}

    def _header(
        self, flags: int, worker: int, now: int, origin: Digest, weight: float, loss: float
    ) -> Header:
        layout = self._programs.layout
        size = 0 if flags & EMPTY else layout.size
        return Header(
            flags, self._seal.run, layout.structure, origin, now, worker, weight, loss, size
        )

    def nothing(self, quorum: Quorum) -> dict[int, Signed]:
        """The messages of one who takes part but has nothing to add."""
        headers = {
            w: self._header(EMPTY, w, quorum.round, quorum.digest, 0.0, 0.0) for w in self._mine
        }
        return {
            w: self._sign(fill_frame(self._programs.layout, header))
            for w, header in headers.items()
        }

    def settle(self, replica: Replica) -> None:
        """After the round: a worker's new state is kept only if its message counted, as a residual
        must be."""
        if self._next is not None and int(replica.round) > self.round:
            delivered = np.asarray(replica.accepted_K)[list(self._mine)] == self.round
            pick = lambda n, o: jnp.where(delivered.reshape(-1, *[1] * (n.ndim - 1)), n, o)
            self.clients = (
                self._next if delivered.all() else jax.tree.map(pick, self._next, self.clients)
            )
        self._next, self._signed = (
            None,
            {},
        )  # what was not settled was for a state that nobody follows

    def close(self) -> None:
        """Stop reading ahead."""
        self._stream.close()


class _Stream:
    """A stream's batches by round for this process's workers; None for resident data, which is
    drawn on the device."""

    def __init__(self, programs: Programs, mine: np.ndarray):
        self._feed, self._K, self._H, self._mine = programs.task.feed, programs.K, programs.H, mine
        self._source: Generator[Any, None, None] | None = None
        self._next = -1

    def batches(self, now: int) -> Any:
        if not isinstance(self._feed, Streamed):
            return None
        if (
            self._source is None or now != self._next
        ):  # at the start, and after a state was taken over
            self.close()
            self._source = self._feed.rounds(self._K, self._H, skip=now)
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
