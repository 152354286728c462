"""The command line: `laconic compare`, `laconic tasks`, `laconic optimizers`."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from laconic.errors import LaconicError, unknown
from laconic.evaluate.compare import Interrupted
from laconic.evaluate.summary import table_rows
from laconic.recipes.compare import compare, resume
from laconic.recipes.config import RECIPES, CompareConfig
from laconic.recipes.methods import METHODS, options_of
from laconic.tasks.catalog import TASKS
from laconic.version import __version__

# A pipe or a log has no width of its own; 140 columns hold every table.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 140)


class Command(NamedTuple):
    """A subcommand: what it does with its arguments, and one line about it."""

    run: Callable[[Sequence[str]], int]
    summary: str


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: run a subcommand; errors become one line and a non-zero exit."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if any("\udc80" <= letter <= "\udcff" for word in argv for letter in word):
            raise LaconicError("an argument is not valid UTF-8; labels and paths are written to records as text.")
        sys.exit(dispatch(argv))
    except LaconicError as error:
        err.print("[bold red]error:[/]", end=" ")
        err.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has left; nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def dispatch(argv: Sequence[str]) -> int:
    """Find the subcommand and run it."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        _help()
        return 0
    if argv[0] in ("--version", "-V"):
        out.print(f"laconic {__version__}", highlight=False)
        return 0
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    return COMMANDS[argv[0]].run(argv[1:])


def _help() -> None:
    out.print("[bold]laconic[/] — distributed training that talks less\n")
    for name, command in COMMANDS.items():
        out.print(f"  [bold cyan]{name:<12}[/] {command.summary}", highlight=False)
    out.print(
        "\nTry first:\n"
        "  laconic compare                                  five optimizers on bundled data, under a minute\n"
        "  laconic compare --link 100Mbit/20ms              … and what fewer rounds are worth on that network\n"
        "  laconic compare fmnist-baselines --seeds 2       a ready recipe, with one number changed\n"
        "  laconic compare --help                           every flag\n",
        highlight=False,
        markup=False,
    )


# --- compare ----------------------------------------------------------------------------------------------------------


class LiveBars:
    """Watches a comparison: one bar a method on stderr, with the current loss, rounds a second and time left."""

    def __init__(self, bars: Progress):
        self.bars = bars
        self.ids: dict[str, Any] = {}
        self.start: dict[str, int] = {}

    def begin(self, label: str, rounds: int, done: int) -> None:
        """A new bar."""
        self.ids[label] = self.bars.add_task(label, total=rounds, completed=done, loss="compiling …", rate="")
        self.start[label] = done

    def progress(self, label: str, done: int, loss: float) -> None:
        """Advance it."""
        task = next(t for t in self.bars.tasks if t.id == self.ids[label])
        rate = (done - self.start[label]) / max(task.elapsed or 0.0, 1e-9)
        self.bars.update(self.ids[label], completed=done, loss=f"loss {loss:.4f}", rate=f"{rate:,.1f} rounds/s")

    def note(self, text: str) -> None:
        """A line above the bars."""
        self.bars.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
    )


class StopFlag:
    """Ctrl-C or SIGTERM once: finish the chunk, save, leave. Twice: leave now, with the last checkpoint."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "StopFlag":
        self._old = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number
        err.print("\nstopping after this chunk of rounds; once more to leave at once", highlight=False)

    def __call__(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None


def run_compare(argv: Sequence[str]) -> int:
    """`laconic compare [RECIPE] [--flags]` or `laconic compare --resume DIR`."""
    if any(word == "--resume" or word.startswith("--resume=") for word in argv):
        arguments = tyro.cli(ResumeConfig, args=list(argv), prog="laconic compare", description=_RESUME)
    else:
        arguments = _config(argv)
    with StopFlag() as stop, _bars() as bars:
        observer = LiveBars(bars)
        try:
            if isinstance(arguments, ResumeConfig):
                folder, records = resume(arguments.resume, on_nan=arguments.on_nan, observer=observer, stop=stop)
            else:
                command = shlex.join(["laconic", "compare", *argv])
                folder, records = compare(arguments, observer=observer, stop=stop, command=command)
        except Interrupted as stopped:
            bars.stop()
            err.print(f"{stopped} Go on with: laconic compare --resume {stopped.folder}", markup=False, soft_wrap=True)
            return 128 + (stop.signal or signal.SIGINT)
    _print_summary(folder, records)
    return 0


def _config(argv: Sequence[str]) -> CompareConfig:
    base, rest = CompareConfig(), list(argv)
    if rest and not rest[0].startswith("-"):
        if rest[0] not in RECIPES:
            raise unknown("recipe", rest[0], RECIPES)
        base, rest = RECIPES[rest.pop(0)][1], rest
    recipes = "\n".join(f"  {name}: {summary}" for name, (summary, _) in RECIPES.items())
    description = f"Compare outer optimizers on one task.\n\nRecipes (first word, then flags to change it):\n{recipes}"
    return tyro.cli(CompareConfig, args=rest, default=base, prog="laconic compare [RECIPE]", description=description)


_RESUME = "Take up a comparison where it stopped; its settings come from the folder."


@dataclass(frozen=True)
class ResumeConfig:
    """Take up a comparison where it stopped."""

    resume: Path
    """The folder of the run."""
    on_nan: Literal["stop", "continue"] | None = None
    """What to do when a loss is NaN or infinite; by default as the run was begun."""


def _print_summary(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    header, summary = records[0], records[-1]
    config = header["config"]
    headers, rows = table_rows(summary, config["link"] is not None)
    title = (
        f"{header['task']['name']}: K = {config['workers']}, H = {config['local_steps']}, B = {config['batch']}, "
        f"{config['rounds']} rounds, {config['seeds']} seeds"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(headers):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold", no_wrap=i > 0)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    out.print(table)
    if summary["target_loss"] is not None:
        line = f"target: train loss {summary['target_loss']:.4g}; speedup: against {summary['reference'] or '–'}"
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.print(f"report: {(folder / 'report.html').resolve()}", markup=False, highlight=False, soft_wrap=True)


# --- lists ------------------------------------------------------------------------------------------------------------


def list_tasks(argv: Sequence[str]) -> int:
    """`laconic tasks`: one line each, with options."""
    _no_arguments("tasks", argv)
    for name, entry in TASKS.items():
        options = ", ".join(f"{key}={value}" for key, value in entry.options.items())
        _line(name, entry.description, options)
    return 0


def list_optimizers(argv: Sequence[str]) -> int:
    """`laconic optimizers`: one line each, with options."""
    _no_arguments("optimizers", argv)
    for name, entry in METHODS.items():
        _line(name, entry.summary, ", ".join(f"{key}={value}" for key, value in options_of(name).items()))
    out.print(
        "\nOptions follow a colon: slowmo:gamma=0.3,beta=0.9,compress=topk:0.01+ef. All take compress= and label=;"
    )
    out.print("those with local steps also clip= (gradient norm) and decay= (weight decay).")
    return 0


def _line(name: str, summary: str, options: str) -> None:
    tail = f" [dim]({escape(options)})[/]" if options else ""
    out.print(f"[bold cyan]{name:<17}[/] {escape(summary)}{tail}", highlight=False, soft_wrap=True)


def _no_arguments(command: str, argv: Sequence[str]) -> None:
    if argv and argv[0] not in ("-h", "--help"):
        raise LaconicError(f"'laconic {command}' takes no arguments, got {' '.join(argv)!r}.")


COMMANDS: dict[str, Command] = {
    "compare": Command(run_compare, "run several optimizers on one task and report who needs fewer rounds"),
    "tasks": Command(list_tasks, "list what can be trained"),
    "optimizers": Command(list_optimizers, "list what can be compared"),
}
