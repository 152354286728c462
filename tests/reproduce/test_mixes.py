"""The class mixes of a population: counted as NumPy counts them, in a table and a figure; and a run
of both figures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from laconic.data.partition import class_counts
from laconic.federated.population import RUNS, Federated, draw_rows, labels_of
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.federated import MixPanel
from laconic.reproduce.outcome import experiment_figure, rows_of, tables
from laconic.reproduce.panel import Panel
from laconic.reproduce.panel_show import all_axes
from laconic.reproduce.part import Outcome
from laconic.reproduce.run import carry_out
from laconic.reproduce.sweep_panel import SweepPanel, find_sweep
from laconic.runs.compare import CompareConfig
from laconic.runs.sweep import SweepConfig, sweep
from laconic.tasks.catalog import make_task

MIXED = Experiment(
    "mixed",
    "Mixes, for tests",
    "two populations of digits",
    tuple(MixPanel(f"a{a}", f"α = {a}", "digits-mlp", Federated(20, a), 5) for a in (100.0, 0.05)),
)


@pytest.fixture(scope="module")
def rows():
    return rows_of(MIXED, {})


def test_rows_are_the_counts_of_the_partition_that_runs_use(rows):
    task = make_task("digits-mlp")
    for row, mix in zip(rows, MIXED.of(MixPanel), strict=True):
        counts = class_counts(labels_of(task), draw_rows(mix.federated, task, RUNS, 0), 10)
        np.testing.assert_array_equal(row["counts"], counts[:5])
        assert (row["clients"], row["samples"]) == (20, [60])
        assert row["classes_held"] == np.mean([np.count_nonzero(c) for c in counts])
        effective = [np.exp(-sum(p * np.log(p) for p in c / 60 if p)) for c in counts]
        assert row["effective_classes"] == pytest.approx(np.mean(effective))
        assert row["largest_share"] == pytest.approx(np.mean(counts.max(axis=1) / 60))
    assert rows[0]["effective_classes"] > 2 * rows[1]["effective_classes"]
    assert tables(MIXED, rows)[0].rows[0][:3] == ["α = 100.0", "20", "60"]


def test_the_figure_has_a_bar_for_each_client_divided_into_its_classes(rows):
    figure = experiment_figure(Outcome(MIXED, {}, {"rows": rows, "scale": "full"}))
    for plot, row in zip(figure.axes, rows, strict=True):
        widths = np.array([[bar.get_width() for bar in bars] for bars in plot.containers]).T
        np.testing.assert_array_equal(widths, row["counts"])
        ends = [bar.get_x() + bar.get_width() for bar in plot.containers[-1]]
        np.testing.assert_array_equal(ends, np.sum(row["counts"], axis=1))


def test_it_is_carried_out_and_the_same_again(tmp_path):
    folder, record = carry_out(MIXED, "full", tmp_path / "out")
    for name in ("figure.png", "figure.svg", "figure-narrow.png", "table.md", "table.html"):
        assert (folder / name).stat().st_size > 100
    assert "effective classes" in (folder / "table.md").read_text()
    lines = (folder / "records.jsonl").read_text()
    assert carry_out(MIXED, "full", folder)[1] == record
    assert (folder / "records.jsonl").read_text() == lines


CONFIG = CompareConfig(
    task="digits-mlp:width=4",
    optimizers=("fedavg:label=FedAvg", "scaffold:label=SCAFFOLD"),
    workers=3,
    batch=10,
    federated=Federated(30, 0.1),
    rounds=4,
    seeds=3,
    evaluate_every=2,
)


@pytest.mark.slow
def test_a_panel_with_a_population_is_carried_out_and_gone_on_with(tmp_path):
    panel = Panel(
        "p",
        "P",
        CONFIG,
        metrics=("test_accuracy",),
        shown=("test-accuracy",),
        band="standard deviation",
    )
    found = Experiment("one", "One", "w", (panel,))
    folder, record = carry_out(found, "full", tmp_path / "out")
    header = json.loads((folder / "panels/p/records.jsonl").read_text().splitlines()[0])
    assert (
        header["config"]["local_steps"] == 4
    )  # 40 samples in batches of 10, whatever was asked for
    assert header["config"]["federated"]["alpha"] == 0.1
    assert carry_out(found, "full", folder)[1] == record  # nothing is begun anew
    records = [
        json.loads(line) for line in (folder / "panels/p/records.jsonl").read_text().splitlines()
    ]
    (axes,) = all_axes(found.parts, (), {"p": records})
    values = 100 * np.array(records[1]["heldout"]["accuracy"])
    np.testing.assert_allclose(axes.curves[0].error, values.std(axis=0, ddof=1), rtol=1e-12)


def test_a_sweep_with_a_population_is_carried_out_and_found_again(tmp_path):
    sizes = {"workers": 3, "batch": 10, "rounds": 4, "federated": CONFIG.federated}
    config = SweepConfig(task=CONFIG.task, method="fedavg", grid=("gamma=0.1,0.2",), **sizes)
    found = Experiment(
        "two", "Two", "w", (SweepPanel("s", "S", config, "minimum", {"gamma": 0.1}),)
    )
    folder, record = carry_out(found, "full", tmp_path / "out")
    assert record["rows"][0]["paper_loss"] is not None
    assert carry_out(found, "full", folder)[1] == record
    assert find_sweep(config, folder / "sweeps") is not None
    for other in (Federated(30, 0.2), Federated()):
        assert find_sweep(replace(config, federated=other), folder / "sweeps") is None


def outcome_part_by_part(found, parts, folder):
    """The record after each part was asked for by itself; nothing that was there is ever missing
    again."""
    for i, part in enumerate(parts, start=1):
        _, record = carry_out(found, "full", folder, panels=[part])
        assert set(record.get("left", [])) == set(parts[i:])
    return record


def test_a_partition_stays_in_the_outcome_when_the_next_one_is_asked_for(tmp_path):
    record = outcome_part_by_part(MIXED, ["a0.05", "a100.0"], tmp_path / "out")
    assert [row["panel"] for row in record["rows"]] == ["α = 100.0", "α = 0.05"]


def test_a_sweep_on_record_stays_in_the_outcome_when_the_next_one_is_asked_for(
    tmp_path, monkeypatch
):
    config = SweepConfig(task=CONFIG.task, grid=("gamma=0.1,0.2",), workers=2, batch=8, rounds=4)
    panels = [
        SweepPanel(f"h{H}", f"H = {H}", replace(config, local_steps=H), "minimum", {})
        for H in (1, 2)
    ]
    monkeypatch.chdir(tmp_path)  # where sweeps on record are looked for
    sweep(replace(panels[0].config, out=tmp_path / "results/sweeps/first"))
    record = outcome_part_by_part(
        Experiment("e", "E", "w", tuple(panels)), ["h1", "h2"], tmp_path / "out"
    )
    assert [path.name for path in (tmp_path / "out/sweeps").iterdir()] == ["h2"]
    assert [row["panel"] for row in record["rows"]] == ["H = 1", "H = 2"]
