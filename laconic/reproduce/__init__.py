"""The paper's experiments, by name, and rows of one's own in them."""

from dataclasses import replace

from laconic.errors import unknown
from laconic.methods import own_names
from laconic.outer import OUTER
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.federated import FEDERATED
from laconic.reproduce.figures import FIGURES
from laconic.reproduce.tables import CURVES, TABLES

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (*TABLES, *CURVES, *FIGURES, *FEDERATED)}


def named_experiment(name: str) -> Experiment:
    """An experiment by its name, with the rows that outer optimizers of one's own ask for."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return with_own_rows(EXPERIMENTS[name])


def with_own_rows(experiment: Experiment) -> Experiment:
    """The experiment with each outer optimizer whose registry line gives it a row."""
    names = own_names()
    if not names:
        return experiment
    specs = [row_spec(name) for name in names]
    grids = {name: OUTER[name].grid for name in names if OUTER[name].grid}
    parts = [part.with_methods(specs) for part in experiment.parts]
    more = [part for kind in experiment.kinds() for part in kind.more_sweeps(experiment, grids)]
    return replace(experiment, parts=(*parts, *more))


def row_spec(name: str) -> str:
    """The row as `laconic compare` reads it, under its own name unless it gives a label."""
    row = OUTER[name].row or ""
    given = row.split(",") if row else []
    label = [] if any(option.startswith("label=") for option in given) else [f"label={name}"]
    return f"{name}:{','.join([*given, *label])}"
