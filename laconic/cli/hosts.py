"""How the processes of one command find and trust each other: the flags of several hosts, and the
secret token that the workers of a run share.

The token comes from a file or the environment, never from the command line: whoever may list
processes sees their arguments, but not their environment.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laconic.engines.address import is_loopback
from laconic.errors import LaconicError

VARIABLE = "LACONIC_TOKEN"


@dataclass(frozen=True)
class Hosts:
    """Train with several processes: start the same command in each, with --process 0, 1, …."""

    coordinator: str | None = None
    """HOST:PORT of process 0, where all of them meet."""
    processes: int | None = None
    """How many processes there are; --devices counts those of all of them together."""
    process: int | None = None
    """Which one this is, from 0 on. Process 0 shows progress and writes the folder; to --resume,
    all must see it."""

    def join(self) -> bool:
        """Connect to the other processes, if any → whether this one shows progress."""
        if self == Hosts():
            return True
        if self.coordinator is None or self.processes is None or self.process is None:
            raise LaconicError(
                "--coordinator, --processes and --process belong together: give all three, or none."
            )
        if not 0 <= self.process < self.processes:
            raise LaconicError(
                f"--process counts from 0 to {self.processes - 1} here, got {self.process}."
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise LaconicError(
                f"--coordinator is HOST:PORT, as in 10.0.0.1:1234, got {self.coordinator!r}."
            )
        from laconic.engines.jax_distributed import join

        # A host that others can reach is to be reached; its name may mean another address there.
        bind = "" if is_loopback(host) else "::"
        join(self.coordinator, self.processes, self.process, bind=bind)
        return self.process == 0


def find_token(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The text of the file, else of $LACONIC_TOKEN, else None."""
    if file is None:
        return environment.get(VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LaconicError(
            f"cannot read the token in {file}: {getattr(error, 'strerror', 'it is no text')}."
        ) from None
    if not token:
        raise LaconicError(
            f"{file} holds no token; put the same secret text into it on every machine."
        )
    return token


def need_token(file: Path | None, environment: Mapping[str, str]) -> str:
    """The same, and an error if there is none."""
    token = find_token(file, environment)
    if token is None:
        raise LaconicError(
            f"a worker needs the token that all of them share: set {VARIABLE}, or give "
            "--token-file. laconic launch makes one and says where it is."
        )
    return token


def new_token() -> str:
    """A random token."""
    return secrets.token_hex(16)


def write_token(path: Path, token: str) -> None:
    """Write a token to a file that only this user can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(token + "\n")
