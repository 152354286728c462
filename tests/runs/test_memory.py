"""What does not fit in a device's memory is done in smaller parts, which is said, or refused in one
line."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from laconic.meta.train import MetaTrainer
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.runs.compare import CompareConfig, Options, compare, prepare, run_comparison
from laconic.runs.folder import RunFolder
from laconic.runs.grid import Sweep
from laconic.runs.meta_train import meta_train
from laconic.runs.simulate import Simulation, in_parts
from laconic.runs.sweep import SweepConfig, run_sweep, sweep
from laconic.runs.train import TrainConfig, train
from tests.runs.meta_runs import TINY
from tests.runs.test_compare import Notes
from tests.runs.test_sweep import SETTING, least_squares, quick, rates

__all__ = ["quick"]  # of every test here: compiling is most of the time
SEEDS = (0, 1, 2, 3, 4)
FULL = jax.errors.JaxRuntimeError(
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 41.10GiB."
)
GRID = rates(0.3, 0.2, 0.1, 0.05, 0.01)


def compared(folder, notes):
    folder = RunFolder(folder)
    folder.append("run", config={"target_loss": None, "link": None})
    setting = Setting(4, 2, 8, 20, SEEDS, 10)
    methods = [parse_method("local-sgd:gamma=0.1", 4)]
    prepared = prepare(least_squares(), methods, setting, Options())
    return run_comparison(prepared, folder, observer=notes)


def roomy(monkeypatch, most):
    """A device on which only so many seeds fit side by side; the first chunk always does."""
    chunk = Simulation.run

    def run(self, state, done=0, keep_going=False, ready=None):
        for i, found in enumerate(chunk(self, state, done, keep_going, ready)):
            if i and (self.setting.seeds_at_once or len(self.setting.seeds)) > most:
                raise FULL
            yield found

    monkeypatch.setattr(Simulation, "run", run)


@pytest.fixture
def reported(monkeypatch):
    """Reports take seconds to draw, and are not what is asked about here."""
    monkeypatch.setattr("laconic.show.comparison.write_report", lambda folder, records: None)


def test_half_as_many(raises_clearly):
    tried: list[int] = []
    with raises_clearly("too large", "compute=bf16"):
        in_parts(lambda at_once: _raise(FULL), 44, tried.append, "it is too large")
    assert tried == [22, 11, 6, 3, 2, 1]


@pytest.mark.usefixtures("reported")
def test_seeds_that_do_not_fit_together_are_trained_some_at_a_time(tmp_path, monkeypatch):
    whole = compared(tmp_path / "whole", Notes())
    roomy(monkeypatch, 2)
    notes = Notes()
    parts = compared(tmp_path / "parts", notes)
    assert [
        "3 of the seeds at a time" in notes.notes[0],
        "2 of the seeds at a time" in notes.notes[1],
    ] == [True, True]
    assert len(notes.notes) == 2
    np.testing.assert_allclose(parts[1]["train"], whole[1]["train"], rtol=1e-5)


@pytest.mark.usefixtures("reported")
def test_a_seed_that_does_not_fit_alone_is_one_clear_error(tmp_path, monkeypatch, raises_clearly):
    roomy(monkeypatch, 0)
    with raises_clearly("local-sgd:gamma=0.1", "even one seed at a time", "compute=bf16"):
        compared(tmp_path / "run", Notes())


@pytest.mark.usefixtures("reported")
def test_other_failures_stay_what_they_are(tmp_path, monkeypatch):
    def run(self, state, done=0, keep_going=False, ready=None):
        raise jax.errors.JaxRuntimeError("INTERNAL: a kernel failed")
        yield

    monkeypatch.setattr(Simulation, "run", run)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compared(tmp_path / "run", Notes())


def swept(folder, notes, monkeypatch=None, most=0):
    folder = RunFolder(folder)
    folder.append("run", grid_points=len(GRID))
    engine = Sweep(least_squares(), "local-sgd", SETTING)
    if monkeypatch is not None:
        run = engine.run
        monkeypatch.setattr(
            engine, "run", lambda *given: run(*given) if given[1] <= most else _raise(FULL)
        )
    return run_sweep(engine, GRID, folder, points_at_once=4, observer=notes)


def _raise(error):
    raise error


def test_points_that_do_not_fit_together_are_swept_some_at_a_time(tmp_path, monkeypatch):
    whole = swept(tmp_path / "whole", Notes())
    notes = Notes()
    parts = swept(tmp_path / "parts", notes, monkeypatch, most=1)
    assert [note.split("; ")[1] for note in notes.notes] == ["2 at a time now.", "1 at a time now."]
    assert [point["label"] for point in parts[1:-1]] == [point["label"] for point in whole[1:-1]]
    assert parts[-1]["order"] == whole[-1]["order"]
    pairs = zip(parts[1:-1], whole[1:-1], strict=True)
    assert all(ours["final"] == pytest.approx(theirs["final"], rel=1e-5) for ours, theirs in pairs)


def test_a_point_that_does_not_fit_alone_is_one_clear_error(tmp_path, monkeypatch, raises_clearly):
    with raises_clearly("local-sgd", "even one point at a time", "fewer seeds"):
        swept(tmp_path / "run", Notes(), monkeypatch)


@pytest.mark.usefixtures("standard_promotion")
def test_meta_training_that_does_not_fit_says_what_to_lower(tmp_path, monkeypatch, raises_clearly):
    monkeypatch.setattr(MetaTrainer, "advance", lambda self, state: _raise(FULL))
    with raises_clearly("2 pairs", "--pairs", "--devices"):
        meta_train(replace(TINY, out=tmp_path / "run"))


@pytest.mark.parametrize("kind", ["train", "compare", "sweep"])
def test_what_is_refused_leaves_nothing_behind(kind, tmp_path, monkeypatch, raises_clearly):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LACONIC_MEMORY", "0.001")
    (tmp_path / "empty").mkdir()
    sizes: Any = {"task": "digits-mlp:width=4", "workers": 2, "batch": 4, "rounds": 4}

    def begin(**more):
        if kind == "train":
            train(TrainConfig(optimizer="local-sgd", **sizes, **more))
        elif kind == "compare":
            compare(CompareConfig(optimizers=("local-sgd",), seeds=1, **sizes, **more))
        else:
            sweep(SweepConfig(grid=("gamma=0.1",), **sizes, **more))

    with raises_clearly("of memory are needed"):
        begin()
    with raises_clearly("of memory are needed"):
        begin(out=tmp_path / "empty")
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
