"""Times of a round as a part of an experiment: measured part by part, beside the paper's.

The folder holds `records.jsonl`: a "run" record, a "part" record for each part that has been timed,
and a "timing" that says what they come to. Stopped, it goes on with the part that was under way.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from laconic.bench.overhead import METHODS, PARTS, OverheadConfig, measure
from laconic.bench.timing import Tick
from laconic.errors import LaconicError
from laconic.reproduce import scale
from laconic.reproduce.part import Job, Outcome, Part, Record, Runner, Runs, plural
from laconic.runs.folder import Interrupted, RunFolder
from laconic.runs.settings import command_line
from laconic.show.curves import COLOURS, INK
from laconic.show.figures import axes_grid, finish_axes, plot_style
from laconic.show.table import MISSING, Table, number
from laconic.store.records import RECORDS, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from laconic.reproduce.experiment import Experiment

METRIC = "timing"
LABELS = dict(zip(METHODS, ("Local SGD", "LOpt-A", "LAgg-A"), strict=True))
HEADERS = [
    *("model", "H", "method", "forward and backward, s", "optimizer, s", "round, s"),
    *("the paper, s", "overhead", "the paper", "difference"),
]
COLOUR = dict(zip(LABELS.values(), (INK, *COLOURS), strict=False))
PASSES = "#c9ced6"
DIAMOND: dict[str, Any] = {"marker": "D", "markerfacecolor": "white"}


@dataclass(frozen=True)
class TimingPanel(Part):
    """What the server's step adds to local training on one task, by the clock.

    paper: H → for each of `bench.overhead.METHODS` the paper's seconds of a round and their ratio
    to local SGD's
    """

    config: OverheadConfig
    paper: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    FOLDER = "timings"
    LAST = METRIC
    SMALL = (
        f"models are tiny, the sides of images an eighth, B = {scale.BATCH} and K = 2; H is as it "
        "says"
    )

    def tasks(self) -> list[str]:
        """The task whose steps are timed."""
        return [self.config.task]

    def smoke(self) -> "TimingPanel":
        """A tiny model."""
        return replace(self, config=scale.smoke_times(self.config))

    def run(self, runner: Runner) -> Runs:
        """Time what is not timed yet."""
        watch = runner.watching.timing(self.title, len(PARTS) * self.config.restarts)
        start = partial(_start, runner.folder / self.path)
        job = Job(METRIC, RECORDS, start, _resume)
        return {self.path: runner.run(self.path, self.config, job, watch)}

    def read(self, folder: Path) -> Runs:
        """The timings in the folder."""
        return {self.path: read(folder / self.path / RECORDS)}

    @classmethod
    def needs(cls, experiment: "Experiment") -> list[str]:
        """Methods and models."""
        models = plural(len(experiment.of(cls)), "model")
        return [f"times of {plural(len(METHODS), 'method')} in {models}, on one device"]

    @classmethod
    def rows(cls, experiment: "Experiment", runs: Mapping[str, Runs]) -> list[Record]:
        """For each model, H and method the seconds of a round, and how many times local SGD's."""
        return [
            row
            for panel in experiment.of(cls)
            for row in panel._rows(runs[panel.name][panel.path][-1])
        ]

    def _rows(self, timing: Record) -> list[Record]:
        rows = []
        for H in self.config.local_steps:
            for m, name in enumerate(METHODS):
                found = timing["figures"][f"H={H} {name}"]
                seconds, overhead = self.paper[H][m] if H in self.paper else (None, None)
                rows.append(
                    {
                        "panel": self.name,
                        "label": LABELS[name],
                        "metric": METRIC,
                        "H": H,
                        "forward_backward": H * found["forward_backward_seconds"],
                        "optimizer": H * found["optimizer_seconds"],
                        "ours": H * found["seconds"],
                        "paper": seconds,
                        "overhead": found["overhead"],
                        "paper_overhead": overhead,
                        "difference": None if overhead is None else found["overhead"] - overhead,
                    }
                )
        return rows

    @classmethod
    def tables(cls, experiment: "Experiment", rows: Sequence[Record]) -> list[Table]:
        """A line for each model, H and method."""
        titles = {panel.name: panel.title for panel in experiment.of(cls)}
        lines = [
            [
                titles[row["panel"]],
                str(row["H"]),
                row["label"],
                number(row["forward_backward"]),
                number(row["optimizer"]),
                number(row["ours"]),
                "" if row["paper"] is None else f"{row['paper']:.2f}",
                f"{row['overhead']:.3f}×",
                "" if row["paper_overhead"] is None else f"{row['paper_overhead']:.2f}×",
                "" if row["difference"] is None else f"{row['difference']:+.3f}".replace("-", "−"),
            ]
            for row in rows
            if row["metric"] == METRIC
        ]
        return [Table(experiment.title, HEADERS, lines, grouped=True)]

    @classmethod
    def notes(cls, outcome: Outcome) -> list[str]:
        """How large each model is, and what its parts took."""
        found = []
        for panel in outcome.experiment.of(cls):
            header, *_, timing = outcome.runs[panel.name][panel.path]
            seconds = timing["parts_seconds"].items()
            parts = ", ".join(f"{part} {1e3 * value:.4g} ms" for part, value in seconds)
            device = header["provenance"]["device"]["kind"] or MISSING
            size = f"{timing['parameters']:,} parameters on {device}"
            found.append(f"{panel.name}: {size}; {parts}.")
        return found

    @classmethod
    def draw(cls, outcome: Outcome, note: str, columns: int) -> "Figure":
        """Each model's rounds as bars and, below them, their overhead over local SGD's."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        panels = outcome.experiment.of(cls)
        across = min(columns, 2, len(panels))
        blocks = math.ceil(len(panels) / across)
        with plot_style():
            look = {"title": outcome.experiment.title, "note": note, "extra": 0.5}
            figure, axes = axes_grid(2 * across * blocks, across, (4.2, 2.9), **look)
            for i, panel in enumerate(panels):
                own = [row for row in outcome.rows(METRIC) if row["panel"] == panel.name]
                at = 2 * across * (i // across) + i % across
                _draw_rounds(axes[at], panel, own)
                _draw_overheads(axes[at + across], panel, own)
            for ax in (ax for ax in axes if not ax.has_data()):
                ax.set_axis_off()
            handles: list[Any] = [Patch(color=PASSES, label="forward and backward")]
            handles += [Patch(color=c, label=f"optimizer of {x}") for x, c in COLOUR.items()]
            diamond: dict[str, Any] = {"linestyle": "none", "label": "the paper's overhead"}
            handles.append(Line2D([], [], color=INK, **DIAMOND, **diamond))
            ncols = 2 if across == 1 else 3
            figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False)
        return figure


def _start(
    folder: Path, config: OverheadConfig, *, observer: Tick, stop: Callable[[], bool]
) -> None:
    command = command_line("bench overhead", config)
    with RunFolder.create("timing", folder, folder.name, config, command) as run:
        _measure(run, config, observer, stop)


def _resume(folder: Path, *, observer: Tick, stop: Callable[[], bool]) -> None:
    with RunFolder.open(folder, "timing") as run:
        _measure(run, run.config(OverheadConfig), observer, stop)


def _measure(run: RunFolder, config: OverheadConfig, tick: Tick, stop: Callable[[], bool]) -> None:
    """Time every part that the folder has no record of."""
    _check_device(run.path, run.header["provenance"]["device"]["kind"])
    known = {record["name"]: record["seconds"] for record in run.of_kind("part")}
    for name in known:
        for _ in range(config.restarts):
            tick(name)
    began = time.monotonic()

    def keep(name: str, seconds: float) -> None:
        nonlocal began
        now = time.monotonic()
        run.append("part", name=name, seconds=seconds, took=round(now - began, 3))
        began = now
        if stop() and name != PARTS[-1]:
            raise Interrupted(f"stopped after {name}.", run.path)

    found = measure(config, tick, known, keep)
    total = sum(record["took"] for record in run.of_kind("part"))
    run.append(METRIC, **found, seconds=round(total, 3))


def _check_device(folder: Path, begun_on: str) -> None:
    here = jax.devices()[0].device_kind
    if here != begun_on:
        raise LaconicError(
            f"{folder} was begun on {begun_on} and this is {here}: times of two devices do not "
            "mix; choose another --out, or go on where it was begun."
        )


# --- drawing --------------------------------------------------------------------------------------


def _draw_rounds(ax: "Axes", panel: TimingPanel, rows: Sequence[Record]) -> None:
    """Seconds of a round, forward and backward below, the optimizer's share on top."""
    steps = panel.config.local_steps
    labels = list(LABELS.values())
    width = 0.26
    for row in rows:
        at = steps.index(row["H"]) + (labels.index(row["label"]) - 1) * width
        passes = row["forward_backward"]
        optimizer = max(row["optimizer"], 0.0)  # a part that takes no time may come out below 0
        ax.bar(at, passes, 0.9 * width, color=PASSES)
        ax.bar(at, optimizer, 0.9 * width, bottom=passes, color=COLOUR[row["label"]])
    ax.set_xticks(range(len(steps)), [f"H = {H}" for H in steps])
    finish_axes(ax, "", "seconds of a round", panel.title, grid="y")


def _draw_overheads(ax: "Axes", panel: TimingPanel, rows: Sequence[Record]) -> None:
    """Seconds over those of local SGD, the paper's as diamonds."""
    looks = {
        "overhead": {"marker": "o", "markersize": 3.5},
        "paper_overhead": {"linestyle": "none", **DIAMOND, "markersize": 5},
    }
    for label in list(LABELS.values())[1:]:
        for name, look in looks.items():
            known = [r for r in rows if r["label"] == label and r[name] is not None]
            x = [row["H"] for row in known]
            ax.plot(x, [row[name] for row in known], color=COLOUR[label], **look)
    ax.axhline(1.0, color=INK, linewidth=0.9)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(panel.config.local_steps), [f"{H}" for H in panel.config.local_steps])
    ax.minorticks_off()
    finish_axes(ax, "H, local steps", "round ÷ local SGD's", grid="y")
