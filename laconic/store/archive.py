"""Records at rest: `records.jsonl` as `records.jsonl.xz`, a quarter of its size, lossless.

Whoever reads or appends records asks for the plain path; `records_file` finds the file that holds
them. To pack or unpack every record file below a folder:

    python -m laconic.store.archive results
    python -m laconic.store.archive --unpack results
"""

import argparse
import lzma
import sys
from pathlib import Path

from laconic.errors import LaconicError
from laconic.store import atomic

NAMES = ("records.jsonl", "replaced.jsonl")  # what is packed below a folder


def records_file(path: str | Path) -> Path | None:
    """The file that holds the records of `path`: itself, else its packed form, else None."""
    plain = Path(path)
    packed = plain.with_name(plain.name + ".xz")
    return next((file for file in (plain, packed) if file.is_file()), None)


def record_files(folder: str | Path, name: str = "records.jsonl") -> list[Path]:
    """The plain paths of all record files of that name below `folder`, packed or not."""
    found = Path(folder).rglob(f"{name}*")
    return sorted({path.with_name(name) for path in found if path.name in (name, f"{name}.xz")})


def read_bytes(path: str | Path) -> bytes:
    """The records of `path` as they were written, from whichever form lies there."""
    file = records_file(path) or Path(path)
    data = file.read_bytes()
    return _decompressed(file, data) if file.suffix == ".xz" else data


def pack(path: Path) -> Path:
    """Replace a file of records by its packed form → the new file."""
    packed = path.with_name(path.name + ".xz")
    data = path.read_bytes()
    compressed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    if lzma.decompress(compressed) != data:
        raise LaconicError(f"{path} cannot be packed without loss: it is left as it is.")
    atomic.write_bytes(packed, compressed)
    path.unlink()
    return packed


def unpack(path: Path) -> Path:
    """Replace a packed file by the records in it → the new file; what is not packed stays."""
    if path.suffix != ".xz":
        return path
    plain = path.with_name(path.name.removesuffix(".xz"))
    if plain.exists():
        raise LaconicError(f"{plain} lies beside {path.name}: delete the one that is out of date.")
    atomic.write_bytes(plain, _decompressed(path, path.read_bytes()))
    path.unlink()
    return plain


def _decompressed(file: Path, data: bytes) -> bytes:
    try:
        return lzma.decompress(data, format=lzma.FORMAT_XZ)
    except lzma.LZMAError as error:
        raise LaconicError(
            f"{file} is no whole xz file: {error}. Fetch or pack it again."
        ) from None


def main(words: list[str] | None = None) -> int:
    """Pack or unpack all record files below a folder → how many."""
    parser = argparse.ArgumentParser(prog="laconic.store.archive", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unpack", action="store_true", help="the other way round")
    chosen = parser.parse_args(words)
    if not chosen.folder.is_dir():
        raise LaconicError(f"{chosen.folder} is no folder: give one that holds records.")
    names = [f"{name}.xz" for name in NAMES] if chosen.unpack else NAMES
    files = sorted(file for name in names for file in chosen.folder.rglob(name))
    for file in files:
        unpack(file) if chosen.unpack else pack(file)
    return len(files)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{main()} files\n")
    except LaconicError as error:
        raise SystemExit(f"error: {error}") from None
