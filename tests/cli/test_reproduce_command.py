"""`laconic reproduce`: the list, refusals, and a stop with the command that goes on."""

import os
import signal

import pytest

from laconic.cli import reproduce as command
from laconic.reproduce import EXPERIMENTS
from tests.cli.commands import assert_one_error, laconic


def test_the_list_has_every_name_and_what_the_full_scale_needs(capfd):
    code, out, _ = laconic(capfd, "reproduce", "--list")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(EXPERIMENTS)
    assert all(line.split()[0] == "full:" for line in lines[1::2])


def test_the_list_says_how_far_each_was_run(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, out, _ = laconic(capfd, "reproduce", "--list")
    assert all(line.endswith("on record here: not run") for line in out.splitlines()[1::2])


def test_help_names_experiments_and_flags(capfd):
    code, out, _ = laconic(capfd, "reproduce", "--help")
    assert code == 0
    for word in ("--scale", "--out", "--panels", *EXPERIMENTS):
        assert word in out


def test_refusals_are_one_line(capfd, tmp_path):
    assert_one_error(capfd, ["reproduce"], ["--list"])
    assert_one_error(capfd, ["reproduce", "fig-worker"], ["unknown experiment", "fig-workers"])
    assert_one_error(capfd, ["reproduce", "--resume", tmp_path], ["nothing to resume"])
    assert_one_error(
        capfd, ["reproduce", "fig-h-transfer", "--panels", "h8"], ["unknown panel", "h4"]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_command_that_goes_on(number, capfd, tmp_path, monkeypatch):
    def stopped(name, scale, out, *, panels, watching, stop):
        os.kill(os.getpid(), number)
        assert stop()
        raise command.Interrupted("stopped before one.", tmp_path)

    monkeypatch.setattr(command, "reproduce", stopped)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # the command adds to it
    code, out, err = laconic(capfd, "reproduce", "fig-ablation")
    assert (code, out) == (128 + number, "")
    assert f"stopped before one. Go on with: laconic reproduce --resume {tmp_path}" in err
    code, _, err = laconic(capfd, "reproduce", "fig-h-transfer", "--panels", "h4")
    assert (code, "stopped before one. Go on with: the same command" in err) == (128 + number, True)
