"""Looking at processes that a test did not start itself, and waiting for them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 240.0  # for anything to happen on a busy machine


def alive(pid: int) -> bool:
    """Whether it still runs; one that is dead but not yet buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def words_of(pid: int) -> list[str]:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses, as /proc spells them (IPv4 in hexadecimal, backwards), and the ports that it
    listens on."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = []
    for family in ("tcp", "tcp6"):
        rows += [
            line.split() for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]
        ]
    places = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in inodes]
    return {(host, int(port, 16)) for host, port in places}


def wait_until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {patience:.0f} s for {what}")
