"""What the docs claim is what the records say."""

import json
import math
from pathlib import Path

import pytest

from laconic.evaluate.outcome import summarise
from laconic.evaluate.summary import markdown_table
from laconic.evaluate.timing import parse_link
from laconic.store.runlog import read

ROOT = Path(__file__).parents[1]
RUNS = sorted(path.parent for path in (ROOT / "results").glob("*/records.jsonl"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_docs_show_the_records_table(run):
    assert markdown_table(read(run / "records.jsonl")).strip() in (ROOT / "docs" / "results.md").read_text()


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_recorded_summary_follows_from_its_curves(run):
    records = read(run / "records.jsonl")
    config, summary = records[0]["config"], records[-1]
    link = None if config["link"] is None else parse_link(config["link"])
    again = summarise([r for r in records if r["kind"] == "method"], config["target_loss"], link)
    assert again["reference"] == summary["reference"]
    for row, kept in zip(again["rows"], summary["rows"], strict=True):
        row = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        label, numbers = kept.pop("label"), {key: value for key, value in kept.items() if value is not None}
        assert label == row.pop("label")
        assert {key for key, value in row.items() if value is not None} == set(numbers)
        assert {key: row[key] for key in numbers} == pytest.approx(numbers, rel=1e-6)


def test_the_readme_rounds_nothing_up():
    readme = (ROOT / "README.md").read_text()
    table = markdown_table(read(ROOT / "results" / "fmnist-baselines" / "records.jsonl"))
    for label in ("local-sgd:gamma=0.3", "adam:alpha=0.01", "slowmo:gamma=0.1,alpha=1,beta=0.95"):
        cells = next(line for line in table.splitlines() if f"`{label}`" in line).replace("*", "").split("|")
        assert f"|{'|'.join(cells[2:6])}|" in readme, label


@pytest.mark.parametrize("name", ["round-cpu", "round-h200"])
def test_the_docs_show_the_benchmarks(name):
    figures = json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_text())
    docs = (ROOT / "docs" / "results.md").read_text()
    for key in ("round_ratio", "server_step_speedup", "temporary_bytes_per_parameter", "server_step_seconds"):
        assert f"| {figures[key]} |" in docs
