"""The run folder: its header, settings, lock and records, and what is left after a kill."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import laconic
from laconic.federated.population import Federated
from laconic.runs.compare import CompareConfig, compare, resume_compare
from laconic.runs.folder import HEADERS, Interrupted, Observer, RunFolder, kind_of, read_header
from laconic.runs.meta_train import meta_train
from laconic.runs.settings import read_config, require_same, settled
from laconic.runs.sweep import SweepConfig, sweep
from laconic.runs.train import TrainConfig, resume_train, train
from laconic.runs.train_log import lives_of
from laconic.store import checkpoint
from laconic.store.archive import record_files
from laconic.store.records import RECORDS, plain, read
from laconic.tasks.base import plain_task
from tests.outer.trees import QUICK
from tests.runs.meta_runs import TINY
from tests.runs.notes import Notes

pytestmark = pytest.mark.usefixtures("standard_promotion")
ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
SMALL = CompareConfig(
    optimizers=("local-sgd:gamma=0.02", "slowmo:gamma=0.02,beta=0.5"),
    workers=2,
    local_steps=2,
    batch=8,
    rounds=4,
    seeds=1,
    evaluate_every=2,
)
TRAINING = TrainConfig(
    "digits-mlp:width=4", "local-sgd:gamma=0.1", workers=2, local_steps=1, batch=4, rounds=5
)


@dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    steps: int = 3
    names: tuple[str, ...] = ("a",)
    mode: Literal["x", "y"] = "x"
    most: float | None = None
    exact: bool = False
    federated: Federated = field(default_factory=Federated)
    out: Path | None = None


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


@pytest.fixture(scope="module")
def task():
    loss = lambda params, batch: jnp.mean((batch["x"] @ params["w"] - 1) ** 2)
    return plain_task("fit", lambda key: {"w": jnp.zeros(6)}, loss, {"x": X}, test={"x": X[:8]})


def begun(path, **facts):
    header = {"task": {}, "grid_points": 1, **facts}
    return RunFolder.create("sweep", path, "name", Settings(), "laconic sweep", **header)


# --- settings -------------------------------------------------------------------------------------


def test_settings_come_back_from_their_record(tmp_path):
    config = Settings(0.1, 7, ("b", "c"), "y", 2.5, True, Federated(10, 0.1), tmp_path)
    assert read_config(Settings, json.loads(json.dumps(plain(config))), "x") == config


def test_what_a_record_lacks_is_at_its_default():
    assert read_config(Settings, {"steps": 9}, "x") == Settings(steps=9)
    assert read_config(Settings, {"federated": {"alpha": 1}}, "x").federated == Federated(alpha=1.0)


def test_an_int_is_fine_where_a_float_is_asked_for():
    read_back = read_config(Settings, {"rate": 2, "most": 3}, "x")
    for config in (read_back, settled(Settings(2, most=3))):
        assert (config.rate, config.most) == (2.0, 3.0)
        assert {type(config.rate), type(config.most)} == {float}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"rates": 1.0}, ["have rates,", "start anew"]),
        ({"federated": {"client": 1}}, ["have client,"]),
        ({"rate": "1"}, ["a rate of the wrong type"]),
        ({"rate": True}, ["a rate of the wrong type"]),
        ({"steps": 1.0}, ["a steps of the wrong type"]),
        ({"steps": None}, ["a steps of the wrong type"]),
        ({"names": "a"}, ["a names of the wrong type"]),
        ({"names": [1]}, ["a names of the wrong type"]),
        ({"exact": 1}, ["a exact of the wrong type"]),
        ({"federated": 3}, ["a federated of the wrong type"]),
        ({"out": 3}, ["a out of the wrong type"]),
    ],
)
def test_other_settings_are_named(values, parts, raises_clearly):
    with raises_clearly("the settings in some/folder", *parts):
        read_config(Settings, values, "some/folder")


def test_what_two_runs_do_not_share_is_named(raises_clearly):
    require_same("it", {"a": 1, "b": 2}, {"a": 1, "b": 3}, besides=("b",))
    with raises_clearly("it was begun with b 2, and now it is 3"):
        require_same("it", {"a": 1, "b": 2}, {"a": 1, "b": 3})


@pytest.mark.usefixtures("quick")
def test_a_training_made_with_a_whole_number_can_be_resumed(tmp_path):
    folder, _ = train(replace(TRAINING, norm_limit=50, out=tmp_path / "run"))
    assert resume_train(folder)[1][-1]["rounds"] == 5


@pytest.mark.usefixtures("quick")
def test_a_training_from_before_there_was_a_setting_goes_on_at_its_default(tmp_path):
    folder, records = train(replace(TRAINING, out=tmp_path / "run"))
    path = folder / RECORDS
    path.write_text(path.read_text().replace(', "norm_limit": 100.0', "", 1))
    assert resume_train(folder)[1][-1]["final_digests"] == records[-1]["final_digests"]


def test_the_headers_of_all_kept_records_are_known():
    """Whatever version wrote them."""
    found = [read(path)[0] for path in record_files(ROOT / "results")]
    runs = [header for header in found if header.get("kind") == "run"]
    assert len(runs) > 50
    assert {kind_of(header) for header in runs} <= set(HEADERS)
    classes = {"compare": CompareConfig, "sweep": SweepConfig, "train": TrainConfig}
    for header in runs:
        if kind_of(header) in classes:
            read_config(classes[kind_of(header)], header["config"], "x")


# --- one process at a time ------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(tmp_path, task, raises_clearly):
    folder, _ = compare(replace(SMALL, out=tmp_path / "run"), task)
    before = (folder / RECORDS).read_bytes()
    with (
        RunFolder.open(folder, "compare"),
        raises_clearly("is in use", "another process", "--out"),
    ):
        resume_compare(folder, task)
    assert (folder / RECORDS).read_bytes() == before
    resume_compare(folder, task)


def test_two_runs_cannot_begin_in_one_folder(tmp_path, raises_clearly):
    with RunFolder.new(tmp_path / "run", "x"), raises_clearly("is in use"):
        begun(tmp_path / "run")


def test_a_stopped_or_failed_run_leaves_no_lock(tmp_path, task):
    watcher = Notes()
    with pytest.raises(Interrupted):
        compare(replace(SMALL, out=tmp_path), task, observer=watcher, stop=lambda: True)
    with pytest.raises(RuntimeError):
        resume_compare(tmp_path, task, observer=_Failing())
    assert resume_compare(tmp_path, task)[1][-1]["kind"] == "summary"


class _Failing(Observer):
    def progress(self, label, done, loss, norm=None):
        raise RuntimeError("a display failed")


def test_a_killed_process_leaves_no_lock(tmp_path, raises_clearly):
    begun(tmp_path / "run").close()
    code = (
        "import sys, time; from laconic.runs.folder import RunFolder\n"
        "folder = RunFolder.open(sys.argv[1], 'sweep'); print('in', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with raises_clearly("is in use"):
            RunFolder.open(tmp_path / "run", "sweep")
        other.send_signal(signal.SIGKILL)
    RunFolder.open(tmp_path / "run", "sweep").close()


def test_workers_share_a_folder_and_not_a_file(tmp_path, raises_clearly):
    about = {"task": {}, "engine": "torchft", "command": ""}
    join = partial(RunFolder.join, tmp_path, kind="train", config=TRAINING, **about)
    with join(file="worker-0.jsonl") as first, join(file="worker-1.jsonl") as second:
        with raises_clearly("worker-0.jsonl is in use"):
            join(file="worker-0.jsonl")
        assert first.config(TrainConfig) == second.config(TrainConfig)
    with join(file="worker-0.jsonl") as again:
        assert len(again.records()) == 1
    assert read_header(tmp_path, "train")["engine"] == "torchft"


# --- after a kill ---------------------------------------------------------------------------------


def test_killed_within_the_first_record_a_run_can_begin_again(tmp_path, raises_clearly):
    begun(tmp_path / "whole").close()
    line = (tmp_path / "whole" / RECORDS).read_bytes()
    old = b'{"kind": "run", "config": {"task": "digits'  # as versions before wrote it
    for i, torn in enumerate([line[:0], line[:1], line[:20], line[: len(line) // 2], old]):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / RECORDS).write_bytes(torn)
        (folder / "command.txt").write_text("laconic sweep\n")
        (folder / ".laconic-0123456789abcdef.tmp").write_bytes(b"half")
        (folder / ".checkpoint.safetensors.probe").touch()
        with raises_clearly("was killed as it began", f"--out {folder} is free"):
            laconic.resume(folder)
        begun(folder).close()
        assert sorted(path.name for path in folder.iterdir()) == ["command.txt", RECORDS]


def killed_launch(folder):
    """What `laconic launch` leaves if it is killed before a worker wrote anything."""
    (folder / "compiled").mkdir(parents=True)
    (folder / "compiled" / "turn").touch()
    (folder / "token").write_text("secret")
    (folder / "command.txt").write_text("laconic launch -- train digits\n")
    for name in ("worker-0.jsonl", "worker-1.jsonl"):
        (folder / name).touch()


def test_a_launch_killed_as_it_began_can_begin_again(tmp_path, raises_clearly):
    folder = tmp_path / "run"
    killed_launch(folder)
    with raises_clearly("was killed as it began", f"--out {folder} is free"):
        read_header(folder, "train")
    with RunFolder(folder, "worker-1.jsonl") as alive:
        alive.lock()
        with raises_clearly("worker-1.jsonl is in use"):
            begun(folder)
    begun(folder).close()
    assert sorted(path.name for path in folder.iterdir()) == ["command.txt", RECORDS]


def test_a_launch_goes_on_if_any_worker_has_begun(tmp_path, raises_clearly):
    folder = tmp_path / "run"
    killed_launch(folder)
    about = {"task": {}, "engine": "torchft", "command": ""}
    RunFolder.join(folder, "worker-1.jsonl", "train", TRAINING, **about).close()
    assert read_header(folder, "train")["engine"] == "torchft"
    with raises_clearly("not empty", f"laconic launch -- train --resume {folder}"):
        begun(folder)
    assert (folder / "token").read_text() == "secret"


def test_a_folder_is_called_free_only_if_a_run_can_begin_there(tmp_path, raises_clearly):
    (tmp_path / RECORDS).touch()
    (tmp_path / "mine.txt").touch()
    with raises_clearly("was killed as it began", "with another --out"):
        laconic.resume(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("token", "mine"),
        ("mine.txt", ""),
        (RECORDS, "precious"),
        (RECORDS, "{}\n"),
        ("command.txt", "rm"),
    ],
)
def test_what_is_not_a_leftover_is_not_touched(name, text, tmp_path, raises_clearly):
    (tmp_path / name).write_text(text)
    with raises_clearly("not empty", "--out"):
        begun(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_temporary_files_of_killed_writers_are_cleared_and_others_stay(tmp_path):
    begun(tmp_path).close()
    left, busy, other = (tmp_path / f".laconic-{name}.tmp" for name in ("left", "busy", "x.y"))
    for path in (left, busy):
        path.write_bytes(b"half")
    (tmp_path / "own.tmp").touch()
    with open(busy, "rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        RunFolder.open(tmp_path, "sweep").close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {RECORDS, "command.txt", busy.name, "own.tmp"}
    assert not other.exists()


@pytest.mark.usefixtures("quick")
def test_every_round_of_a_checkpoint_is_on_record_when_it_is_saved(tmp_path, monkeypatch):
    """A kill at any time after the checkpoint then loses no round of it."""
    save, snapshots = checkpoint.save, []

    def saved(path, tree, meta):
        save(path, tree, meta)
        if "round" in meta and path.name.startswith("worker"):
            copy = tmp_path / f"killed-{meta['round']}"
            shutil.copytree(path.parent, copy)
            snapshots.append((meta["round"], copy))

    monkeypatch.setattr(checkpoint, "save", saved)
    _, whole = train(replace(TRAINING, checkpoint_every=2, out=tmp_path / "run"))
    monkeypatch.setattr(checkpoint, "save", save)
    assert [done for done, _ in snapshots] == [2, 4, 5]
    for done, folder in snapshots:
        assert sorted(_rounds(read(folder / RECORDS))) == list(range(1, done + 1))
    _, again = resume_train(snapshots[1][1])
    assert _rounds(again) == _rounds(whole)


def _rounds(records):
    return {row["round"]: row["digest"] for life in lives_of(records) for row in life.rows}


# --- lost records ---------------------------------------------------------------------------------


def without_line(folder, number):
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    (folder / RECORDS).write_bytes(b"".join(lines[: number - 1] + lines[number:]))


def test_a_lost_method_is_noticed_and_run_again(task, tmp_path, raises_clearly):
    folder, records = compare(replace(SMALL, out=tmp_path / "run"), task)
    without_line(folder, 2)
    with raises_clearly("line 2", "a record before it got lost"):
        read(folder / RECORDS)
    watcher = Notes()
    _, again = resume_compare(folder, task, observer=watcher)
    assert any("has lost a record" in note for note in watcher.notes)
    assert [record.get("params_sha256") for record in again] == [
        record.get("params_sha256") for record in records
    ]
    assert read(folder / RECORDS) == again


@pytest.mark.usefixtures("quick")
def test_a_lost_record_of_a_training_is_noticed_and_the_folder_refused(tmp_path, raises_clearly):
    folder, _ = train(replace(TRAINING, out=tmp_path / "run"))
    without_line(folder, 2)
    before = (folder / RECORDS).read_bytes()
    with raises_clearly("line 2", "a record before it got lost"):
        resume_train(folder)
    assert (folder / RECORDS).read_bytes() == before


# --- taking any of them up ------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_one_function_resumes_every_kind_of_run(task, tmp_path, raises_clearly):
    grid = SweepConfig(grid=("gamma=0.02,0.01",), workers=2, local_steps=2, batch=8, rounds=2)
    runs = {
        "compare": compare(replace(SMALL, out=tmp_path / "compare"), task),
        "sweep": sweep(replace(grid, out=tmp_path / "sweep"), task),
        "train": train(replace(TRAINING, out=tmp_path / "train"), task),
        "meta-train": meta_train(replace(TINY, steps=1, out=tmp_path / "meta-train")),
    }
    for kind, (folder, records) in runs.items():
        assert records[0]["run"] == kind == kind_of(records[0])
        own = {} if kind == "meta-train" else {"task": task}
        found, again = laconic.resume(str(folder), **own)
        assert (found, again[0]) == (folder, records[0])
        assert {record["kind"] for record in again} == {record["kind"] for record in records}
    with raises_clearly("is a train run", "takes no minutes"):
        laconic.resume(tmp_path / "train", minutes=1.0)
    with raises_clearly("task of its own"):
        laconic.resume(tmp_path / "sweep")
    with raises_clearly("nothing to resume"):
        laconic.resume(tmp_path)
