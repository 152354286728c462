"""`laconic meta-train` as a user meets it: help, errors, signals, budgets, a kill, a summary."""

import os
import random
import signal
import subprocess
import time
from functools import partial

import jax
import pytest

from laconic import zoo
from laconic.cli import meta_train as command
from laconic.cli.words import META_EXAMPLE, meta_words
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.runs.folder import CHECKPOINT
from laconic.store import checkpoint
from laconic.store.records import RECORDS, plain, read
from tests.cli.commands import assert_one_error, laconic, process
from tests.outer.trees import QUICK
from tests.runs.meta_runs import FLAGS, Clock, assert_same_bits
from tests.zoo.made import LAGG_A, a_card, weights

RUN = ["meta-train", "lopt-a-digits", *FLAGS]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Little compiling; and optax's AdamW, which strict promotion forbids."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
        yield


def done_in(folder):
    """Outer steps that the folder's checkpoint holds, 0 if there is none yet."""
    return checkpoint.peek(folder / CHECKPOINT)["done"] if (folder / CHECKPOINT).exists() else 0


# --- words ----------------------------------------------------------------------------------------


def test_help_names_flags_and_recipes(capfd):
    for argv in (["--help"], ["lopt-a-digits", "-h"]):
        code, out, _ = laconic(capfd, "meta-train", *argv)
        assert code == 0
        for word in (
            "--tasks",
            "--truncation",
            "--minutes",
            "--init",
            "--reset-diverged",
            *META_RECIPES,
        ):
            assert word in out
    code, out, _ = laconic(capfd, "meta-train", "--resume", "x", "--help")
    assert code == 0
    assert "--minutes" in out


@pytest.mark.parametrize("argv", [[], ["--steps", "3"]])
def test_without_a_recipe_there_is_a_list_and_one_error(argv, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = laconic(capfd, "meta-train", *argv)
    assert (code, out) == (1, "")
    lines = err.splitlines()
    for name, (summary, _) in META_RECIPES.items():
        assert f"  {name}: {summary}" in lines
    assert f"Example: {META_EXAMPLE}" in lines
    assert [line for line in lines if "error" in line] == lines[-1:]
    assert lines[-1].startswith("error: meta-train needs the name of a recipe")
    assert list(tmp_path.iterdir()) == []


def test_the_example_is_a_command():
    words = META_EXAMPLE.split()
    assert words[:2] == ["laconic", "meta-train"]
    assert meta_words(words[2:])[1].minutes == 5


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["lopt-digits"], ["unknown recipe", "Did you mean 'lopt-a-digits'?"]),
        (["lopt-a-digits", "--minutes", "0"], ["minutes must be positive"]),
        (["lopt-a-digits", "--minutes", "-2"], ["minutes must be positive"]),
        (["lopt-a-digits", "--pairs", "0"], ["pairs must be positive"]),
        (["lopt-a-digits", "--devices", "3"], ["do not divide over 3 devices"]),
        (["lopt-a-digits", "--truncation", "101"], ["longer than the longest run, 100"]),
        (
            ["lopt-a-digits", "--tasks", "digits-mlp@colour=2"],
            ["option of task digits-mlp", "'colour'"],
        ),
        (["lagg-a-digits", "--tasks", "digits-mlp", "digits-mlp@workers=3"], ["the same K"]),
        (
            ["lopt-a-digits", "--init", "lagg.safetensors"],
            ["lagg.safetensors", "its architecture is lagg-a"],
        ),
        (
            ["lopt-a-digits", "--init", "damaged.safetensors"],
            ["damaged.safetensors", "use another copy"],
        ),
        (["lopt-a-digits", *FLAGS, "--out", "."], ["not empty", "Choose another --out"]),
        (["lopt-a-digits", *FLAGS, "--out", "/dev/null/run"], ["cannot write"]),
        (["--resume", "nowhere"], ["nothing to resume"]),
        (["--resume", "."], ["no records of a meta-training"]),
        (["--resume", ".", "--minutes", "1"], ["no records of a meta-training"]),
    ],
)
def test_errors_are_one_line_and_overwrite_nothing(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / RECORDS).write_text(
        '{"kind": "run", "config": {}, "task": {}, "provenance": {}}\n'
    )  # a comparison
    zoo.publish(tmp_path / "lagg.safetensors", LAGG_A, weights(LAGG_A), a_card(LAGG_A))
    (tmp_path / "damaged.safetensors").write_bytes(
        (tmp_path / "lagg.safetensors").read_bytes()[:99]
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert_one_error(capfd, ["meta-train", *argv], parts)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_bad_flags_are_refused(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for argv in (
        ["lopt-a-digits", "--step", "3"],
        ["lopt-a-digits", "--steps", "3.5"],
        ["--resume", "x", "--steps=3"],
    ):
        code, out, err = laconic(capfd, "meta-train", *argv)
        assert code == 2
        assert "--step" in out + err
    assert list(tmp_path.iterdir()) == []


def test_missing_data_says_which_file_goes_where(capfd, tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("laconic.data.files.search_path", lambda: [tmp_path / "data"])
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = laconic(capfd, "meta-train", "lopt-a-fmnist")
    assert (code, out) == (1, "")
    assert [line for line in err.splitlines() if line.startswith("error:")] == err.splitlines()[-1:]
    assert "train-images-idx3-ubyte.gz" in err
    assert str(tmp_path / "data") in err
    assert list((tmp_path / "here").iterdir()) == []


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_signal_leaves_a_run_that_goes_on_and_says_how(capfd, tmp_path, monkeypatch):
    class Display(command.MetaDisplay):
        def progress(self, label, done, loss, norm=None):
            super().progress(label, done, loss, norm)
            if done == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr(command, "MetaDisplay", Display)
        code, out, err = laconic(capfd, *RUN, "--out", folder)
    assert (code, out) == (128 + signal.SIGTERM, "")
    assert "stopping after these outer steps" in err
    lines = err.strip().splitlines()
    assert lines[-1] == (
        f"asked to stop after outer step 4 of 8. Go on with: laconic meta-train --resume '{folder}'"
    )
    assert "lopt-a-digits: outer step 0/8, compiling …" in lines[0]
    assert done_in(folder) == 4
    assert read(folder / RECORDS)[0]["command"].startswith(
        "laconic meta-train lopt-a-digits --workers 2"
    )

    code, out, err = laconic(capfd, "meta-train", "--resume", folder)
    assert code == 0, err
    summary, best = read(folder / RECORDS)[-1], folder / "best.safetensors"
    shown = dict(line.split(":", 1) for line in out.splitlines())
    assert {name: text.strip() for name, text in shown.items()} == {
        "folder": str(folder),
        "best": f"score {summary['best_score']:.4f} on held-out seeds (lower is better), outer "
        "step "
        f"{summary['best_step']} of 8",
        "took": f"{summary['seconds']:,.1f} s, {summary['rounds_per_second']:,.0f} rounds/s",
        "weights": str(best),
        "picture": str(folder / "learning-curve.png"),
        "in Python": f'laconic.load("{best}")',
        "measure it": "laconic compare --task digits-mlp --workers 2 --local-steps 1 --batch 4 "
        f"--optimizers local-sgd '{best}'",
    }
    assert zoo.load(best).card.outer_steps == summary["best_step"]
    assert (folder / "learning-curve.png").exists()


def test_the_command_to_measure_with_a_population_leaves_its_steps_to_the_data(capfd, tmp_path):
    config = plain(META_RECIPES["fedlopt-fmnist"][1])
    summary = {
        "best_score": 0.5,
        "best_step": 1,
        "steps": 2,
        "seconds": 1.0,
        "rounds_per_second": 2.0,
    }
    command._print_summary(tmp_path, [{"config": config}, summary])
    (told,) = (
        line for line in capfd.readouterr().out.splitlines() if line.startswith("measure it:")
    )
    assert (
        "--task fmnist-mlp2 --workers 10 --batch 20 --federated.clients 400 --federated.alpha 0.1 "
        "--opt" in told
    )


def test_minutes_too_few_are_an_error_and_minutes_used_up_are_not(capfd, tmp_path, monkeypatch):
    clock, folder = Clock(), tmp_path / "run"

    class Display(command.MetaDisplay):
        def progress(self, label, done, loss, norm=None):
            super().progress(label, done, loss, norm)
            clock.now += 40

    monkeypatch.setattr("laconic.runs.meta_train.time", clock)
    monkeypatch.setattr(command, "MetaDisplay", Display)
    code, out, err = laconic(capfd, *RUN, "--out", folder, "--minutes", "0.5")
    assert (code, out) == (1, "")
    assert [line for line in err.splitlines() if line.startswith("error:")] == err.splitlines()[-1:]
    assert "0.5 minutes are too few" in err
    assert f"laconic meta-train --resume {folder} --minutes 1.4" in err
    assert done_in(folder) == 1
    code, out, err = laconic(capfd, "meta-train", "--resume", folder, "--minutes", "1.4")
    assert (code, out) == (0, "")
    assert err.strip().splitlines()[-1] == (
        f"the 1.4 minutes are over after outer step {done_in(folder)} of 8. "
        f"Go on with: laconic meta-train --resume {folder}"
    )
    assert done_in(folder) > 1


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    """A real process, killed without warning at some outer step: its --resume ends where an
    undisturbed one does."""
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())

    def start(*words):
        argv, environment = process(None, *words)
        environment["XLA_FLAGS"] = f"{environment['XLA_FLAGS']} {flags}"
        return subprocess.Popen(
            argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )

    def finish(*words):
        with start(*words) as running:
            errors = running.communicate(timeout=300)[1]
        assert running.returncode == 0, errors

    long = [*RUN, "--steps", "40", "--judge-every", "40"]
    finish(*long, "--out", "whole")
    least, deadline = random.randrange(2, 20), time.monotonic() + 240
    with start(*long, "--out", "cut") as running:
        while done_in(tmp_path / "cut") < least:
            assert time.monotonic() < deadline
            try:
                running.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(running.stderr.read())
        running.kill()
    assert running.returncode == -signal.SIGKILL
    assert least <= done_in(tmp_path / "cut") < 40
    assert read(tmp_path / "cut" / RECORDS)[-1]["kind"] == "progress"
    finish("meta-train", "--resume", "cut")
    for name in ("last.safetensors", "best.safetensors"):
        assert_same_bits(tmp_path / "cut" / name, tmp_path / "whole" / name)
    assert done_in(tmp_path / "cut") == 40
