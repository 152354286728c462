"""Rows of one's own: an outer optimizer whose registry line gives it a row stands in every table
and figure."""

from dataclasses import replace

from laconic.methods import own_names
from laconic.outer import OUTER
from laconic.reproduce.experiment import Experiment, Panel, SweepPanel


def with_own_rows(experiment: Experiment) -> Experiment:
    """The experiment with such optimizers in each of its comparisons and, by their grids, among its
    tuned values."""
    names = own_names()
    if not names:
        return experiment
    panels = tuple(_panel(panel, names) for panel in experiment.panels)
    sweeps = [
        _sweep(panel, name) for panel in _settings(experiment) for name in names if OUTER[name].grid
    ]
    return replace(experiment, panels=panels, sweeps=(*experiment.sweeps, *sweeps))


def spec_of_row(name: str) -> str:
    """The row as `laconic compare` is told it, under its own name unless it gives a label."""
    row = OUTER[name].row or ""
    given = row.split(",") if row else []
    label = [] if any(option.startswith("label=") for option in given) else [f"label={name}"]
    return f"{name}:{','.join([*given, *label])}"


def _panel(panel: Panel, names: list[str]) -> Panel:
    optimizers = (*panel.config.optimizers, *(spec_of_row(name) for name in names))
    return replace(panel, config=replace(panel.config, optimizers=optimizers))


def _settings(experiment: Experiment) -> list[SweepPanel]:
    """One of the tuned methods for each setting that has workers, the setting being what its title
    says first."""
    return list(
        {_setting(panel): panel for panel in experiment.sweeps if panel.config.workers > 1}.values()
    )


def _setting(panel: SweepPanel) -> str:
    return panel.title.rpartition(": ")[0]


def _sweep(panel: SweepPanel, name: str) -> SweepPanel:
    config = replace(panel.config, method=name, grid=OUTER[name].grid, points=())
    alpha = config.federated.alpha
    setting = f"k{config.workers}-h{config.local_steps}" if alpha is None else f"alpha{alpha:g}"
    sweep = f"{config.task}-{setting}-{name}"
    return SweepPanel(sweep, f"{_setting(panel)}: {name}", config, panel.rank_by, {})
