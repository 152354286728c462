"""Rows from records: our number, the paper's, the difference; averages; tuned values. Worked out by
hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from laconic.reproduce.experiment import Experiment
from laconic.reproduce.outcome import rows_of
from laconic.reproduce.panel import Number, Panel
from laconic.reproduce.panel_show import COLUMNS, METRICS
from laconic.reproduce.sweep_panel import ON_RECORD, SweepPanel
from laconic.runs.sweep import SweepConfig
from tests.reproduce.made import SMALL, of_panel, summary_of

PAPER = {"Local SGD": Number(1.0), "SlowMo": Number(4.0, 0.4), "LOpt-A": Number(None)}


def pick(rows, panel, label, metric="speedup"):
    (row,) = [r for r in rows if (r["panel"], r["label"], r["metric"]) == (panel, label, metric)]
    return row


def two_panels():
    panels = tuple(
        Panel(name, name.upper(), SMALL, paper=PAPER, metrics=("speedup",)) for name in ("a", "b")
    )
    experiment = Experiment("e", "E", "w", panels, averaged=("a", "b"))
    numbers = {
        "a": {
            "Local SGD": {"speedup": 1.0},
            "SlowMo": {"speedup": 3.5, "speedup_interval": [3.25, 3.75]},
            "LOpt-A": {},
        },
        "b": {
            "Local SGD": {"speedup": 1.0},
            "SlowMo": {"speedup": None},
            "LOpt-A": {"speedup": 8.0},
        },
    }
    return experiment, {name: of_panel(name, summary_of(rows)) for name, rows in numbers.items()}


def test_a_row_has_both_numbers_and_their_difference():
    row = pick(rows_of(*two_panels()), "a", "SlowMo")
    keys = ("ours", "error", "interval", "paper", "paper_error", "difference")
    assert tuple(row[key] for key in keys) == (
        3.5,
        None,
        [3.25, 3.75],
        4,
        0.4,
        -0.5,
    )
    assert row["in_paper"]


@pytest.mark.parametrize(("panel", "label"), [("b", "SlowMo"), ("b", "LOpt-A"), ("a", "LOpt-A")])
def test_there_is_no_difference_to_what_was_never_reached(panel, label):
    row = pick(rows_of(*two_panels()), panel, label)
    assert row["difference"] is None
    assert row["in_paper"]


def test_averages_ignore_hyphens_on_either_side():
    rows = rows_of(*two_panels())
    slowmo, lopt = pick(rows, "average", "SlowMo"), pick(rows, "average", "LOpt-A")
    assert (slowmo["ours"], slowmo["paper"]) == (3.5, 4.0)
    assert slowmo["difference"] is None  # ours is of one panel, the paper's of two
    assert (lopt["ours"], lopt["paper"], lopt["difference"]) == (8.0, None, None)


def test_averages_over_the_same_columns_have_a_difference():
    experiment, records = two_panels()
    rows = {"Local SGD": {"speedup": 1.0}, "SlowMo": {"speedup": 5.5}, "LOpt-A": {"speedup": 8.0}}
    records["b"] = of_panel("b", summary_of(rows))
    slowmo = pick(rows_of(experiment, records), "average", "SlowMo")
    assert (slowmo["ours"], slowmo["paper"], slowmo["difference"]) == (4.5, 4.0, 0.5)


def test_a_method_that_one_panel_lacks_has_no_average():
    experiment, records = two_panels()
    records["b"] = of_panel("b", summary_of({"Local SGD": {"speedup": 1.0}}))
    labels = {row["label"] for row in rows_of(experiment, records) if row["panel"] == "average"}
    assert labels == {"Local SGD"}


@pytest.mark.parametrize(("target", "difference"), [(0.2, 31), (1.5, None)])
def test_rounds_to_another_loss_than_the_papers_have_no_difference(target, difference):
    panel = Panel(
        "h4",
        "H",
        SMALL,
        paper={"SlowMo": Number(311)},
        paper_metric="rounds",
        paper_target=0.2,
        metrics=("rounds", "final_train"),
    )
    records = summary_of(
        {"SlowMo": {"rounds_to_target": 342, "final_train": 0.1, "final_train_error": 0.01}}, target
    )
    rows = rows_of(Experiment("e", "E", "w", (panel,)), {"h4": of_panel("h4", records)})
    assert pick(rows, "h4", "SlowMo", "rounds")["difference"] == difference
    other = pick(rows, "h4", "SlowMo", "final_train")
    assert (other["ours"], other["error"], other["in_paper"]) == (0.1, 0.01, False)


def test_every_metric_reads_what_a_summary_has():
    values = {metric.field: 0.5 for metric in METRICS.values()} | {"rounds_to_target": 7}
    panel = Panel("p", "P", SMALL, metrics=tuple(METRICS))
    rows = rows_of(
        Experiment("e", "E", "w", (panel,)), {"p": of_panel("p", summary_of({"x": values}))}
    )
    assert [row["ours"] for row in rows] == [7 if metric == "rounds" else 0.5 for metric in METRICS]


def test_accuracy_over_a_span_is_the_mean_over_its_looks():
    """Over looks, then over seeds, ± the standard error; nothing where nobody looked or weights
    diverged."""
    values = np.random.default_rng(0).uniform(0.5, 0.9, (3, 1000))
    method = {
        "kind": "method",
        "label": "x",
        "heldout": {"accuracy": values.tolist()},
        "diverged": [False] * 3,
    }
    method["evaluated_at"] = list(range(1, 1001))
    panel = Panel("p", "P", SMALL, metrics=("accuracy_181_200", "accuracy_951_1000"))
    found = Experiment("e", "E", "w", (panel,))
    rows = rows_of(found, {"p": of_panel("p", [method, *summary_of({"x": {}})])})
    for row, part in zip(rows, (values[:, 180:200], values[:, 950:1000]), strict=True):
        assert row["ours"] == pytest.approx(part.mean())
        assert row["error"] == pytest.approx(part.mean(axis=1).std(ddof=1) / math.sqrt(3))
    assert COLUMNS["accuracy_181_200"].text(0.87654, 0.00123) == "87.65 ± 0.12 %"
    for changed in ({"evaluated_at": list(range(2001, 3001))}, {"diverged": [False, True, False]}):
        rows = rows_of(found, {"p": of_panel("p", [method | changed, *summary_of({"x": {}})])})
        assert [row["ours"] for row in rows] == [None, None]


# --- tuned values ---------------------------------------------------------------------------------


def point(index, minimum, valid, diverged=False, **numbers):
    loss = {"loss": valid}
    return {
        "kind": "point",
        "index": index,
        "numbers": numbers,
        "minimum": minimum,
        "valid": loss,
    } | {"diverged": [diverged]}


POINTS = [
    point(0, 0.5, 0.4, gamma=0.3, alpha=1.6666666666666667, beta=0.9),
    point(1, 0.2, 0.9, gamma=0.1, alpha=1.0, beta=0.95),
    point(2, 0.1, 0.1, diverged=True, gamma=1.0, alpha=1.0, beta=0.5),
]


def hparams(rank_by, paper, recorded=None):
    row = SweepPanel("s", "S", SweepConfig(method="slowmo"), rank_by, paper)
    runs = {"sweeps/s": POINTS, ON_RECORD: recorded or []}
    return rows_of(Experiment("e", "E", "w", (row,)), {"s": runs})[0]


def test_tuned_values_beside_what_the_papers_come_to_in_the_same_sweep():
    row = hparams("minimum", {"gamma": 0.3, "alpha": 1.66, "beta": 0.9})
    assert row["ours"] == {"gamma": 0.1, "alpha": 1.0, "beta": 0.95}
    assert (row["loss"], row["paper_loss"], row["recorded"]) == (0.2, 0.5, None)
    assert row["difference"] == pytest.approx(0.3)


def test_another_rule_ranks_the_same_points():
    row = hparams("valid", {"gamma": 0.1, "alpha": 1.0, "beta": 0.95})
    assert (row["ours"]["gamma"], row["loss"], row["paper_loss"]) == (0.3, 0.4, 0.9)


def test_values_off_the_grid_have_no_loss_here():
    row = hparams("minimum", {"gamma": 0.1, "alpha": 5.0, "beta": 0.3})
    assert (row["paper_loss"], row["difference"]) == (None, None)


def test_sweeps_on_record_are_shown_beside():
    better = [*POINTS[:2], replace_point(POINTS[0], index=3, minimum=0.01)]
    row = hparams("minimum", {"gamma": 0.1, "alpha": 1.0, "beta": 0.95}, better)
    assert row["recorded"]["gamma"] == 0.3
    assert row["ours"]["gamma"] == 0.1


def replace_point(found, **fields):
    return {**found, **fields}


def test_a_panel_is_data():
    panel = Panel("p", "P", SMALL)
    assert replace(panel, title="Q") == Panel("p", "Q", SMALL)
