"""Trackers: every backend shows the numbers of the records, read back by its own reader; runs that
are stopped, resumed with others, and trackers that fail."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from laconic import LaconicError, Observer, resume, track
from laconic.runs import trackers
from laconic.runs.folder import Interrupted, RunFolder
from laconic.runs.sweep import SweepConfig, sweep
from laconic.runs.trackers import TRACKERS, Backend, Curve, Watchers
from laconic.runs.train import TrainConfig, train
from laconic.store.records import read
from tests.cli.commands import process
from tests.outer.trees import QUICK
from tests.runs.tracked import READERS, fit, read_csv

NEEDED = {  # of the test: the writer's module, and its reader's
    "csv": (),
    "tensorboard": ("tensorboardX", "tensorboard"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
SMALL = TrainConfig("fit", "slowmo:gamma=0.1,beta=0.5", 2, 2, 4, 6, evaluate_every=3)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


def missing_for(name: str) -> list[str]:
    return [module for module in NEEDED[name] if importlib.util.find_spec(module) is None]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """One comparison under all trackers that are here, in a process of its own → its records, and
    what each tracker's reader finds."""
    home = tmp_path_factory.mktemp("watched")
    names = [name for name in TRACKERS if not missing_for(name)]
    script = str(Path(__file__).with_name("tracked.py"))
    environment = {
        **process("")[1],
        "HOME": str(home),
        "TRACKIO_DIR": str(home / "trackio"),
        "WANDB_ERROR_REPORTING": "false",
    }
    environment = {k: x for k, x in environment.items() if k not in ("WANDB_MODE", "HF_TOKEN")}
    words = [sys.executable, script, str(home), *names]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "no longer tracks" not in done.stderr
    return read(home / "run" / "records.jsonl"), json.loads((home / "found.json").read_text())


def expected(records) -> dict[str, dict[str, list]]:
    """The curves that the records tell of: means over seeds."""
    curves = {}
    for record in (record for record in records if record["kind"] == "method"):
        loss = np.mean(np.array(record["train"], np.float32), axis=0)
        at = record["evaluated_at"]
        test = np.mean(np.array(record["heldout"]["loss"], np.float32), axis=0)
        curves[record["label"]] = {
            "train_loss": list(enumerate(loss.tolist(), 1)),
            "test_loss": list(zip(at, test.tolist(), strict=True)),
        }
    return curves


@pytest.mark.parametrize("name", TRACKERS)
def test_every_tracker_shows_the_numbers_of_the_records(watched, name):
    if absent := missing_for(name):
        pytest.skip(f"needs {', '.join(absent)}: pip install 'laconic[track,dev]'")
    records, found = watched
    curves = expected(records)
    assert found[name].keys() == curves.keys()
    for label, metrics in curves.items():
        assert found[name][label].keys() == metrics.keys()
        for metric, points in metrics.items():
            steps, values = zip(*found[name][label][metric], strict=True)
            assert list(steps) == [step for step, _ in points]
            np.testing.assert_allclose(values, [value for _, value in points], rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in TRACKERS if name != "csv"])
def test_all_trackers_hold_the_same_numbers(watched, name):
    """To the last bit; TensorBoard's are float32."""
    if absent := missing_for(name):
        pytest.skip(f"needs {', '.join(absent)}: pip install 'laconic[track,dev]'")
    kind = np.float32 if name == "tensorboard" else np.float64
    for label, metrics in watched[1]["csv"].items():
        for metric, points in metrics.items():
            theirs = np.array(watched[1][name][label][metric], np.float64)
            np.testing.assert_array_equal(theirs[:, 1], np.array(points)[:, 1].astype(kind))


def test_every_tracker_has_a_reader_here():
    assert TRACKERS.keys() == READERS.keys() == NEEDED.keys()


# --- one run --------------------------------------------------------------------------------------


def curve_in(folder, label="training"):
    return read_csv(folder, [])[label]


@pytest.mark.usefixtures("quick")
def test_a_run_resumed_under_another_tracker_goes_on_in_its_file(tmp_path, monkeypatch):
    """Its settings are the same, and no round is there twice."""
    whole, records = train(replace(SMALL, out=tmp_path / "whole"), fit(), observer=track("csv"))
    losses = [x for record in records if record["kind"] == "rounds" for x in record["loss"]]
    assert curve_in(whole)["train_loss"] == list(enumerate(losses, 1))
    assert [step for step, _ in curve_in(whole)["test_loss"]] == [3, 6]
    assert curve_in(whole)["workers"] == [(r, 2.0) for r in range(1, 7)]
    folder, asked = tmp_path / "stopped", iter([False, True, True])
    with pytest.raises(Interrupted):
        train(
            replace(SMALL, out=folder),
            fit(),
            observer=track("csv"),
            stop=lambda: next(asked),
        )
    assert len(curve_in(folder)["train_loss"]) == 3
    with open(folder / "track.csv", "a") as file:  # a round that no checkpoint has, and half one
        file.write("training,4,train_loss,9.0\ntraining,4,work")
    resume(folder, fit(), observer=track("csv", Observer()))
    assert curve_in(folder) == curve_in(whole)


@pytest.mark.usefixtures("quick", "standard_promotion")
def test_a_sweep_shows_its_progress_and_its_points(tmp_path):
    config = SweepConfig("fit", grid=("gamma=0.1,0.02",), workers=2, batch=4, rounds=2)
    folder, records = sweep(replace(config, out=tmp_path / "s"), fit(), observer=track("csv"))
    points = [record for record in records if record["kind"] == "point"]
    curves = read_csv(folder, [])
    assert [value for _, value in curves["points"]["gamma"]] == [0.1, 0.02]
    minimum = [value for _, value in curves["points"]["minimum"]]
    np.testing.assert_allclose(minimum, [point["minimum"] for point in points], rtol=1e-5)
    assert [step for step, _ in curves["local-sgd"]["train_loss"]] == [2]


# --- the observer ---------------------------------------------------------------------------------


class Written:
    """A backend that keeps what it is told, and fails where it is told to."""

    def __init__(self):
        self.told = []
        self.fails = None

    def __call__(self, curve: Curve):
        self.told.append(("begin", curve.label, curve.done, dict(curve.config)))
        if self.fails == "begin":
            raise OSError("no space\nleft")
        return self

    def write(self, step, numbers):
        if self.fails == "write":
            raise RuntimeError("gone")
        self.told.append((step, dict(numbers)))

    def close(self):
        self.told.append("close")


@pytest.fixture
def backend(monkeypatch):
    found = Written()
    monkeypatch.setitem(TRACKERS, "csv", Backend(found, None))
    return found


class Notes(Observer):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_what_a_backend_is_told(backend, tmp_path):
    watcher = track("csv")
    watcher.numbers("early", 1, {"x": 1.0})  # no run is open yet
    watcher.opened(tmp_path, {"config": {"task": "t"}})
    watcher.begin("a", 10, 2)
    watcher.numbers("a", 2, {"x": 0.5})  # was there before the run was taken up
    watcher.numbers("a", 3, {"x": 1.5})
    watcher.begin("b", 10, 0)
    row = {"round": 1, "loss": None, "quorum": [0, 2], "excluded": {1: "norm"}, "notes": []}
    watcher.round({**row, "heldout": {"loss": 0.25, "valid_loss": None}})
    watcher.closed()
    watcher.numbers("a", 9, {"x": 1.5})
    (begin_a, three, closed, begin_b, (one, numbers), end) = backend.told
    assert begin_a == ("begin", "a", 2, {"task": "t"})
    assert three == (3, {"x": 1.5})
    assert closed == end == "close"
    assert begin_b == ("begin", "training", 0, {"task": "t"})
    assert one == 1
    assert {name: str(x) for name, x in numbers.items()} == {
        "train_loss": "nan",
        "workers": "2",
        "left_out": "1",
        "test_loss": "0.25",
        "valid_loss": "nan",
    }


@pytest.mark.parametrize("where", ["begin", "write"])
def test_a_tracker_that_fails_ends_with_one_note(backend, tmp_path, where):
    backend.fails, notes = where, Notes()
    watcher = track("csv", notes)
    with RunFolder.create("train", tmp_path / "run", "x", None, "command") as folder:
        folder.header["config"] = {}
        with folder.watched_by(watcher):
            for step in (1, 2, 3):
                watcher.numbers("a", step, {"x": 1.0})
    (note,) = notes.notes
    assert note.startswith("csv no longer tracks this run, which goes on without it: ")
    assert "\n" not in note


def test_names_are_checked_before_anything_begins(monkeypatch):
    with pytest.raises(LaconicError, match=r"unknown tracker 'cvs'\. Did you mean 'csv'\?"):
        track("cvs")
    monkeypatch.setitem(TRACKERS, "wandb", Backend(Written(), "no_such_module"))
    with pytest.raises(LaconicError, match=r"no_such_module.*pip install 'laconic\[track\]'"):
        track("wandb")
    assert len(track("csv", "csv").observers) == 1  # type: ignore[attr-defined]


def test_observers_beside_trackers_are_told_everything():
    """Every message of an observer is passed on, and none to itself."""
    messages = [name for name in vars(Observer) if not name.startswith("_")]
    assert set(messages) <= set(vars(Watchers))

    class Counted(Observer):
        def __init__(self):
            self.heard = []

        def __getattribute__(self, name):
            if name in messages:
                self.heard.append(name)
            return object.__getattribute__(self, name)

    counted = Counted()
    both = Watchers(counted, Observer())
    row = {"round": 1, "loss": 1.0, "notes": [], "quorum": [], "excluded": {}}
    both.opened(Path(), {})
    both.begin("a", 1, 0)
    both.progress("a", 1, 1.0)
    both.numbers("a", 1, {})
    both.round(row)
    both.judged(1, 1.0, True)
    both.end({})
    both.note("x")
    both.closed()
    assert set(counted.heard) == set(messages)


def test_a_csv_file_of_several_curves_keeps_the_others(tmp_path):
    begin = trackers.Csv
    for label, done, steps in (("a", 0, (1, 2, 3)), ("b, c", 0, (1, 2)), ("a", 1, (2,))):
        writer = begin(Curve(tmp_path, label, done, {}))
        for step in steps:
            writer.write(step, {"x": 0.1 * step})
        writer.close()
    assert read_csv(tmp_path, []) == {
        "b, c": {"x": [(1, 0.1), (2, 0.2)]},
        "a": {"x": [(1, 0.1), (2, 0.2)]},
    }
