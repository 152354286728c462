"""What an engine is: K slots with stable worker ids, and six verbs between a worker's local steps
and the outer step.

A round of a worker is `local steps → quorum → gather → outer step → commit`. Messages are gathered,
not summed: each is checked on its own before it may count, since a sum cannot be unpoisoned, and
every replica takes the same outer step on the same messages in the order of worker ids, so that all
hold the same bits. An engine moves bytes and knows nothing of what they mean.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from laconic.errors import LaconicError

Digest = bytes  # 32 bytes that name a state
Frame = Any  # bytes, or anything that lies in memory like them: an array of uint8


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
    """A gather or a state transfer failed because somebody died or stalled: nothing is lost, ask
    for a new quorum."""


@dataclass
class Counts:
    """What an engine has seen so far, in bytes and in strangers: refusals by reason."""

    sent: int
    received: int
    refused: dict[str, int]

    def refuse(self, reason: str) -> None:
        """Count one refusal."""
        self.refused[reason] = self.refused.get(reason, 0) + 1


Snapshot = Callable[
    [int, Digest], Frame | None
]  # the state of that round and digest as bytes, if it is still here


class Engine(Protocol):
    """Everything the training loop asks of the world outside its process.

    slots: K · mine: the worker ids that live in this process · counts: bytes and refusals so far
    """

    slots: int
    mine: tuple[int, ...]
    counts: Counts

    def open(self, size: int, structure: bytes, snapshot: Snapshot) -> None:
        """Join, ready to take part: frames have `size` bytes, peers must agree on `structure`."""
        ...

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Agree with the others on who takes part, saying which state this process holds. Blocks."""
        ...

    def gather(self, frames: Mapping[int, Frame]) -> dict[int, Frame]:
        """Everyone's frame by worker id, of those in the last quorum; raises `Interrupted`."""
        ...

    def commit(self, ok: bool, digest: Digest) -> bool:
        """Say how the round ended here; after a failure the next quorum begins afresh for everyone."""
        ...

    def heal(self, quorum: Quorum) -> Frame:
        """The bytes of the state the quorum follows, from one who holds it; raises `Interrupted`."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


def mean(engine: Engine, values: np.ndarray) -> np.ndarray:
    """The mean over workers of a float64 vector of the engine's frame size; a convenience over
    gather."""
    frames = {
        worker: np.ascontiguousarray(values, np.float64).view(np.uint8) for worker in engine.mine
    }
    everyone = engine.gather(frames)
    return np.mean(
        [np.frombuffer(everyone[w], np.float64, values.size) for w in sorted(everyone)], axis=0
    )


def text_digest(*parts: Any) -> Digest:
    """SHA-256 of some values by their `repr`: how processes check that they run the same thing."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).digest()
