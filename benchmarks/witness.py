"""The judge of a fault campaign: what happened to a training, as seen from outside.

Workers write a line to a file of their own at each commit (`Teller`). The judge follows these files
and notes by its own clock when it saw each line (`Watch`); it believes no times that it is told.
Everything else here is arithmetic on what was seen, so that it can be tested on made-up logs.
"""

import itertools
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Life = tuple[int, int]  # a worker's id and its process id


class Commit(NamedTuple):
    """A commit as the judge saw it, `at` by its own clock. `round` counts rounds that are done."""

    at: float
    worker: int
    pid: int
    round: int
    digest: str
    quorum: tuple[int, ...]

    @property
    def life(self) -> Life:
        """The process that committed."""
        return self.worker, self.pid


class Teller:
    """A worker's side: a line when it begins and one at each commit, written before it goes on.

    round: the last one that is done
    """

    def __init__(self, folder: Path, worker: int):
        path = folder / f"seen-{worker}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.round = 0
        self._write({})

    def commit(self, row: dict[str, Any]) -> None:
        """A round is done."""
        self.round = row["round"]
        self._write({name: row[name] for name in ("round", "digest", "quorum")})

    def _write(self, what: dict[str, Any]) -> None:
        os.write(self._file, json.dumps({"pid": os.getpid(), **what}).encode() + b"\n")


class Watch:
    """Follows the files of all workers.

    commits: all that were seen, in the order of sight
    births: when each process was first seen · torn: lines that a death cut short
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time):
        self._folder = folder
        self._clock = clock
        self._read: dict[Path, int] = {}
        self.commits: list[Commit] = []
        self.births: dict[Life, float] = {}
        self.torn = 0

    def look(self) -> list[Commit]:
        """What is new since the last look."""
        found = []
        for path in sorted(self._folder.glob("seen-*.jsonl")):
            worker = int(path.stem.partition("-")[2])
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                found += self._take(worker, line)
        self.commits += found
        return found

    def _take(self, worker: int, line: bytes) -> list[Commit]:
        at = self._clock()
        try:
            told = json.loads(line)
            self.births.setdefault((worker, told["pid"]), at)
            if "round" not in told:
                return []
            quorum = tuple(told["quorum"])
            return [Commit(at, worker, told["pid"], told["round"], told["digest"], quorum)]
        except (ValueError, KeyError, TypeError):
            self.torn += 1
            return []

    def newest(self) -> Commit | None:
        """The commit seen last."""
        return self.commits[-1] if self.commits else None


# --- arithmetic -----------------------------------------------------------------------------------


def first_seen(commits: Iterable[Commit]) -> dict[int, float]:
    """When each round was first seen done, in order of rounds."""
    found: dict[int, float] = {}
    for commit in commits:
        found[commit.round] = min(commit.at, found.get(commit.round, commit.at))
    return dict(sorted(found.items()))


def rounds_between(commits: Iterable[Commit], begin: float, end: float) -> int:
    """How many rounds were first seen done after `begin` and until `end`."""
    return sum(begin < at <= end for at in first_seen(commits).values())


def gaps(times: Iterable[float]) -> list[tuple[float, float]]:
    """The times between sights, as (from, to)."""
    return list(itertools.pairwise(sorted(set(times))))


def longest_gap(times: Iterable[float], begin: float, end: float) -> float:
    """The longest time in which nothing was seen between `begin` and `end`, both ends included."""
    inside = [begin, *(at for at in times if begin < at < end), end]
    return max(b - a for a, b in gaps(inside))


def median_round(times: Iterable[float]) -> float | None:
    """The median time between first sights of rounds."""
    found = [b - a for a, b in gaps(times)]
    return statistics.median(found) if found else None


def rounds_apart(
    commits: Sequence[Commit], births: dict[Life, float], last: int | None = None
) -> list[int]:
    """The rounds after which two processes held different states and both went on.

    A worker that dies right after a commit may have been the only one to make it, so the last
    commit of a process does not count, unless it is round `last`, the end of the training. Rounds
    that a later process did again, from an older checkpoint, count as that one left them.
    """
    lives: dict[Life, list[Commit]] = {}
    for commit in commits:
        lives.setdefault(commit.life, []).append(commit)
    begins = {life: (births.get(life, rows[0].at), rows[0].round) for life, rows in lives.items()}
    states: dict[int, set[str]] = {}
    for rows in lives.values():
        for commit in rows:
            repeated = any(b > commit.at and r <= commit.round for b, r in begins.values())
            unheard = commit is rows[-1] and commit.round != last
            if not repeated and not unheard:
                states.setdefault(commit.round, set()).add(commit.digest)
    return sorted(round for round, found in states.items() if len(found) > 1)


def missing_and_double(rounds: Iterable[int], last: int) -> tuple[list[int], list[int]]:
    """Which of the rounds 1 to `last` are not on record, and which are there more than once."""
    counts = Counter(rounds)
    missing = [round for round in range(1, last + 1) if round not in counts]
    return missing, sorted(round for round, n in counts.items() if n > 1)


def minority_rounds(commits: Iterable[Commit], workers: int) -> list[int]:
    """The rounds that half of the workers or fewer committed by themselves."""
    return sorted({c.round for c in commits if 2 * len(c.quorum) <= workers})


# --- whose fault a gap is -------------------------------------------------------------------------


class Blame(NamedTuple):
    """A blow as the judge needs it: when it fell and how long a gap it may cause."""

    at: float
    limit: float


def blamed(
    blows: Sequence[Blame], times: Iterable[float], together: float
) -> list[tuple[float, float]]:
    """For each blow (in order of time) the longest gap it caused, and the limit of that gap.

    A gap is the fault of the blows that fell within it, else of the last one before it. Where
    several fell into one gap they may take `together`. Gaps before the first blow are nobody's.
    """
    found = [(0.0, blow.limit) for blow in blows]
    for begin, end in gaps(times):
        inside = [i for i, blow in enumerate(blows) if begin < blow.at <= end]
        before = [i for i, blow in enumerate(blows) if blow.at <= begin]
        culprits = inside or before[-1:]
        limit = max([blows[i].limit for i in culprits], default=0.0)
        if len(inside) > 1:
            limit = max(limit, together)
        for i in culprits:
            gap = end - begin
            if (gap > limit, gap) > (found[i][0] > found[i][1], found[i][0]):
                found[i] = gap, limit
    return found
