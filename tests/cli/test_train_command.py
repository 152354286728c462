"""`laconic train` as a user meets it: help, errors, a signal, the outcome."""

import os
import signal
from functools import partial

import jax
import pytest

from laconic.cli import console
from laconic.cli import train as command
from laconic.recipes.trainings import TRAIN_RECIPES
from laconic.runs.train import TrainConfig
from laconic.store.records import read
from tests.cli.commands import assert_help_has, assert_one_error, laconic
from tests.outer.trees import QUICK

SMALL = [
    "--task",
    "digits-mlp:width=4",
    "--optimizer",
    "local-sgd",
    "--workers",
    "2",
    "--batch",
    "4",
    "--rounds",
    "6",
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


def test_help_names_flags_and_recipes(capfd):
    words = [
        "--task",
        "--optimizer",
        "--compress",
        "--norm-limit",
        "laconic launch --workers 4",
        *TRAIN_RECIPES,
    ]
    assert_help_has(capfd, "train", words)


def test_a_training_ends_with_what_came_out(capfd, tmp_path):
    folder = tmp_path / "run"
    code, out, err = laconic(capfd, "train", *SMALL, "--out", folder)
    assert code == 0, err
    assert "6/6" in err
    shown = {
        name: text.strip() for name, _, text in (line.partition(":") for line in out.splitlines())
    }
    summary = read(folder / "records.jsonl")[-1]
    assert shown["optimizer"] == "local-sgd"
    assert shown["rounds"].startswith("6 in ")
    assert shown["train loss"].split()[0] == f"{summary['loss']:.3g}"
    assert shown["state"] == summary["final_digests"][0][:12]
    assert shown["weights"] == str(folder / "weights.safetensors")
    assert (
        (folder / "command.txt").read_text().startswith("laconic train --task digits-mlp:width=4")
    )


def test_a_signal_leaves_a_run_that_goes_on_and_says_how(capfd, tmp_path, monkeypatch):
    class Bars(console.LiveBars):
        def progress(self, label, done, loss, norm=None):
            super().progress(label, done, loss, norm)
            if done == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr(console, "LiveBars", Bars)
        code, out, err = laconic(capfd, "train", *SMALL, "--out", folder)
    assert (code, out) == (128 + signal.SIGTERM, "")
    assert err.strip().splitlines()[-1] == (
        f"asked to stop after round 3 of 6. Go on with: laconic train --resume '{folder}'"
    )
    code, out, err = laconic(capfd, "train", "--resume", folder)
    assert code == 0, err
    assert "note: resumed after round 3" in err
    assert "rounds:" in out


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["digit"], ["unknown recipe", "Did you mean 'digits'?"]),
        (["--workers", "0"], ["workers must be positive"]),
        (["--optimizer", "slomo"], ["unknown optimizer", "Did you mean 'slowmo'?"]),
        (["--task", "digits-mpl"], ["unknown task"]),
        (["--checkpoint-every", "-1"], ["checkpoint_every"]),
        (["--out", "/dev/null/run"], ["cannot write"]),
        (["--resume", "/nowhere"], ["nothing to resume"]),
    ],
)
def test_errors_are_one_line_with_a_way_out(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_error(capfd, ["train", *argv], parts)
    assert list(tmp_path.iterdir()) == []


def test_words_that_several_processes_share(raises_clearly):
    assert command.shared_config(["train", "fmnist", "--seed", "3"], None)[0].workers == 8
    config, resumed = command.shared_config(["train", "fmnist", "--seed", "3"], 4)
    assert (config.workers, config.seed, resumed) == (4, 3, False)
    with raises_clearly("there are 4 workers", "for 5"):
        command.shared_config(["train", "--workers", "5"], 4)
    for words in ([], ["compare"]):
        with raises_clearly("after --", "laconic launch --workers 4 -- train digits"):
            command.shared_config(words, 4)


def test_one_process_and_many_do_not_go_on_for_each_other(capfd, tmp_path, raises_clearly):
    code, _, err = laconic(capfd, "train", *SMALL, "--out", tmp_path / "run")
    assert code == 0, err
    with raises_clearly("trained in one process", f"laconic train --resume {tmp_path / 'run'}"):
        command.shared_config(["train", "--resume", str(tmp_path / "run")], None)
    path = tmp_path / "run" / "records.jsonl"
    path.write_text(path.read_text().replace('"engine": "simulated"', '"engine": "torchft"'))
    assert command.shared_config(["train", "--resume", str(tmp_path / "run")], None)[
        0
    ] == TrainConfig(
        "digits-mlp:width=4", "local-sgd", workers=2, batch=4, rounds=6, out=tmp_path / "run"
    )
    assert_one_error(
        capfd,
        ["train", "--resume", tmp_path / "run"],
        ["real processes", "laconic launch -- train"],
    )
