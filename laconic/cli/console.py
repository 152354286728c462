"""What every command shares: the two consoles, progress bars, and stopping."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from laconic.cli.terminal import err, say
from laconic.runs.configs import Tracker
from laconic.runs.folder import Interrupted, Observer
from laconic.runs.folder import StopFlag as SilentStopFlag
from laconic.runs.settings import resume_command
from laconic.runs.trackers import track
from laconic.show.labels import labels_of
from laconic.show.training import LOOK, look_lines

LINE_SECONDS = 10.0  # between two lines of a log about the same thing
LOOKS_TOLD = 20  # of a training, about, if there are more
COLUMNS = 80  # that every terminal has
Outcome = tuple[Path, list[dict[str, Any]]]  # a run's folder and its records


def say_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values in two columns."""
    width = max(map(len, facts)) + 1
    for name, value in facts.items():
        say(f"{name + ':':<{width}} {value}")


# --- progress and signals -------------------------------------------------------------------------


def with_bars(
    command: str,
    trackers: Sequence[Tracker],
    run: Callable[[Observer, "StopFlag"], Outcome],
    show: Callable[[Path, list[dict[str, Any]]], None],
    under_way: str = "this chunk of rounds",
) -> int:
    """Carry out a run under progress bars and trackers, and show its outcome → the exit status.

    A signal stops it in good order, and the command to resume it is printed.
    """
    with StopFlag(under_way) as stop, bars() as shown:
        try:
            folder, records = run(track(LiveBars(shown), *trackers), stop)
        except Interrupted as stopped:
            shown.stop()
            say(f"{stopped} Go on with: {resume_command(command, stopped.folder)}", err)
            return stop.status
    show(folder, records)
    return 0


class LookLines:
    """Puts looks at held-out data into words, all of them or some of very many."""

    def __init__(self, rounds: int):
        self.rounds = rounds
        self.said = -math.inf  # the round of the last one in words

    def of(self, row: Mapping[str, Any], before: str = "") -> list[str]:
        """The lines that a round deserves; they fit into a terminal with what is to stand `before`
        each."""
        done = row["round"]
        soon = done - self.said < self.rounds / LOOKS_TOLD and done < self.rounds
        if soon or not row.get(LOOK):
            return []
        self.said = done
        start = f"round {done}/{self.rounds}: "
        first, *more = look_lines(row[LOOK], COLUMNS - len(before + start))
        return [start + first, *(" " * len(start) + line for line in more)]


class LiveBars(Observer):
    """Watches a run: one bar a method on stderr, with loss, rounds a second and time left; and a
    line or more for a training's look at held-out data."""

    def __init__(self, bars: Progress):
        self.bars = bars
        self.looks = LookLines(0)
        self.ids: dict[str, Any] = {}
        self.start: dict[str, int] = {}

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """A new bar; one that begins again replaces the old."""
        if label in self.ids:
            self.bars.remove_task(self.ids[label])
        add, loss = self.bars.add_task, "compiling …"
        shown = labels_of([label])[label]
        self.ids[label] = add(shown, total=total, completed=done, loss=loss, rate="")
        self.start[label] = done
        self.looks = LookLines(total)

    def round(self, row: Mapping[str, Any]) -> None:
        """Advance the bar, and lines for a look."""
        super().round(row)
        for line in self.looks.of(row):
            say(line, self.bars.console)

    def progress(self, label: str, done: int, loss: float, norm: float | None = None) -> None:
        """Advance it."""
        task = next(t for t in self.bars.tasks if t.id == self.ids[label])
        speed = (done - self.start[label]) / max(task.elapsed or 0.0, 1e-9)
        rate = f"{speed:,.1f} rounds/s"
        self.bars.update(task.id, completed=done, loss=f"loss {loss:.4f}", rate=rate)

    def note(self, text: str) -> None:
        """A line above the bars."""
        say(f"note: {text}", self.bars.console)


def bars() -> Progress:
    """The columns that `LiveBars` fills."""
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


def timing_bar() -> Progress:
    """A bar for things that are timed, and the name of the last one."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    return Progress(
        *columns, TextColumn("{task.fields[what]}", markup=False), TimeElapsedColumn(), console=err
    )


class LiveDisplay(ABC):
    """Shows `render()` live at the bottom of a terminal; in a log, only what is printed."""

    def __init__(self, console: Console, clock: Callable[[], float]):
        self.console = console
        self.clock = clock
        self.said_at = clock()  # when a log had its last line
        self._live: Live | None = None

    @abstractmethod
    def render(self) -> RenderableType:
        """What is shown now."""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, get_renderable=self.render)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave what is shown as it is; what is printed next comes below it."""
        if self._live is not None:
            self._live.stop()

    def due(self) -> bool:
        """Whether a log should have another line."""
        return not self.console.is_terminal and self.clock() - self.said_at >= LINE_SECONDS


class StopFlag(SilentStopFlag):
    """The first Ctrl-C or SIGTERM asks a run to save and stop; the second ends the process."""

    def __init__(self, under_way: str = "this chunk of rounds") -> None:
        super().__init__()
        self.under_way = under_way

    def asked(self) -> None:
        """Say what is finished first."""
        err.print(f"\nstopping after {self.under_way}; once more to leave at once", highlight=False)

    def leave(self) -> None:
        """Show the cursor, which a live display hides."""
        err.show_cursor(True)
