"""The tables of the page about faults on purpose, from the records of the campaign's judge."""

import functools
import json
import math
from collections.abc import Sequence

from evidence.pages import Row, tokens
from evidence.records import RESULTS, Record
from evidence.tables import NAN, Cells, Maker

COUNTED = ("rounds_missing", "rounds_double", "rounds_with_two_states", "minority_rounds")


@functools.cache
def campaign(name: str) -> Record:
    """The record of the blows or of the networks."""
    return json.loads((RESULTS / "benchmarks" / f"campaign-{name}.jsonl").read_text())


def all_blows() -> list[Record]:
    """The blows to all trainings."""
    return [blow for one in campaign("blows")["trainings"] for blow in one["blows"]]


def _or_never(value: float | None) -> float:
    return NAN if value is None else value


def by_kind(row: Row) -> Cells:
    """Gaps after blows of one kind and one limit."""
    limit = float(row.cells[1])
    gaps = sorted(
        blow["gap_s"]
        for blow in all_blows()
        if blow["kind"] == row.cells[0] and blow["limit"] == limit
    )
    over = sum(gap > limit for gap in gaps)
    values = [limit, len(gaps), gaps[len(gaps) // 2], gaps[-1], over or NAN]
    return {j: [float(value)] for j, value in enumerate(values, start=1)}


def by_training(row: Row) -> Cells:
    """What the judge saw of one training, and what it told itself."""
    one = next(x for x in campaign("blows")["trainings"] if str(x["training"]) == row.cells[0])
    values = [len(one["blows"]), one["rounds"], one["seconds"], one["launches"], one["processes"]]
    values += [one["seen_gap_s"], _or_never(one["told_gap_s"])]
    values += [len(one[name]) for name in COUNTED]
    values += [_or_never(one["loss"]), _or_never(one["calm_loss"]), one["load"]]
    return {j: [float(value)] for j, value in enumerate(values, start=1)}


def by_network(row: Row) -> Cells:
    """One bad network."""
    runs = campaign("network")["scenarios_run"]
    one = next(x for x in runs if x["says"] == row.cells[0])
    lost = one["packets"]["dropped"]
    sent = lost + one["packets"]["passed"]
    values = [one["seconds"], one["commits"], _or_never(one["median_round_s"])]
    values += [one["longest_gap_s"], _or_never(one["back_after_s"])]
    values += [len(one[name]) for name in COUNTED[2:]]
    values += [100 * lost / max(1, sent), one["load"]]
    return {j: [float(value)] for j, value in enumerate(values, start=1)}


def _worst(limit: float) -> list[float]:
    gaps = [blow["gap_s"] for blow in all_blows() if blow["limit"] == limit]
    return [max(gaps), float(sum(gap > limit for gap in gaps)), float(len(gaps))]


def _goal_of_blows(name: str) -> list[float]:
    trainings = campaign("blows")["trainings"]
    counts = {
        "no divergence": "rounds_with_two_states",
        "no round missing from the records": "rounds_missing",
        "no round twice in the records": "rounds_double",
        "a minority never commits": "minority_rounds",
    }
    if name in counts:
        return [float(sum(len(one[counts[name]]) for one in trainings))]
    if name.startswith("gap at most"):
        return _worst(float(tokens(name)[0]))
    if name.startswith("loss within"):
        apart = [abs(one["loss"] / one["calm_loss"] - 1) for one in trainings]
        return [100 * max(apart)]
    good = {
        "all trainings end": lambda one: one["ended"],
        "all workers end with one state": lambda one: len(one["final_states"]) == 1,
        # what died unwritten makes the told gap longer, nothing makes it shorter
        "the records tell the longest gap": lambda one: (
            one["told_gap_s"] + 0.5 >= one["seen_gap_s"]
        ),
    }[name]
    return [float(sum(map(good, trainings))), float(len(trainings))]


def _goal_of_networks(name: str) -> list[float]:
    runs = campaign("network")["scenarios_run"]
    counts = {
        "no divergence": "rounds_with_two_states",
        "a minority never commits": "minority_rounds",
    }
    if name in counts:
        return [float(sum(len(one[counts[name]]) for one in runs))]
    says, _, goal = name.rpartition(": ")
    one = next(x for x in runs if x["says"] == says)
    field = {"gap": "longest_gap_s", "back": "back_after_s"}.get(goal.split()[0], "commits")
    return [_or_never(one[field])]


def goals(which: str) -> Maker:
    """The goals, what was found, and whether they are met, all computed again."""
    found = {"blows": _goal_of_blows, "network": _goal_of_networks}[which]

    def make(row: Row) -> Cells:
        values = found(row.cells[0])
        assert row.cells[2] == ("met" if _is_met(row.cells[0], values) else "missed")
        return {1: values}

    return make


def _is_met(name: str, values: Sequence[float]) -> bool:
    value = values[0]
    limits = [float(token.replace(",", "")) for token in tokens(name)]
    if "commits in" in name:
        return value >= limits[-2]
    if name.startswith("loss within"):
        return value <= limits[0]
    if "at most" in name:
        limit = limits[0] if name.startswith("gap at most") else limits[-1]
        return not math.isnan(value) and value <= limit
    return value == (values[1] if len(values) == 2 else 0)


def tables() -> list[Maker]:
    """The tables of the page, in order."""
    return [by_kind, by_training, goals("blows"), by_network, goals("network")]
