"""A message as bytes: a fixed header, raw little-endian arrays, and an HMAC under a token that the
run's workers share.

Nothing is ever unpickled. Which arrays follow is agreed beforehand (a `Layout`, from the shapes
that a worker's program gives), so a frame of the right size is read as views, and one of another
structure is refused by the structure's hash. Frames start on 64 bytes, and so does every array in
them: they reach the device without being copied. The HMAC is over the header and a fold of the
body, a keyed hash that is made on the device (see `body`).
"""

import hashlib
import hmac
import json
import struct
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from laconic.engines.base import Frame
from laconic.errors import LaconicError

MAGIC, VERSION = b"LACN", 1
FIELDS = struct.Struct(
    "<4sHH16s16s32sQIffQ"
)  # magic version flags run structure origin round worker weight loss body
SIGNED = 160  # the fields and spare zeros; the HMAC follows them
MAC = 32
HEADER = SIGNED + MAC
ALIGN = 64
EMPTY = 1  # flag: the sender takes part but has nothing to add, it is only catching up
LANES, BLOCK = 4, 512  # of a body's fold: sums a block, words a block


class Leaf(NamedTuple):
    """One array's place in the body."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """How a pytree of arrays lies in a body: the places of its leaves, its treedef, its hash and
    its size in bytes."""

    leaves: tuple[Leaf, ...]
    treedef: Any
    structure: bytes
    size: int

    @classmethod
    def of(cls, tree: Any) -> "Layout":
        """The layout of a pytree of arrays or shapes; names, dtypes and shapes make its hash."""
        if sys.byteorder != "little":
            raise LaconicError(
                "messages are little-endian and this machine is not: run the workers elsewhere."
            )
        leaves, rows, end = [], [], 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
            start = -(-end // ALIGN) * ALIGN
            end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            leaves.append(Leaf(dtype, shape, start, end))
            rows.append([jax.tree_util.keystr(path), str(dtype), shape])
        structure = hashlib.sha256(json.dumps(rows).encode()).digest()[:16]
        return cls(tuple(leaves), jax.tree.structure(tree), structure, -(-end // ALIGN) * ALIGN)

    def write(self, body: np.ndarray, tree: Any) -> None:
        """Copy the tree's arrays into a body."""
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            body[leaf.start : leaf.stop].view(leaf.dtype).reshape(leaf.shape)[...] = np.asarray(
                value
            )

    def read(self, body: np.ndarray) -> Any:
        """The tree as views into a body; no copy."""
        arrays = [
            body[leaf.start : leaf.stop].view(leaf.dtype).reshape(leaf.shape)
            for leaf in self.leaves
        ]
        return jax.tree.unflatten(self.treedef, arrays)

    @property
    def frame(self) -> int:
        """The size of a whole frame, header included."""
        return HEADER + self.size


@dataclass(frozen=True)
class Seal:
    """The shared token of a run, and the run's name: what signs and what is checked."""

    token: bytes
    run: bytes  # 16 bytes

    @classmethod
    def of(cls, token: str, run: str) -> "Seal":
        """From a token (any non-empty text, kept secret) and a name that all workers of one run
        give alike."""
        if not token:
            raise LaconicError(
                "an engine needs a token that all its workers share: give the same secret text to "
                "each."
            )
        return cls(token.encode(), hashlib.sha256(run.encode()).digest()[:16])

    @cached_property
    def fold_key(self) -> np.ndarray:
        """The keys of a body's fold."""
        stream = hashlib.shake_256(self.sign(b"the keys of a body's fold")).digest(
            4 * (2 * BLOCK + LANES - 1)
        )
        return np.frombuffer(stream, "<u4")

    def sign(self, *parts: Frame) -> bytes:
        """HMAC-SHA256 over the run and the parts."""
        mac = hmac.new(self.token, self.run, "sha256")
        for part in parts:
            mac.update(part)
        return mac.digest()

    def verify(self, signature: bytes, *parts: Frame) -> bool:
        """Whether the signature is ours; takes as long for a near miss as for any other."""
        return hmac.compare_digest(signature, self.sign(*parts))


class Header(NamedTuple):
    """What a message says about itself: whence it started, whose it is, and the mean of its local
    losses."""

    flags: int
    run: bytes
    structure: bytes
    origin: bytes
    round: int
    worker: int
    weight: float
    loss: float
    body: int


def new_frame(size: int) -> np.ndarray:
    """Zero bytes that begin on a boundary of 64."""
    room = np.zeros(size + ALIGN, np.uint8)
    start = -room.ctypes.data % ALIGN
    return room[start : start + size]


def fill_frame(
    layout: Layout, header: Header, tree: Any = None, frame: np.ndarray | None = None
) -> np.ndarray:
    """A frame that is yet to be signed, in `frame` if there is one; without a tree its body is only
    padding."""
    frame = new_frame(layout.frame) if frame is None else frame
    if tree is not None:
        layout.write(frame[HEADER:], tree)
    FIELDS.pack_into(frame.data, 0, MAGIC, VERSION, *header)
    return frame


def sign_frame(seal: Seal, frame: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """The same frame, its header and the fold of its body signed in place."""
    frame[SIGNED:HEADER] = np.frombuffer(seal.sign(frame[:SIGNED], folded), np.uint8)
    return frame


def open_frame(seal: Seal, frame: np.ndarray, folded: np.ndarray) -> tuple[Header | None, str]:
    """The header of a frame that one of us signed, or the reason why it is not one."""
    if frame.size < HEADER:
        return None, "garbage"
    magic, version, *fields = FIELDS.unpack_from(frame.data, 0)
    header = Header(*fields)
    if magic != MAGIC or header.body > frame.size - HEADER:
        return None, "garbage"
    if version != VERSION:
        return None, "version"
    if not seal.verify(frame[SIGNED:HEADER].tobytes(), frame[:SIGNED], folded):
        return None, "token"
    return (header, "") if header.run == seal.run else (None, "run")
