"""Times of a round: measured part by part, told beside the paper's, drawn, stopped and taken up
again."""

import json
from dataclasses import replace

import pytest

from laconic.bench import overhead
from laconic.bench.overhead import OverheadConfig
from laconic.reproduce import run
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.outcome import experiment_figure, tables
from laconic.reproduce.part import Outcome
from laconic.reproduce.run import carry_out
from laconic.reproduce.scale import SMOKE_LINE
from laconic.reproduce.timings import TimingPanel
from laconic.runs.folder import Interrupted
from laconic.show.report import collect
from laconic.store.records import read
from tests.reproduce.made import Killed, Watch

CONFIG = OverheadConfig(
    task="digits-mlp", local_steps=(8, 16), workers=2, steps=3, last=2, restarts=2
)
PAPER = {8: ((0.5, 1.0), (0.6, 1.2), (0.7, 1.4))}
TIMED = Experiment(
    "timed",
    "Timed",
    "two models by the clock",
    (TimingPanel("a", "A", CONFIG, PAPER), TimingPanel("b", "B", replace(CONFIG, batch=7))),
)
SECONDS = {
    "forward-backward": 0.008,
    "local step": 0.010,
    "local-sgd": 0.001,
    "lopt-a": 0.002,
    "lagg-a": 0.004,
}


@pytest.fixture
def clock(monkeypatch):
    """Every part takes what `SECONDS` says, and nothing is compiled; what was timed."""
    timed = []

    def one(name, config, tick):
        timed.append((config.batch, name))
        tick()
        return SECONDS[name]

    monkeypatch.setattr(overhead, "_one", one)
    monkeypatch.setattr(overhead, "_gradient", lambda task, config: "forward-backward")
    monkeypatch.setattr(overhead, "_local", lambda task, config: "local step")
    monkeypatch.setattr(overhead, "_server", lambda task, name, config: name)
    return timed


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(run, "write_outcome", lambda *outcome: None)


def test_a_round_is_h_local_steps_and_one_of_the_server(clock, tmp_path):
    folder, record = carry_out(TIMED, "full", tmp_path / "out")
    rows = {(row["panel"], row["H"], row["label"]): row for row in record["rows"]}
    assert len(rows) == 2 * 2 * 3
    lopt = rows["a", 8, "LOpt-A"]
    assert lopt["forward_backward"] == pytest.approx(0.064)
    assert lopt["optimizer"] == pytest.approx(0.016 + 0.002)
    assert lopt["ours"] == pytest.approx(0.082)
    assert lopt["overhead"] == pytest.approx(0.082 / 0.081)
    assert (lopt["paper"], lopt["paper_overhead"]) == (0.6, 1.2)
    assert lopt["difference"] == pytest.approx(0.082 / 0.081 - 1.2)
    assert rows["a", 16, "LAgg-A"]["ours"] == pytest.approx(0.164)
    assert rows["a", 16, "LAgg-A"]["paper"] is rows["b", 8, "LOpt-A"]["difference"] is None
    for name in ("figure.png", "figure.svg", "figure-narrow.png", "table.md", "table.html"):
        assert (folder / name).stat().st_size > 100
    text = (folder / "table.md").read_text()
    assert "| A | 8 | LOpt-A | 0.0640 | 0.0180 | 0.0820 | 0.60 | 1.012× | 1.20× | −0.188 |" in text
    assert "8,970 parameters" in text
    (table,) = tables(TIMED, record["rows"])
    assert {len(row) for row in table.rows} == {len(table.headers)}


def test_the_figure_stacks_the_optimizer_on_the_passes(clock, no_pictures, tmp_path):
    _, record = carry_out(TIMED, "full", tmp_path / "out")
    figure = experiment_figure(Outcome(TIMED, {}, record | {"scale": "smoke"}), 4)
    assert [plot.get_title(loc="left") for plot in figure.axes] == ["A", "B", "", ""]
    bars = figure.axes[0].patches
    tops = sorted({round(bar.get_y() + bar.get_height(), 6) for bar in bars if bar.get_y()})
    assert tops == pytest.approx([0.081, 0.082, 0.084, 0.161, 0.162, 0.164])
    diamonds = [list(line.get_ydata()) for line in figure.axes[2].lines if line.get_marker() == "D"]
    assert diamonds == [[1.2], [1.4]]
    assert SMOKE_LINE in figure.get_suptitle()


def test_stopped_it_goes_on_with_the_next_part(clock, no_pictures, tmp_path):
    whole = carry_out(TIMED, "full", tmp_path / "whole")[1]
    clock.clear()
    with pytest.raises(Interrupted, match="a: stopped after local step"):
        carry_out(TIMED, "full", tmp_path / "out", stop=lambda: len(clock) >= 2 * 2)
    assert [record["kind"] for record in read(tmp_path / "out/timings/a/records.jsonl")] == [
        "run",
        "part",
        "part",
    ]
    clock.clear()
    watch = Watch()
    folder, record = carry_out(TIMED, "full", tmp_path / "out", watching=watch)
    assert clock[:2] == [(128, "local-sgd")] * 2
    assert len(clock) == 2 * (3 + 5)
    assert watch.begun[:4] == [
        ("A", name, 10) for name in ("forward-backward", "local step") for _ in range(2)
    ]
    assert record["rows"] == whole["rows"]
    clock.clear()
    assert carry_out(TIMED, "full", folder)[1] == record
    assert clock == []


def test_death_loses_only_the_part_that_was_under_way(clock, no_pictures, tmp_path, monkeypatch):
    one = overhead._one

    def die(name, config, tick):
        if name == "lagg-a":
            raise Killed
        return one(name, config, tick)

    with monkeypatch.context() as patch:
        patch.setattr(overhead, "_one", die)
        with pytest.raises(Killed):
            carry_out(TIMED, "full", tmp_path / "out")
    clock.clear()
    carry_out(TIMED, "full", tmp_path / "out")
    assert clock[:2] == [(128, "lagg-a")] * 2


def test_times_of_two_devices_do_not_mix(clock, no_pictures, tmp_path, raises_clearly):
    folder, _ = carry_out(TIMED, "full", tmp_path / "out")
    path = folder / "timings" / "a" / "records.jsonl"
    header, first, *_ = path.read_text().splitlines()
    changed = json.loads(header)
    changed["provenance"]["device"]["kind"] = "Abacus"
    path.write_text(json.dumps(changed) + "\n" + first + "\n")
    with raises_clearly("begun on Abacus", "two devices", "--out"):
        carry_out(TIMED, "full", folder)


def test_other_settings_are_refused_and_the_report_knows_it(
    clock, no_pictures, tmp_path, raises_clearly
):
    folder, _ = carry_out(TIMED, "full", tmp_path / "results" / "timed")
    (found,) = collect(tmp_path / "results").runs
    assert (found.kind, found.name) == ("experiment", "timed")
    other = replace(TIMED, parts=(replace(TIMED.parts[0], config=replace(CONFIG, batch=3)),))
    with raises_clearly("timings/a", "another batch"):
        carry_out(other, "full", folder)


@pytest.mark.slow
def test_for_real_at_a_small_size(tmp_path):
    small = replace(CONFIG, task="digits-mlp:width=4", local_steps=(2,), batch=4, restarts=1)
    found = replace(TIMED, parts=(TimingPanel("a", "A", small),))
    _, record = carry_out(found, "smoke", tmp_path / "out")
    assert all(row["ours"] > 0 for row in record["rows"])
    assert record["rows"][0]["overhead"] == 1.0
