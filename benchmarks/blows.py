"""Random blows to the processes of a launch: which ones, when, what is left, and what it cost."""

import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import witness
from benchmarks.group import LAUNCH, LIGHTHOUSE, Group, wait_for
from benchmarks.witness import Blame, Watch

ROOT = Path(__file__).parents[1]
ONE, TOGETHER = 8.0, 30.0  # seconds without a commit that a blow may cost
SHORTEST_STOP, LONGEST_STOP = 0.3, 9.0  # seconds; silence is a death after 5
STOPPED_LIGHTHOUSE = 3.0  # seconds at most
HURRY = "hurry"  # the file that says until which round there is no pace
END = 15  # rounds at the end, for the last blow
START = 300.0  # seconds for all to begin, on a busy machine
FRESH = 2.0  # seconds since a commit while rounds flow

# What one training is dealt, shuffled; 25 blows.
DECK = {
    "kill one worker": 8,
    "stop one worker": 5,
    "kill several workers": 2,
    "stop several workers": 2,
    "kill the Lighthouse": 2,
    "stop the Lighthouse": 1,
    "kill all workers": 1,
    "stop all workers": 1,
    "kill the supervisor": 1,
    "stop the supervisor": 1,
    "kill everyone": 1,
}


@dataclass
class Blow:
    """One blow.

    number: in the training, from 0 on · at: by the judge's clock · round: the last seen before
    up: the workers in the last quorum that still worked · left: those of them that were not hit
    seconds: how long the stopped ones stay stopped; 0: they are killed
    limit: how long a gap it may cost
    """

    number: int
    kind: str
    at: float
    round: int
    targets: list[str]
    up: list[int]
    left: list[int]
    seconds: float
    limit: float


def cards(seed: int, training: int, count: int) -> list[tuple[str, random.Random]]:
    """The blows that a training is dealt: kinds in order, each with a random stream of its own."""
    names = [name for name, n in DECK.items() for _ in range(n)]
    random.Random(f"{seed} {training}").shuffle(names)
    return [(name, random.Random(f"{seed} {training} {i}")) for i, name in enumerate(names[:count])]


def targets_of(kind: str, up: Sequence[int], workers: int, rng: random.Random) -> list[str]:
    """The processes that a blow of that kind hits, drawn from the workers that are up."""
    everyone = [f"worker {k}" for k in range(workers)]
    names = [f"worker {k}" for k in up] or everyone
    if "one" in kind.split():
        return [rng.choice(names)]
    if "several" in kind:
        return sorted(rng.sample(names, min(len(names), rng.randint(2, max(2, workers - 1)))))
    if "Lighthouse" in kind:
        return [LIGHTHOUSE]
    if "supervisor" in kind:
        return [LAUNCH]
    return everyone if "workers" in kind else [LAUNCH, LIGHTHOUSE, *everyone]


def limit_of(kind: str, left: Sequence[int], workers: int) -> float:
    """How long a gap a blow may cost: the group's limit if no majority is left at work."""
    ends_all = kind in ("kill the supervisor", "kill everyone")
    return TOGETHER if ends_all or 2 * len(left) <= workers else ONE


# --- one training under blows ---------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A training and how it is paced: its rounds take `pace` seconds at least, until all blows have
    fallen."""

    workers: int
    rounds: int
    pace: float
    seed: int = 0

    def words(self, seed: int) -> list[str]:
        """What stands after `laconic train`, or after `launch … -- train`."""
        values = {
            "task": "digits-mlp:activation=tanh",
            "optimizer": "slowmo:gamma=0.1,beta=0.5",
            "workers": self.workers,
            "rounds": self.rounds,
            "seed": seed,
            "checkpoint-every": 20,
        }
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


class Trial:
    """One training that is struck while it runs, and what was seen of it."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        folder: Path,
        inside: Sequence[str],
        say: Callable[[str], None],
    ):
        """`inside` are the words that run laconic so that workers tell of their commits and keep
        the pace."""
        self.plan, self.number, self.folder, self.say = plan, number, folder, say
        self.run = folder / "run"
        self.watch = Watch(folder / "seen")
        self.blows: list[Blow] = []
        launch = [*inside, "laconic", "launch"]
        own = ["--workers", str(plan.workers), "--restarts", "1000", "--", "train"]
        train = [*plan.words(plan.seed + number), "--out", str(self.run)]
        again = [*launch, *own, "--resume", str(self.run)]
        self.group = Group([*launch, *own, *train], again, environment(folder, plan.pace), folder)

    def step(self) -> None:
        """Look, wake and begin again."""
        self.watch.look()
        self.group.step()

    def up(self) -> list[int]:
        """The workers of the last quorum that live and are not stopped."""
        newest, members = self.watch.newest(), self.group.members()
        awake = set(members.values()) - self.group.stopped()
        there = [k for k in range(self.plan.workers) if members.get(f"worker {k}") in awake]
        return [] if newest is None else [k for k in there if k in newest.quorum]

    def flows(self, rounds: int = 3) -> bool:
        """Whether so many new rounds were done since the last blow, one of them just now."""
        since = self.blows[-1].at if self.blows else 0.0
        newest = self.watch.newest()
        fresh = newest is not None and time.time() - newest.at < FRESH
        return fresh and witness.rounds_between(self.watch.commits, since, time.time()) >= rounds

    def strike(self, kind: str, rng: random.Random) -> None:
        """One blow, now."""
        up, newest = self.up(), self.watch.newest()
        longest = STOPPED_LIGHTHOUSE if "Lighthouse" in kind else LONGEST_STOP
        seconds = round(rng.uniform(SHORTEST_STOP, longest), 2) if "stop" in kind else 0.0
        wanted = targets_of(kind, up, self.plan.workers, rng)
        at = time.time()
        hit = self.group.strike(wanted, seconds)
        left = [k for k in up if f"worker {k}" not in hit]
        limit = limit_of(kind, left, self.plan.workers)
        done = 0 if newest is None else newest.round
        blow = Blow(len(self.blows), kind, at, done, hit, up, left, seconds, limit)
        self.blows.append(blow)
        self._tell(blow)

    def carry_out(self, dealt: Sequence[tuple[str, random.Random]], until: float) -> dict[str, Any]:
        """Train and strike; the last blow falls in the last rounds."""
        (self.folder / "seen").mkdir()
        begun = time.time()
        try:
            self.group.launch()
            full = lambda: len(self.up()) == self.plan.workers
            if not wait_for(lambda: full() and self.flows(10), self.step, START):
                raise SystemExit(f"error: no calm rounds at the start: see {self.folder}")
            for kind, rng in dealt[:-1]:
                if time.time() > until or self._near_end():
                    break
                self._pause(rng, full)
                self.strike(kind, rng)
            wait_for(self.flows, self.step, 90.0)
            (self.folder / "seen" / HURRY).write_text(str(self.plan.rounds - END))
            wait_for(self._near_end, self.step, 240.0)
            if not self.group.done:
                self.strike(*dealt[-1])
            ended = wait_for(lambda: self.group.done, self.step, 120.0)
            self.watch.look()
        finally:
            self.group.end()
        return self._judged(begun, ended)

    def _near_end(self) -> bool:
        newest = self.watch.newest()
        late = newest is not None and newest.round >= self.plan.rounds - END
        return late or self.group.done

    def _pause(self, rng: random.Random, full: Callable[[], bool]) -> None:
        """Wait until rounds flow again, with a Lighthouse, and a moment more; mostly also until all
        are back."""
        patient, moment = rng.random() < 0.6, rng.uniform(0.5, 3.0)
        steady = lambda: self.flows() and LIGHTHOUSE in self.group.members()
        wait_for(lambda: steady() or self._near_end(), self.step, 90.0)
        if patient:
            wait_for(lambda: full() or self._near_end(), self.step, 12.0)
        wait_for(self._near_end, self.step, moment)

    def _tell(self, blow: Blow) -> None:
        stopped = f" for {blow.seconds:g} s" if blow.seconds else ""
        who = ", ".join(name.removeprefix("worker ") for name in blow.targets)
        self.say(
            f"training {self.number}, round {blow.round}: {blow.kind}{stopped} ({who}); "
            f"at work before {blow.up}, after {blow.left}"
        )

    # --- the verdict ------------------------------------------------------------------------------

    def _judged(self, begun: float, ended: bool) -> dict[str, Any]:
        commits, plan = self.watch.commits, self.plan
        times = [commit.at for commit in commits]
        blame = witness.blamed([Blame(b.at, b.limit) for b in self.blows], times, TOGETHER)
        final = final_record(self.run)
        missing, double = witness.missing_and_double(final["rounds"], plan.rounds)
        calm = calm_loss(plan, self.number, self.folder)
        return {
            "training": self.number,
            "ended": ended,
            "seconds": round(time.time() - begun, 1),
            "launches": self.group.launches,
            "launches_that_ended_by_themselves": self.group.ended,
            "processes": len(self.watch.births),
            "rounds": plan.rounds,
            "rounds_seen": len(witness.first_seen(commits)),
            "rounds_missing": missing,
            "rounds_double": double,
            "rounds_with_two_states": witness.rounds_apart(commits, self.watch.births, plan.rounds),
            "minority_rounds": witness.minority_rounds(commits, plan.workers),
            "final_states": final["digests"],
            "told_gap_s": final["gap"],
            "seen_gap_s": round(max((b - a for a, b in witness.gaps(times)), default=0.0), 2),
            "loss": final["loss"],
            "calm_loss": calm,
            "blows": [self._of_blow(i, gap, limit, begun) for i, (gap, limit) in enumerate(blame)],
        }

    def _of_blow(self, i: int, gap: float, limit: float, begun: float) -> dict[str, Any]:
        blow, commits = self.blows[i], self.watch.commits
        before = self.blows[i - 1].at if i else begun
        after = self.blows[i + 1].at if i + 1 < len(self.blows) else commits[-1].at
        return {
            **asdict(blow),
            "at": round(blow.at - begun, 2),
            "commits_before": witness.rounds_between(commits, before, blow.at),
            "commits_after": witness.rounds_between(commits, blow.at, after),
            "gap_s": round(gap, 2),
            "limit": limit,
        }


def final_record(run: Path) -> dict[str, Any]:
    """What the training itself says at its end; all empty if it did not come to it."""
    from laconic.store.records import read

    path = run / "records.jsonl"
    found = read(path) if path.exists() else []
    ends = [record for record in found if record["kind"] == "summary"]
    rounds = [n for record in found if record["kind"] == "rounds" for n in record["round"]]
    end = ends[-1] if ends else {}
    return {
        "rounds": rounds,
        "digests": end.get("final_digests", []),
        "gap": end.get("longest_gap_seconds"),
        "loss": end.get("heldout", {}).get("loss"),
    }


def calm_loss(plan: Plan, number: int, folder: Path) -> float | None:
    """The held-out loss of the same training, undisturbed, all workers in one process."""
    run = folder / "calm"
    if not (run / "records.jsonl").exists():
        words = [*plan.words(plan.seed + number), "--out", str(run)]
        command = [sys.executable, "-m", "laconic", "train", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment(folder, 0.0), capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"error: {shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return final_record(run)["loss"]


def environment(folder: Path, pace: float) -> Mapping[str, str]:
    """What processes are given: where to tell of commits, at which pace, and one store of compiled
    programs, so that it is not compiling that is measured."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "LACONIC_CAMPAIGN": json.dumps({"pace": pace, "seen": str(folder / "seen")}),
    }
