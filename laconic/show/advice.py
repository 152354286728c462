"""Which method to take for which goal, from the records of one comparison."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from laconic.show import metrics
from laconic.show.curves import Record
from laconic.show.summary import Row, bounds, methods_of, rivals_of, summary_of
from laconic.show.table import MISSING, Table, count, number, percent

NOTE = """\
Train loss: of the last 10 rounds. Test loss: after the last round, on data never trained on. \
Rounds: how often workers must wait for the network. Level: within two standard errors."""


class Goal(NamedTuple):
    """What one may want: the field of a row that says it, its error, and how a row reads."""

    name: str
    field: str
    error: Callable[[Row], float]
    text: Callable[[Row], str]


def advice(records: Sequence[Record]) -> Table | None:
    """The best method for each goal, and those level with it; None with fewer than two rivals."""
    summary = summary_of(records)
    rivals = rivals_of(summary["rows"], bounds(records))
    rows = []
    for goal in _goals(records):
        able = sorted((r for r in rivals if r[goal.field] is not None), key=lambda r: r[goal.field])
        if len(rivals) < 2 or not able:
            continue
        best, *others = able
        level = [row["label"] for row in others if _level(goal, best, row)]
        said = [goal.name, best["label"], goal.text(best), ", ".join(level) or MISSING]
        rows.append(said)
    headers = ["if you want", "take", "it reached", "level with it"]
    return Table("Which to take on this task", headers, rows, NOTE, left=4) if rows else None


def _goals(records: Sequence[Record]) -> list[Goal]:
    target = summary_of(records)["target_loss"]
    spread = {m["label"]: _test_error(m) for m in methods_of(records)}
    found = []
    if target is not None:
        name = f"fewest rounds to train loss {number(target)}"
        rounds = lambda row: f"{count(row['rounds_to_target'])} rounds"
        found.append(Goal(name, "rounds_to_target", _rounds_error, rounds))
    error = lambda row: row["final_train_error"] or 0.0
    loss = lambda row: number(row["final_train"])
    found.append(Goal("lowest train loss", "final_train", error, loss))
    error = lambda row: spread[row["label"]]
    return [*found, Goal("best test loss", "test_loss", error, _tested)]


def _level(goal: Goal, best: Row, other: Row) -> bool:
    error = math.hypot(goal.error(best), goal.error(other))
    return other[goal.field] - best[goal.field] <= 2 * error


def _rounds_error(row: Row) -> float:
    """The relative error of a speedup is that of its rounds."""
    if not row["speedup"] or not row["speedup_error"]:
        return 0.0
    return row["rounds_to_target"] * row["speedup_error"] / row["speedup"]


def _test_error(method: Record) -> float:
    """The standard error over seeds of the last test loss."""
    values = method["heldout"].get("loss")
    if values is None or any(method["diverged"]):
        return 0.0
    return float(metrics.standard_error(np.array(values, float))[-1])


def _tested(row: Row) -> str:
    accuracy = row["test_accuracy"]
    return number(row["test_loss"]) + (f" ({percent(accuracy)})" if accuracy is not None else "")
