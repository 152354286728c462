"""The decoder examples, killed once and started again, end where an undisturbed run does."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'laconic[torch]'")

from tests.cli.commands import process

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r"^worker (\d): loss ([0-9.]+), weights ([0-9a-f]{64})$", re.MULTILINE)


@contextlib.contextmanager
def started(name, folder):
    """In a process group of its own, which ends with all its workers."""
    _, environment = process("")
    environment.pop(
        "PYTHONUNBUFFERED", None
    )  # it parts a line from its end: two would run into one
    command = [sys.executable, str(EXAMPLES / name), "--folder", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as run:
        try:
            yield run
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(run.pid, signal.SIGKILL)


def ended(name, folder):
    """What the workers say at the end of a run, and all that was said."""
    with started(name, folder) as run:
        out, _ = run.communicate(timeout=900)
    assert run.returncode == 0
    return sorted(LINE.findall(out)), out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "extra", "uniform"),
    [("torch_sharded.py", "torch", 5.5), ("hf_trainer.py", "transformers", 5.5)],
)
def test_a_killed_run_goes_on_to_the_same_end(name, extra, uniform, tmp_path):
    pytest.importorskip(extra, reason="not installed: pip install 'laconic[hf]'")
    expected, said = ended(name, tmp_path / "undisturbed")
    first, second, *_ = re.findall(r"^.+: saved$", said, re.MULTILINE)
    with started(name, tmp_path / "killed") as run:
        while run.stdout.readline().strip() != second:
            assert run.poll() is None
    found, said = ended(name, tmp_path / "killed")
    assert first not in said  # it did not begin anew
    assert found == expected
    (_, loss, weights), (_, other_loss, others) = found
    assert weights == others
    assert max(float(loss), float(other_loss)) < uniform - 0.5  # log 256 = 5.5: it learns
