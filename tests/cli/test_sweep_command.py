"""`laconic sweep`: the table at the end, a stop and its exit status, and refusals."""

import os
import signal
from functools import partial

import jax
import pytest

from laconic.cli import console as command
from laconic.recipes.sweeps import SWEEPS
from laconic.store.records import read
from tests.cli.commands import assert_one_error, laconic
from tests.outer.trees import QUICK

SMALL = [
    "--task",
    "digits-mlp:width=4",
    "--workers",
    "2",
    "--local-steps",
    "1",
    "--batch",
    "4",
    "--rounds",
    "12",
]
SMALL += ["--points-at-once", "2"]


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
        yield


def ranking(folder):
    records = read(folder / "records.jsonl")
    points = {r["index"]: r for r in records if r["kind"] == "point"}
    return [points[i] for i in records[-1]["order"]]


def test_a_sweep_ends_with_the_ranking_and_where_it_is(capfd, tmp_path):
    folder = tmp_path / "run"
    code, out, err = laconic(capfd, "sweep", "local-sgd", *SMALL, "--out", folder)
    assert code == 0, err
    assert "rounds/s" in err
    title, head, *rest = [line for line in out.splitlines() if line.strip(" ─━")]
    assert title.strip() == "local-sgd on digits-mlp:width=4: K = 2, H = 1, B = 4, 12 rounds"
    assert head.split()[:2] == ["rank", "gamma"]
    best_first = ranking(folder)
    assert [line.split()[:2] for line in rest[:4]] == [
        [str(i + 1), f"{point['numbers']['gamma']:.4g}"] for i, point in enumerate(best_first)
    ]
    assert rest[4].startswith("4 points, ")
    assert f"The best: {best_first[0]['label']}." in rest[4]
    assert rest[5:] == [f"{what}: {folder}/{name}" for what, name in NAMES.items()]
    assert read(folder / "records.jsonl")[0]["command"].startswith("laconic sweep local-sgd --task")


NAMES = {"ranking": "ranking.md", "picture": "ranking.png", "records": "records.jsonl"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_sweep_that_goes_on(number, capfd, tmp_path, monkeypatch):
    class Bars(command.LiveBars):
        def progress(self, label, done, loss):
            super().progress(label, done, loss)
            os.kill(os.getpid(), number)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(command, "LiveBars", Bars)
        code, out, err = laconic(capfd, "sweep", "local-sgd", *SMALL, "--out", folder)
    assert (code, out) == (128 + number, "")
    assert f"stopped with 2 of 4 points done. Go on with: laconic sweep --resume {folder}" in err
    assert len(read(folder / "records.jsonl")) == 3
    code, out, err = laconic(capfd, "sweep", "--resume", folder)
    assert code == 0, err
    assert "4 points, " in out
    assert len(ranking(folder)) == 4


def test_help_names_flags_and_recipes(capfd):
    code, out, _ = laconic(capfd, "sweep", "--help")
    assert code == 0
    for word in ("--grid", "--rank-by", "--points-at-once", *SWEEPS):
        assert word in out


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["slomo"], ["unknown recipe", "Did you mean 'slowmo'?"]),
        (["--method", "lopt-a"], ["lopt-a cannot be swept", "published"]),
        (["--grid", "gamma=0"], ["gamma must be positive"]),
        (["--rank-by", "rounds"], ["target loss"]),
        (["--resume", "nowhere"], ["nothing to resume"]),
        (["--task", "digits-mpl"], ["unknown task"]),
    ],
)
def test_errors_are_one_line_and_make_nothing(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_error(capfd, ["sweep", *argv], parts)
    assert list(tmp_path.iterdir()) == []
