"""An experiment as data: comparisons, the learned optimizers they need, and the paper's numbers for
their rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from laconic.bench.overhead import METHODS, OverheadConfig
from laconic.errors import unknown
from laconic.federated.population import Federated
from laconic.runs.compare import CompareConfig
from laconic.runs.grid import parse_grid
from laconic.runs.meta_config import MetaConfig
from laconic.runs.sweep import SweepConfig

AVERAGE = "average"  # the panel of rows that are means over panels


@dataclass(frozen=True)
class Number:
    """A number of the paper's, with its standard error where it gives one; None is its hyphen:
    never reached."""

    value: float | None
    error: float | None = None


@dataclass(frozen=True)
class Learned:
    """A learned optimizer by the settings it is meta-trained with, and the published one that may
    stand in for it."""

    name: str
    config: MetaConfig
    zoo: str | None = None


@dataclass(frozen=True)
class Use:
    """A learned optimizer as a row of a panel, at its own values unless `options` says otherwise:
    `scale=0.5,…`."""

    label: str
    learned: Learned
    options: str = ""

    def spec(self, file: str) -> str:
        """The row as `laconic compare` is told it, given the optimizer's file or published name."""
        return f"{file}:{','.join([*filter(None, [self.options]), f'label={self.label}'])}"


@dataclass(frozen=True)
class Tuning:
    """A hand-designed method of a panel whose values are sought first: the best point of a sweep is
    its row."""

    label: str
    config: SweepConfig


@dataclass(frozen=True)
class Panel:
    """One comparison.

    config:  its setting and hand-designed methods, each with a label; those of `tuned` come before
             them, those of `learned` after paper:   label → the paper's number, of the first of
             `metrics`; `paper_target` is the loss that its rounds are to metrics: keys of
             `outcome.COLUMNS`, the columns of its table · shown: keys of `draw.KINDS`, an axes each
    band:    what is shaded around a curve, over seeds
    """

    name: str
    title: str
    config: CompareConfig
    learned: tuple[Use, ...] = ()
    paper: Mapping[str, Number] = field(default_factory=dict)
    paper_target: float | None = None
    metrics: tuple[str, ...] = ("speedup", "final_train")
    shown: tuple[str, ...] = ("train",)
    band: Literal["standard error", "standard deviation"] = "standard error"
    tuned: tuple[Tuning, ...] = ()


@dataclass(frozen=True)
class MixPanel:
    """How a population's classes are mixed: a task, a population of it, and how many of its clients
    are drawn."""

    name: str
    title: str
    task: str
    federated: Federated
    drawn: int = 30


@dataclass(frozen=True)
class Across:
    """An axes with curves of several panels: all their rows, or those of some labels."""

    title: str
    kind: str
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SweepPanel:
    """One row of a table of tuned values: the sweep that finds them, and what the paper found.

    sweep: the sweep's name, shared by rows that rank its points by different rules · paper:
    hyper-parameter → value
    """

    sweep: str
    title: str
    config: SweepConfig
    rank_by: str
    paper: Mapping[str, float]


@dataclass(frozen=True)
class TimingPanel:
    """What the server's step adds to local training on one task, by the clock.

    paper: H → for each of `bench.overhead.METHODS` the paper's seconds of a round and their ratio
    to local SGD's
    """

    name: str
    title: str
    config: OverheadConfig
    paper: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing:
    """A table of the paper's that nothing here is run for."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    says: what the paper states of it in words · leaves_out: what of it is not covered here, and
    where values had to be chosen · averaged: the panels whose first metric is averaged · across:
    axes over several panels
    """

    name: str
    title: str
    what: str
    panels: tuple[Panel, ...] = ()
    says: tuple[str, ...] = ()
    leaves_out: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    across: tuple[Across, ...] = ()
    sweeps: tuple[SweepPanel, ...] = ()
    listings: tuple[Listing, ...] = ()
    mixes: tuple[MixPanel, ...] = ()
    timings: tuple[TimingPanel, ...] = ()

    def optimizers(self) -> dict[str, Learned]:
        """The learned optimizers that its panels need, each once."""
        return {use.learned.name: use.learned for panel in self.panels for use in panel.learned}

    def tasks(self) -> list[str]:
        """The tasks it trains on, by name alone, each once."""
        specs = [panel.config.task for panel in self.panels] + [
            sweep.config.task for sweep in self.sweeps
        ]
        specs += [mix.task for mix in self.mixes] + [timing.config.task for timing in self.timings]
        specs += [
            inner.task
            for learned in self.optimizers().values()
            for inner in learned.config.inners()
        ]
        return list(dict.fromkeys(spec.partition(":")[0] for spec in specs))


def parts_of(experiment: Experiment) -> list[str]:
    """The names of what can be carried out by itself: panels, sweeps, partitions and timings."""
    names = [panel.name for panel in experiment.panels] + [row.sweep for row in experiment.sweeps]
    names += [mix.name for mix in experiment.mixes] + [timing.name for timing in experiment.timings]
    return list(dict.fromkeys(names))


def check_parts(experiment: Experiment, names: Iterable[str]) -> None:
    """Refuse a part that the experiment does not have."""
    for name in names:
        if name not in parts_of(experiment):
            raise unknown(f"panel of {experiment.name}", name, parts_of(experiment))


def narrowed(experiment: Experiment, names: Collection[str]) -> Experiment:
    """The experiment with these parts only; a mean over panels needs all of them."""
    return replace(
        experiment,
        panels=tuple(panel for panel in experiment.panels if panel.name in names),
        sweeps=tuple(row for row in experiment.sweeps if row.sweep in names),
        mixes=tuple(mix for mix in experiment.mixes if mix.name in names),
        timings=tuple(timing for timing in experiment.timings if timing.name in names),
        averaged=experiment.averaged if set(experiment.averaged) <= set(names) else (),
    )


def needs(experiment: Experiment) -> str:
    """What the full scale takes, in counts."""
    parts = []
    runs = [
        (p.config.rounds, p.config.seeds, len(p.tuned) + len(p.config.optimizers) + len(p.learned))
        for p in experiment.panels
    ]
    if runs:
        methods = sum(count for _, _, count in runs)
        rounds, seeds = max(r for r, _, _ in runs), max(s for _, s, _ in runs)
        parts.append(
            f"{methods} runs of {rounds:,} rounds and {_plural(seeds, 'seed')} in "
            f"{_plural(len(runs), 'comparison')}"
        )
    trained = [learned for learned in experiment.optimizers().values()]
    if trained:
        steps = f"{_span([learned.config.steps for learned in trained])} outer steps each"
        published = sum(learned.zoo is not None for learned in trained)
        besides = f", {published} of them published already" if published else ""
        parts.append(f"{_plural(len(trained), 'learned optimizer')} of {steps}{besides}")
    sought = [tuning.config for panel in experiment.panels for tuning in panel.tuned]
    if sought:
        points = _plural(sum(len(parse_grid(config.grid)) for config in sought), "point")
        rounds = f"{_span([config.rounds for config in sought])} rounds"
        parts.append(f"{points} of {rounds} in {_plural(len(sought), 'sweep')} to tune baselines")
    if experiment.sweeps:
        parts.append(_plural(len({panel.sweep for panel in experiment.sweeps}), "sweep"))
    if experiment.mixes:
        parts.append(_plural(len(experiment.mixes), "partition"))
    if experiment.timings:
        methods = _plural(len(METHODS), "method")
        parts.append(
            f"times of {methods} in {_plural(len(experiment.timings), 'model')}, on one device"
        )
    return f"{'; '.join(parts)}; tasks {', '.join(experiment.tasks())}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _span(values: Sequence[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
