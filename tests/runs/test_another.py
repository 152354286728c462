"""A published optimizer that is not what it was when its runs were recorded: said, refused or run
again, not mixed."""

from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic import zoo
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.folder import CHECKPOINT, Interrupted, RunFolder
from laconic.runs.meta_config import MetaConfig
from laconic.runs.resume import resume
from laconic.runs.settings import read_config
from laconic.runs.sweep import SweepConfig, resume_sweep, sweep
from laconic.runs.train import TrainConfig, resume_train, train
from laconic.tasks.base import plain_task
from tests.outer.trees import QUICK
from tests.runs.notes import Notes
from tests.zoo.made import LOPT_A, a_card, weights

pytestmark = pytest.mark.usefixtures("standard_promotion")
X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
SETTING = CompareConfig(workers=2, local_steps=2, batch=8, rounds=4, seeds=1, evaluate_every=2)


@pytest.fixture(scope="module")
def task():
    loss = lambda params, batch: jnp.mean((batch["x"] @ params["w"] - 1) ** 2)
    return plain_task("fit", lambda key: {"w": jnp.zeros(6)}, loss, {"x": X}, test={"x": X[:8]})


@pytest.fixture
def path(tmp_path):
    zoo.publish(tmp_path / "own.safetensors", LOPT_A, weights(), a_card())
    return tmp_path / "own.safetensors"


def config_of(path, tmp_path):
    return replace(SETTING, optimizers=("local-sgd:gamma=0.02", str(path)), out=tmp_path / "run")


def test_a_record_says_which_optimizer_it_is_of(path, task, tmp_path):
    _, records = compare(config_of(path, tmp_path), task)
    assert [r["optimizer_sha256"] for r in records if r["kind"] == "method"] == [
        None,
        zoo.load(path).sha256,
    ]


def test_the_digest_is_of_weights_and_architecture_and_of_nothing_else(path, tmp_path):
    first = zoo.load(path).sha256
    others = [
        (LOPT_A, weights(seed=6), a_card()),
        (replace(LOPT_A, deepest=6), weights(), a_card()),
        (LOPT_A, weights(), replace(a_card(), summary="The same in other words")),
    ]
    found = []
    for i, other in enumerate(others):
        zoo.publish(tmp_path / f"{i}.safetensors", *other)
        found.append(zoo.load(tmp_path / f"{i}.safetensors").sha256)
    assert found[2] == first
    assert len({first, *found}) == 3


def test_what_is_done_by_another_stays_and_that_is_said(path, task, tmp_path):
    folder, records = compare(config_of(path, tmp_path), task)
    quiet, told = Notes(), Notes()
    resume(folder, task, observer=quiet)
    zoo.publish(path, LOPT_A, weights(seed=6), a_card())
    _, again = resume(folder, task, observer=told)
    assert again == records
    assert not any("is not the optimizer that it was" in note for note in quiet.notes)
    assert [
        note
        for note in told.notes
        if "is not the optimizer that it was" in note and str(path) in note
    ]


def test_what_is_under_way_by_another_is_not_gone_on_with(path, task, tmp_path, raises_clearly):
    watch = Notes()
    with pytest.raises(Interrupted):
        compare(config_of(path, tmp_path), task, observer=watch, stop=lambda: watch.calls >= 3)
    folder = tmp_path / "run"
    zoo.publish(path, LOPT_A, weights(seed=6), a_card())
    with raises_clearly(CHECKPOINT, "another", str(path), "delete it"):
        resume(folder, task)
    (folder / CHECKPOINT).unlink()
    _, records = resume(folder, task)
    assert records[2]["optimizer_sha256"] == zoo.load(path).sha256


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of published files with one that is called own."""
    monkeypatch.setattr("laconic.zoo.file.WEIGHTS", tmp_path / "weights")
    publish(tmp_path / "weights", seed=5)
    return tmp_path / "weights"


def publish(folder, seed):
    zoo.publish(folder / "own.safetensors", LOPT_A, weights(seed=seed), a_card(name="own"))


def test_a_sweep_is_of_one_optimizer(shelf, task, tmp_path, raises_clearly):
    watch = Notes()
    grid = ("gamma=0.02", "scale=1,0.5", "weight_decay=0")
    config = SweepConfig(
        method="own", grid=grid, workers=2, local_steps=2, batch=8, rounds=2, points_at_once=1
    )
    with pytest.raises(Interrupted):
        sweep(
            replace(config, out=tmp_path / "run"),
            task,
            observer=watch,
            stop=lambda: watch.calls >= 1,
        )
    publish(shelf, seed=6)
    with raises_clearly("another own than there is now", "another folder"):
        resume_sweep(tmp_path / "run", task)
    publish(shelf, seed=5)
    _, records = resume_sweep(tmp_path / "run", task)
    assert [record["kind"] for record in records].count("point") == 2


def test_a_training_is_of_one_optimizer(shelf, tmp_path, monkeypatch, raises_clearly):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
    config = TrainConfig(
        "digits-mlp:width=4", "own:scale=0.5", workers=2, local_steps=1, batch=4, rounds=2
    )
    folder, records = train(replace(config, out=tmp_path / "run"))
    RunFolder(folder).rewrite(records[:-1])  # as if killed before its end
    assert records[0]["optimizer_sha256"] == zoo.load("own").sha256
    publish(shelf, seed=6)
    with raises_clearly("another own:scale=0.5 than there is now", "--out"):
        resume_train(folder)


def test_a_meta_training_from_before_deep_models_took_shorter_steps_goes_on_without(tmp_path):
    config = MetaConfig(widest=784)
    told = {**asdict(config), "tasks": list(config.tasks), "left_out": [], "out": str(tmp_path)}
    del told["deepest"], told["judge_tasks"], told["trained"]
    assert replace(read_config(MetaConfig, told, "a record"), out=tmp_path) == replace(
        config, out=tmp_path
    )
