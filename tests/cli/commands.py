"""Running a command in this process, and what an error must look like."""

import os
import sys
from pathlib import Path

import pytest

from laconic import cli

ROOT = Path(__file__).parents[2]


def laconic(capfd, *argv):
    """(exit status, stdout, stderr) of a command run in this process."""
    with pytest.raises(SystemExit) as info:
        cli.main([str(word) for word in argv])
    captured = capfd.readouterr()
    return info.value.code, captured.out, captured.err


def assert_help_has(capfd, command, words):
    """`laconic COMMAND --help` says each of the words."""
    code, out, _ = laconic(capfd, command, "--help")
    assert code == 0
    for word in words:
        assert word in out


def assert_one_error(capfd, argv, parts):
    """The command fails with status 1, nothing on stdout, and one line on stderr that says each
    part."""
    code, out, err = laconic(capfd, *argv)
    assert code == 1
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert line.startswith("error:")
    for part in parts:
        assert part in line, f"{part!r} not in {line!r}"


def process(code, *argv):
    """(words, environment) of a process that runs `code`, or the command line if it is None."""
    start = ["-m", "laconic"] if code is None else ["-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return [sys.executable, *start, *map(str, argv)], environment
