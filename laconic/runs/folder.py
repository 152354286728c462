"""The folder a run writes to, and what its first record says about tasks."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from laconic.errors import LaconicError
from laconic.runs.compare import CHECKPOINT, RECORDS
from laconic.store.archive import records_file
from laconic.store.runlog import DECISIVE, provenance, read
from laconic.tasks.base import Task, count_parameters

# What is read of these records, whoever takes a run up again.
NEEDED = {
    "method": "label method compressor workers local_steps traffic step_seconds train heldout "
    "evaluated_at diverged",
    "point": "index label numbers seeds minimum final rounds_to_target valid diverged chunk seconds",
}


def new_folder(out: Path | None, name: str) -> Path:
    """`out`, or runs/NAME-TIME: made if missing, refused if it holds anything or cannot be written
    to."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = out or Path("runs") / f"{spelled(name)}-{stamp}"
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        hint = (
            f" or go on with --resume {folder}" if taken and records_file(folder / RECORDS) else ""
        )
        if taken:
            raise LaconicError(
                f"{folder} is already there and not empty; nothing is overwritten. Choose another "
                f"--out{hint}."
            )
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{CHECKPOINT}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LaconicError(
            f"cannot write to {folder}: {error.strerror}. Choose another folder with --out."
        ) from None
    return folder


def spelled(name: str) -> str:
    """A name as part of a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def describe(task: Task, source: str) -> dict[str, Any]:
    """A task in a record: its name, size, classes, and where its data came from."""
    params, _ = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    return {
        "name": task.name,
        "parameters": count_parameters(params),
        "classes": task.classes,
        "source": source,
    }


def read_run(folder: Path, what: str = "run") -> list[dict[str, Any]]:
    """All records of a folder that is to be taken up again; `what` is what it should be the folder
    of."""
    path = folder / RECORDS
    try:
        found = records_file(path) is not None
    except OSError as error:
        raise LaconicError(f"cannot read {folder}: {error.strerror}.") from None
    if not found:
        raise LaconicError(
            f"{folder} holds no {RECORDS}, so there is nothing to resume; give the folder of a "
            f"{what}."
        )
    return read(path)


def check_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Refuse a record without a kind or without what is read of it, and a point that is there
    twice, by its line."""
    points = set()
    for line, record in enumerate(records, start=1):
        kind = record.get("kind")
        lost = [name for name in NEEDED.get(str(kind), "").split() if name not in record]
        if not isinstance(kind, str) or lost:
            what = ", ".join(lost) or "kind"
            raise LaconicError(
                f"line {line} of {path} is damaged, it has no {what}: repair or delete that line."
            )
        if kind == "point" and record["index"] in points:
            raise LaconicError(
                f"line {line} of {path} is point {record['index']} a second time: delete that line."
            )
        points |= {record["index"]} if kind == "point" else set()


def check_task(folder: Path, header: dict[str, Any], task: Task, source: str) -> None:
    """Refuse to go on with another task or other data than the run was begun with."""
    if describe(task, source) != header["task"]:
        raise LaconicError(
            f"{folder} was begun on {header['task']}, and now it is {describe(task, source)}; "
            "start anew."
        )


def note_changes(header: dict[str, Any], note: Callable[[str], None]) -> None:
    """Say what is no longer as it was when the run began."""
    now, then = provenance(), header["provenance"]
    for what in DECISIVE:
        if now.get(what) != then.get(what):
            note(
                f"{what} was {then.get(what)} and is {now.get(what)}: results may differ in the "
                "last digits."
            )
