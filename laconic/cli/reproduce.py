"""`laconic reproduce`: the paper's experiments, one command each."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from laconic.bench.timing import Tick
from laconic.cli.console import LiveBars, StopFlag, bars, timing_bar
from laconic.cli.meta_train import MetaDisplay
from laconic.cli.terminal import err, out, say
from laconic.cli.words import wants_resume
from laconic.errors import LaconicError
from laconic.reproduce import EXPERIMENTS
from laconic.reproduce.outcome import left_line, scale_line
from laconic.reproduce.part import Watching
from laconic.reproduce.run import reproduce, resume_experiment
from laconic.reproduce.scale import compile_quickly
from laconic.reproduce.status import statuses
from laconic.runs.folder import Interrupted, Observer, read_header
from laconic.runs.settings import resume_command
from laconic.show.table import Table

_RESUME = "Take up an experiment where it stopped; its name and scale come from the folder."


@dataclass(frozen=True)
class ReproduceConfig:
    """Carry out one of the paper's experiments; the same command again goes on where it stopped."""

    name: tyro.conf.Positional[str]
    """Which one: a name from `laconic reproduce --list`."""
    scale: Literal["smoke", "full"] = "smoke"
    """smoke: minutes on a laptop, to see that it works; full: the paper's settings, for a large
    GPU."""
    out: Path | None = None
    """The folder to write or go on with; by default results/reproduce/NAME-SCALE."""
    panels: tuple[str, ...] = ()
    """Carry out only these of its panels or sweeps now; the table and figure are of what is done so
    far, and say what is not. The names are those of the folders below panels/ and sweeps/; all by
    default."""


@dataclass(frozen=True)
class ReproduceResumeConfig:
    """Take up an experiment where it stopped."""

    resume: Path
    """The folder of the experiment."""


class OnScreen(Watching):
    """Shows each run of an experiment as its own command would."""

    @contextmanager
    def compare(self, title: str) -> Iterator[Observer]:
        """Bars, under the name of the panel."""
        say(title, err)
        with bars() as shown:
            yield LiveBars(shown)

    @contextmanager
    def meta_train(self, title: str) -> Iterator[Observer]:
        """The panel of meta-training."""
        with MetaDisplay(title) as display:
            yield display

    @contextmanager
    def timing(self, title: str, total: int) -> Iterator[Tick]:
        """A bar of timings, and what the last one was of."""
        with timing_bar() as shown:
            line = shown.add_task(title, total=total, what="compiling …")
            yield lambda name: shown.update(line, advance=1, what=name)


def run_reproduce(argv: Sequence[str]) -> int:
    """`laconic reproduce NAME [--scale …] [--out DIR]`, `--resume DIR` or `--list`."""
    if "--list" in argv:
        if len(argv) > 1:
            raise LaconicError(f"--list stands alone, got {' '.join(argv)!r}.")
        return _list()
    if not argv:
        raise LaconicError(
            "reproduce needs the name of an experiment; `laconic reproduce --list` shows them."
        )
    if wants_resume(argv):
        again = tyro.cli(
            ReproduceResumeConfig, args=list(argv), prog="laconic reproduce", description=_RESUME
        )
    else:
        names = "\n".join(f"  {name}: {found.what}" for name, found in EXPERIMENTS.items())
        about = f"Carry out one of the paper's experiments.\n\nExperiments:\n{names}"
        again = tyro.cli(
            ReproduceConfig, args=list(argv), prog="laconic reproduce", description=about
        )
    if _scale(again) == "smoke":
        compile_quickly(os.environ)
    elif isinstance(again, ReproduceConfig) and again.name in EXPERIMENTS:
        say(
            f"full scale, for a large GPU: {EXPERIMENTS[again.name].needs()}. Each run says how "
            f"long it takes here. In minutes: laconic reproduce {again.name} --scale smoke",
            err,
        )
    with StopFlag() as stop:
        try:
            if isinstance(again, ReproduceResumeConfig):
                folder, record = resume_experiment(again.resume, watching=OnScreen(), stop=stop)
            else:
                name, scale, to = again.name, again.scale, again.out
                folder, record = reproduce(
                    name, scale, to, panels=again.panels, watching=OnScreen(), stop=stop
                )
        except Interrupted as stopped:
            some = (
                isinstance(again, ReproduceConfig) and again.panels
            )  # the folder does not know which were asked for
            say(
                f"{stopped} Go on with: "
                f"{'the same command' if some else resume_command('reproduce', stopped.folder)}",
                err,
            )
            return stop.status
    _print_outcome(folder, record)
    return 0


def _scale(again: ReproduceConfig | ReproduceResumeConfig) -> str:
    """What is asked for, or what a folder was begun with."""
    if isinstance(again, ReproduceConfig):
        return again.scale
    return read_header(again.resume, "experiment")["scale"]


def _list() -> int:
    on_record = statuses()
    for name, found in EXPERIMENTS.items():
        out.print(f"[bold cyan]{name:<20}[/] {found.what}", highlight=False, soft_wrap=True)
        needs = f"[dim]full: {found.needs()}; on record here: {on_record[name]}[/]"
        out.print(f"{'':<20} {needs}", highlight=False, soft_wrap=True)
    return 0


def _print_outcome(folder: Path, record: dict[str, Any]) -> None:
    for shown in record["tables"]:
        out.print(Table(**shown))
    for line in (*scale_line(record), *left_line(record)):
        say(line)
    for name in ("table.md", "table.html", "figure.png", "records.jsonl"):
        say(f"{name + ':':<14} {(folder / name).resolve()}")
