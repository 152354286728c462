"""A group of child processes: dead ones are restarted, with growing waits, a limited number of
times, and none outlives its parent.

What is counted is deaths in a row. A process that ran for `STEADY` seconds restarts without a
growing wait, and one that ran for `HEALTHY` seconds gets all its restarts back: a run of weeks may
lose a worker every day.

A child's standard input is a pipe whose other end the parent holds and never writes to. Whatever
ends the parent, SIGKILL too, closes the pipe, and a child that called `end_with_stdin` ends as
well; that works on every system and needs no process ids, which are used again. Each child leads a
process group of its own, so that Ctrl-C reaches the parent alone, which then ends all in order.
"""

import contextlib
import math
import os
import queue
import signal
import stat
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import IO, NamedTuple

from laconic.engines.base import Refused
from laconic.errors import LaconicError

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds before a restart; doubled each time
GRACE, HASTE = 10.0, 2.0  # seconds to leave in good order, and after a failure
STEADY, HEALTHY = 30.0, 120.0  # seconds of life after which waits, and deaths, are forgiven
DRAIN = 5.0  # seconds to read what a dead child has still written
LAST_LINES = 20  # lines of standard error remembered of each child


def end_with_stdin(after: float = 0.0, grace: float = GRACE) -> None:
    """Send this process SIGTERM `after` seconds past the end of its standard input, and end it
    `grace` seconds later."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _silence_output()
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="laconic-stdin").start()


def _silence_output() -> None:
    """Pipes to the dead parent would fail when written to; send what is written to nowhere."""
    for handle in (1, 2):
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), handle)


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
        self.name = name
        self._lines = lines
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
        self._readers = []
        for stream, error in ((self.process.stdout, False), (self.process.stderr, True)):
            reader = threading.Thread(target=self._read, args=(stream, error), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, stream: IO[str], error: bool) -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            for text in stream:
                self._lines.put(Line(self.name, text.rstrip("\n"), error))

    def kill(self) -> None:
        """End it now, and close its pipes once they are read."""
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


@dataclass
class Member:
    """One process of the group, through all its restarts.

    child: the process now, since `begun` · due: when the next one starts
    deaths: all of them · counted: those that are not forgiven · hasty: those after short lives
    done: whether one ended with status 0
    until: when a dismissed one is killed; None while it is wanted
    """

    command: Sequence[str]
    child: Child | None = None
    begun: float = 0.0
    deaths: int = 0
    counted: int = 0
    hasty: int = 0
    due: float | None = None
    done: bool = False
    until: float | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.child is None and (self.done or self.until is not None)

    def count_death(self, lived: float) -> float:
        """Count a death after so many seconds → the seconds to wait before a restart."""
        self.deaths += 1
        self.counted = 1 if lived >= HEALTHY else self.counted + 1
        self.hasty = 1 if lived >= STEADY else self.hasty + 1
        return min(FIRST_PAUSE * 2 ** (self.hasty - 1), LONGEST_PAUSE)


class Supervisor:
    """A context manager: starts all, restarts the dead, and at the end leaves no process behind.

    services, workers: commands by name; services start first and end last
    restarts: how many deaths of each are made good, healthy ones forgiven
    tell: gets (name, what happened) · hear: gets every line
    own: what single processes have in their environment beside the common one, by name
    """

    def __init__(
        self,
        services: Mapping[str, Sequence[str]],
        workers: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        restarts: int,
        tell: Callable[[str, str], None],
        hear: Callable[[Line], None],
        own: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ):
        self.members = {name: Member(command) for name, command in {**services, **workers}.items()}
        self.workers = {name: self.members[name] for name in workers}
        self._environment = environment
        self._own = own
        self._restarts = restarts
        self._tell = tell
        self._hear = hear
        self._lines: Lines = queue.SimpleQueue()

    def __enter__(self) -> "Supervisor":
        for name in self.members:
            self._start(name)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.end(GRACE if kind is None else HASTE)

    def _start(self, name: str) -> None:
        member = self.members[name]
        member.due = None
        member.begun = time.monotonic()
        environment = {**self._environment, **self._own.get(name, {})}
        member.child = Child(name, member.command, environment, self._lines)

    def step(self, wait: float) -> None:
        """Pass on what was written, after at most `wait` seconds; then restart what is due."""
        self._listen(wait)
        for name, member in self.members.items():
            child, now = member.child, time.monotonic()
            if child is not None and member.until is not None and now > member.until:
                child.kill()
            if child is not None and child.process.poll() is not None:
                self._lost(name, member, child)
            elif member.due is not None and now >= member.due:
                self._start(name)

    def _lost(self, name: str, member: Member, child: Child) -> None:
        status = child.process.returncode
        child.kill()
        member.child = None
        if status == 0 and name in self.workers:
            member.done = True
        elif member.until is None:
            pause = member.count_death(time.monotonic() - member.begun)
            if member.counted > self._restarts or status == Refused.status:
                raise LaconicError(self._verdict(name, member, status))
            member.due = time.monotonic() + pause
            count = f"restart {member.counted} of {self._restarts}"
            self._tell(name, f"{cause(status)}; restarting it in {pause:g} s ({count})")

    def _verdict(self, name: str, member: Member, status: int) -> str:
        self._listen(0.0)  # the reason may still be unread
        words = [text.strip() for text in member.said if text.strip()]
        errors = [text for text in words if text.startswith("error:")]
        reason = (errors or words or ["nothing"])[-1].rstrip(".")
        times = "" if member.counted == 1 else f" {member.counted} times"
        return f"{name} died{times}; the last time it {cause(status)} and wrote: {reason}."

    def _listen(self, wait: float) -> None:
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=wait) if wait else self._lines.get_nowait()
            while True:
                if line.error:
                    self.members[line.name].said.append(line.text)
                self._hear(line)
                line = self._lines.get_nowait()

    def dismiss(self, name: str, grace: float = GRACE) -> None:
        """Ask a process that is no longer needed to end; kill it after `grace` seconds."""
        member = self.members[name]
        member.until = time.monotonic() + grace
        member.due = None
        if member.child is not None:
            member.child.process.send_signal(signal.SIGTERM)

    def end(self, grace: float = GRACE) -> None:
        """Ask the workers to end, then the services; kill those that have not after `grace`."""
        for member in self.members.values():
            member.until = member.until or math.inf
            member.due = None
        for group in (self.workers, self.members):
            for name, member in group.items():
                if member.child is not None and member.until == math.inf:
                    self.dismiss(name, grace)
            while any(member.child for member in group.values()):
                self.step(0.05)
        self._listen(0.0)
