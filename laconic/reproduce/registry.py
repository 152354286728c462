"""All experiments by name."""

from laconic.errors import unknown
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.federated import FEDERATED
from laconic.reproduce.figures import FIGURES
from laconic.reproduce.large import LARGE_FIGURES
from laconic.reproduce.overhead import TABLE_OVERHEAD
from laconic.reproduce.own_rows import with_own_rows
from laconic.reproduce.tables import CURVES, TABLES

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e for e in (*TABLES, TABLE_OVERHEAD, *CURVES, *FIGURES, *LARGE_FIGURES, *FEDERATED)
}


def experiment(name: str) -> Experiment:
    """An experiment by its name, with the rows that outer optimizers of one's own ask for."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return with_own_rows(EXPERIMENTS[name])
