"""`laconic launch` and `laconic worker` with real processes: deaths, restarts, strangers, orphans,
going on."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.kill_demo import PACE, PIDS
from laconic.engines.base import Refused
from laconic.runs.train import TrainConfig, parts_of, train
from laconic.runs.train_log import lives_of
from laconic.store import checkpoint
from laconic.store.records import read
from laconic.tasks.catalog import make_task
from tests.engines.cluster import environment, free_port
from tests.engines.methods import SMOOTH
from tests.engines.oracle import assert_same_weights, present_of, simulate
from tests.engines.processes import alive, children_of, listening, wait_until, words_of
from tests.outer.trees import QUICK

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
TIMEOUT = 300
FAST = ["--silence", "2", "--timeout", "10"]
CONFIG = TrainConfig(
    SMOOTH, "slowmo:gamma=0.3,beta=0.5", workers=4, local_steps=2, batch=16, rounds=24
)
WORDS = [
    "train",
    "--task",
    SMOOTH,
    "--optimizer",
    "slowmo:gamma=0.3,beta=0.5",
    "--local-steps",
    "2",
]
SMALL = ["train", "--task", "digits-mlp:width=4", "--optimizer", "local-sgd", "--batch", "4"]


@contextmanager
def started(folder, *words, module="laconic", **variables):
    """A command at work in `folder`; everything that it started ends with the test."""
    clean = {
        k: v
        for k, v in environment().items()
        if not k.startswith(("SLURM_", "MASTER_", "LACONIC_TOKEN"))
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", *module.split(), *map(str, words)]
    with subprocess.Popen(command, cwd=folder, env=clean | variables, **pipes) as running:
        try:
            yield running
        finally:
            running.kill()


def finish(running, status=0):
    """(stdout, stderr) of a command that ends as expected."""
    out, err = running.communicate(timeout=TIMEOUT)
    assert running.returncode == status, out + err
    return out, err


def launch(folder, *words, **variables):
    return started(folder, "launch", *words, **variables)


def paced_launch(folder, *words):
    """A launch whose rounds take at least a tenth of a second."""
    paced = "benchmarks.kill_demo --paced laconic launch"
    demo = {PACE: "0.1", PIDS: str(folder)}
    return started(folder, *words, module=paced, **demo)


def rounds_in(path):
    return (
        [row["round"] for life in lives_of(read(path)) for row in life.rows]
        if path.exists()
        else []
    )


def all_rows(folder):
    return [
        row
        for path in sorted(folder.glob("worker-*.jsonl"))
        for life in lives_of(read(path))
        for row in life.rows
    ]


@pytest.mark.slow
def test_a_killed_worker_comes_back_and_all_end_with_the_same_state(tmp_path, standard_promotion):
    """The survivors wait at a gate until it is back; the model is that of the messages that
    counted."""
    gates = {"GATES": str(tmp_path), "GATE_AFTER": "12"}
    train = [*WORDS, "--rounds", "24", "--checkpoint-every", "6", "--out", "run"]
    words = ["launch", "--workers", "4", *FAST, "--", *train]
    with started(tmp_path, *words, module="tests.cli.gated laconic", **gates) as running:
        wait_until((tmp_path / "run" / "worker-3.safetensors").exists, "the checkpoint of round 6")
        (victim,) = [
            pid for pid in children_of(running.pid) if "--worker 3" in " ".join(words_of(pid))
        ]
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: len(list(tmp_path.glob("ready-*"))) == 5,
            "four workers and the one that comes back",
        )
        everyone = [running.pid, *children_of(running.pid)]
        assert len(everyone) == 6
        nothing_listens_beyond_this_machine(everyone)
        the_token_is_in_no_command(everyone)
        (tmp_path / "open").touch()
        out, err = finish(running)
    assert "worker 3 | was killed by SIGKILL; restarting it in 0.5 s (restart 1 of 3)" in err
    back = int(re.search(r"worker 3 \| round (\d+): took over the state of round", err)[1])
    assert "hashes equal after every round" in out
    summary = read(tmp_path / "run" / "records.jsonl")[-1]
    assert len(summary["final_digests"]) == 1
    assert summary["rounds_apart"] == []
    assert [summary["workers"][str(k)]["starts"] for k in range(4)] == [1, 1, 1, 2]
    assert all(worker["finished"] for worker in summary["workers"].values())
    assert summary["workers"]["3"]["healed"] == 1
    present_RK = present_of(all_rows(tmp_path / "run"), 24)
    assert present_RK[:5].all()
    assert not present_RK[back - 1, 3]
    assert present_RK[back:].all()
    shared, _ = simulate(make_task(CONFIG.task), parts_of(CONFIG)[0], present_RK)
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shared)]
    assert_same_weights([weights[name] for name in names], shared, "the final weights")
    assert not (tmp_path / "run" / "token").exists()


def nothing_listens_beyond_this_machine(pids):
    found = {host for pid in pids for host, _ in listening(pid)}
    assert found
    assert found <= LOOPBACK


def the_token_is_in_no_command(pids):
    variables = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in pids[1:]]
    tokens = {
        word.partition("=")[2]
        for words in variables
        for word in words
        if word.startswith("LACONIC_TOKEN=")
    }
    (token,) = tokens
    assert len(token) == 32
    assert not any(token in word for pid in pids for word in words_of(pid))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["elastic", "jax-distributed"])
def test_four_processes_train_as_one_does(engine, tmp_path, monkeypatch):
    """`laconic train` with four simulated workers, and four real ones."""
    optimizer = {"elastic": "lopt-a-digits", "jax-distributed": "slowmo:gamma=0.3,beta=0.5"}[engine]
    words = ["train", "--optimizer", optimizer, "--rounds", "10", "--out", "run"]
    with launch(tmp_path, "--workers", "4", "--engine", engine, "--", *words) as running:
        finish(running)
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
    _, alone = train(TrainConfig(optimizer=optimizer, rounds=10, out=tmp_path / "alone"))
    losses = [{} for _ in range(2)]
    for found, records in zip(
        losses, (alone, read(tmp_path / "run" / "records.jsonl")), strict=True
    ):
        for record in records:
            if record["kind"] == "rounds":
                found.update(zip(record["round"], record["loss"], strict=True))
    assert sorted(losses[0]) == sorted(losses[1]) == list(range(1, 11))
    np.testing.assert_allclose(
        [losses[1][r] for r in range(1, 11)], [losses[0][r] for r in range(1, 11)], rtol=1e-5
    )
    one, many = (load_file(tmp_path / name / "weights.safetensors") for name in ("alone", "run"))
    for name, leaf in one.items():
        assert np.max(np.abs(many[name] - leaf)) <= 1e-5 * np.max(np.abs(leaf)), name


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["elastic", "jax-distributed"])
def test_two_workers_of_four_devices_train_as_one_process_does(engine, tmp_path):
    """A mesh inside each worker, the engine between them."""
    flags = environment()["XLA_FLAGS"].replace("count=1", "count=4")
    config = replace(CONFIG, optimizer="lopt-a-digits:scale=0.15", workers=2, rounds=10)
    words = [*WORDS, "--optimizer", config.optimizer, "--rounds", "10", "--out", "run"]
    given = ["--workers", "2", "--devices", "all", "--engine", engine, "--", *words]
    with launch(tmp_path, *given, XLA_FLAGS=flags) as running:
        finish(running)
    header, *_ = read(tmp_path / "run" / "worker-1.jsonl")
    assert header["config"]["devices"] == "all"
    assert header["provenance"]["device"]["count"] == (4 if engine == "elastic" else 8)
    shared, losses_RK = simulate(make_task(CONFIG.task), parts_of(config)[0], np.ones((10, 2)))
    rows = {row["round"]: row for row in all_rows(tmp_path / "run")}
    losses = [[rows[r]["losses"][str(k)] for k in range(2)] for r in range(1, 11)]
    np.testing.assert_allclose(losses, losses_RK, rtol=1e-5)
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shared)]
    assert_same_weights([weights[name] for name in names], shared, "the final weights")


@pytest.mark.slow
def test_a_launcher_that_dies_leaves_no_orphans_and_the_run_goes_on(tmp_path):
    """Killed, then interrupted, then let to its end."""
    log, flags = tmp_path / "run" / "worker-0.jsonl", ["--workers", "2", *FAST]
    words = [*SMALL, "--rounds", "120", "--checkpoint-every", "5", "--out", "run"]
    with paced_launch(tmp_path, *flags, "--", *words) as running:
        wait_until(lambda: len(rounds_in(log)) >= 10, "some rounds")
        children = children_of(running.pid)
        assert len(children) == 3
        running.kill()
        running.wait()
    wait_until(lambda: not any(map(alive, children)), "the workers and the Lighthouse to end")
    before = max(rounds_in(log))
    assert (
        checkpoint.peek(tmp_path / "run" / "worker-0.safetensors")["round"] == before
    )  # saved on the way out

    with paced_launch(tmp_path, *flags, "--", "train", "--resume", "run") as running:
        wait_until(lambda: max(rounds_in(log)) >= before + 10, "some more rounds")
        children = children_of(running.pid)
        running.send_signal(signal.SIGINT)
        _, err = finish(running, 128 + signal.SIGINT)
    assert not any(map(alive, children))
    done = int(re.search(r"stopped after round (\d+) of 120", err)[1])
    assert f"Go on with: laconic launch {' '.join(flags)} -- train --resume run" in err

    with launch(tmp_path, *FAST, "--", "train", "--resume", "run") as running:
        out, _ = finish(running)
    assert "hashes equal after every round" in out
    lives = lives_of(read(log))
    assert lives[0].rows[0]["round"] == 1
    assert lives[2].rows[0]["round"] == done + 1
    rounds = read(tmp_path / "run" / "records.jsonl")[
        1
    ]  # of both: one of them may have left a round earlier
    assert rounds["round"] == list(range(1, 121))


@pytest.mark.slow
def test_workers_connected_by_jax_save_when_asked_to_stop(tmp_path):
    log = tmp_path / "run" / "worker-0.jsonl"
    words = [*SMALL, "--rounds", "100000", "--out", "run"]
    flags = ["--workers", "2", "--engine", "jax-distributed", *FAST]
    with launch(tmp_path, *flags, "--", *words) as running:
        wait_until(lambda: rounds_in(log), "some rounds")
        running.send_signal(signal.SIGINT)
        _, err = finish(running, 128 + signal.SIGINT)
    done = int(re.search(r"stopped after round (\d+) of 100000", err)[1])
    saved = [checkpoint.peek(path)["round"] for path in log.parent.glob("worker-*.safetensors")]
    assert max(saved) == done  # the first to leave may keep the other from its last round


@pytest.mark.slow
def test_one_joins_from_elsewhere_with_the_token_and_a_stranger_does_not(tmp_path):
    for name in ("here", "there", "stranger"):
        (tmp_path / name).mkdir()
    here = ["--workers", "2", "--here", "1", *FAST, "--", *SMALL, "--rounds", "20", "--out", "run"]
    with launch(tmp_path / "here", *here) as first:
        told = [first.stderr.readline() for _ in range(3)]
        (address,) = re.findall(r"meet at (\S+);", told[0])
        assert f"laconic worker --join {address} --worker N" in "".join(told)
        token = tmp_path / "here" / "run" / "token"
        worker = ["worker", "--join", address, "--worker", "1", *FAST]
        train = ["--", *SMALL, "--rounds", "20", "--workers", "2"]
        with started(
            tmp_path / "stranger", *worker, "--patience", "300", *train, LACONIC_TOKEN="guessed"
        ) as stranger:
            _, err = finish(stranger, Refused.status)
        (line,) = [line for line in err.splitlines() if line.startswith("error:")]
        assert f"worker 1 has another token than the run at {address}" in line
        assert "LACONIC_TOKEN" in line
        with started(tmp_path / "there", *worker, "--token-file", token, *train) as second:
            _, err = finish(second)
        assert "worker 1: round 20/20, 2 workers" in err
        _, err = finish(first)
    assert err.count("lighthouse | refused: a stranger without the token at 127.0.0.1") == 1
    (joined,) = (tmp_path / "there" / "runs").iterdir()
    ids = {
        read(file)[0]["run_id"]
        for file in (*joined.glob("*.jsonl"), *tmp_path.glob("here/run/*"))
        if file.suffix == ".jsonl"
    }
    assert len(ids) == 1
    assert joined.name.endswith(ids.pop())
    ours, theirs = (
        load_file(folder / "weights.safetensors") for folder in (tmp_path / "here" / "run", joined)
    )
    for name, leaf in ours.items():
        np.testing.assert_array_equal(theirs[name], leaf)


@pytest.mark.slow
def test_torchruns_variables_are_enough(tmp_path):
    """Worker 0 hosts the Lighthouse, and at the end puts all records of the folder together."""
    master = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port() - 1),
    }  # they meet one port higher
    place = {"WORLD_SIZE": "2", "LACONIC_TOKEN": "secret", **master}
    words = ["worker", *FAST, "--", *SMALL, "--rounds", "10"]
    with (
        started(tmp_path, *words, RANK="1", **place) as one,
        started(tmp_path, *words, RANK="0", **place) as zero,
    ):
        finish(one)
        out, err = finish(zero)
    assert "worker 0: round 10/10, 2 workers" in err
    (folder,) = (tmp_path / "runs").iterdir()
    summary = read(folder / "records.jsonl")[-1]
    assert len(summary["final_digests"]) == 1
    assert [worker["finished"] for worker in summary["workers"].values()] == [True, True]
    assert f"weights: {folder}" in re.sub(" +", " ", out)


@pytest.mark.slow
def test_the_demonstration_kills_a_worker_that_comes_back(tmp_path):
    words = ["--workers", "2", "--at", "5", "--pace", "0.6", "--out", "run"]
    with started(tmp_path, *words, module="benchmarks.kill_demo") as running:
        out, err = finish(running)
    assert "worker 1 | was killed by SIGKILL; restarting it" in err
    assert "came back; at the end the workers all hold the same state. Messages left out: 0." in out


@pytest.mark.slow
def test_four_processes_end_where_the_simulator_does(tmp_path):
    """The recipe of the documentation, to its last round."""
    with launch(
        tmp_path, "--workers", "4", *FAST, "--", "train", "digits", "--out", "apart"
    ) as run:
        finish(run)
    with started(tmp_path, "train", "digits", "--out", "together") as run:
        finish(run)
    apart, together = (tmp_path / name for name in ("apart", "together"))
    ends = [read(folder / "records.jsonl")[-1] for folder in (apart, together)]
    assert ends[0]["loss"] == pytest.approx(ends[1]["loss"], rel=1e-5)
    assert ends[0]["excluded"] == {}
    ours, theirs = (load_file(folder / "weights.safetensors") for folder in (apart, together))
    off = max(np.max(np.abs(theirs[name] - leaf)) for name, leaf in ours.items())
    assert off <= 1e-5 * max(np.max(np.abs(leaf)) for leaf in ours.values())


@pytest.mark.slow
def test_restarts_are_bounded_and_the_end_is_one_clear_error(tmp_path):
    words = ["launch", "--workers", "2", "--restarts", "1", *FAST, "--", *SMALL, "--out", "run"]
    variables = {"GATES": str(tmp_path), "BREAKS": "1"}
    with started(tmp_path, *words, module="tests.cli.gated laconic", **variables) as running:
        out, err = finish(running, 1)
    assert out == ""
    assert "worker 1 | ended with status 1; restarting it in 0.5 s (restart 1 of 1)" in err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    told = (
        "worker 1 died 2 times; the last time it ended with status 1 and wrote: error: out of luck."
    )
    assert line.startswith(f"error: {told}")
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("started-*")]
    assert len(pids) >= 3
    assert not any(map(alive, pids))
