"""Commands as processes of their own, killed without warning once they have recorded so much, and
what they leave; and trainings in this process that die."""

import signal
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

from laconic.runs.train import Part
from laconic.store.records import RECORDS, read
from tests.cli.commands import process
from tests.outer.trees import QUICK

TIMES = (
    "seconds",
    "rounds_per_second",
    "step_seconds",
    "provenance",
)  # what two runs of the same need not share


class Killed(Exception):
    pass


@contextmanager
def dying(monkeypatch, point):
    """A training in here dies just before it writes down the round `point`, or its "end"."""

    def die(self, loop, log, report=None, due=None):
        if report is None or report.round == point:
            raise Killed
        return committed(self, loop, log, report, due)

    committed = Part._committed
    with monkeypatch.context() as patch:
        patch.setattr(Part, "_finish" if point == "end" else "_committed", die)
        with pytest.raises(Killed):
            yield


@contextmanager
def started(folder, *words, code=None):
    """The command at work in `folder`, compiled with little effort; what it says is in err.txt
    beside the folder."""
    argv, environment = process(code, *words)
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
    environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}"
    said = folder.parent / f"{folder.name}-err.txt"
    with (
        open(said, "w") as err,
        subprocess.Popen(argv, cwd=folder, env=environment, stderr=err) as running,
    ):
        running.said = said
        yield running


def finish(folder, *words, code=None):
    """Run the command to its end."""
    with started(folder, *words, code=code) as running:
        running.wait(timeout=300)
    assert running.returncode == 0, running.said.read_text()


def kill(folder, least, later, *words, code=None):
    """Kill the command `later` seconds after `least` records are there; it must not have come to
    its end by then."""
    deadline = time.monotonic() + 240
    with started(folder, *words, code=code) as running:
        while count(folder) < least and running.poll() is None:
            assert time.monotonic() < deadline
            pause(running, 0.005)
        pause(running, later)
        running.kill()
    assert running.returncode == -signal.SIGKILL, running.said.read_text()


def pause(running, seconds):
    """Let some time pass, or less if the process ends."""
    with suppress(subprocess.TimeoutExpired):
        running.wait(timeout=seconds)


def count(folder):
    """Whole records anywhere below."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob(RECORDS))


def recorded(folder):
    """Every records file as it is, without a last line that was cut off."""
    whole = {path: path.read_bytes() for path in sorted(folder.rglob(RECORDS))}
    return {
        path.relative_to(folder).as_posix(): text[: text.rfind(b"\n") + 1]
        for path, text in whole.items()
    }


def without_times(folder):
    """All records below, less what tells when and how fast they came about."""
    return {
        path: [_timeless(record) for record in read(folder / path)] for path in recorded(folder)
    }


def _timeless(record):
    return {key: value for key, value in record.items() if key not in TIMES}
