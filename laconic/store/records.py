"""Files of records: one strict JSON object a line, each on disk before `append` returns, and
`provenance`, what made them.

Every record says which line of its file it is, so that a line that got lost is noticed. The number
belongs to the file, not to the record: `append` and `rewrite` give it, `read` checks it and takes
it off. Older records have no numbers and are read as they are.
JAX is imported only where an array or a device is asked about.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from laconic.errors import LaconicError
from laconic.store import archive, atomic
from laconic.version import __version__

Json = Any  # what `json` can write: None, bool, int, float, str, and lists and dicts of these

RECORDS = "records.jsonl"  # what the file is called in a run folder
LINE = "line"  # the number of a record in its file, from 1 on
DIGITS = 6  # significant digits kept of array values; Python floats are kept whole
LIBRARIES = ("jax", "jaxlib", "optax", "equinox", "numpy")
PACKAGE = Path(__file__).resolve().parents[1]


def append(path: str | Path, kind: str, **fields: Any) -> None:
    """Add the record `{"kind": kind, **fields}` and sync it; a torn last line is dropped first."""
    path = Path(path)
    record = plain({"kind": kind, **fields})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (packed := archive.records_file(path)) is not None:
            archive.unpack(packed)
        with open(path, "ab+") as file:
            _mend(file)
            file.seek(0)
            file.write(_line(file.read().count(b"\n") + 1, record))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LaconicError(
            f"cannot append to {path}: {error.strerror or error}. Check permissions."
        ) from error


def read(path: str | Path, gaps: bool = False) -> list[dict[str, Json]]:
    """All records. A torn last line, left by a killed writer, is skipped; any other bad line is an
    error, and so is one that got lost, unless `gaps` are allowed."""
    try:
        *lines, tail = archive.read_bytes(path).split(b"\n")
    except OSError as error:
        raise LaconicError(
            f"cannot read the records {path}: {error.strerror or error}. Check the path."
        ) from error
    records = []
    for number, line in enumerate([*lines, tail], start=1):
        record = _parse(line)
        if record is None and number > len(lines):
            break
        if record is None:
            raise LaconicError(
                f"line {number} of {path} is not a JSON object: repair or delete that line."
            )
        if record.pop(LINE, number) != number and not gaps:
            raise LaconicError(
                f"line {number} of {path} was written as another line: a record before it got "
                "lost. Put it back from a copy; a comparison or sweep can also be resumed."
            )
        records.append(record)
    return records


def rewrite(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file at `path` by these records, in one step."""
    lines = [_line(number, plain(record)) for number, record in enumerate(records, start=1)]
    atomic.write_bytes(path, b"".join(lines))
    Path(f"{path}.xz").unlink(missing_ok=True)


def write_json(path: str | Path, obj: Any) -> None:
    """Replace `path` by `obj` as indented strict JSON, in one step; values are made plain as in
    a record."""
    atomic.write_text(path, json.dumps(plain(obj), allow_nan=False, indent=2) + "\n")


def plain(value: Any, name: str = "record") -> Json:
    """`value` as strict JSON: arrays become lists of 6-digit numbers, NaN and infinities null,
    dataclasses dicts."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
    if is_array and not jnp.issubdtype(
        value.dtype, jax.dtypes.extended
    ):  # PRNG keys have no numbers to show
        return _rounded(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return {str(key): plain(item, f"{name}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: plain(getattr(value, f.name), f"{name}.{f.name}")
            for f in dataclasses.fields(value)
        }
    raise LaconicError(
        f"{name} is a {type(value).__name__}, which JSON cannot hold: give numbers, strings or "
        "arrays."
    )


def provenance() -> dict[str, Json]:
    """What a record needs to be reproduced: source commit, versions, device, host and UTC start
    time.

    `dirty` says whether the package's own folder differs from `commit`; it is None outside a git
    work tree, where `commit` is $LACONIC_COMMIT. `sources_sha256` is of the code that ran, whatever
    the commit says.
    """
    import jax

    commit, dirty = source_state(PACKAGE)
    devices = jax.devices()
    return {
        "commit": commit,
        "dirty": dirty,
        "sources_sha256": sources_sha256(PACKAGE),
        "versions": {
            "laconic": __version__,
            "python": platform.python_version(),
            **{name: _installed_version(name) for name in LIBRARIES},
        },
        "device": {
            "kind": devices[0].device_kind,
            "count": len(devices),
            "platform": devices[0].platform,
        },
        "host_cpus": os.cpu_count(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def source_state(package: Path) -> tuple[str | None, bool | None]:
    """(commit, dirty) of the git work tree that tracks `package`, else ($LACONIC_COMMIT or None,
    None)."""
    # an environment inside somebody else's repository lies in a work tree too, but is not tracked
    # by it
    tracked = _git(package, "ls-files", "--", ".")
    commit = _git(package, "rev-parse", "HEAD") if tracked else None
    if not commit:
        return os.environ.get("LACONIC_COMMIT") or None, None
    return commit, _git(package, "status", "--porcelain", "--", ".") != ""


@cache
def sources_sha256(package: Path) -> str:
    """The sha256 over the paths and contents of all of a package's Python files, in order of their
    paths: of each its path, its length and its bytes."""
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name in sorted(files):
        contents = files[name].read_bytes()
        digest.update(f"{name} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()


def _rounded(value: Any) -> Json:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return plain(value)


def _line(number: int, record: Mapping[str, Json]) -> bytes:
    return json.dumps({LINE: number, **record}, allow_nan=False).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Json] | None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        record = json.loads(line.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):  # bad UTF-8, bad JSON, JSON nested without end
        return None
    return record if isinstance(record, dict) else None


def _mend(file: BinaryIO) -> None:
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    data = file.read()
    start = data.rfind(b"\n") + 1
    if _parse(data[start:]) is None:
        file.truncate(start)
    else:
        file.write(b"\n")  # a record is whole once its brace is closed: only the newline was lost


def _git(folder: Path, *arguments: str) -> str | None:
    # a git hook's variables would point at the hook's repository instead of the folder's
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
