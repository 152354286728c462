"""`laconic.runs.train`: the simulator's numbers, what is written, stopping, going on, and
refusing."""

import errno
import os
import subprocess
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from laconic.engines.base import Refused, SimulatedEngine
from laconic.recipes.trainings import TRAIN_RECIPES
from laconic.runs import train as runs_train
from laconic.runs.folder import Interrupted, Observer, RunFolder, read_header
from laconic.runs.measure import heldout_metrics
from laconic.runs.settings import command_line, read_config
from laconic.runs.simulate import Simulation
from laconic.runs.train import (
    TrainConfig,
    begun_run,
    identity_of,
    parts_of,
    resume_train,
    run_name,
    seal_of,
    train,
    work,
    worker_folder,
)
from laconic.runs.train_log import forget_after, lives_of
from laconic.store import records as records_module
from laconic.store.records import RECORDS, plain, read
from laconic.tasks.catalog import make_task
from laconic.zoo import load
from tests import tiny
from tests.cli.commands import process
from tests.outer.trees import QUICK
from tests.runs import killed

SMALL = TrainConfig(
    "digits-mlp:width=4", "slowmo:gamma=0.3,beta=0.5", workers=3, local_steps=2, batch=4, rounds=8
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


class Heard(Observer):
    """Keeps what it is told, and calls a function with every message."""

    def __init__(self, then=lambda message: None):
        self.seen = []
        self.then = then

    def hear(self, kind, **facts):
        self.seen.append({"kind": kind, **facts})
        self.then(self.seen[-1])

    def begin(self, label, total, done, rounds_each=1):
        self.hear("start", round=done, rounds=total)

    def round(self, row):
        self.hear("round", **row)

    def note(self, text):
        self.hear("note", text=text)


def curve_of(records):
    return {row["round"]: row for life in lives_of(records) for row in life.rows}


def test_training_is_the_simulator_and_all_of_it_is_written_down(tmp_path):
    config = replace(SMALL, compress="topk:0.2+ef", out=tmp_path / "run")
    folder, records = train(config, command="laconic train …")
    method, setting = parts_of(config)
    task = make_task(config.task)
    simulation = Simulation(task, method, setting)
    (chunk,) = simulation.run(simulation.start())
    curve = curve_of(records)
    losses = [[curve[r]["losses"][str(k)] for k in range(3)] for r in range(1, 9)]
    np.testing.assert_allclose(losses, chunk.losses[0], rtol=1e-5)
    shared = jax.tree.map(lambda x: np.asarray(x[0]), chunk.state.shared)
    weights = load_file(folder / "weights.safetensors")
    wanted = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(shared)
    }
    assert weights.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_allclose(weights[name], leaf, rtol=1e-5, atol=1e-7)
    header, summary = records[0], records[-1]
    assert (header["kind"], header["engine"], header["command"]) == (
        "run",
        "simulated",
        "laconic train …",
    )
    assert header["task"]["name"] == config.task
    assert header["provenance"]["versions"]["jax"] == jax.__version__
    assert summary["loss"] == pytest.approx(
        chunk.losses[0].mean(), rel=1e-5
    )  # fewer rounds than the window
    assert summary["message_bits"] == method.compressor.bits(shared.params)
    heldout = heldout_metrics(task, chunk.state.shared._replace(params=shared.params))
    assert summary["heldout"]["accuracy"] == pytest.approx(float(heldout["accuracy"]), abs=1e-6)
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "command.txt").read_text() == "laconic train …\n"


def test_several_devices_give_the_numbers_of_one_and_a_run_goes_on_with_others(
    tmp_path, raises_clearly
):
    _, alone = train(replace(SMALL, out=tmp_path / "alone"))
    stop = Heard()
    with pytest.raises(Interrupted):
        train(
            replace(SMALL, devices=4, out=tmp_path / "run"),
            observer=stop,
            stop=lambda: len(stop.seen) > 3,
        )
    with raises_clearly("4 examples", "3 devices"):
        resume_train(tmp_path / "run", devices=3)
    _, records = resume_train(tmp_path / "run", devices=2)
    assert records[0]["config"]["devices"] == 4
    ends = [load_file(tmp_path / name / "weights.safetensors") for name in ("alone", "run")]
    for name, leaf in ends[0].items():
        assert np.max(np.abs(ends[1][name] - leaf)) <= 1e-5 * np.max(np.abs(leaf))
    assert records[-1]["heldout"] == pytest.approx(alone[-1]["heldout"], rel=1e-5)


@pytest.mark.parametrize(("devices", "part"), [(99, "this process has"), (0, "from 1 on")])
def test_devices_that_are_not_there_leave_no_folder(devices, part, tmp_path, raises_clearly):
    with raises_clearly(part):
        train(replace(SMALL, batch=99, devices=devices, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_workers_of_one_run_may_have_different_numbers_of_devices():
    assert (
        run_name(SMALL)
        == run_name(replace(SMALL, devices=4))
        == run_name(replace(SMALL, devices="all"))
    )
    for devices in (1, 4, "all"):
        config = replace(SMALL, devices=devices)
        assert read_config(TrainConfig, plain(config), "a record") == config


def test_what_a_run_is_called_is_known_before_jax_is_used():
    """A process joins others before it uses JAX."""
    code = (
        "from laconic.runs.train import TrainConfig, run_name\n"
        "run_name(TrainConfig(optimizer='lopt-a-digits'))\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()"
    )
    words, environment = process(code)
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_stop_saves_and_going_on_ends_with_the_same_bits(tmp_path):
    _, whole = train(replace(SMALL, out=tmp_path / "whole"))
    heard = Heard()
    seen = heard.seen
    with pytest.raises(Interrupted, match="after round 4 of 8") as info:
        train(replace(SMALL, out=tmp_path / "cut"), observer=heard, stop=lambda: len(seen) >= 4)
    assert info.value.folder == tmp_path / "cut"
    assert [m["kind"] for m in seen] == ["start", "round", "round", "round", "round"]
    _, records = resume_train(tmp_path / "cut", observer=heard)
    assert seen[5] == {"kind": "start", "round": 4, "rounds": 8}
    digests = [[row["digest"] for row in curve_of(some).values()] for some in (whole, records)]
    assert digests[0] == digests[1]
    assert records[-1]["final_digests"] == whole[-1]["final_digests"]
    assert records[-1]["workers"]["0"]["starts"] == 2
    again = resume_train(tmp_path / "cut")[1]  # nothing left to do
    assert again[-1]["final_digests"] == whole[-1]["final_digests"]
    assert len(curve_of(again)) == 8


def test_a_full_disk_stops_nothing_until_the_end(tmp_path, monkeypatch, raises_clearly):
    """Rounds wait in memory and are written when there is room again."""
    real, full = os.fsync, [False]

    def sync(handle):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle)

    monkeypatch.setattr(records_module.os, "fsync", sync)

    def fill(message):
        if message["kind"] == "round":
            full[0] = 2 <= message["round"] < 6

    config = replace(SMALL, checkpoint_every=2)
    heard = Heard(fill)
    _, records = train(replace(config, out=tmp_path / "passing"), observer=heard)
    assert sorted(curve_of(records)) == list(range(1, 9))
    notes = [m["text"] for m in heard.seen if m["kind"] == "note"]
    assert len(notes) == 1
    assert "No space left" in notes[0]
    assert "kept in memory" in notes[0]
    with raises_clearly("No space left"):
        train(
            replace(config, out=tmp_path / "lasting"),
            observer=Heard(lambda m: full.__setitem__(0, m.get("round", 0) > 3)),
        )
    full[0] = False
    _, again = resume_train(tmp_path / "lasting")
    assert again[-1]["final_digests"] == records[-1]["final_digests"]


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    """A real process, killed while it trains; every round of its checkpoint is on record."""
    words = [
        "train",
        "--task",
        SMALL.task,
        "--optimizer",
        "diloco",
        "--batch",
        "4",
        "--rounds",
        "300",
    ]
    words += ["--checkpoint-every", "3"]
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    killed.finish(tmp_path / "whole", *words, "--out", "run")
    killed.kill(tmp_path / "cut", 20, 0.05, *words, "--out", "run")
    done = lives_of(read(tmp_path / "cut" / "run" / RECORDS))[-1].rows[-1]["round"]
    assert 3 < done < 300
    killed.finish(tmp_path / "cut", "train", "--resume", "run")
    whole, cut = (read(tmp_path / name / "run" / RECORDS) for name in ("whole", "cut"))
    start = [record["round"] for record in cut if record["kind"] == "start"][-1]
    assert start > 0
    curves = [
        {r: (row["digest"], row["loss"]) for r, row in curve_of(records).items()}
        for records in (whole, cut)
    ]
    assert set(curves[0]) == set(curves[1])
    assert all(curves[0][r] == told for r, told in curves[1].items())
    assert cut[-1]["final_digests"] == whole[-1]["final_digests"]
    weights = [
        load_file(tmp_path / name / "run" / "weights.safetensors") for name in ("whole", "cut")
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, leaf in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], leaf)


def test_rounds_after_the_checkpoint_are_forgotten(tmp_path):
    folder, _ = train(replace(SMALL, out=tmp_path / "run"))
    forget_after(RunFolder(folder), 5)
    records = read(folder / RECORDS)
    assert {record["kind"] for record in records} == {"run", "start", "rounds"}
    assert sorted(curve_of(records)) == [1, 2, 3, 4, 5]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_finished_training_without_its_checkpoint_stays_as_it_is(tmp_path):
    folder, records = train(replace(SMALL, out=tmp_path / "run"))
    (folder / "worker-0.safetensors").unlink()
    before, heard = contents(folder), Heard()
    assert resume_train(folder, observer=heard) == (folder, records)
    assert contents(folder) == before
    assert [message["kind"] for message in heard.seen] == ["note"]
    assert "is finished" in heard.seen[0]["text"]


def test_rounds_whose_checkpoint_is_lost_are_kept(tmp_path, raises_clearly):
    """A run killed before its first checkpoint begins anew; any other needs it."""
    cut = {"checkpoint_every": 2, "out": tmp_path / "cut"}
    heard = Heard()
    with pytest.raises(Interrupted):
        train(replace(SMALL, **cut), observer=heard, stop=lambda: len(heard.seen) >= 4)
    (tmp_path / "cut" / "worker-0.safetensors").unlink()
    before = contents(tmp_path / "cut")
    with raises_clearly("no worker-0.safetensors", "round 4", "nothing was changed", "--out"):
        resume_train(tmp_path / "cut")
    assert contents(tmp_path / "cut") == before
    forget_after(RunFolder(tmp_path / "cut"), 2)  # as if killed while saving the first one
    assert len(curve_of(resume_train(tmp_path / "cut")[1])) == 8


def test_a_worker_notes_what_changed_and_refuses_other_data(tmp_path, raises_clearly):
    heard = Heard()
    again = partial(
        work,
        SMALL,
        lambda: SimulatedEngine(3),
        "simulated",
        seal_of("token", SMALL, "a" * 16),
        tmp_path,
        observer=heard,
        stop=lambda: False,
        command="laconic worker",
    )
    again()
    header, *rest = read(tmp_path / RECORDS)
    assert "provenance" not in rest[0]
    then = {**header["provenance"], "commit": "another"}
    RunFolder(tmp_path).rewrite([header | {"provenance": then}, *rest])
    again()
    assert any(m["kind"] == "note" and "commit was another" in m["text"] for m in heard.seen)
    start = [record for record in read(tmp_path / RECORDS) if record["kind"] == "start"][-1]
    assert start["provenance"]["commit"] == header["provenance"]["commit"]
    elsewhere = {**header["task"], "source": "elsewhere"}
    RunFolder(tmp_path).rewrite([header | {"task": elsewhere}, *rest])
    with raises_clearly("was begun on", "elsewhere", "start anew"):
        again()


def test_a_folder_of_another_run_is_refused_even_if_the_settings_are_the_same(tmp_path):
    """A finished one would end the new run at once, with the old model."""
    begin = lambda run: work(
        SMALL,
        lambda: SimulatedEngine(3),
        "simulated",
        seal_of("token", SMALL, run),
        tmp_path,
        observer=Heard(),
        stop=lambda: False,
        command="laconic worker",
    )
    begin("a" * 16)
    assert read(tmp_path / RECORDS)[0]["run_id"] == "a" * 16
    before = (tmp_path / RECORDS).read_bytes()
    with pytest.raises(Refused, match=f"is of the run {'a' * 16}, and this is the run {'b' * 16}"):
        begin("b" * 16)
    assert (tmp_path / RECORDS).read_bytes() == before


def test_a_worker_refuses_looks_at_data_that_its_task_does_not_have(
    tmp_path, monkeypatch, raises_clearly
):
    monkeypatch.setattr(runs_train, "given_task", lambda task, spec: (tiny.task(), "tiny"))
    config = replace(SMALL, evaluate_every=2)
    with raises_clearly("tiny has no held-out data", "evaluate_every"):
        work(
            config,
            lambda: SimulatedEngine(3),
            "simulated",
            seal_of("token", config),
            tmp_path / "run",
            observer=Heard(),
            stop=lambda: False,
            command="laconic worker",
        )
    assert not (tmp_path / "run").exists()


def test_a_run_from_before_there_were_looks_goes_on_without_any(tmp_path):
    whole = train(replace(SMALL, out=tmp_path / "whole"))[1]
    with pytest.raises(Interrupted):
        train(replace(SMALL, out=tmp_path / "old"), stop=lambda: True)
    header, *rest = read(tmp_path / "old" / RECORDS)
    for name in ("patience", "evaluate_every"):
        del header["config"][name]
    RunFolder(tmp_path / "old").rewrite([header, *rest])
    records = resume_train(tmp_path / "old")[1]
    assert records[-1]["final_digests"] == whole[-1]["final_digests"]
    assert not any("heldout" in record for record in records if record["kind"] == "rounds")


def test_an_unfinished_run_is_gone_on_with_and_a_finished_one_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert begun_run(SMALL, 1) == ""
    for run, last in (("a" * 16, "end"), ("b" * 16, "rounds")):
        folder = worker_folder(SMALL, run)
        assert folder.name.endswith(f"-{run}")
        folder.mkdir(parents=True)
        RunFolder(folder, "worker-1.jsonl").rewrite(
            [{"kind": "run", "run_id": run}, {"kind": last}]
        )
    assert begun_run(SMALL, 1) == "b" * 16
    assert begun_run(SMALL, 0) == ""
    assert begun_run(replace(SMALL, seed=1), 1) == ""
    named = replace(SMALL, out=worker_folder(SMALL, "a" * 16))
    assert begun_run(named, 1) == "a" * 16  # named: the run is finished, and that is said


def test_an_identity_says_what_differs():
    ours = identity_of(SMALL, "a" * 16)
    assert ours.differs(identity_of(SMALL)) == []
    assert ours.differs(identity_of(SMALL, "b" * 16)) == ["run"]
    assert ours.differs(identity_of(replace(SMALL, seed=1))) == ["settings"]
    assert ours.differs(identity_of(replace(SMALL, optimizer="slowmo"))) == ["optimizer"]
    assert ours.differs(replace(ours, code="other")) == ["code"]


@pytest.mark.parametrize(("kind", "name"), [("rounds", "kind"), ("rounds", "digest")])
def test_a_damaged_record_is_named(kind, name, tmp_path, raises_clearly):
    folder, records = train(replace(SMALL, out=tmp_path / "run"))
    line = next(i for i, record in enumerate(records) if record["kind"] == kind)
    del records[line][name]
    RunFolder(folder).rewrite(records)
    with raises_clearly(f"line {line + 1}", "is damaged", f"no {name}"):
        resume_train(folder)


@pytest.mark.parametrize("name", TRAIN_RECIPES)
def test_every_recipe_can_be_trained_by_real_workers(name):
    _, config = TRAIN_RECIPES[name]
    method, setting = parts_of(config)
    assert method.budget(setting.workers, setting.local_steps) == (
        config.workers,
        config.local_steps,
    )


def test_a_config_comes_back_from_its_record_and_from_its_command(tmp_path):
    config = replace(SMALL, seed=7, norm_limit=3.0, out=tmp_path)
    assert read_config(TrainConfig, plain(config), "a record") == config
    command = command_line("train", config)
    assert command.startswith(
        "laconic train --task digits-mlp:width=4 --optimizer slowmo:gamma=0.3,beta=0.5 --workers 3"
    )
    assert f"--seed 7 --norm-limit 3.0 --out {tmp_path}" in command


def test_settings_of_another_version_are_refused(tmp_path, raises_clearly):
    good = plain(replace(SMALL, out=tmp_path))
    with raises_clearly("a record", "have momentum,", "start anew"):
        read_config(TrainConfig, good | {"momentum": 1}, "a record")
    with raises_clearly("a record", "seed of the wrong type"):
        read_config(TrainConfig, good | {"seed": "7"}, "a record")


def test_a_run_is_named_by_every_number_and_by_no_place(tmp_path, raises_clearly):
    one = run_name(SMALL)
    assert run_name(replace(SMALL, out=tmp_path, checkpoint_every=7)) == one
    changes = {
        "task": "digits-mlp",
        "optimizer": "slowmo",
        "workers": 4,
        "local_steps": 3,
        "batch": 8,
        "rounds": 9,
    }
    changes |= {"seed": 1, "compress": "int8", "norm_limit": 2.0}
    assert (
        len({one, *(run_name(replace(SMALL, **{name: value})) for name, value in changes.items())})
        == 10
    )
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / f"{name}.safetensors").write_text(text)
    named = [
        run_name(replace(SMALL, optimizer=f"{tmp_path}/{name}.safetensors:scale=2"))
        for name in "abc"
    ]
    assert named[0] == named[1] != named[2]
    published = [
        run_name(replace(SMALL, optimizer=f"{name}:scale=2"))
        for name in ("lopt-a-digits", "lopt-a-fmnist")
    ]
    assert f'"{load("lopt-a-digits").sha256}:scale=2"' in published[0]
    assert published[0] != published[1]
    with raises_clearly("cannot read the optimizer"):
        run_name(replace(SMALL, optimizer=f"{tmp_path}/none.safetensors"))


def test_a_worker_keeps_to_one_folder(tmp_path):
    folder = worker_folder(SMALL)
    assert folder == worker_folder(replace(SMALL, checkpoint_every=1))
    assert folder.parent.name == "runs"
    assert folder.name.startswith("digits-mlp-width-4-")
    assert worker_folder(replace(SMALL, seed=1)) != folder
    assert worker_folder(replace(SMALL, out=tmp_path)) == tmp_path


def test_a_folder_of_something_else_is_refused(tmp_path, raises_clearly):
    with raises_clearly("nothing to resume"):
        read_header(tmp_path, "train")
    (tmp_path / RECORDS).write_text(
        '{"kind": "run", "config": {}, "task": {}, "provenance": {}, "command": ""}\n'
    )
    with raises_clearly("no records of a training"):
        read_header(tmp_path, "train")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"checkpoint_every": -1}, ["checkpoint_every"]),
        ({"norm_limit": 0.0}, ["norm_limit must be positive"]),
        ({"workers": 0}, ["workers must be positive"]),
        ({"seed": -1}, ["a seed must be between"]),
        ({"task": "digits-mpl"}, ["unknown task"]),
        ({"optimizer": "lagg-a-fmnist"}, ["K = 8", "cannot serve 3"]),
        ({"optimizer": "scaffold"}, ["scaffold cannot train in separate processes", "fedavgm"]),
        ({"compress": "zip"}, ["unknown compressor"]),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_written(change, parts, tmp_path, raises_clearly):
    with raises_clearly(*parts):
        train(replace(SMALL, out=tmp_path / "run", **change))
    assert list(tmp_path.iterdir()) == []
