"""Faults on purpose: random blows to the processes of a training, and bad networks between them.

    python benchmarks/campaign.py blows [--blows 150] [--seed 0] [--out FOLDER] [--record FILE]
    python benchmarks/campaign.py network [SCENARIO …] [--out FOLDER] [--record FILE]
    python benchmarks/campaign.py page --out docs/results/campaign.md

A judge beside the training follows what its workers write and measures by its own clock: commits,
the longest time without one, rounds with two states, rounds missing from the records, losses
against those of an undisturbed run. `network` needs root: each worker is in a network namespace of
its own. What was done is kept in --out; the same command goes on from there.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from benchmarks import scenarios
from benchmarks.blows import DECK, HURRY, Plan, Trial, cards
from benchmarks.group import die_with_parent
from benchmarks.kill_demo import Pace, run_module
from benchmarks.verdict import (
    Goal,
    all_blows,
    blow_goals,
    blow_table,
    network_goals,
    network_table,
    page,
)
from benchmarks.witness import Teller

INSIDE = (sys.executable, str(Path(__file__).resolve()), "--inside")
A_TRAINING = sum(DECK.values())
PIECES = "pieces.jsonl"
ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "results" / "benchmarks"
RECORDS = {kind: RECORDED / f"campaign-{kind}.jsonl" for kind in ("blows", "network")}

Record = dict[str, Any]


# --- inside the processes of a training -----------------------------------------------------------


def inside(words: Sequence[str]) -> None:
    """`python -m WORDS…` in this process, at the campaign's pace; a worker tells of its commits."""
    told = json.loads(os.environ["LACONIC_CAMPAIGN"])
    seen, wait = Path(told["seen"]), Pace(told["pace"])
    if words[0] == "laconic" and "--until-eof" not in words:
        die_with_parent()  # the judge
    if words[:2] == ["laconic", "worker"]:
        teller = Teller(seen, int(words[words.index("--worker") + 1]))
        tell_commits(teller)
        wait = hurried(wait, seen / HURRY, teller)
    run_module(words, INSIDE, wait)


def hurried(wait: Callable[[], None], file: Path, teller: Teller) -> Callable[[], None]:
    """Wait no more before the round that is written in the file, if there is one."""

    def pace() -> None:
        if not file.exists() or teller.round >= int(file.read_text() or 0):
            wait()

    return pace


def tell_commits(teller: Teller) -> None:
    """Have both observers of a worker tell of each round first."""
    from laconic.cli import worker

    def telling(round: Callable[..., None]) -> Callable[..., None]:
        def told(self: Any, row: Record) -> None:
            teller.commit(row)
            round(self, row)

        return told

    for observer in (worker.Json, worker.Lines):
        observer.round = telling(observer.round)


# --- pieces that are kept -------------------------------------------------------------------------


def kept(folder: Path, options: Record) -> list[Record]:
    """What was done in a folder so far; refused if it was done with other options."""
    from laconic.store.records import append, provenance, read

    path = folder / PIECES
    if not path.exists():
        append(path, "run", options=options, **provenance())
    header, *pieces = read(path)
    if header["options"] != options:
        raise SystemExit(
            f"error: {folder} was begun with {header['options']}, not {options}: give another "
            "--out."
        )
    return pieces


def keep(folder: Path, kind: str, piece: Record) -> Record:
    """One more piece, on disk before this returns, with the code and the machine's load."""
    from laconic.store.records import append, source_state

    commit, dirty = source_state(ROOT / "laconic")
    load = round(os.getloadavg()[1], 1)
    append(folder / PIECES, kind, **piece, commit=commit, dirty=dirty, load=load)
    return {**piece, "commit": commit, "dirty": dirty, "load": load}


def conclude(
    folder: Path,
    benchmark: str,
    name: str,
    pieces: Sequence[Record],
    goals: Sequence[Goal],
    to: str,
) -> bool:
    """Print the goals, write the record → whether all goals were met."""
    from laconic.store.records import plain, read

    header = read(folder / PIECES)[0]
    passed = all(goal.passed for goal in goals)
    record = {
        "benchmark": benchmark,
        "command": shlex.join(["python", "benchmarks/campaign.py", *sys.argv[1:]]),
        "passed": passed,
        "goals": [goal._asdict() for goal in goals],
        **{key: value for key, value in header.items() if key != "kind"},
        "commits": list(dict.fromkeys(piece["commit"] for piece in pieces)),
        "load": [piece["load"] for piece in pieces],
        name: pieces,
    }
    for goal in goals:
        print(f"{'met   ' if goal.passed else 'MISSED'}  {goal.name}: {goal.found}")
    if to:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        Path(to).write_text(json.dumps(plain(record), allow_nan=False) + "\n")
        print(f"written to {to}")
    return passed


# --- the commands ---------------------------------------------------------------------------------


def run_blows(options: argparse.Namespace) -> int:
    folder = Path(options.out).resolve()
    names = ("seed", "workers", "rounds", "pace")
    done = kept(folder, {name: getattr(options, name) for name in names})
    plan = Plan(options.workers, options.rounds, options.pace, options.seed)
    until = time.time() + 60 * options.minutes
    with Progress("blows", options.blows) as progress:
        progress.advance(sum(len(piece["blows"]) for piece in done))
        while (left := options.blows - len(all_blows(done))) > 0 and time.time() < until:
            number, count = len(done), min(A_TRAINING, left)
            clear(folder / f"training-{number}")
            trial = Trial(plan, number, folder / f"training-{number}", INSIDE, progress.blow)
            piece = trial.carry_out(cards(options.seed, number, count), until)
            done.append(keep(folder, "training", piece))
            progress.say(f"training {number}: {told(piece)}")
    print(blow_table(done))
    goals = blow_goals(done)
    passed = conclude(folder, "campaign-blows", "trainings", done, goals, options.record)
    return 0 if passed else 1


def told(piece: Record) -> str:
    """A training in a line."""
    return (
        f"{'ended' if piece['ended'] else 'DID NOT END'} after {piece['seconds']:.0f} s, longest "
        f"gap {piece['seen_gap_s']} s (told {piece['told_gap_s']}), missing "
        f"{piece['rounds_missing']}, "
        f"double {piece['rounds_double']}, two states {piece['rounds_with_two_states']}, by a "
        f"minority {len(piece['minority_rounds'])}, loss {piece['loss']} (calm "
        f"{piece['calm_loss']})"
    )


def run_network(options: argparse.Namespace) -> int:
    wanted = options.scenarios or list(scenarios.SCENARIOS)
    unknown = sorted(set(wanted) - set(scenarios.SCENARIOS))
    if unknown:
        there = ", ".join(scenarios.SCENARIOS)
        raise SystemExit(f"error: no scenario {', '.join(unknown)}: there are {there}.")
    folder = Path(options.out).resolve()
    done = kept(folder, {"scenarios": wanted, "seed": options.seed, "pace": options.pace})
    plan = Plan(scenarios.WORKERS, 1_000_000, options.pace, options.seed)
    with Progress("scenarios", len(wanted)) as progress:
        progress.advance(len(done))
        for name in wanted[len(done) :]:
            clear(folder / name)
            piece = scenarios.carry_out(name, plan, folder / name, INSIDE, progress.say)
            done.append(keep(folder, "scenario", piece))
            progress.advance(1)
    print(network_table(done))
    goals = network_goals(done)
    passed = conclude(folder, "campaign-network", "scenarios_run", done, goals, options.record)
    return 0 if passed else 1


def clear(folder: Path) -> None:
    """Begin a piece that was not finished anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


class Progress:
    """A bar in a terminal, and a line for each thing said."""

    def __init__(self, what: str, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        from laconic.cli.terminal import err

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._console, self._bar = err, Bar(*columns, console=err)
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line with the time."""
        from laconic.cli.terminal import say

        say(f"{time.strftime('%H:%M:%S')} {text}", self._console)

    def blow(self, text: str) -> None:
        """A line about a blow, and one step of the bar."""
        self.say(text)
        self.advance(1)

    def advance(self, steps: int) -> None:
        """So many are done."""
        self._bar.advance(self._task, steps)


def page_text() -> str:
    """The records as a page."""
    from laconic.store.records import read

    return page({kind: read(path)[-1] for kind, path in RECORDS.items() if path.exists()})


def write_page(options: argparse.Namespace) -> int:
    if options.out:
        Path(options.out).write_text(page_text())
    else:
        print(page_text())
    return 0


def main() -> int:
    """Read the words."""
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    blows = commands.add_parser("blows", help="random blows to processes")
    blows.set_defaults(run=run_blows)
    blows.add_argument("--blows", type=int, default=150)
    blows.add_argument("--workers", type=int, default=4)
    blows.add_argument("--rounds", type=int, default=1200, help="of each training of 25 blows")
    blows.add_argument("--pace", type=float, default=0.2, help="least seconds a round takes")
    blows.add_argument("--minutes", type=float, default=40.0, help="then no more blows fall")
    network = commands.add_parser("network", help="bad networks between workers; needs root")
    network.set_defaults(run=run_network)
    network.add_argument("scenarios", nargs="*", help=", ".join(scenarios.SCENARIOS))
    network.add_argument("--pace", type=float, default=0.1, help="least seconds a round takes")
    for one, name in ((blows, "blows"), (network, "network")):
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--out", default=f"runs/campaign-{name}", help="what is done is kept here")
        one.add_argument("--record", default="", help="file for the figures")
    writes = commands.add_parser("page", help="the records as a page of the documentation")
    writes.set_defaults(run=write_page)
    writes.add_argument("--out", default="", help="the file; by default it is printed")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell has them ignored
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
