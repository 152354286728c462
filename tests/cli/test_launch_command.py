"""`laconic launch` before anything starts, and its table."""

import io
import json
import signal
import socket
import stat
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest
from rich.console import Console

from laconic.cli import launch
from laconic.cli.launch import LaunchConfig, LaunchDisplay
from laconic.engines.registry import ENGINES
from laconic.engines.supervisor import Line
from laconic.runs.folder import Observer, RunFolder
from laconic.runs.train import TrainConfig, train
from tests import tiny
from tests.cli.commands import assert_help_has, assert_one_error, laconic
from tests.show.trainings import a_row

TRAIN = ["--", "train", "--task", "digits-mlp:width=4", "--optimizer", "local-sgd"]


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LACONIC_TOKEN", raising=False)


@pytest.fixture
def installed(monkeypatch):
    """As if every extra were there: what is tested comes before they are used."""
    monkeypatch.setattr(launch, "engine_entry", lambda name: ENGINES[name])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--workers", "0", *TRAIN], ["workers must be positive, got 0"]),
        (["--workers", "4"], ["after --", "train digits"]),
        (["--workers", "4", "--", "train", "digit"], ["unknown recipe", "Did you mean 'digits'?"]),
        (["--workers", "4", "--", "train", "--task", "digits-mpl"], ["unknown task"]),
        (["--workers", "4", *TRAIN, "--workers", "8"], ["there are 4 workers", "for 8"]),
        (
            ["--workers", "4", *TRAIN[:-1], "small-batch-sgd"],
            ["one worker by its nature", "laconic train"],
        ),
        (["--workers", "4", *TRAIN[:-1], "lagg-a-fmnist"], ["K = 8", "4"]),
        (["--workers", "4", "--here", "5", *TRAIN], ["--here", "4 workers", "got 5"]),
        (["--workers", "4", "--here", "0", *TRAIN], ["--here", "got 0"]),
        (["--port", "70000", *TRAIN], ["from 0", "got 70000"]),
        (["--bind", "192.0.2.1", *TRAIN], ["cannot listen at 192.0.2.1:0"]),
        (["--silence", "-1", *TRAIN], ["silence must be positive"]),
        (["--restarts", "-1", *TRAIN], ["--restarts"]),
        (["--workers", "4", "--min-workers", "5", *TRAIN], ["--min-workers", "4", "got 5"]),
        (
            ["--engine", "jax-distributed", "--restarts", "1", *TRAIN],
            ["jax-distributed cannot", "--restarts must be 0"],
        ),
        (["--token-file", "none", *TRAIN], ["cannot read the token in none"]),
        (["--", "train", "--resume", "nowhere"], ["nothing to resume"]),
        (["--devices", "3", *TRAIN], ["16 examples", "3 devices", "--batch a multiple of 3"]),
        ([*TRAIN, "--devices", "0"], ["devices is how many", "got 0"]),
        (["--devices", "99", *TRAIN, "--batch", "99"], ["99 devices", "platform cpu"]),
    ],
)
def test_errors_are_one_line_and_start_nothing(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "Supervisor", None)
    assert_one_error(capfd, ["launch", *argv], parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_looks_at_data_that_a_task_does_not_have_start_nothing(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "Supervisor", None)
    monkeypatch.setattr(launch, "make_task", lambda spec: tiny.task())
    words = ["launch", "--workers", "2", *TRAIN, "--evaluate-every", "5"]
    assert_one_error(capfd, words, ["tiny has no held-out data", "evaluate_every"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_a_finished_training_is_shown_and_not_trained_again(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "Supervisor", None)
    config = TrainConfig("digits-mlp:width=4", "local-sgd", workers=2, rounds=2, batch=4)
    folder, records = train(replace(config, out=tmp_path / "run"))
    RunFolder(folder).rewrite([records[0] | {"engine": "torchft"}, *records[1:]])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = laconic(capfd, "launch", "--", "train", "--resume", "run")
    assert (code, "train loss" in out, "run is finished" in err) == (0, True, True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.usefixtures("installed")
def test_a_port_that_is_taken_is_refused(capfd, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        parts = [f"cannot listen at 127.0.0.1:{port}", "in use", "--port"]
        assert_one_error(capfd, ["launch", "--port", port, *TRAIN], parts)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_engine_is_an_error(capfd):
    assert_one_error(capfd, ["launch", "--engine", "mpi", *TRAIN], ["unknown engine", "elastic"])


def test_help_teaches(capfd):
    words = ["launch --workers 4 -- train digits", "--bind", "--restarts", "--silence", "--here"]
    words += ["--min-workers", "of two workers both are needed", "--grace"]
    assert_help_has(capfd, "launch", words)


# --- a plan ---------------------------------------------------------------------------------------


@pytest.fixture
def plan_of(installed):
    with ExitStack() as locks:

        def make(*words, **flags):
            plan = launch._plan(LaunchConfig(**flags), ["train", *TRAIN[2:], *words])
            locks.enter_context(plan.run)
            return plan

        yield make


def test_commands_carry_everything_but_the_token(plan_of, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    plan = plan_of("--seed", "3", "--out", "run", workers=2, engine="elastic")
    services, workers = launch._commands(plan)
    assert list(services) == ["lighthouse"]
    host, _, port = plan.address.partition(":")
    assert host == "127.0.0.1"
    assert f"127.0.0.1:{port}" in services["lighthouse"]
    assert list(workers) == ["worker 0", "worker 1"]
    for k, words in enumerate(workers.values()):
        text = " ".join(words)
        assert (
            f"worker --worker {k} --join {plan.address} --engine elastic --bind 127.0.0.1" in text
        )
        assert f"--compiled run/{launch.COMPILED}" in text
        assert (
            "-- train --task digits-mlp:width=4 --optimizer local-sgd --workers 2 --seed 3 --out "
            "run" in text
        )
        assert plan.token not in text
    assert len(plan.token) == 32
    assert plan.token not in " ".join(services["lighthouse"])
    assert not (tmp_path / "run" / "token").exists()  # nobody else needs it


def test_each_worker_sees_its_own_gpus(plan_of, capfd, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    plan = plan_of("--out", "run", workers=3, here=2, devices="all")
    launch._greet(plan)
    said = capfd.readouterr().err
    assert "worker 0 on GPUs 4, 5; worker 1 on GPUs 6, 7" in said
    assert "--devices" not in said  # another machine has its own number
    _, workers = launch._commands(plan)
    assert all("--devices 2" in " ".join(words) for words in workers.values())
    seen = {}

    class Group:
        def __init__(self, services, workers, environment, restarts, tell, hear, own):
            seen.update(own)
            raise KeyboardInterrupt

    monkeypatch.setattr(launch, "Supervisor", Group)
    display = LaunchDisplay(plan.names, 1, "")
    with pytest.raises(KeyboardInterrupt):
        launch._watch(plan, display, lambda: False)
    assert seen == {
        "worker 0": {"CUDA_VISIBLE_DEVICES": "4,5"},
        "worker 1": {"CUDA_VISIBLE_DEVICES": "6,7"},
    }


def test_those_who_join_from_elsewhere_are_told_how(plan_of, capfd, tmp_path):
    plan = plan_of("--out", "run", "--batch", "8", workers=4, here=2)
    assert plan.names == ["worker 0", "worker 1"]
    launch._greet(plan)
    said = capfd.readouterr().err
    assert f"the workers meet at {plan.address}" in said
    train = "train --optimizer local-sgd --batch 8"
    assert "N from 2 to 3" in said
    assert f"laconic worker --join {plan.address} --worker N" in said
    assert "-- train --task digits-mlp:width=4 --optimizer local-sgd --batch 8" in said, train
    token = tmp_path / "run" / "token"
    assert token.read_text().strip() == plan.token
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert str(token.relative_to(tmp_path)) in said


@pytest.mark.parametrize(
    ("workers", "least", "needed", "said"),
    [
        (4, None, 3, ["3 of 4 workers are needed", "--min-workers"]),
        (2, None, 2, ["both workers are needed", "--min-workers 1"]),
        (4, 1, 1, ["one worker is enough to go on, alone", "splits"]),
    ],
)
def test_what_a_minority_does_is_said(plan_of, capfd, workers, least, needed, said):
    plan = plan_of("--out", "run", workers=workers, here=1, min_workers=least)
    launch._greet(plan)
    told = capfd.readouterr().err
    assert all(part in told for part in said)
    assert (f"--min-workers {least} --" in told) == (least is not None)  # for those who join
    _, commands = launch._commands(plan)
    assert f"--min-workers {needed}" in " ".join(commands["worker 0"])


def test_the_lighthouse_is_told_of_a_grace_period(plan_of):
    services, workers = launch._commands(plan_of("--out", "run", workers=4, grace=1.5))
    assert "--grace 1.5 --min-workers 3" in " ".join(services["lighthouse"])
    assert "--grace" not in " ".join(workers["worker 0"])
    services, _ = launch._commands(plan_of("--out", "calm", workers=4))
    assert "--grace" not in services["lighthouse"]


def test_a_given_token_is_used(plan_of, monkeypatch, tmp_path):
    monkeypatch.setenv("LACONIC_TOKEN", "from the environment")
    assert plan_of("--out", "a", workers=3, here=1).token == "from the environment"
    (tmp_path / "secret").write_text("from a file\n")
    assert (
        plan_of("--out", "b", workers=3, here=1, token_file=tmp_path / "secret").token
        == "from a file"
    )
    assert not (tmp_path / "a" / "token").exists()


def test_listening_beyond_this_machine_is_said(plan_of, capfd):
    plan = plan_of("--out", "run", workers=2, bind="0.0.0.0", host="10.1.2.3")
    launch._greet(plan)
    assert plan.address.startswith("10.1.2.3:")
    assert "listening at 0.0.0.0, beyond this machine" in capfd.readouterr().err


def test_a_folder_in_use_is_refused_and_left_as_it_is(plan_of, capfd, tmp_path, monkeypatch):
    plan = plan_of("--out", "run", workers=2)
    assert_one_error(capfd, ["launch", *TRAIN, "--out", "run"], ["run is in use"])
    monkeypatch.setattr(launch, "shared_config", lambda *given: (plan.train, True))
    words = ["launch", "--here", "1", "--", "train", "--resume", "run"]
    assert_one_error(capfd, words, ["run is in use"])
    assert list((tmp_path / "run").iterdir()) == []


# --- a launch -------------------------------------------------------------------------------------

SIGNALLED = """
import os, pathlib, signal, sys, time

def save(*_):
    time.sleep(1.0)
    pathlib.Path("saved").touch()
    sys.exit(STATUS)

signal.signal(signal.SIGTERM, save)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""
OWN = ["--workers", "1", "--here", "1", "--silence", "0.1", "--restarts", "2"]


@pytest.fixture
def signalled(installed, monkeypatch):
    """A launch of one worker that has its launcher interrupted, takes a second to save, and ends
    with a status → the launch's status."""

    def run(status):
        command = [sys.executable, "-c", SIGNALLED.replace("STATUS", str(status))]
        monkeypatch.setattr(launch, "LATE", 0.1)
        monkeypatch.setattr(launch, "_commands", lambda plan: ({}, {"worker 0": command}))
        return launch.run_launch([*OWN, *TRAIN, "--out", "a run"])

    return run


def test_a_signal_lets_workers_save_and_the_launch_goes_on_as_it_was(signalled, capfd, tmp_path):
    assert signalled(128 + signal.SIGTERM) == 128 + signal.SIGINT
    assert (tmp_path / "saved").exists()
    said = capfd.readouterr().err
    assert "once all workers have saved; once more to leave at once" in said
    again = f"laconic launch {' '.join(OWN)} -- train --resume 'a run'"
    assert f"stopped after round 0 of 100. Go on with: {again}" in said


def test_a_signal_after_the_last_round_loses_nothing(signalled, monkeypatch, raises_clearly):
    shown = []

    def show(folder, records):
        shown.append(records)
        with raises_clearly("is in use"):
            RunFolder(folder).lock()

    monkeypatch.setattr(launch, "finish", lambda *given: [{"final_digests": ["a"]}])
    monkeypatch.setattr(launch, "print_outcome", show)
    assert signalled(0) == 0
    assert len(shown) == 1
    with RunFolder("a run") as free:
        free.lock()


# --- the table ------------------------------------------------------------------------------------


def a_line(name, kind, **fields):
    return Line(name, json.dumps({"kind": kind, **fields}), False)


@pytest.fixture
def display():
    clock = [0.0]
    shown = LaunchDisplay(
        ["worker 0", "worker 1"],
        50,
        "a title",
        Console(width=140, record=True, file=io.StringIO()),
        lambda: clock[0],
    )
    shown.now = clock
    return shown


def cells(display, name):
    written = io.StringIO()
    Console(width=140, file=written).print(display.render())
    (row,) = [
        line.split() for line in written.getvalue().splitlines() if line.startswith(f"{name[-1]} ")
    ]
    return row[1:]


def test_the_table_adds_up(display):
    display.take(a_line("worker 0", "start", worker=0, round=0, rounds=50))
    assert cells(display, "worker 0")[:3] == ["compiles", "0", "–"]
    assert cells(display, "worker 1")[0] == "starts"
    for r in range(1, 4):
        row = a_row(
            r,
            0.0,
            sent=2_000_000,
            received=1_000_000,
            refused={"a stranger": 2},
            excluded={1: "norm"} if r > 1 else {},
        )
        display.take(a_line("worker 0", **{**row, "kind": "round"}))
    expected = ["trains", "3", "2", "0.3333", "6.00", "3.00", "500", "500", "125", "2", "2", "0"]
    assert cells(display, "worker 0") == expected
    display.died("worker 0", 1)
    assert cells(display, "worker 0")[0] == "died"
    assert cells(display, "worker 0")[-1] == "1"
    display.take(a_line("worker 0", "end", round=50, digest="x"))
    assert cells(display, "worker 0")[:2] == ["done", "50"]
    assert display.round == 50


def test_what_is_no_message_is_a_line_of_a_log(display):
    for line in (
        Line("worker 1", "hello [red]", False),
        Line("worker 1", '{"kind": "start"}', True),
        Line("lighthouse", '{"kind": "x"}', False),
        Line("worker 1", "[1]", False),
    ):
        display.take(line)
    display.take(
        a_line("worker 0", **{**a_row(7, 0.0, notes=["took over"], refused={}), "kind": "round"})
    )
    display.tell("worker 0", "was killed")
    assert display.console.export_text().splitlines() == [
        "worker 1 | hello [red]",
        'worker 1 | {"kind": "start"}',
        'lighthouse | {"kind": "x"}',
        "worker 1 | [1]",
        "worker 0 | round 7: took over",
        "worker 0 | was killed",
    ]


def test_a_log_gets_a_line_now_and_then(display):
    display.tick()
    display.now[0] = 11.0
    display.tick()
    display.take(a_line("worker 1", **{**a_row(7, 0.0, refused={}), "kind": "round"}))
    display.died("worker 0", 2)
    display.now[0] = 20.0
    display.tick()
    display.now[0] = 22.0
    display.tick()
    assert display.console.export_text().splitlines() == [
        "worker 0 starts; worker 1 starts",
        "round 7/50, quorum 2, loss 0.1429, restarts 2",
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_what_one_worker_finds_on_held_out_data_is_told_once(display, first):
    """Whichever of them tells of the round first."""
    heard = []

    class Heard(Observer):
        def round(self, row):
            heard.append((row["round"], row["loss"], row.get("heldout")))

        def numbers(self, label, done, values):
            heard.append((label, done, {name: str(value) for name, value in values.items()}))

    display.watcher = Heard()
    for r in (1, 2):
        for worker in (first, 1 - first):
            more = (
                {"heldout": {"loss": 0.5, "valid_loss": 0.25, "own": None}} if worker == 0 else {}
            )
            more = more if r == 2 else {}
            row = a_row(r, 0.0, refused={}, **more)
            display.take(a_line(f"worker {worker}", **{**row, "kind": "round"}))
    values = {"test_loss": 0.5, "valid_loss": 0.25, "test_own": None}
    for worker in (0, 1):
        display.take(a_line(f"worker {worker}", "numbers", round=2, values=values))
    told = {"test_loss": "0.5", "valid_loss": "0.25", "test_own": "nan"}
    assert heard == [(1, 1.0, None), (2, 0.5, None), ("training", 2, told)]
    assert display.console.export_text().splitlines() == [
        "worker 0 | round 2/50: validation loss 0.250, test loss 0.500, own –"
    ]


def test_without_looks_the_numbers_of_the_end_are_told_once(display):
    heard = []

    class Heard(Observer):
        def numbers(self, label, done, values):
            heard.append((label, done, dict(values)))

    display.watcher = Heard()
    for worker in (1, 0):
        row = a_row(50, 0.0, refused={})
        display.take(a_line(f"worker {worker}", **{**row, "kind": "round"}))
        values = {"test_loss": 0.5}
        display.take(a_line(f"worker {worker}", "numbers", round=50, values=values))
    assert heard == [("training", 50, {"test_loss": 0.5})]


def test_a_look_of_many_metrics_stays_within_80_columns(display):
    look = {"loss": 0.25} | {f"a metric with a name {i}": 100.0 + i for i in range(7)}
    row = a_row(2, 0.0, refused={}, heldout=look)
    display.take(a_line("worker 0", **{**row, "kind": "round"}))
    lines = display.console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    told = " ".join(line.removeprefix("worker 0 | ").strip() for line in lines)
    metrics = ", ".join(f"a metric with a name {i} {100 + i}" for i in range(7))
    assert told == f"round 2/50: test loss 0.250, {metrics}"


def test_the_table_fits_into_80_columns(display):
    display.workers["worker 0"].take(
        a_row(99999, 0.0, sent=10**9, received=10**9, refused={"x": 9999})
    )
    for width in (80, 140):
        written = io.StringIO()
        Console(width=width, file=written).print(display.render())
        assert "…" not in written.getvalue()
    assert cells(display, "worker 0")[4:6] == ["1000", "1000"]
