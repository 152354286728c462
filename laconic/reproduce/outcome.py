"""What an experiment comes to: a row for each method and metric of a panel, our number beside the
paper's."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from laconic.reproduce.experiment import AVERAGE, Experiment, Number, Panel
from laconic.show import metrics
from laconic.show.curves import of_kind
from laconic.show.sweep import RULES, ranked
from laconic.show.table import count, number, percent, with_error

Record = dict[str, Any]


class Metric(NamedTuple):
    """A number of a comparison's summary: how it is called, its fields there, and how it reads with
    its error."""

    title: str
    field: str
    error: str | None
    text: Callable[[Any, Any], str]


class Span(NamedTuple):
    """Mean test accuracy over a span of rounds, from a method's own record; it reads as a metric
    does."""

    title: str
    first: int
    last: int
    text: Callable[[Any, Any], str]


def _percent_with_error(value: float | None, error: float | None) -> str:
    return (
        percent(value) if value is None or not error else f"{100 * value:.2f} ± {100 * error:.2f} %"
    )


METRICS: dict[str, Metric] = {
    "speedup": Metric("speedup", "speedup", "speedup_error", lambda x, e: with_error(x, e, "×")),
    "rounds": Metric("rounds to {target}", "rounds_to_target", None, lambda x, e: count(x)),
    "final_train": Metric("final train loss", "final_train", "final_train_error", with_error),
    "test_loss": Metric("test loss", "test_loss", None, lambda x, e: number(x)),
    "test_accuracy": Metric("test accuracy", "test_accuracy", None, lambda x, e: percent(x)),
    "diverged": Metric("diverged seeds", "diverged", None, lambda x, e: str(x)),
    "sent_megabytes": Metric("MB sent", "sent_megabytes", None, lambda x, e: number(x)),
}


SPANS: dict[str, Span] = {
    "accuracy_181_200": Span("test accuracy, rounds 181–200", 181, 200, _percent_with_error),
    "accuracy_951_1000": Span("test accuracy, rounds 951–1000", 951, 1000, _percent_with_error),
}
COLUMNS: dict[str, Metric | Span] = {
    **METRICS,
    **SPANS,
}  # whatever may be a column of a panel's table


def rows_of(experiment: Experiment, panels: Mapping[str, Sequence[Record]]) -> list[Record]:
    """The rows of every panel from its comparison's records, then the averages."""
    rows = [row for panel in experiment.panels for row in _panel_rows(panel, panels[panel.name])]
    return rows + _averages(experiment, rows)


def _panel_rows(panel: Panel, records: Sequence[Record]) -> list[Record]:
    summary, rows = of_kind(records, "summary")[-1], []
    for found in summary["rows"]:
        for metric in panel.metrics:
            row = _row(
                panel.name, found["label"], metric, *_measured(COLUMNS[metric], found, records)
            )
            if metric == "rounds":
                row |= {"target": summary["target_loss"], "paper_target": panel.paper_target}
            if metric == panel.metrics[0] and found["label"] in panel.paper:
                row |= _beside(row, panel.paper[found["label"]])
            rows.append(row)
    return rows


def _measured(
    metric: Metric | Span, found: Record, records: Sequence[Record]
) -> tuple[float | None, float | None]:
    """A metric and its error, of a row of the summary; weights that are no longer numbers have no
    accuracy."""
    if isinstance(metric, Metric):
        return found[metric.field], None if metric.error is None else found[metric.error]
    method = next(m for m in of_kind(records, "method") if m["label"] == found["label"])
    values = method["heldout"].get("accuracy")
    if values is None or any(method["diverged"]):
        return None, None
    return metrics.mean_over_rounds(values, method["evaluated_at"], metric.first, metric.last)


def _row(panel: str, label: str, metric: str, ours: float | None, error: float | None) -> Record:
    row = {"panel": panel, "label": label, "metric": metric, "ours": ours, "error": error}
    return row | {"in_paper": False, "paper": None, "paper_error": None, "difference": None}


def _beside(row: Record, paper: Number) -> Record:
    """The paper's number; a difference only where both are numbers of the same thing."""
    same = row.get("target") == row.get("paper_target")
    known = row["ours"] is not None and paper.value is not None and same
    difference = row["ours"] - paper.value if known else None  # type: ignore[operator]
    return {
        "in_paper": True,
        "paper": paper.value,
        "paper_error": paper.error,
        "difference": difference,
    }


def _averages(experiment: Experiment, rows: Sequence[Record]) -> list[Record]:
    """Means over the averaged panels of each method that all of them have; as in the paper, hyphens
    are ignored."""
    shown = [panel for panel in experiment.panels if panel.name in experiment.averaged]
    if not shown:
        return []
    metric, averages = shown[0].metrics[0], []
    chosen = [
        row for row in rows if row["metric"] == metric and row["panel"] in experiment.averaged
    ]
    for label in dict.fromkeys(row["label"] for row in chosen):
        same = [row for row in chosen if row["label"] == label]
        if len(same) == len(shown):
            row = _row(AVERAGE, label, metric, _mean([r["ours"] for r in same]), None)
            if all(r["in_paper"] for r in same):
                row |= _beside(row, Number(_mean([r["paper"] for r in same])))
                if any((r["ours"] is None) != (r["paper"] is None) for r in same):
                    row["difference"] = None  # means over different columns
            averages.append(row)
    return averages


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


# --- tuned values ---------------------------------------------------------------------------------


def hparam_rows(
    experiment: Experiment,
    found: Mapping[str, Sequence[Record]],
    recorded: Mapping[str, Sequence[Record] | None] | None = None,
) -> list[Record]:
    """A row for each sweep: the best point, the paper's, and what the paper's came to in the same
    sweep.

    `recorded` are sweeps at full scale that were on record before, by name.
    """
    rows = []
    for panel in experiment.sweeps:
        points = of_kind(found[panel.sweep], "point")
        best, value = ranked(points, panel.rank_by)[0], RULES[panel.rank_by]
        theirs = next((p for p in points if _same(p["numbers"], panel.paper)), None)
        known = theirs is not None and value(theirs) is not None and value(best) is not None
        before = (recorded or {}).get(panel.sweep)
        rows.append(
            {
                "panel": panel.title,
                "label": panel.config.method,
                "metric": "hparams",
                "ours": best["numbers"],
                "loss": value(best),
                "paper": dict(panel.paper),
                "paper_loss": None if theirs is None else value(theirs),
                "difference": value(theirs) - value(best) if known else None,  # type: ignore[operator]
                "recorded": None
                if before is None
                else ranked(of_kind(before, "point"), panel.rank_by)[0]["numbers"],
            }
        )
    return rows


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two points are the same to 1 %: the paper rounds 0.5/0.3 to 1.66."""
    return one.keys() == other.keys() and all(
        math.isclose(one[k], other[k], rel_tol=0.01) for k in one
    )
