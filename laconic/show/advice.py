"""Which method to take for which goal, from the records of one comparison."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from laconic.show import intervals, metrics
from laconic.show.curves import Record
from laconic.show.summary import Row, bounds, curves_of, methods_of, rivals_of, summary_of
from laconic.show.table import MISSING, Table, count, number, percent

NOTE = """\
Train loss: of the last 10 rounds. Test loss: after the last round, on data never trained on. \
Rounds: how often workers must wait for the network. Level: the 95 % interval of the difference \
over seeds leaves open which is better."""


class Goal(NamedTuple):
    """What one may want: the field of a row that says it, whether two methods are apart in it, and
    how a row reads."""

    name: str
    field: str
    apart: Callable[[Record, Record], bool]
    text: Callable[[Row], str]


def advice(records: Sequence[Record]) -> Table | None:
    """The best method for each goal, and those level with it; None with fewer than two rivals."""
    summary = summary_of(records)
    rivals = rivals_of(summary["rows"], bounds(records))
    methods = {method["label"]: method for method in methods_of(records)}
    rows = []
    for goal in _goals(records):
        able = sorted((r for r in rivals if r[goal.field] is not None), key=lambda r: r[goal.field])
        if len(rivals) < 2 or not able:
            continue
        best, *others = able
        several = len(methods[best["label"]]["train"]) > 1  # one seed tells nothing of chance
        level = [
            row["label"]
            for row in others
            if row[goal.field] == best[goal.field]
            or (several and not goal.apart(methods[row["label"]], methods[best["label"]]))
        ]
        said = [goal.name, best["label"], goal.text(best), ", ".join(level) or MISSING]
        rows.append(said)
    headers = ["if you want", "take", "it reached", "level with it"]
    return Table("Which to take on this task", headers, rows, NOTE, left=4) if rows else None


def _goals(records: Sequence[Record]) -> list[Goal]:
    target = summary_of(records)["target_loss"]
    found = []
    if target is not None:
        name = f"fewest rounds to train loss {number(target)}"
        taken = lambda row: f"{count(row['rounds_to_target'])} rounds"
        slower = lambda other, best: _slower(other, best, target)
        found.append(Goal(name, "rounds_to_target", slower, taken))
    loss = lambda row: number(row["final_train"])
    found.append(Goal("lowest train loss", "final_train", _higher(_last_train), loss))
    return [*found, Goal("best test loss", "test_loss", _higher(_last_test), _tested)]


def _slower(other: Record, best: Record, target: float) -> bool:
    ratio = intervals.ratio_interval(curves_of(other), curves_of(best), target)
    return intervals.is_apart(ratio, 1.0)


def _higher(losses: Callable[[Record], np.ndarray]) -> Callable[[Record, Record], bool]:
    """Whether one method's losses [S] are apart from another's, seed by seed."""
    between = lambda other, best: intervals.difference_interval(losses(other), losses(best))
    return lambda other, best: intervals.is_apart(between(other, best), 0.0)


def _last_train(method: Record) -> np.ndarray:
    return metrics.final_losses(curves_of(method))


def _last_test(method: Record) -> np.ndarray:
    return np.array(method["heldout"]["loss"], float)[:, -1]


def _tested(row: Row) -> str:
    accuracy = row["test_accuracy"]
    return number(row["test_loss"]) + (f" ({percent(accuracy)})" if accuracy is not None else "")
