"""What a worker says while it waits, so that nobody has to guess why nothing happens."""

import time
from collections.abc import Callable, Iterable

from laconic.engines.membership import Plan

AFTER, PATIENT = 2.0, 30.0  # seconds before the first word; where waiting is usual
AGAIN = 60.0  # seconds until it is repeated


def majority(workers: int) -> int:
    """How many of K workers a round needs unless somebody says otherwise."""
    return workers // 2 + 1


def reason(plan: Plan, slots: int, worker: int) -> str:
    """Why this worker does not go on; "" if it may, or waits for workers that have just left."""
    present, down = set(plan.present), ", ".join(f"{a}-{b}" for a, b in plan.down)
    if worker in plan.left:
        return (
            f"it cannot reach all others (dead links: {down}), and they go on without it until "
            "the links are back"
        )
    if down and len(plan.quorum.workers) == len(present) and not plan.ready:
        return (
            f"the links {down} are dead, and without one of their ends fewer than {plan.least} "
            "workers would be left (--min-workers)"
        )
    if len(present) < plan.least:
        missing = _ids(set(range(slots)) - present)
        return (
            f"{len(present)} of {slots} workers are here and {plan.least} are needed "
            f"(--min-workers); missing: {missing}"
        )
    return ""


def late(plan: Plan) -> str:
    """The workers that are waited for although there may be enough."""
    return f"worker {_ids(plan.awaited)} has not come yet"


class Waiting:
    """Tells people that a worker waits, why and since when, now and then; and when that is over."""

    def __init__(
        self,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
        meanwhile: Callable[[], None] = lambda: None,
    ):
        """`meanwhile` is called while the wait lasts, once it is worth a word; it may raise."""
        self._tell, self._clock, self._now, self._meanwhile = tell, clock, now, meanwhile
        self._since: float | None = None
        self._from = ""
        self._said: tuple[str, float] | None = None

    def because(self, why: str, after: float = AFTER) -> None:
        """It waits, still, for this reason, which is told after so many seconds."""
        seconds = self._clock()
        if self._since is None:
            self._since, self._from = seconds, self._now()
        if seconds - self._since < after:
            return
        if self._said is None or self._said[0] != why or seconds - self._said[1] >= AGAIN:
            self._said = why, seconds
            self._tell(f"waits since {self._from}: {why}.")
        self._meanwhile()

    def over(self) -> None:
        """It goes on."""
        if self._since is not None and self._said is not None:
            self._tell(f"goes on, after {self._clock() - self._since:.0f} s.")
        self._since = self._said = None


def _ids(workers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(workers)))
