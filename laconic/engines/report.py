"""What is told of a round: where its time and bytes went, whose messages counted, and what is worth
a remark."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from laconic.client import Shared
from laconic.engines import guard
from laconic.engines.base import Quorum
from laconic.engines.replica import Judged, Seen


@dataclass
class Seconds:
    """Where a round's time went: local steps, waiting for the others, moving bytes, checking, outer
    step, and disk."""

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


class Report(NamedTuple):
    """One committed round as this process saw it.

    round: how many are done · loss: mean over the workers that counted, each the mean of its H
    local losses losses, norms: of the messages that counted, by worker · excluded: reasons by
    worker sent, received: bytes that really crossed in this round · message_bits: the compressor's
    own count of one message attempts: gathers it took · healed: whether the state was taken over
    from one of `quorum.sources` refused: strangers and the like so far, by reason · notes: for
    people digest: the name of the state after the round · shared: its weights and model state
    """

    round: int
    quorum: Quorum
    loss: float
    losses: dict[int, float]
    norms: dict[int, float]
    excluded: dict[int, str]
    sent: int
    received: int
    message_bits: int
    seconds: Seconds
    attempts: int
    healed: bool
    refused: dict[str, int]
    notes: tuple[str, ...]
    digest: str
    committed_at: float
    shared: Shared


def row_of(report: Report) -> dict[str, Any]:
    """A report as JSON holds it; of the quorum the workers, and no weights."""
    row = report._asdict()
    del row["shared"]
    return row | {
        "quorum": list(report.quorum.workers),
        "notes": list(report.notes),
        "seconds": asdict(report.seconds),
    }


class Verdicts(NamedTuple):
    """Whose messages counted: their losses and norms, and why the others did not."""

    losses: dict[int, float]
    norms: dict[int, float]
    excluded: dict[int, str]

    @property
    def loss(self) -> float:
        """The mean; NaN if nobody counted."""
        return float(np.mean(list(self.losses.values()))) if self.losses else float("nan")


def verdicts(judged: Judged, seen: list[Seen], admitted: list[guard.Admitted]) -> Verdicts:
    """The guard's verdicts by worker."""
    codes, norms = np.asarray(judged.codes_K).tolist(), [float(s.norm) for s in seen]
    good = {k: a.header for k, a in enumerate(admitted) if codes[k] == guard.CODE["ok"]}
    return Verdicts(
        losses={k: header.loss for k, header in good.items() if header is not None},
        norms={k: norms[k] for k in good},
        excluded={
            k: guard.REASONS[code] for k, code in enumerate(codes) if code not in guard.SILENT
        },
    )
