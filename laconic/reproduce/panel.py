"""A comparison as a part of an experiment: learned optimizers are found or meta-trained, baselines
tuned, and all of them compared."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from laconic.errors import LaconicError
from laconic.methods import parse_method
from laconic.reproduce import scale
from laconic.reproduce.panel_show import VIEWS, averages, panel_rows, panels_figure, panels_table
from laconic.reproduce.part import Job, Outcome, Part, Record, Runner, Runs, bare, begun, plural
from laconic.reproduce.sweep_panel import SWEEP, find_sweep, point_text
from laconic.runs.compare import check, compare
from laconic.runs.configs import CompareConfig, SweepConfig
from laconic.runs.folder import CHECKPOINT, is_another
from laconic.runs.grid import parse_grid
from laconic.runs.meta_config import MetaConfig, described
from laconic.runs.meta_train import meta_train
from laconic.runs.settings import command_line
from laconic.show.curves import of_kind
from laconic.show.sweep import RULES, ranked
from laconic.show.table import Table, number
from laconic.store import atomic
from laconic.store.archive import records_file
from laconic.store.records import RECORDS, plain, read, rewrite
from laconic.zoo import cards

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laconic.reproduce.experiment import Experiment

TUNED = "tuned"  # the metric of rows that say what a baseline's sweep found
BEST = "best.safetensors"
REPLACED = "replaced.jsonl"


@dataclass(frozen=True)
class Number:
    """A number of the paper's, with its standard error where it gives one; None: its hyphen."""

    value: float | None
    error: float | None = None


@dataclass(frozen=True)
class Learned:
    """A learned optimizer by its meta-training, and the published one that may stand in for it."""

    name: str
    config: MetaConfig
    zoo: str | None = None

    def file(self, folder: Path) -> str:
        """What `laconic compare` calls it: its file in the experiment, or the zoo's name."""
        place = folder / "optimizers" / self.name
        own = begun(place, self.config)
        if not own and self.zoo is not None and matches(self.zoo, self.config):
            return self.zoo
        return str(place / BEST)

    def obtain(self, runner: Runner) -> str:
        """`file`, after meta-training it if need be."""
        file = self.file(runner.folder)
        if file != self.zoo:
            job = Job("summary", BEST, partial(meta_train, name=self.name))
            watch = runner.watching.meta_train(self.name)
            runner.run(f"optimizers/{self.name}", self.config, job, watch)
        return file

    def smoke(self) -> "Learned":
        """A small meta-training; no published optimizer was trained at this size."""
        return Learned(self.name, scale.smoke_meta(self.config))


COMPARE = Job("summary", "report.html", compare)


def matches(name: str, config: MetaConfig) -> bool:
    """Whether the published optimizer of that name was meta-trained on a config's tasks, K, H, …"""
    card = cards().get(name)
    if card is None or card.architecture != config.architecture:
        return False
    inners = config.inners()
    theirs = [
        tuple(row[key] for key in ("task", "workers", "compress", "dropout"))
        for row in card.trained_on
    ]
    ours = [(described(x), x.workers, x.compress, x.dropout) for x in inners]
    return theirs == ours and all(
        x.federated.active or x.local_steps == row["local_steps"]  # a population decides H
        for x, row in zip(inners, card.trained_on, strict=True)
    )


@dataclass(frozen=True)
class Use:
    """A learned optimizer as a method of a panel; `options` other than its own: `scale=0.5,…`."""

    label: str
    learned: Learned
    options: str = ""

    def spec(self, file: str) -> str:
        """The method as `laconic compare` reads it; `file` may be a published name."""
        return f"{file}:{','.join([*filter(None, [self.options]), f'label={self.label}'])}"


@dataclass(frozen=True)
class Tuning:
    """A baseline that is tuned first: the best point of a sweep is compared."""

    label: str
    config: SweepConfig

    def best(self, records: Sequence[Record]) -> Record:
        """The best point of the sweep's records."""
        return ranked(of_kind(records, "point"), self.config.rank_by)[0]


@dataclass(frozen=True)
class Panel(Part):
    """One comparison.

    config:  its setting and hand-designed methods, each with a label; those of `tuned` come before
             them, those of `learned` after
    paper:   label → the paper's number of `paper_metric`; its rounds are to `paper_target`
    metrics: keys of `COLUMNS`, the columns of its table · shown: keys of `curves.VIEWS`
    band:    what is shaded around a curve, over seeds
    """

    config: CompareConfig
    learned: tuple[Use, ...] = ()
    paper: Mapping[str, Number] = field(default_factory=dict)
    paper_metric: str = "speedup"
    paper_target: float | None = None
    metrics: tuple[str, ...] = ("speedup", "final_train")
    shown: tuple[str, ...] = ("train",)
    band: Literal["standard error", "standard deviation"] = "standard error"
    tuned: tuple[Tuning, ...] = ()

    FOLDER = "panels"
    LAST = "summary"
    SMALL = scale.SMOKE_SIZES

    def tasks(self) -> list[str]:
        """The task that is compared on."""
        return [self.config.task]

    def optimizers(self) -> dict[str, Learned]:
        """The learned optimizers among its methods."""
        return {use.learned.name: use.learned for use in self.learned}

    def smoke(self) -> "Panel":
        """The same methods in a small setting, tested only as often as the figure needs."""
        config = scale.smoke(self.config)
        if not any(VIEWS[view].heldout for view in self.shown):
            config = replace(config, evaluate_every=scale.ROUNDS)
        elif config.seeds_at_once:  # a large model takes long to test
            config = replace(config, evaluate_every=scale.ROUNDS // 2)
        return replace(
            self,
            config=config,
            learned=tuple(replace(use, learned=use.learned.smoke()) for use in self.learned),
            tuned=tuple(
                Tuning(x.label, replace(scale.smoke_sweep(x.config), seeds=1)) for x in self.tuned
            ),
        )

    def with_methods(self, specs: Sequence[str]) -> "Panel":
        """With more hand-designed methods."""
        optimizers = (*self.config.optimizers, *specs)
        return replace(self, config=replace(self.config, optimizers=optimizers))

    # --- running ---

    def run(self, runner: Runner) -> Runs:
        """Meta-train and tune what its methods need, and compare them."""
        files = {name: learned.obtain(runner) for name, learned in self.optimizers().items()}
        sweeps = {self.sweep_path(tuning): self._tune(tuning, runner) for tuning in self.tuned}
        config = self.comparison(files, sweeps)
        there = begun(runner.folder / self.path, config, besides=("optimizers",))
        changed = amend(runner.folder / self.path, config) if there else None
        watch = runner.watching.compare(self.title)
        records = runner.run(self.path, config, COMPARE, watch, changed, besides=("optimizers",))
        return {self.path: records, **sweeps}

    def _tune(self, tuning: Tuning, runner: Runner) -> Sequence[Record]:
        """A sweep's records; at full scale one on record stands in for one that is not begun."""
        path = self.sweep_path(tuning)
        own = runner.scale == "smoke" or begun(runner.folder / path, tuning.config)
        watch = runner.watching.compare(Path(path).name)
        on_record = None if own else find_sweep(tuning.config)
        return on_record or runner.run(path, tuning.config, SWEEP, watch)

    def read(self, folder: Path) -> Runs:
        """The comparison as it is, whatever methods it has by now, and the sweeps before it."""
        begun(folder / self.path, self.config, besides=("optimizers",))
        runs = {self.path: read(folder / self.path / RECORDS)}
        for tuning in self.tuned:
            own = folder / self.sweep_path(tuning) / RECORDS
            found = read(own) if records_file(own) else find_sweep(tuning.config)
            runs[self.sweep_path(tuning)] = found or []
        return runs

    def sweep_path(self, tuning: Tuning) -> str:
        """The folder of a baseline's sweep, inside the experiment's."""
        plain = ":" not in tuning.config.method
        word = tuning.config.method if plain else tuning.label.lower().replace(" ", "-")
        return f"sweeps/{self.name}-{word}"

    def comparison(self, files: Mapping[str, str], sweeps: Runs) -> CompareConfig:
        """The comparison of all methods: tuned ones by their sweeps, learned by their files."""
        tuned = [
            f"{tuning.best(sweeps[self.sweep_path(tuning)])['label']},label={tuning.label}"
            for tuning in self.tuned
        ]
        learned = [use.spec(files[use.learned.name]) for use in self.learned]
        return replace(self.config, optimizers=(*tuned, *self.config.optimizers, *learned))

    # --- showing ---

    @classmethod
    def needs(cls, experiment: "Experiment") -> list[str]:
        """Comparisons, meta-trainings and sweeps."""
        panels = experiment.of(cls)
        methods = sum(len(p.tuned) + len(p.config.optimizers) + len(p.learned) for p in panels)
        rounds = max(panel.config.rounds for panel in panels)
        seeds = plural(max(panel.config.seeds for panel in panels), "seed")
        compared = plural(len(panels), "comparison")
        found = [f"{methods} runs of {rounds:,} rounds and {seeds} in {compared}"]
        trained = list(experiment.optimizers().values())
        if trained:
            steps = f"{_span([learned.config.steps for learned in trained])} outer steps each"
            published = sum(learned.zoo is not None for learned in trained)
            besides = f", {published} of them published already" if published else ""
            found.append(f"{plural(len(trained), 'learned optimizer')} of {steps}{besides}")
        sought = [tuning.config for panel in panels for tuning in panel.tuned]
        if sought:
            points = plural(sum(len(parse_grid(config.grid)) for config in sought), "point")
            each = f"{_span([config.rounds for config in sought])} rounds"
            found.append(f"{points} of {each} in {plural(len(sought), 'sweep')} to tune baselines")
        return found

    @classmethod
    def rows(cls, experiment: "Experiment", runs: Mapping[str, Runs]) -> list[Record]:
        """A row for each method and metric, then averages, then what tuning found."""
        panels = experiment.of(cls)
        rows = [row for panel in panels for row in panel_rows(panel, runs[panel.name][panel.path])]
        rows += averages([panel for panel in panels if panel.name in experiment.averaged], rows)
        return rows + [
            panel._tuned_row(tuning, runs[panel.name][panel.sweep_path(tuning)])
            for panel in panels
            for tuning in panel.tuned
        ]

    def _tuned_row(self, tuning: Tuning, records: Sequence[Record]) -> Record:
        points = of_kind(records, "point")
        best = tuning.best(records)
        config = tuning.config
        return {
            "panel": self.name,
            "label": tuning.label,
            "metric": TUNED,
            "grid": list(config.grid),
            "points": len(points),
            "diverged": sum(any(point["diverged"]) for point in points),
            "rounds": config.rounds,
            "seeds": config.seeds,
            "ours": best["numbers"],
            "loss": RULES[config.rank_by](best),
        }

    @classmethod
    def tables(cls, experiment: "Experiment", rows: Sequence[Record]) -> list[Table]:
        """The methods' numbers, and what tuning found."""
        titles = {panel.name: panel.title for panel in experiment.of(cls)}
        found = [panels_table(experiment.title, titles, rows)]
        tuned = [
            [
                titles[row["panel"]],
                row["label"],
                *(str(row[name]) for name in ("points", "diverged", "rounds")),
                point_text(row["ours"]),
                number(row["loss"]),
            ]
            for row in rows
            if row["metric"] == TUNED
        ]
        headers = ["panel", "method", "points", "diverged", "rounds", "best", "its loss"]
        if tuned:
            title = "Baselines, tuned here first"
            found.append(Table(title, headers, tuned, left=2, grouped=True))
        return found

    @classmethod
    def draw(cls, outcome: Outcome, note: str, columns: int) -> "Figure":
        """Curves of each panel, curves across panels, bars beside the paper's numbers."""
        panels = outcome.experiment.of(cls)
        compared = {panel.name: outcome.runs[panel.name][panel.path] for panel in panels}
        return panels_figure(outcome, panels, compared, note, columns)

    @classmethod
    def notes(cls, outcome: Outcome) -> list[str]:
        """Over which grids baselines were tuned, what diverged, which data and optimizers."""
        found = [
            f"{row['label']} is tuned over {' '.join(row['grid'])}: {row['points']} points, "
            f"{row['rounds']} rounds, {plural(row['seeds'], 'seed')}; best values are in the order "
            f"{' / '.join(row['ours'])}."
            for row in outcome.rows(TUNED)
        ]
        panels = outcome.experiment.of(cls)
        compared = [(panel.title, outcome.runs[panel.name][panel.path]) for panel in panels]
        found += [text for title, records in compared for text in diverged(title, records)]
        sources = [of_kind(records, "run")[0]["task"]["source"] for _, records in compared]
        found += [f"Data: {source}." for source in sources]
        files = outcome.record["optimizers"]
        published = sorted(name for name in files if not Path(files[name]).suffix)
        found += [f"{name} is the published {files[name]}." for name in published]
        return list(dict.fromkeys(found))


def _span(values: Collection[int]) -> str:
    low = min(values)
    high = max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def diverged(title: str, records: Sequence[Record]) -> list[str]:
    """A sentence for each method that lost a seed: how many, and when the first did."""
    found = []
    for method in of_kind(records, "method"):
        bad = sum(method["diverged"])
        if bad:
            broken_T = ~np.isfinite(np.array(method["train"], dtype=float)).all(axis=0)
            first = f"first in round {int(np.argmax(broken_T)) + 1}"
            when = first if broken_T.any() else "in its last rounds"
            seeds = len(method["diverged"])
            found.append(f"Diverged: {method['label']} on {title}, {bad} of {seeds} seeds, {when}.")
    return found


# --- other methods for a comparison that has begun ------------------------------------------------


def amend(folder: Path, config: CompareConfig) -> str | None:
    """Give the comparison in `folder` the methods of `config` → what changes, None if nothing does.

    Only new and changed methods are run; the record of a changed one, or of one by another
    optimizer of that name, moves to `replaced.jsonl`. A method that is done and not among them, one
    under way, and what could not be run are refused, before anything is written.
    """
    header, *rest = read(folder / RECORDS, gaps=True)
    theirs = [bare(spec) for spec in header["config"]["optimizers"]]
    done = of_kind(rest, "method")
    others = _run_by_others(done, config)
    if theirs == [bare(spec) for spec in config.optimizers] and not others:
        return None
    ours = dict(zip(check(config, folder, header), map(bare, config.optimizers), strict=True))
    gone = [method["label"] for method in done if method["label"] not in ours]
    if gone:
        raise LaconicError(
            f"{folder} was begun with other optimizers, among them {', '.join(gone)}; move it away "
            "to have it run anew without, or choose another --out."
        )
    if (folder / CHECKPOINT).exists():
        why = (
            f"has {', '.join(sorted(others))} by others of that name"
            if others
            else "was begun with other optimizers"
        )
        raise LaconicError(
            f"{folder} {why} and one of its methods under way; finish that first, with "
            f"laconic compare --resume {folder}, or delete {CHECKPOINT} there."
        )
    stays = [
        method
        for method in done
        if ours[method["label"]] in theirs and method["label"] not in others
    ]
    _set_aside(folder, [method for method in done if method not in stays], header)
    command = command_line("compare", replace(config, out=folder))
    config = replace(config, out=folder, local_steps=header["config"]["local_steps"])
    rewrite(folder / RECORDS, [{**header, "config": plain(config), "command": command}, *stays])
    atomic.write_text(folder / "command.txt", command + "\n")
    labels = [method["label"] for method in stays]
    new = [label for label in ours if label not in labels]
    return (
        f"kept in {folder}: {', '.join(labels) or 'nothing'}; to be run: "
        f"{', '.join(new) or 'nothing'}."
    )


def _run_by_others(done: list[Record], config: CompareConfig) -> set[str]:
    """The labels of methods that are done by another optimizer than has its name now."""
    known = {record["label"]: record for record in done if record.get("optimizer_sha256")}
    now = [parse_method(str(word), config.workers) for word in config.optimizers] if known else []
    return {
        method.label
        for method in now
        if is_another(known.get(method.label, {}), method.optimizer_sha256)
    }


def _set_aside(folder: Path, methods: list[Record], header: Record) -> None:
    """Keep what is no longer part of the comparison, with what made it."""
    before = read(folder / REPLACED) if records_file(folder / REPLACED) else []
    made = header["provenance"]
    stamped = [{**method, "provenance": method.get("provenance", made)} for method in methods]
    more = [method for method in stamped if method not in before]  # a killed run left them there
    if more:
        rewrite(folder / REPLACED, [*before, *more])
