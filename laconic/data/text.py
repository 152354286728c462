"""A plain text file as tokens, for next-token prediction; by default Python's standard library.

Pages of the text, or lines where each is a sentence, are divided among the splits and then encoded
as bytes, or as byte pairs learned from the train split. That split is one flat array: an example is
a window of context + 1 tokens at any offset. Held-out splits are rows of non-overlapping windows,
at most 512 of them (evenly spread), so that evaluation stays cheap.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.bpe import BYTES, learned_once
from laconic.data.feed import Arrays, Batch, Resident
from laconic.data.files import find, read_bytes, search_path
from laconic.data.splits import Dataset, divide, permutation
from laconic.errors import LaconicError, require_positive

LIBRARY_BYTES = 4_000_000
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "idlelib", "lib2to3"}
HELD_OUT_ROWS = 512
PAGE_WINDOWS = 64  # large pages, so that few training windows span two of them
LEAST_PAGES = 20  # or lines


@dataclass(frozen=True)
class Windows:
    """Gathers windows of `width` tokens: from any offset of a flat array, or rows of a table."""

    width: int

    def __call__(self, arrays: Arrays, indices: jax.Array) -> Batch:
        """The windows at the indices, [..., width]."""
        shape = (*indices.shape, self.width)
        offsets = indices[..., None] + jax.lax.broadcasted_iota(indices.dtype, shape, indices.ndim)
        return jax.tree.map(lambda a: a[offsets if a.ndim == 1 else indices], arrays)


@dataclass(frozen=True)
class CountWindows:
    """How many windows of `width` tokens a flat array or a table of them holds."""

    width: int

    def __call__(self, arrays: Arrays) -> int:
        """The number of windows."""
        (leaf,) = jax.tree.leaves(arrays)
        return leaf.shape[0] - self.width + 1 if leaf.ndim == 1 else leaf.shape[0]


def load(
    file: str | None = None, context: int = 64, *, vocabulary: int = BYTES, lines: bool = False
) -> Dataset:
    """A text with 72 % of its pages to train on, 9 % for each validation split, 10 % for test.

    Batches are {"x": [B, context + 1]}, uint8 for bytes and uint16 for byte pairs. `file` is a
    path, or a name below the search path. With `lines`, lines are divided instead of pages. The
    source names the text's sha256, since the standard library differs between Python versions.
    """
    require_positive(context=context)
    text, name = (library(), "Python's standard library") if file is None else read(file)
    width = context + 1
    pieces = sentences(text, name) if lines else pages(text, width, name)
    dealt = deal(len(pieces)).items()
    parts = {split: b"".join(pieces[i] for i in np.sort(which)) for split, which in dealt}
    tokens = encoded(parts, vocabulary)
    for split, found in tokens.items():
        if len(found) < width:
            raise LaconicError(
                f"{name} leaves {len(found)} tokens for the split {split!r}, too few for a context "
                f"of {context}: give a longer text or a shorter context."
            )
    splits = {"train": {"x": jnp.asarray(tokens.pop("train"))}}
    for split, found in tokens.items():
        rows = found[: len(found) // width * width].reshape(-1, width)
        splits[split] = {"x": jnp.asarray(spread(rows, HELD_OUT_ROWS))}
    source = f"{Path(name).name}, {len(text)} bytes, sha256:{hashlib.sha256(text).hexdigest()}"
    return Dataset(Resident(splits, Windows(width), CountWindows(width)), vocabulary, source)


def deal(n: int) -> dict[str, np.ndarray]:
    """Which of n pieces each split gets."""
    test, rest = np.split(permutation(n), [n // 10])
    return {split: rest[which] for split, which in divide(len(rest)).items()} | {"test": test}


def encoded(parts: dict[str, bytes], vocabulary: int) -> dict[str, np.ndarray]:
    """Each split's tokens; the train split alone decides what they are."""
    if vocabulary == BYTES:
        return {split: np.frombuffer(part, np.uint8) for split, part in parts.items()}
    pairs = learned_once(parts["train"], vocabulary)
    return {split: pairs.encode(part) for split, part in parts.items()}


def read(file: str) -> tuple[bytes, str]:
    """A text file's bytes and its full path."""
    path = find(file, here=True)
    if path is None:
        raise LaconicError(
            f"no text file {file}: it is neither a path from {Path.cwd()} nor below "
            f"{', '.join(map(str, search_path()))}; give the full path."
        )
    return read_bytes(path), str(path)


def library(root: Path | None = None, limit: int = LIBRARY_BYTES) -> bytes:
    """The sources of Python's standard library, ordered by relative path and cut at 4 MB."""
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    relative = (path.relative_to(root) for path in root.rglob("*.py"))
    kept = sorted(path.as_posix() for path in relative if not NOT_LIBRARY & set(path.parts))
    text = bytearray()
    for name in kept:
        text += read_bytes(root / name)
        if len(text) >= limit:
            break
    return bytes(text[:limit])


def sentences(text: bytes, name: str) -> list[bytes]:
    """The lines that are not empty, each with its end."""
    found = [line.rstrip(b"\r\n") + b"\n" for line in text.split(b"\n") if line.strip()]
    if len(found) < LEAST_PAGES:
        raise LaconicError(
            f"{name} has {len(found)} lines, too few to split: give {LEAST_PAGES}, or omit lines."
        )
    return found


def pages(text: bytes, width: int, name: str) -> list[bytes]:
    """The text as pages of whole windows: up to 64 a page, fewer where the text is short."""
    windows = len(text) // width
    if windows < LEAST_PAGES:
        raise LaconicError(
            f"{name} has {len(text)} bytes, too few to split for a context of {width - 1}: "
            f"give at least {LEAST_PAGES * width} bytes or a shorter context."
        )
    size = width * min(PAGE_WINDOWS, windows // LEAST_PAGES)
    return [text[at : at + size] for at in range(0, len(text) // size * size, size)]


def spread(table: np.ndarray, most: int) -> np.ndarray:
    """At most that many rows, evenly spaced."""
    return table[np.linspace(0, len(table) - 1, min(most, len(table))).astype(np.int64)]
