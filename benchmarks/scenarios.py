"""Bad networks between the workers of a training, each worker in a network namespace of its own.

Namespace 0 holds `laconic launch --here 1`, so the Lighthouse and worker 0; the others join with
the command that launch prints, as on four machines.
"""

import re
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import witness
from benchmarks.blows import START, Plan, environment
from benchmarks.group import last_line, wait_for
from benchmarks.router import Namespaces, Rule, Rules, between, one_way
from benchmarks.witness import Watch

WORKERS, PORT = 4, 29510
CALM = 5.0  # seconds of undisturbed rounds before
EVERYONE = range(WORKERS)
CUT = Rule(cut=True)


@dataclass(frozen=True)
class Scenario:
    """What the network does for `seconds`, and how long it is perfect afterwards.

    vanishes: a worker that is killed the moment its links are cut, so that nobody hears of it
    longest: a gap that is still good · least: commits that are needed
    back: seconds to the first commit of a majority after the network's repair; None: no goal
    """

    says: str
    rules: Rules
    seconds: float = 60.0
    after: float = 0.0
    vanishes: int | None = None
    longest: float | None = None
    least: int | None = None
    back: float | None = None


def everywhere(rule: Rule) -> Rules:
    """The same for all links, both ways."""
    return between(EVERYONE, EVERYONE, rule)


SCENARIOS: dict[str, Scenario] = {
    "calm": Scenario("a perfect network", {}, seconds=20.0),
    "delay-100ms": Scenario("100 ms round trip", everywhere(Rule(delay=0.05))),
    "loss-1": Scenario("1 % of packets lost", everywhere(Rule(loss=0.01))),
    "loss-5": Scenario("5 % of packets lost", everywhere(Rule(loss=0.05))),
    "loss-10": Scenario(
        "10 % of packets lost", everywhere(Rule(loss=0.10)), seconds=90.0, least=60
    ),
    "rate-10mbit": Scenario("10 Mbit/s a link", everywhere(Rule(rate=1e7))),
    "partition-half": Scenario(
        "{0, 1, Lighthouse} cut from {2, 3}",
        between((0, 1), (2, 3), CUT),
        40.0,
        after=40.0,
        back=30.0,
    ),
    "partition-one": Scenario(
        "{0, Lighthouse} cut from {1, 2, 3}",
        between((0,), (1, 2, 3), CUT),
        40.0,
        after=40.0,
        back=30.0,
    ),
    "link-cut": Scenario(
        "the link between 2 and 3 cut", between((2,), (3,), CUT), after=20.0, longest=15.0
    ),
    "one-way-cut": Scenario(
        "nothing arrives from 2 at 3", one_way((2,), (3,), CUT), after=20.0, longest=15.0
    ),
    "vanishing": Scenario(
        "worker 3 vanishes without a word",
        between((0, 1, 2), (3,), CUT),
        40.0,
        vanishes=3,
        longest=8.0,
    ),
}


class Site:
    """A training over namespaces: the launch in the first, the other workers in theirs."""

    def __init__(self, net: Namespaces, plan: Plan, folder: Path, inside: Sequence[str]):
        self._net, self._plan, self._folder, self._inside = net, plan, folder, inside
        self._environment = dict(environment(folder, plan.pace))
        self._environment["LACONIC_TOKEN"] = secrets.token_hex(16)
        self.watch = Watch(folder / "seen")
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    def start(self) -> None:
        """Launch, then join as launch says."""
        (self._folder / "seen").mkdir()
        address = self._net.addresses[0]
        count = str(self._plan.workers)
        here = ["--workers", count, "--here", "1", "--bind", address, "--port", str(PORT)]
        train = ["--", "train", *self._plan.words(self._plan.seed), "--out", "run"]
        self._begin("launch", 0, ["laconic", "launch", *here, *train])
        log = self._folder / "launch" / "log"
        if not wait_for(lambda: join_command(log.read_text()), self._check, 60.0):
            raise SystemExit(f"error: launch did not say how to join: see {log}")
        words = join_command(log.read_text())
        for k in range(1, self._plan.workers):
            given = {"--worker": str(k), "--bind": self._net.addresses[k]}
            self._begin(f"worker {k}", k, filled(words, given))

    def _begin(self, name: str, number: int, words: Sequence[str]) -> None:
        folder = self._folder / name.replace(" ", "-")
        folder.mkdir()
        with (folder / "log").open("ab") as log:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            options |= {"cwd": folder, "env": self._environment}
            command = [*self._inside, *words]
            self.processes[name] = self._net.start(number, command, **options)

    def _check(self) -> None:
        for name, reason in self.ended().items():
            raise SystemExit(f"error: {name} ended at the start: {reason}")

    def ended(self) -> dict[str, str]:
        """The processes that are gone, and their last words."""
        gone = [name for name, process in self.processes.items() if process.poll() is not None]
        return {n: last_line(self._folder / n.replace(" ", "-") / "log") for n in gone}

    def flows(self) -> bool:
        """Whether all workers have committed together ten times."""
        full = [c.round for c in self.watch.commits if len(c.quorum) == self._plan.workers]
        return len(set(full)) >= 10 and self.watch.commits[-1].round == full[-1]

    def ready(self) -> None:
        """Wait until rounds flow."""

        def step() -> None:
            self._check()
            self.watch.look()

        if not wait_for(self.flows, step, START):
            raise SystemExit(f"error: no calm rounds at the start: see {self._folder}")

    def watch_for(self, seconds: float) -> None:
        """Look on for so long."""
        wait_for(lambda: False, self.watch.look, seconds)

    def vanish(self, worker: int) -> None:
        """Kill a worker whose links are cut already."""
        self.processes[f"worker {worker}"].send_signal(signal.SIGKILL)

    def end(self) -> None:
        """End all."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def carry_out(
    name: str, plan: Plan, folder: Path, inside: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """One scenario, from its start to its verdict."""
    scenario = SCENARIOS[name]
    say(f"{name}: {scenario.says} for {scenario.seconds:g} s, then {scenario.after:g} s perfect")
    with Namespaces(WORKERS) as net:
        site = Site(net, plan, folder, inside)
        try:
            site.start()
            site.ready()
            site.watch_for(CALM)
            before = net.rule(scenario.rules)
            begin = time.time()
            if scenario.vanishes is not None:
                site.vanish(scenario.vanishes)
            site.watch_for(scenario.seconds)
            after = net.rule({})
            healed = time.time()
            site.watch_for(scenario.after)
            end = time.time()
            gone = site.ended()
        finally:
            site.end()
    packets = {key: after[key] - before[key] for key in after}
    found = judged(scenario, site.watch, (begin, healed, end))
    say(f"{name}: {told(found)}" + (f"; ended: {gone}" if gone else ""))
    return {"scenario": name, **found, "packets": packets, "ended": gone}


def judged(scenario: Scenario, watch: Watch, moments: tuple[float, float, float]) -> dict[str, Any]:
    """What was seen between the fault's begin, its end and the end of watching."""
    begin, healed, end = moments
    commits = watch.commits
    times = [commit.at for commit in commits]
    during = [at for at in witness.first_seen(commits).values() if begin < at <= healed]
    median = witness.median_round(during)
    back = [c.at for c in commits if c.at > healed and 2 * len(c.quorum) > WORKERS]
    return {
        "says": scenario.says,
        "seconds": round(healed - begin, 1),
        "commits": len(during),
        "commits_after": witness.rounds_between(commits, healed, end),
        "median_round_s": None if median is None else round(median, 3),
        "longest_gap_s": round(witness.longest_gap(times, begin, end), 2),
        "back_after_s": round(back[0] - healed, 2) if back and scenario.after else None,
        "rounds_with_two_states": witness.rounds_apart(commits, watch.births),
        "minority_rounds": witness.minority_rounds(commits, WORKERS),
        "longest": scenario.longest,
        "least": scenario.least,
        "back": scenario.back,
    }


def told(found: dict[str, Any]) -> str:
    """A verdict in a line."""
    return (
        f"{found['commits']} commits in {found['seconds']} s, longest gap {found['longest_gap_s']} "
        f"s, two states {found['rounds_with_two_states']}, by a minority "
        f"{len(found['minority_rounds'])}"
    )


def join_command(log: str) -> list[str]:
    """The words of the `laconic worker` command that launch prints; none if it has not yet."""
    found = re.search(r"\blaconic worker --join .*", log)
    return shlex.split(found[0]) if found else []


def filled(words: Sequence[str], given: dict[str, str]) -> list[str]:
    """The words with these values after these flags."""
    found = list(words)
    for flag, value in given.items():
        found[found.index(flag) + 1] = value
    return found
