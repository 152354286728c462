"""Baselines that are tuned first: the best point is compared, once, and told with the grid it was
found in."""

from dataclasses import replace

import pytest

from laconic.reproduce import panel, run, sweep_panel
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.outcome import notes, tables
from laconic.reproduce.panel import Panel, Tuning
from laconic.reproduce.part import Outcome
from laconic.reproduce.run import carry_out
from laconic.runs import sweep as sweep_module
from laconic.runs.folder import Interrupted
from laconic.runs.sweep import SweepConfig, sweep
from laconic.store.records import read
from tests.reproduce.made import SMALL, Watch, quickly

SIZES = {"task": SMALL.task, "workers": SMALL.workers, "local_steps": 1, "batch": 4, "rounds": 6}
GRID = SweepConfig(method="local-sgd", grid=("gamma=1e-6,0.3,3e38",), points_at_once=1, **SIZES)
TUNED = Experiment(
    "tuned",
    "Tuned",
    "one baseline that is tuned and one that is not",
    (
        Panel(
            "p",
            "P",
            replace(SMALL, optimizers=SMALL.optimizers[1:]),
            tuned=(Tuning("Local SGD", GRID),),
        ),
    ),
)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Little optimising, no pictures: what takes the time in runs this small."""
    with quickly() as patch:
        patch.setattr(sweep_module, "write_figure", lambda records, path: path.touch())
        patch.setattr(run, "write_outcome", lambda *outcome: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    watch = Watch()
    folder, record = carry_out(
        TUNED, "full", tmp_path_factory.mktemp("whole") / "out", watching=watch
    )
    return folder, record, watch.begun


def test_the_best_point_is_what_is_compared(whole):
    folder, record, begun = whole
    assert begun == [("p-local-sgd", "local-sgd", 0), ("P", "Local SGD", 0), ("P", "SlowMo", 0)]
    config = read(folder / "panels" / "p" / "records.jsonl")[0]["config"]
    assert config["optimizers"] == ["local-sgd:gamma=0.3,label=Local SGD", *SMALL.optimizers[1:]]
    (row,) = [row for row in record["rows"] if row["metric"] == "tuned"]
    points = [
        r for r in read(folder / "sweeps" / "p-local-sgd" / "records.jsonl") if r["kind"] == "point"
    ]
    assert (row["ours"], row["points"], row["diverged"]) == ({"gamma": 0.3}, 3, 1)
    assert row["loss"] == points[1]["minimum"] < points[0]["minimum"]


def test_the_grid_is_told(whole):
    _, record, _ = whole
    compared, found = tables(TUNED, record["rows"])
    assert [row[:2] for row in compared.rows] == [["P", "Local SGD"], ["P", "SlowMo"]]
    assert found.rows[0][:6] == ["P", "Local SGD", "3", "1", "6", "0.3"]
    assert len(found.rows[0]) == len(found.headers)
    told = record["notes"]
    assert told == notes(Outcome(TUNED, {"p": TUNED.parts[0].read(whole[0])}, record))
    grid = "gamma=1e-6,0.3,3e38: 3 points, 6 rounds, 1 seed; best values are in the order gamma."
    assert f"Local SGD is tuned over {grid}" in told


def test_nothing_is_tuned_twice(whole, monkeypatch):
    folder, record, _ = whole
    watch = Watch()
    monkeypatch.setattr(
        panel, "find_sweep", lambda config: pytest.fail("its own sweep is there already")
    )
    assert carry_out(TUNED, "full", folder, watching=watch) == (folder, record)
    assert watch.begun == []


def test_stopped_among_the_points_it_goes_on_with_the_next(whole, tmp_path):
    asked = []
    watch = Watch(lambda what, done: asked.append(what) if done == 6 else None)
    with pytest.raises(Interrupted, match="p-local-sgd: stopped with 1 of 3 points done"):
        carry_out(TUNED, "full", tmp_path / "out", watching=watch, stop=lambda: bool(asked))
    again = Watch()
    _, record = carry_out(TUNED, "full", tmp_path / "out", watching=again)
    assert again.begun[0] == ("p-local-sgd", "local-sgd", 6)
    assert record["rows"] == whole[1]["rows"]


def test_a_sweep_on_record_stands_in_at_full_scale(tmp_path, monkeypatch):
    sweep(replace(GRID, out=tmp_path / "sweeps" / "mine"))
    monkeypatch.setattr(
        panel, "find_sweep", lambda config: sweep_panel.find_sweep(config, tmp_path / "sweeps")
    )
    watch = Watch()
    folder, record = carry_out(TUNED, "full", tmp_path / "out", watching=watch)
    assert [title for title, _, _ in watch.begun] == ["P", "P"]
    assert not (folder / "sweeps").exists()
    assert next(row for row in record["rows"] if row["metric"] == "tuned")["ours"] == {"gamma": 0.3}


def test_records_from_before_a_setting_existed_are_still_those_of_its_default(whole, tmp_path):
    path = whole[0] / "panels" / "p" / "records.jsonl"
    before = path.read_text()
    try:
        assert '"seeds_at_once": 0, ' in before
        path.write_text(before.replace('"seeds_at_once": 0, ', "", 1))
        assert carry_out(TUNED, "full", whole[0])[1]["rows"] == whole[1]["rows"]
    finally:
        path.write_text(before)
