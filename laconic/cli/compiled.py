"""Compiled programs are kept from run to run: the folder they lie in, and `laconic cache`.

JAX keeps them by a hash of the program, its options and the versions, so a changed program is
compiled anew. What a CPU's program may use of that CPU is not in the hash: each kind of CPU has a
folder of its own.
"""

import hashlib
import os
import platform
import shutil
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from laconic.cli.terminal import err, say

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
# JAX's own rule keeps only what took a second; a run here has hundreds of smaller programs.
EVERYTHING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
COMMANDS = ("compare", "sweep", "train", "launch", "worker", "meta-train", "reproduce")
MOST = 2 << 30  # bytes; from there on the oldest programs go
ROOM = 64 << 20  # bytes that must be free on the disk
SUFFIXES = ("-cache", "-atime")  # of JAX's files
TURN = ".turn"  # of an empty file: a run's workers have compiled all that they need
TUNED = "xla_gpu_per_fusion_autotune_cache_dir"
MB = 1e6


@dataclass(frozen=True)
class CacheConfig:
    """Compiled programs are kept, so that the same run starts faster next time.

    They lie in $JAX_COMPILATION_CACHE_DIR, by default in ~/.cache/laconic/compiled.
    JAX_ENABLE_COMPILATION_CACHE=false keeps none.
    """

    clear: bool = False
    """Delete them."""


def run_cache(argv: Sequence[str]) -> int:
    """`laconic cache [--clear]`."""
    config = tyro.cli(CacheConfig, args=list(argv), prog="laconic cache")
    folder = folder_of(os.environ)
    kept = _kept(folder)
    size = sum(path.stat().st_size for path in kept)
    if config.clear:
        for path in (*kept, *folder.glob(f"*{TURN}")):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder / TUNED, ignore_errors=True)
    done = "deleted" if config.clear else "kept"
    say(f"{done}: {len(kept)} compiled programs, {size / MB:.1f} MB, in {folder}")
    return 0


def folder_of(environment: MutableMapping[str, str]) -> Path:
    """Where compiled programs lie."""
    if given := environment.get(VARIABLE):
        return Path(given)
    home = environment.get("XDG_CACHE_HOME")
    root = Path(home) if home else Path("~/.cache").expanduser()
    return root / "laconic" / "compiled" / _kind_of_cpu()


def keep_compiled(environment: MutableMapping[str, str]) -> None:
    """Have JAX, not imported yet, keep what it compiles in this process and in those it starts.

    A user's own choice is left alone; where nothing can be kept, a line says so.
    """
    if VARIABLE in environment:
        return
    folder = folder_of(environment)
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("it is read-only")
        if shutil.disk_usage(folder).free < ROOM:
            raise OSError("the disk is full")
        _drop_oldest(folder)
    except (OSError, RuntimeError) as error:  # a user without a home is a RuntimeError
        reason = getattr(error, "strerror", None) or error
        say(f"note: compiled programs are not kept in {folder}: {reason}.", err)
        return
    if new:
        say(f"note: compiled programs are kept in {folder} (laconic cache --clear).", err)
    environment[VARIABLE] = str(folder)
    for name, value in EVERYTHING.items():
        environment.setdefault(name, value)


def _kept(folder: Path) -> list[Path]:
    """The files, the oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    named = [path for path in found if path.name.endswith(SUFFIXES)]
    return sorted(named, key=lambda path: path.stat().st_mtime)


def _drop_oldest(folder: Path) -> None:
    kept = _kept(folder)
    size = sum(path.stat().st_size for path in kept)
    for path in kept if size > MOST else ():
        size -= path.stat().st_size
        path.unlink(missing_ok=True)
        if size <= MOST // 2:
            return


def _kind_of_cpu() -> str:
    """The machine's architecture, and what its CPU can do where Linux says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(flags.encode()).hexdigest()[:8]
    return f"{platform.machine()}-{digest}"
