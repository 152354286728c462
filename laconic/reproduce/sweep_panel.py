"""A sweep as a part of an experiment: the best values found here beside the paper's."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.errors import LaconicError
from laconic.reproduce import scale
from laconic.reproduce.part import (
    Job,
    Outcome,
    Part,
    Record,
    Runner,
    Runs,
    different_settings,
    plural,
)
from laconic.runs.configs import SweepConfig
from laconic.runs.sweep import sweep
from laconic.show.curves import COLOURS, of_kind
from laconic.show.figures import axes_grid, finish_axes, plot_style
from laconic.show.sweep import RULES, ranked
from laconic.show.table import MISSING, Table, number, signed
from laconic.store.archive import record_files
from laconic.store.records import RECORDS, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laconic.reproduce.experiment import Experiment

METRIC = "hparams"
ON_RECORD = "on record"  # among a part's runs: the sweep of the paper's setting
SWEEPS_FOLDER = Path("results") / "sweeps"
# what two sweeps must agree in
SETTING = (
    *("task", "method", "grid", "points", "workers", "local_steps", "batch", "rounds"),
    *("federated", "compress"),
)
HEADERS = [
    *("configuration", "method", "the paper", "best here", "loss there", "loss at the paper's"),
    *("difference", "on record"),
]
MARKS: dict[str, tuple[str, dict[str, Any]]] = {  # field of a row → what it is and how it looks
    "loss": ("best point found here", {"marker": "o", "color": COLOURS[0], "markersize": 7}),
    "paper_loss": (
        "the paper's values, here",
        {"marker": "D", "color": COLOURS[1], "markersize": 3.5},
    ),
}


SWEEP = Job("ranking", "ranking.png", sweep)


@dataclass(frozen=True)
class SweepPanel(Part):
    """One row of a table of tuned values; rows that rank one sweep by different rules share a name.

    paper:   hyper-parameter → the paper's value
    setting: what is trained; optimizers of one's own get a row in each · label: of the method
    full:    the sweep in the paper's setting, where `config` is a smaller one
    """

    config: SweepConfig
    rank_by: str
    paper: Mapping[str, float]
    setting: str = ""
    label: str = ""
    full: SweepConfig | None = None

    FOLDER = "sweeps"
    LAST = "ranking"
    SMALL = scale.SMOKE_SIZES

    def tasks(self) -> list[str]:
        """The task that is swept on."""
        return [self.config.task]

    def smoke(self) -> "SweepPanel":
        """Fewer points of shorter runs."""
        return replace(self, config=scale.smoke_sweep(self.config), full=self.config)

    def done(self, folder: Path, shown: Collection[str]) -> bool:
        """A sweep on record may have stood in for one here."""
        return self.title in shown or super().done(folder, shown)

    def run(self, runner: Runner) -> Runs:
        """Sweep, unless a sweep in the paper's setting is on record."""
        runs = self._on_record()
        if self.path not in runs:
            watch = runner.watching.compare(self.name)
            runs[self.path] = runner.run(self.path, self.config, SWEEP, watch)
        return runs

    def read(self, folder: Path) -> Runs:
        """The sweep on record, or that in the folder."""
        runs = self._on_record()
        if self.path not in runs:
            runs[self.path] = read(folder / self.path / RECORDS)
        return runs

    def _on_record(self) -> dict[str, Sequence[Record]]:
        """The sweep in the paper's setting, if one is on record; at full scale it stands in."""
        found = find_sweep(self.full or self.config)
        if found is None:
            return {}
        return {ON_RECORD: found} if self.full else {ON_RECORD: found, self.path: found}

    @classmethod
    def needs(cls, experiment: "Experiment") -> list[str]:
        """Sweeps, each once."""
        return [plural(len({part.name for part in experiment.of(cls)}), "sweep")]

    @classmethod
    def rows(cls, experiment: "Experiment", runs: Mapping[str, Runs]) -> list[Record]:
        """The best point of each sweep, the paper's, and the loss at both in the same sweep."""
        return [part._row(runs[part.name]) for part in experiment.of(cls)]

    def _row(self, runs: Runs) -> Record:
        value = RULES[self.rank_by]
        points = of_kind(runs[self.path], "point")
        best = ranked(points, self.rank_by)[0]
        theirs = next((p for p in points if _same(p["numbers"], self.paper)), None)
        before = of_kind(runs.get(ON_RECORD, ()), "point")
        loss = value(best)
        paper_loss = None if theirs is None else value(theirs)
        known = loss is not None and paper_loss is not None
        return {
            "panel": self.title,
            "setting": self.setting or self.title,
            "method": self.label or self.config.method,
            "label": self.config.method,
            "metric": METRIC,
            "ours": best["numbers"],
            "loss": loss,
            "paper": dict(self.paper),
            "paper_loss": paper_loss,
            "difference": paper_loss - loss if known else None,  # type: ignore[operator]
            "recorded": ranked(before, self.rank_by)[0]["numbers"] if before else None,
        }

    @classmethod
    def tables(cls, experiment: "Experiment", rows: Sequence[Record]) -> list[Table]:
        """A line for each tuned method."""
        lines = [
            [
                row["setting"],
                row["method"],
                point_text(row["paper"]),
                point_text(row["ours"]),
                number(row["loss"]),
                number(row["paper_loss"]),
                signed(row["difference"]),
                MISSING if row["recorded"] is None else point_text(row["recorded"]),
            ]
            for row in rows
            if row["metric"] == METRIC
        ]
        return [Table("Best hyper-parameters", HEADERS, lines, left=2, grouped=True)]

    @classmethod
    def draw(cls, outcome: Outcome, note: str, columns: int) -> "Figure":
        """The loss at the best point of each sweep, and at the paper's values in the same sweep."""
        tuned = outcome.rows(METRIC)
        cell = (8.6 if columns > 1 else 6.4, 1.0 + 0.2 * len(tuned))
        with plot_style():
            figure, (ax,) = axes_grid(1, columns, cell, outcome.experiment.title, note)
            for field, (label, look) in MARKS.items():
                known = [i for i, row in enumerate(tuned) if row[field] is not None]
                losses = [tuned[i][field] for i in known]
                ax.plot(losses, known, **look, linestyle="none", label=label)
            ax.set_yticks(range(len(tuned)), [row["panel"] for row in tuned], fontsize=7)
            ax.invert_yaxis()
            finish_axes(ax, "loss that the sweep ranks by", "")
            figure.legend(loc="outside lower center", ncols=len(MARKS), frameon=False)
        return figure

    @classmethod
    def more_sweeps(
        cls, experiment: "Experiment", grids: Mapping[str, tuple[str, ...]]
    ) -> "list[SweepPanel]":
        """A sweep of each grid in each setting that has workers."""
        settings = {part.setting: part for part in experiment.of(cls) if part.config.workers > 1}
        return [part._of(name, grid) for part in settings.values() for name, grid in grids.items()]

    def _of(self, method: str, grid: tuple[str, ...]) -> "SweepPanel":
        config = replace(self.config, method=method, grid=grid, points=())
        alpha = config.federated.alpha
        setting = f"k{config.workers}-h{config.local_steps}" if alpha is None else f"alpha{alpha:g}"
        name = f"{config.task}-{setting}-{method}"
        title = f"{self.setting}: {method}"
        return SweepPanel(name, title, config, self.rank_by, {}, self.setting, method)


def find_sweep(config: SweepConfig, root: Path | None = None) -> list[Record] | None:
    """The records of a finished sweep in the same setting, if one lies below `root`."""
    return next((x for x in sweeps_below(root or SWEEPS_FOLDER) if in_setting(config, x)), None)


def sweeps_below(root: Path) -> Iterator[list[Record]]:
    """The records of every finished sweep below a folder."""
    for path in record_files(root):
        try:
            records = read(path)
        except LaconicError:  # somebody else's file is no reason to fail
            continue
        kinds = [record.get("kind") for record in records]
        if kinds[:1] == ["run"] and kinds[-1] == "ranking":
            yield records


def in_setting(config: SweepConfig, records: Sequence[Record]) -> bool:
    """Whether a sweep's records are of the same setting."""
    besides = [field.name for field in fields(SweepConfig) if field.name not in SETTING]
    try:
        return not different_settings(config, records[0]["config"], Path("a sweep"), besides)
    except LaconicError:  # settings of another version
        return False


def point_text(numbers: Mapping[str, float]) -> str:
    """Values of hyper-parameters in a cell."""
    return " / ".join(f"{value:.4g}" for value in numbers.values())


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two points are the same to 1 %: the paper rounds 0.5/0.3 to 1.66."""
    return one.keys() == other.keys() and all(
        math.isclose(one[key], other[key], rel_tol=0.01) for key in one
    )
