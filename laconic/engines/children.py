"""Processes that this one starts and looks after: their output line by line, and no orphans.

A child holds the end of a pipe as its standard input (see `lifeline`) and leads a process group of
its own, so that Ctrl-C reaches the starter alone, which then ends all of them in order.
"""

import contextlib
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

DRAIN = 5.0  # seconds for what a dead child has still said


class Line(NamedTuple):
    """A line that a child wrote, and whether to its standard error."""

    name: str
    text: str
    error: bool


Lines = queue.SimpleQueue[Line]


class Child:
    """One process under a name; what it writes is put into `lines`."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], lines: Lines
    ):
        self.name, self._lines = name, lines
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        streams = ((self.process.stdout, False), (self.process.stderr, True))
        self._readers = [
            threading.Thread(target=self._read, args=stream, daemon=True) for stream in streams
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], error: bool) -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            for text in stream:
                self._lines.put(Line(self.name, text.rstrip("\n"), error))

    def status(self) -> int | None:
        """None while it lives; then its exit status, the negative of a signal's number if that
        ended it."""
        return self.process.poll()

    def signal(self, number: int) -> None:
        """Send it a signal; a dead one does not mind."""
        self.process.send_signal(number)

    def bury(self) -> None:
        """Kill it if it still lives, and let everything go that was kept for it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(DRAIN)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def cause(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
