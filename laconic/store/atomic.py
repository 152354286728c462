"""Whole-file writes that a crash cannot tear: readers see the old file or the new one, never a
mixture."""

import contextlib
import os
import secrets
from pathlib import Path

from laconic.errors import LaconicError


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, through a synced temporary file in the same folder
    (made if missing)."""
    path = Path(path)
    temporary = path.with_name(f".laconic-{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the contents reach the disk before the name does
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise LaconicError(
            f"cannot write {path}: {error.strerror or error}. Check the folder's permissions and "
            "free space."
        ) from error
    finally:
        with contextlib.suppress(
            OSError
        ):  # gone already after a replace; otherwise no litter, whatever went wrong
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step."""
    write_bytes(path, text.encode())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # makes the rename itself durable
    finally:
        os.close(handle)
