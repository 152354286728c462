"""Whole-file writes that a crash cannot tear: readers see the old file or the new one, never a
mixture."""

import contextlib
import fcntl
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
            _lock(file.fileno())  # held while it is being written, so that `clear` leaves it alone
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
        # gone already after a replace; otherwise no litter, whatever went wrong
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_place(path: str | Path) -> None:
    """Raise where a file cannot be written, before hours are spent on what it is to hold: in place
    of a folder, or below something that is none."""
    path = Path(path)
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if path.is_dir() or not above.is_dir():
        wrong = f"{path} is a folder" if path.is_dir() else f"{above} is not a folder"
        raise LaconicError(f"cannot write {path}: {wrong}. Give the path of a file.")


def clear(folder: str | Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    for path in Path(folder).glob(".laconic-*.tmp"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if _lock(file.fileno()):
                path.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step."""
    write_bytes(path, text.encode())


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # makes the rename itself durable
    finally:
        os.close(handle)
