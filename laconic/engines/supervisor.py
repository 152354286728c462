"""A group of processes that is kept going: who dies is started again, later each time, and not for
ever."""

import contextlib
import math
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from laconic.engines.children import Child, Line, Lines, cause
from laconic.errors import LaconicError

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds before a restart; doubled each time
GRACE, HASTE = 10.0, 2.0  # seconds to leave in good order, and after a failure
LAST_WORDS = 20  # lines remembered of each


@dataclass
class Member:
    """One place in the group: how it is started, the process that holds it now, and how often one
    was lost.

    due: when the next process starts · done: whether one came to its end · until: when one that is
    not wanted any more is killed; None while one is
    """

    command: Sequence[str]
    child: Child | None = None
    deaths: int = 0
    due: float | None = None
    done: bool = False
    until: float | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))

    @property
    def over(self) -> bool:
        """Whether nothing more comes from here."""
        return self.child is None and (self.done or self.until is not None)


class Supervisor:
    """A context manager: starts all, restarts the dead, and at the end leaves nobody behind.

    services, workers: commands by name; services are started first, ended last, and not expected to
    be done restarts: how many deaths of each are made good · tell: is told (name, what happened) ·
    hear: gets every line
    """

    def __init__(
        self,
        services: Mapping[str, Sequence[str]],
        workers: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        restarts: int,
        tell: Callable[[str, str], None],
        hear: Callable[[Line], None],
    ):
        self.members = {name: Member(command) for name, command in {**services, **workers}.items()}
        self.workers = {name: self.members[name] for name in workers}
        self._environment, self._restarts, self._tell, self._hear = (
            environment,
            restarts,
            tell,
            hear,
        )
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
        member.child = Child(name, member.command, self._environment, self._lines)

    def step(self, wait: float) -> None:
        """Pass on what was written, after at most `wait` seconds; then see to the dead."""
        self._listen(wait)
        for name, member in self.members.items():
            if (
                member.child is not None
                and member.until is not None
                and time.monotonic() > member.until
            ):
                member.child.bury()
            if member.child is not None and member.child.status() is not None:
                self._lost(name, member, member.child)
            elif member.due is not None and time.monotonic() >= member.due:
                self._start(name)

    def _lost(self, name: str, member: Member, child: Child) -> None:
        status = child.process.returncode
        child.bury()
        member.child = None
        if status == 0 and name in self.workers:
            member.done = True
        elif member.until is None:
            member.deaths += 1
            if member.deaths > self._restarts:
                raise LaconicError(self._verdict(name, member, status))
            pause = min(FIRST_PAUSE * 2 ** (member.deaths - 1), LONGEST_PAUSE)
            member.due = time.monotonic() + pause
            count = f"restart {member.deaths} of {self._restarts}"
            self._tell(name, f"{cause(status)}; starting it again in {pause:g} s ({count})")

    def _verdict(self, name: str, member: Member, status: int) -> str:
        self._listen(0.0)  # its reason may be among what is yet to be read
        words = [text.strip() for text in member.said if text.strip()]
        reason = next(
            (text for text in reversed(words) if text.startswith("error:")),
            words[-1] if words else "nothing",
        )
        times = "" if member.deaths == 1 else f" {member.deaths} times"
        return (
            f"{name} died{times}, and at last {cause(status)}; its last words: "
            f"{reason.rstrip('.')}."
        )

    def _listen(self, wait: float) -> None:
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=wait) if wait else self._lines.get_nowait()
            while True:
                if line.error:
                    self.members[line.name].said.append(line.text)
                self._hear(line)
                line = self._lines.get_nowait()

    def dismiss(self, name: str, grace: float = GRACE) -> None:
        """Ask one to leave, who is not missed; it is killed if it does not in time."""
        member = self.members[name]
        member.until, member.due = time.monotonic() + grace, None
        if member.child is not None:
            member.child.signal(signal.SIGTERM)

    def end(self, grace: float = GRACE) -> None:
        """Ask the workers to leave, wait a while and kill the rest, then the services."""
        for member in self.members.values():
            member.until, member.due = member.until or math.inf, None
        for group in (self.workers, self.members):
            for name, member in group.items():
                if member.child is not None and member.until == math.inf:
                    self.dismiss(name, grace)
            while any(member.child for member in group.values()):
                self.step(0.05)
        self._listen(0.0)
