"""Meta-training as a person sees it: a live panel in a terminal, a line now and then in a log."""

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laconic.cli.console import err, say
from laconic.runs.meta_config import MetaConfig

BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 60  # of the sparkline
WINDOW = 50  # outer steps that the meta-loss shown is a mean of
LINE_SECONDS = 10.0


def sparkline(values: Sequence[float], width: int = COLUMNS) -> str:
    """Values as blocks between their lowest and highest; where there are more than columns, each is
    a mean of some."""
    if not len(values):
        return ""
    means = np.array(
        [part.mean() for part in np.array_split(np.asarray(values, float), min(width, len(values)))]
    )
    known = means[np.isfinite(means)]
    if not known.size:
        return " " * len(means)
    low, span = known.min(), max(np.ptp(known), 1e-30)
    return "".join(
        BLOCKS[round((m - low) / span * (len(BLOCKS) - 1))] if math.isfinite(m) else " "
        for m in means
    )


class MetaDisplay:
    """Watches meta-training: how far it is, the meta-loss and its course, speed, time left, and the
    best φ so far."""

    def __init__(
        self, title: str, console: Console = err, clock: Callable[[], float] = time.monotonic
    ):
        self.title, self.console, self.clock = title, console, clock
        self.config: MetaConfig | None = None
        self.done = self.first = self.rounds_per_step = 0
        self.losses: list[float] = []
        self.norm = math.nan
        self.best: tuple[float, int] | None = None
        self.begun = self.line_at = clock()
        self.compiled: tuple[float, int] | None = (
            None  # when the first outer step was done, and its number
        )
        self._live = (
            Live(console=console, get_renderable=self.render) if console.is_terminal else None
        )

    def __enter__(self) -> "MetaDisplay":
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ):
        self.close()

    def close(self) -> None:
        """Leave the panel as it is; what is printed next comes below it."""
        if self._live is not None:
            self._live.stop()

    # --- what the runner calls

    def begin(self, config: MetaConfig, done: int, rounds_per_step: int) -> None:
        """Training starts, or goes on after `done` outer steps."""
        self.config, self.done, self.first, self.rounds_per_step = (
            config,
            done,
            done,
            rounds_per_step,
        )
        self._line()

    def progress(self, done: int, losses: np.ndarray, norms: np.ndarray) -> None:
        """Some outer steps are done."""
        self.losses += losses.tolist()
        self.norm, self.done = float(norms[-1]), done
        if self.compiled is None and done > self.first:
            self.compiled = self.clock(), done
            self._line()
        elif self.clock() - self.line_at >= LINE_SECONDS:
            self._line()

    def judged(self, done: int, value: float, best: bool) -> None:
        """φ was judged on held-out seeds."""
        if best:
            self.best = value, done

    def note(self, text: str) -> None:
        """A line above the panel."""
        say(f"note: {text}", self.console)

    # --- what is shown

    @property
    def steps_per_second(self) -> float | None:
        """Outer steps a second since the first one, whose time is mostly compiling."""
        if self.compiled is None or self.done == self.compiled[1]:
            return None
        return (self.done - self.compiled[1]) / max(self.clock() - self.compiled[0], 1e-9)

    def facts(self) -> list[str]:
        """What there is to say about the training so far."""
        if self.config is None:
            return ["reading data, preparing …"]
        if self.done == self.first and self.done < self.config.steps:
            return ["compiling …", *self._best()]
        loss = float(np.mean(self.losses[-WINDOW:])) if self.losses else math.nan
        rate = self.steps_per_second
        speed = [] if rate is None else [f"{rate * self.rounds_per_step:,.0f} rounds/s"]
        return [f"meta-loss {loss:.4f}", f"gradient norm {self.norm:.3g}", *speed, *self._best()]

    def times(self) -> list[str]:
        """Elapsed, and left if that can be told."""
        rate, shown = self.steps_per_second, [f"elapsed {_clock_time(self.clock() - self.begun)}"]
        if rate is not None and self.config is not None:
            shown.append(f"left {_clock_time((self.config.steps - self.done) / rate)}")
        return shown

    def render(self) -> RenderableType:
        """The panel."""
        steps = 1 if self.config is None else self.config.steps
        top = Table.grid(padding=(0, 1))
        count = Text("" if self.config is None else f"outer step {self.done:,}/{steps:,}")
        top.add_row(
            Text(self.title, style="bold"),
            ProgressBar(steps, self.done, width=30),
            count,
            *self.times(),
        )
        lines: list[RenderableType] = [top, Text(" · ".join(self.facts()))]
        if self.losses:
            lines.append(Text(f"{sparkline(self.losses)} meta-loss", style="cyan"))
        return Group(*lines)

    def _best(self) -> list[str]:
        return (
            []
            if self.best is None
            else [f"best {self.best[0]:.4f} on held-out seeds (step {self.best[1]:,})"]
        )

    def _line(self) -> None:
        """A line for a log, which shows no panel."""
        self.line_at = self.clock()
        if self._live is None and self.config is not None:
            where = f"outer step {self.done:,}/{self.config.steps:,}"
            say(f"{self.title}: {', '.join([where, *self.facts(), *self.times()])}", self.console)


def _clock_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
