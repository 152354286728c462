"""A launch, looked at from outside: its processes are found under its process id and hit by
signals, and the launch is begun again with --resume whenever it is gone before the end.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEAVE = 15.0  # seconds that the workers of a dead launch have to end
GIVE_UP = 10  # launches that may end by themselves
LIGHTHOUSE, LAUNCH = "lighthouse", "launch"
PR_SET_PDEATHSIG = 1


@dataclass
class Group:
    """A launch and its processes, started with `command`, begun again with `again`."""

    command: Sequence[str]
    again: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    launches: int = 0
    ended: list[str] = field(default_factory=list)  # what launches said that ended by themselves
    _known: dict[int, float] = field(default_factory=dict)
    _waking: list[tuple[float, int]] = field(default_factory=list)
    _struck: bool = False  # whether the launch was killed from here
    _gone_at: float = 0.0

    def launch(self) -> None:
        """Begin, or begin again."""
        command = self.again if self.launches else self.command
        self.launches += 1
        self._struck = False
        with (self.folder / "launch.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def done(self) -> bool:
        """Whether the launch came to its good end."""
        return self.process is not None and self.process.poll() == 0

    def members(self) -> dict[str, int]:
        """The processes that run now, by name."""
        if self.process is None or self.process.poll() is not None:
            return {}
        found = {LAUNCH: self.process.pid}
        for pid in children_of(self.process.pid):
            words = words_of(pid)
            if "laconic.engines.lighthouse" in words:
                found[LIGHTHOUSE] = pid
            elif "--worker" in words:
                found[f"worker {words[words.index('--worker') + 1]}"] = pid
        self._known |= {pid: born_at(pid) for pid in found.values() if pid not in self._known}
        return found

    def strike(self, names: Sequence[str], seconds: float) -> list[str]:
        """Stop the processes with these names for so many seconds, or kill them if that is 0 → the
        names of those that were there."""
        members = self.members()
        hit = [name for name in names if name in members]
        for name in hit:
            if seconds:
                self._waking.append((time.monotonic() + seconds, members[name]))
            self._struck |= name == LAUNCH and not seconds
            send(members[name], signal.SIGSTOP if seconds else signal.SIGKILL)
        return hit

    def step(self) -> None:
        """Wake the stopped whose time has come; begin a launch that is gone again, once nothing of
        it is left."""
        for due, pid in list(self._waking):
            if time.monotonic() >= due:
                send(pid, signal.SIGCONT)
                self._waking.remove((due, pid))
        if self.process is None or self.process.poll() is None or self.done:
            self._gone_at = time.monotonic()
            return
        waited = time.monotonic() - self._gone_at
        if self._leftover() and waited < LEAVE:
            return
        if not self._struck:
            self.ended.append(last_line(self.folder / "launch.log"))
            if len(self.ended) > GIVE_UP:
                raise SystemExit(f"error: the launch keeps ending: {self.ended[-1]}")
        self.launch()

    def stopped(self) -> set[int]:
        """The processes that are stopped now."""
        return {pid for _, pid in self._waking}

    def _leftover(self) -> list[int]:
        return [pid for pid, born in self._known.items() if born and born_at(pid) == born]

    def end(self) -> None:
        """Leave nothing behind."""
        self.members()
        for pid in self._leftover():
            send(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def wait_for(
    condition: Callable[[], Any], step: Callable[[], Any], seconds: float, pause: float = 0.05
) -> bool:
    """Step until the condition holds, at most so many seconds → whether it does."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        step()
        time.sleep(pause)
    return True


# --- processes ------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Have this process be killed when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """A signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children_of(pid: int) -> list[int]:
    """The processes that any thread of it started and that still run."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in path.read_text().split()]
    return [child for child in found if born_at(child)]


def words_of(pid: int) -> list[str]:
    """Its command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def born_at(pid: int) -> float:
    """When it began, in clock ticks; 0 if it is gone. Tells it from a later one of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return 0.0 if fields[0] == "Z" else float(fields[19])


def last_line(path: Path) -> str:
    """The last line that says anything."""
    lines = path.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
