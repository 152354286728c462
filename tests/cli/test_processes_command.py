"""`laconic meta-train` in several processes: its flags, and that two of them end where one does."""

import pytest

from laconic.runs.folder import CHECKPOINT
from laconic.store import checkpoint
from laconic.store.records import read
from tests.cli.commands import assert_one_error, laconic
from tests.meta.pair import TIMEOUT, free_address, run_pair, start
from tests.outer.trees import assert_close
from tests.runs.meta_runs import FLAGS, weights

# With σ = 0.1 rounding in the losses grows 50-fold in the gradient, at the default of 0.01
# 5000-fold.
RUN = [
    "meta-train",
    "lopt-a-digits",
    *FLAGS,
    "--steps",
    "3",
    "--judge-every",
    "3",
    "--sigma",
    "0.1",
    "--peak",
    "0.01",
]
STOPPED = """
import os, signal, sys
from laconic.cli import main, meta_train
class Display(meta_train.MetaDisplay):
    def progress(self, label, done, loss, norm=None):
        super().progress(label, done, loss, norm)
        if done == 1:
            os.kill(os.getpid(), signal.SIGTERM)
meta_train.MetaDisplay = Display
main(sys.argv[1:])
"""


def test_the_flags_are_in_the_help(capfd):
    for argv in (["lopt-a-digits"], ["--resume", "x"]):
        code, out, _ = laconic(capfd, "meta-train", *argv, "--help")
        assert code == 0
        assert all(
            flag in out for flag in ("--coordinator", "--processes", "--process", "HOST:PORT")
        )


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--processes", "2"], ["belong together"]),
        (["--coordinator", "127.0.0.1:9", "--processes", "2"], ["belong together"]),
        (
            ["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "2"],
            ["from 0 to 1", "got 2"],
        ),
        (
            ["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "-1"],
            ["from 0 to 1", "got -1"],
        ),
        (
            ["--coordinator", "127.0.0.1", "--processes", "2", "--process", "0"],
            ["HOST:PORT", "'127.0.0.1'"],
        ),
        (
            ["--coordinator", "here:port", "--processes", "2", "--process", "0"],
            ["HOST:PORT", "'here:port'"],
        ),
        (["--coordinator", ":99", "--processes", "2", "--process", "0"], ["HOST:PORT", "':99'"]),
    ],
)
def test_wrong_flags_say_so(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_error(capfd, ["meta-train", "lopt-a-digits", *argv], parts)
    assert_one_error(capfd, ["meta-train", "--resume", "nowhere", *argv], parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_processes_end_where_one_does_also_when_one_of_them_is_told_to_stop(tmp_path):
    with start(tmp_path, None, *RUN, "--out", "alone") as alone:
        errors = alone.communicate(timeout=TIMEOUT)[1]
    assert alone.returncode == 0, errors

    elsewhere, address = tmp_path / "elsewhere", free_address()
    elsewhere.mkdir()
    both = ["--coordinator", address, "--processes", "2"]
    command = [*RUN, "--devices", "2", "--out", "both", *both]
    first, second = run_pair(
        (tmp_path, None, *command, "--process", 0), (elsewhere, STOPPED, *command, "--process", 1)
    )
    assert (first[0], second[0]) == (0, 128 + 15), first[2] + second[2]
    assert (
        "asked to stop after outer step 1 of 3. Go on with: laconic meta-train --resume both"
        in first[2]
    )
    assert "asked to stop" not in second[2]
    assert checkpoint.peek(tmp_path / "both" / CHECKPOINT)["done"] == 1
    assert list(elsewhere.iterdir()) == []  # the first process alone writes

    resume = [
        "meta-train",
        "--resume",
        tmp_path / "both",
        "--coordinator",
        free_address(),
        "--processes",
        "2",
    ]
    first, second = run_pair(
        (tmp_path, None, *resume, "--process", 0), (elsewhere, None, *resume, "--process", 1)
    )
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "measure it:" in first[1]
    assert "measure it:" not in second[1]
    for name in ("best.safetensors", "last.safetensors"):
        assert_close(weights(tmp_path / "both" / name), weights(tmp_path / "alone" / name), 1e-5)
    one, two = (read(tmp_path / folder / "records.jsonl") for folder in ("alone", "both"))
    assert two[-1]["best_step"] == one[-1]["best_step"] == 3
    assert two[-1]["best_score"] == pytest.approx(one[-1]["best_score"], rel=1e-5)


@pytest.mark.slow
def test_what_stops_the_first_process_stops_all(tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    command = [
        *RUN,
        "--devices",
        "2",
        "--out",
        "taken",
        "--coordinator",
        free_address(),
        "--processes",
        "2",
    ]
    first, second = run_pair(
        (tmp_path, None, *command, "--process", 0), (tmp_path, None, *command, "--process", 1)
    )
    assert (first[0], second[0]) == (1, 1)
    assert "error: taken is already there and not empty" in first[2]
    assert "error: process 0 could not go on" in second[2]
    assert [path.name for path in taken.iterdir()] == ["file"]
