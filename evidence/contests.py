"""`lopt-r` against the best tuned rival on each task of the suite: scores and their means."""

import functools
import math

import numpy as np

from evidence import measures
from evidence.pages import Row
from evidence.records import config, curves, heldout, methods, read
from evidence.tables import NAN, PANELS, Cells, Maker, points_in_order

SUITE = "reproduce/fig-general-full"
OURS = "lopt-r"
UNTUNED = "Nesterov 0.7/0.9 untuned"
LEAST = 1e-3  # losses below count as equal
NEVER = 0.5
SWEPT = {"Nesterov": "diloco", "SlowMo": "slowmo", "FedAdam": "fedadam", "FedExP": "fedexp"}


def place(title: str) -> str:
    """The folder of a task of the suite."""
    return f"{SUITE}/panels/{PANELS[title]}"


@functools.cache
def rival(folder: str) -> str:
    """The tuned rival that ends lowest; below the least loss, the one that is there first."""

    def key(label: str) -> tuple[float, float]:
        losses = curves(folder, label)
        loss = measures.final(losses)[0]
        if not math.isfinite(loss):
            return math.inf, math.inf
        target = max(loss, LEAST)
        there = measures.rounds_to(losses, target)
        return target, math.inf if math.isnan(there) else there

    return min((label for label in methods(folder) if label not in (OURS, UNTUNED)), key=key)


def _ratio(theirs: float, ours: float) -> float:
    return NEVER if math.isnan(theirs) or math.isnan(ours) else theirs / ours


@functools.cache
def train_score(folder: str) -> float:
    """Rounds of the rival to its own last loss over ours to the same."""
    theirs = curves(folder, rival(folder))
    target = max(measures.final(theirs)[0], LEAST)
    reached = [measures.rounds_to(x, target) for x in (theirs, curves(folder, OURS))]
    return _ratio(*reached)


@functools.cache
def test_score(folder: str) -> float:
    """The same for the rival's best test loss, at the rounds of its looks."""
    both = (rival(folder), OURS)
    means = [heldout(folder, label, "loss").mean(axis=0) for label in both]
    target = np.nanmin(means[0])
    at = [np.array(methods(folder)[label]["evaluated_at"], float) for label in both]
    reached = [next(iter(t[x <= target]), NAN) for t, x in zip(at, means, strict=True)]
    return _ratio(*map(float, reached))


def geometric_mean(values: list[float]) -> float:
    """Of scores."""
    return math.exp(sum(map(math.log, values)) / len(values))


def titles() -> list[str]:
    """The tasks of the suite that are on record."""
    return [title for title, panel in PANELS.items() if panel.startswith("small-")]


def scores(row: Row) -> Cells:
    """A task's scores, or their geometric means over all."""
    if row.cells[0].startswith("geometric mean"):
        folders = [place(title) for title in titles()]
        assert row.cells[0].endswith(f" {len(folders)}")
        each = ([f(x) for x in folders] for f in (train_score, test_score))
        return {j: [geometric_mean(values)] for j, values in enumerate(each, start=2)}
    folder = place(row.cells[0])
    assert row.cells[1] == rival(folder), f"the best rival is {rival(folder)}"
    return {2: [train_score(folder)], 3: [test_score(folder)]}


def tuned(row: Row) -> Cells:
    """What a rival's sweep found."""
    folder = f"{SUITE}/sweeps/{PANELS[row.cells[0]]}-{SWEPT[row.cells[1]]}"
    points = [r for r in read(folder) if r["kind"] == "point"]
    best = points_in_order(folder)[0]
    bad = sum(any(point["diverged"]) for point in points)
    values = [[len(points)], [bad], [config(folder)["rounds"]]]
    values += [[*best["numbers"].values()], [best["final"]]]
    return {j: [float(x) for x in one] for j, one in enumerate(values, start=2)}


def _rate(folder: str) -> float:
    """The local rate that ours was given."""
    (spec,) = (x for x in config(folder)["optimizers"] if x.partition(":")[0] == OURS)
    return float(spec.partition("gamma=")[2].partition(",")[0])


def row_of_the_page(row: Row) -> Cells:
    """A task on the suite's own page: the best rival, our local rate, three losses, two scores."""
    folder = place(row.cells[0])
    best = rival(folder)
    assert row.cells[1].startswith(f"{best}; γ ="), f"the best rival is {best}"
    losses = [measures.final(curves(folder, label))[0] for label in (best, UNTUNED, OURS)]
    values = [_rate(folder), *losses]
    values += [train_score(folder), test_score(folder)]
    return {j: [value] for j, value in enumerate(values, start=1)}


def settings() -> Maker:
    """The sizes of the suite's tasks, in order."""
    names = ("workers", "local_steps", "batch", "rounds")
    rows = iter([[float(config(place(title))[name]) for name in names] for title in titles()])
    return lambda row: {j: [value] for j, value in enumerate(next(rows), start=2)}


def means(local: str) -> tuple[float, int]:
    """The geometric mean of the train scores with these workers, and over how many tasks."""
    each = [train_score(place(title)) for title in titles() if title.endswith(f", {local}")]
    return geometric_mean(each), len(each)
