"""What an engine is: K slots with stable worker ids, and six verbs between a worker's local steps
and the outer step.

A round of a worker is `local steps → quorum → exchange → outer step → commit`. Each message is
checked on its own before it may count, since a bad one cannot be taken out of a sum. Every replica
takes the same outer step on the same messages, or on the same mean of them, so that all hold the
same bits. An engine moves bytes and does not interpret them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from laconic.errors import LaconicError, require_positive

Digest = bytes  # 32 bytes that name a state
Frame = Any  # bytes, or anything that lies in memory like them: an array of uint8
Snapshot = Callable[[int, Digest], Frame | None]  # that state's bytes, None once it is gone


class Quorum(NamedTuple):
    """Who takes part in a round, and which state they follow.

    workers: ids of all who take part, ascending, this one included
    round, digest: the state to follow; `sources` are the workers that hold it
    """

    workers: tuple[int, ...]
    round: int
    digest: Digest
    sources: tuple[int, ...]


class Interrupted(LaconicError):
    """A worker died or stalled during a gather or a state transfer; ask for a new quorum."""


class Refused(LaconicError):
    """This process does not belong to the run: trying again would not help.

    signed: whether one said so who holds our token
    """

    status = 3

    def __init__(self, message: str, signed: bool = True):
        super().__init__(message)
        self.signed = signed


@dataclass
class Counts:
    """Bytes an engine has sent and received so far, and its refusals by reason.

    tell: is called with a line for people at the first refusal of each kind
    waits: is called again and again while the engine has waited for others for a while; what it
        raises ends the wait
    """

    sent: int
    received: int
    refused: dict[str, int]
    tell: Callable[[str], None] = lambda line: None
    waits: Callable[[], None] = lambda: None

    def refuse(self, reason: str, more: str = "") -> None:
        """Count one refusal; `more` is for people."""
        if reason not in self.refused:
            self.tell(f"refused: {reason}{more}")
        self.refused[reason] = self.refused.get(reason, 0) + 1


class Bounds(NamedTuple):
    """What no peer may exceed: the bytes of a state, and the number of rounds."""

    state: int = 1 << 40
    rounds: int = 2**31 - 1


class Engine(Protocol):
    """Everything the training loop asks of the world outside its process.

    slots: K · mine: the worker ids that live in this process · counts: bytes and refusals so far
    direct: whether it is a `DirectEngine`
    """

    slots: int
    direct: bool
    mine: tuple[int, ...]
    counts: Counts

    def open(
        self, size: int, structure: bytes, snapshot: Snapshot, bounds: Bounds = Bounds()
    ) -> None:
        """Join: frames have `size` bytes, peers must agree on `structure` and keep in `bounds`."""

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Agree on who takes part, saying which state this process holds. Blocks."""
        ...

    def gather(self, frames: Mapping[int, Frame], size: int) -> dict[int, Frame]:
        """Every frame of the last quorum by worker id; raises `Interrupted`. `size`: the bytes of
        one now, at most those agreed on; only these need to arrive."""
        ...

    def commit(self, ok: bool, digest: Digest) -> bool:
        """Say how the round ended here; a failure makes everyone connect anew."""
        ...

    def heal(self, quorum: Quorum) -> Frame:
        """The bytes of the state the quorum follows, from a peer; raises `Interrupted`."""

    def close(self) -> None:
        """Leave."""


class DirectEngine(Engine, Protocol):
    """An engine whose workers send each of the others a message of its own."""

    def exchange(
        self, sends: Mapping[int, Sequence[Frame]], into: Mapping[int, Sequence[np.ndarray]]
    ) -> None:
        """Send each worker its message, whose parts follow one another, and fill the arrays with
        what comes; all agree beforehand on the sizes. Raises `Interrupted`."""


class SimulatedEngine:
    """All `K` workers in this process: no peers, so every verb is immediate."""

    direct = False

    def __init__(self, K: int):
        require_positive(workers=K)
        self.slots = K
        self.mine = tuple(range(K))
        self.counts = Counts(0, 0, {})

    def open(
        self, size: int, structure: bytes, snapshot: Snapshot, bounds: Bounds = Bounds()
    ) -> None:
        """Nothing to join."""

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Everyone, following the one state there is."""
        return Quorum(self.mine, round, digest, self.mine)

    def gather(self, frames: Mapping[int, Frame], size: int) -> dict[int, Frame]:
        """The same frames."""
        return dict(frames)

    def commit(self, ok: bool, digest: Digest) -> bool:
        """As this process says."""
        return ok

    def heal(self, quorum: Quorum) -> Frame:
        """Never needed."""
        raise Interrupted("a simulated engine has no other replica to heal from.")

    def close(self) -> None:
        """Nothing to leave."""


def text_digest(*parts: Any) -> Digest:
    """SHA-256 of some values by their `repr`: how processes check that they run the same thing."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).digest()
