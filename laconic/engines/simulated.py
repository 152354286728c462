"""All K workers in this one process: nobody else to agree with, so every verb is immediate."""

from collections.abc import Mapping

from laconic.engines.base import Counts, Digest, Frame, Interrupted, Quorum, Snapshot
from laconic.errors import require_positive


class SimulatedEngine:
    """The engine of `K` workers on one device; frames are handed round as they are."""

    def __init__(self, K: int):
        require_positive(workers=K)
        self.slots, self.mine = K, tuple(range(K))
        self.counts = Counts(0, 0, {})

    def open(self, size: int, structure: bytes, snapshot: Snapshot) -> None:
        """Nothing to join."""

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Everyone, following the one state there is."""
        return Quorum(self.mine, round, digest, self.mine)

    def gather(self, frames: Mapping[int, Frame]) -> dict[int, Frame]:
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
