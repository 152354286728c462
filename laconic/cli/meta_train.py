"""`laconic meta-train`: train a learned optimizer by a recipe, with a live panel."""

import math
import shlex
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laconic.cli.console import LiveDisplay, StopFlag, say_facts
from laconic.cli.terminal import err, say
from laconic.cli.words import MetaResumeConfig, meta_words
from laconic.federated.options import Federated
from laconic.runs.folder import Interrupted, Observer
from laconic.runs.meta_config import MetaConfig, parse_inner
from laconic.runs.meta_train import meta_train, resume_meta_train
from laconic.runs.settings import flags_of, program, read_config, resume_command
from laconic.runs.trackers import track

BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 60  # of the sparkline
WINDOW = 50  # outer steps that the meta-loss shown is a mean of


def run_meta_train(argv: Sequence[str]) -> int:
    """`laconic meta-train RECIPE [--flags]` or `laconic meta-train --resume DIR [--minutes M]`."""
    name, arguments, hosts, trackers = meta_words(argv)
    speaks = hosts.join()
    console = err if speaks else Console(stderr=True, quiet=True)
    with StopFlag("these outer steps") as stop, MetaDisplay(name, console) as display:
        observer = track(display, *(trackers if speaks else ()))
        try:
            if isinstance(arguments, MetaResumeConfig):
                folder, records = resume_meta_train(
                    arguments.resume, observer=observer, stop=stop, minutes=arguments.minutes
                )
            else:
                command = shlex.join([*program("meta-train"), *argv])
                folder, records = meta_train(
                    arguments, observer=observer, stop=stop, command=command, name=name
                )
        except Interrupted as stopped:
            display.close()
            say(f"{stopped} Go on with: {resume_command('meta-train', stopped.folder)}", console)
            return stop.status if stop() else 0  # --minutes that are used up are no failure
    if speaks:
        _print_summary(folder, records)
    return 0


def _print_summary(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    header, summary, folder = records[0]["config"], records[-1], folder.resolve()
    best = folder / "best.safetensors"
    if not best.exists():  # no score was finite
        best = folder / "last.safetensors"
    config = read_config(MetaConfig, header, str(folder))
    inner = parse_inner(config.tasks[0], config)
    sizes = {"task": inner.task, "workers": inner.workers}
    if not inner.federated.active:  # else the population's data decides
        sizes["local-steps"] = inner.local_steps
    sizes["batch"] = inner.batch
    flags = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    flags += flags_of(inner.federated, Federated(), "federated.")
    measure = ["laconic", "compare", *flags, "--optimizers", "local-sgd", str(best)]
    score = "infinite" if summary["best_score"] is None else f"{summary['best_score']:.4f}"
    step = f"outer step {summary['best_step']:,} of {summary['steps']:,}"
    facts = {
        "folder": folder,
        "best": f"score {score} on held-out seeds (lower is better), {step}",
        "took": f"{summary['seconds']:,.1f} s, {summary['rounds_per_second']:,.0f} rounds/s",
        "weights": best,
        "picture": folder / "learning-curve.png",
        "in Python": f'laconic.load("{best}")',
        "measure it": shlex.join(measure),
    }
    say_facts(facts)


# --- the panel ------------------------------------------------------------------------------------


def sparkline(values: Sequence[float], width: int = COLUMNS) -> str:
    """Values as blocks between their lowest and highest; many values are averaged into `width`."""
    if not len(values):
        return ""
    parts = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = np.array([part.mean() for part in parts])
    known = means[np.isfinite(means)]
    if not known.size:
        return " " * len(means)
    low, span = known.min(), max(np.ptp(known), 1e-30)
    block = lambda m: BLOCKS[round((m - low) / span * (len(BLOCKS) - 1))]
    return "".join(block(m) if math.isfinite(m) else " " for m in means)


class MetaDisplay(LiveDisplay, Observer):
    """Shows meta-training: meta-loss and its course, speed, time left, and the best φ so far.

    In a terminal that is a live panel, in a log a line every ten seconds.
    """

    def __init__(
        self, title: str, console: Console = err, clock: Callable[[], float] = time.monotonic
    ):
        super().__init__(console, clock)
        self.title = title
        self.steps: int | None = None
        self.done = self.first = self.rounds_per_step = 0
        self.losses: list[float] = []
        self.norm = math.nan
        self.best: tuple[float, int] | None = None
        self.begun = clock()
        self.compiled: tuple[float, int] | None = None  # when the first step was done, its number

    # --- called by the run

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """Training starts, or goes on after `done` outer steps."""
        self.steps = total
        self.done = self.first = done
        self.rounds_per_step = rounds_each
        self._line()

    def progress(self, label: str, done: int, loss: float, norm: float | None = None) -> None:
        """An outer step is done."""
        self.losses.append(loss)
        self.norm = math.nan if norm is None else norm
        self.done = done
        if self.compiled is None and done > self.first:
            self.compiled = self.clock(), done
            self._line()
        elif self.due():
            self._line()

    def judged(self, done: int, score: float, best: bool) -> None:
        """φ was judged on held-out seeds."""
        if best:
            self.best = score, done

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
        if self.steps is None:
            return ["reading data, preparing …"]
        best = []
        if self.best is not None:
            best = [f"best {self.best[0]:.4f} on held-out seeds (step {self.best[1]:,})"]
        if self.done == self.first and self.done < self.steps:
            return ["compiling …", *best]
        loss = float(np.mean(self.losses[-WINDOW:])) if self.losses else math.nan
        rate = self.steps_per_second
        speed = [] if rate is None else [f"{rate * self.rounds_per_step:,.0f} rounds/s"]
        return [f"meta-loss {loss:.4f}", f"gradient norm {self.norm:.3g}", *speed, *best]

    def times(self) -> list[str]:
        """Elapsed, and left if that can be told."""
        rate, shown = self.steps_per_second, [f"elapsed {_clock_time(self.clock() - self.begun)}"]
        if rate is not None and self.steps is not None:
            shown.append(f"left {_clock_time((self.steps - self.done) / rate)}")
        return shown

    def render(self) -> RenderableType:
        """The panel."""
        steps = self.steps or 1
        count = "" if self.steps is None else f"outer step {self.done:,}/{steps:,}"
        bar = ProgressBar(steps, self.done, width=30)
        top = Table.grid(padding=(0, 1))
        top.add_row(Text(self.title, style="bold"), bar, Text(count), *self.times())
        lines: list[RenderableType] = [top, Text(" · ".join(self.facts()))]
        if self.losses:
            lines.append(Text(f"{sparkline(self.losses)} meta-loss", style="cyan"))
        return Group(*lines)

    def _line(self) -> None:
        """A line for a log, which shows no panel."""
        self.said_at = self.clock()
        if not self.console.is_terminal and self.steps is not None:
            where = f"outer step {self.done:,}/{self.steps:,}"
            say(f"{self.title}: {', '.join([where, *self.facts(), *self.times()])}", self.console)


def _clock_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
