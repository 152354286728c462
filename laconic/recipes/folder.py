"""The folder a run writes to, and what its first record says about tasks."""

import re
import time
from pathlib import Path
from typing import Any

import jax

from laconic.errors import LaconicError
from laconic.evaluate.compare import CHECKPOINT, RECORDS
from laconic.tasks.base import Task, count_parameters


def new_folder(out: Path | None, name: str) -> Path:
    """`out`, or runs/NAME-TIME: made if missing, refused if it holds anything or cannot be written to."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = out or Path("runs") / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{stamp}"
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        hint = f" or go on with --resume {folder}" if taken and (folder / RECORDS).exists() else ""
        if taken:
            raise LaconicError(
                f"{folder} is already there and not empty; nothing is overwritten. Choose another --out{hint}."
            )
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{CHECKPOINT}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LaconicError(f"cannot write to {folder}: {error.strerror}. Choose another folder with --out.") from None
    return folder


def describe(task: Task, source: str) -> dict[str, Any]:
    """A task in a record: its name, size, classes, and where its data came from."""
    params, _ = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    return {"name": task.name, "parameters": count_parameters(params), "classes": task.classes, "source": source}
