"""Data files: the search path, verified reading, downloads, and .npy headers.

The digest of a file is checked every time it is loaded. Nothing that exists is overwritten or
deleted; a download is written under a unique temporary name and moved into place once it is
checked.
"""

import gzip
import hashlib
import http.client
import os
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from laconic.errors import LaconicError

TIMEOUT_S = 30
CHUNK = 1 << 16


def search_path() -> list[Path]:
    """Data folders, best first: $LACONIC_DATA, ~/.cache/laconic, /usr/share/datasets."""
    chosen = os.environ.get("LACONIC_DATA")
    roots = [chosen] if chosen else []
    roots += ["~/.cache/laconic", "/usr/share/datasets"]
    return list(dict.fromkeys(Path(root).expanduser().absolute() for root in roots))


def find(name: str, here: bool = False) -> Path | None:
    """The first file or folder of that name on the search path; with `here`, try it as a path."""
    tried = [Path(name).expanduser().absolute()] if here else []
    tried += [root / name for root in search_path()]
    # os.path.exists is False where a folder may not be read.
    return next((path for path in tried if os.path.exists(path)), None)


def read_bytes(path: Path) -> bytes:
    """What a file holds; a LaconicError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LaconicError(
            f"{path} cannot be read ({error.strerror}); check that it is a readable file."
        ) from error


def gunzip(raw: bytes) -> bytes:
    """What the bytes of a .gz file decompress to."""
    try:
        return gzip.decompress(raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        found = f"found {len(raw)} bytes: {error}"
        raise ValueError(f"expected a complete gzip file, {found}") from error


@dataclass(frozen=True)
class Remote:
    """A published file: its path below a data folder, its address, and its content's digest.

    `digest` reads "sha256:…" or "md5:…" and is taken of `content(bytes of the file)`: the headers
    of .gz files differ between distributions, so those are digested after `gunzip`.
    """

    relative: str
    url: str
    digest: str
    content: Callable[[bytes], bytes] = bytes

    def check(self, raw: bytes) -> bytes:
        """The content of the file's bytes; ValueError if they are not what was published."""
        data = self.content(raw)
        found = digest_of(data, self.digest)
        if found != self.digest:
            raise ValueError(f"expected {self.digest}, found {found} in {len(data)} bytes")
        return data

    def read(self, path: Path) -> bytes:
        """The content of a file that claims to be this one, checked."""
        try:
            return self.check(read_bytes(path))
        except ValueError as error:
            raise LaconicError(
                f"{path} is damaged or another version ({error}). Move it away and run again to "
                f"fetch {self.url} anew."
            ) from error


def digest_of(data: bytes, like: str) -> str:
    """The digest of some bytes, by the algorithm that the digest `like` names."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"


def locate(remotes: Sequence[Remote]) -> list[Path]:
    """A path for each file: found in the search path, or downloaded into its first folder."""
    for remote in (remote for remote in remotes if find(remote.relative) is None):
        target = search_path()[0] / remote.relative
        try:
            with arriving(target) as part:
                fetch(remote.url, part)
                remote.check(read_bytes(part))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _missing(remotes, remote, error) from error
    return [found for remote in remotes if (found := find(remote.relative)) is not None]


def _missing(remotes: Sequence[Remote], failed: Remote, error: Exception) -> LaconicError:
    searched = ", ".join(map(str, search_path()))
    wanted = [remote for remote in remotes if find(remote.relative) is None]
    todo = "; ".join(f"{remote.url} as {search_path()[0] / remote.relative}" for remote in wanted)
    return LaconicError(
        f"{failed.relative} is in none of {searched}, and downloading {failed.url} failed "
        f"({error}). Fetch it yourself and save: {todo}."
    )


@contextmanager
def arriving(target: Path) -> Iterator[Path]:
    """A unique path to write to; moved to `target` at the end, removed after an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def fetch(url: str, target: Path) -> None:
    """Download an address into a file, with a progress bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer,
        target.open("xb") as file,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        bar = progress.add_task(url.rpartition("/")[2], total=total)
        while chunk := answer.read(CHUNK):
            progress.advance(bar, file.write(chunk))
        if total is not None and file.tell() != total:
            raise ValueError(f"the connection ended after {file.tell()} of {total} bytes")


HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Header(NamedTuple):
    """The header of an array in NumPy's own format (.npy), in its order."""

    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype


def read_header(stream: IO[bytes]) -> Header:
    """The header, leaving the stream at the array's numbers; ValueError if there is none."""
    version = np.lib.format.read_magic(stream)
    if version not in HEADER_READERS:  # later ones are for field names outside Latin-1
        raise ValueError(f"version {version} of the format is not for arrays of plain numbers")
    return Header(*HEADER_READERS[version](stream))
