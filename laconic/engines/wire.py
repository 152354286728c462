"""A message as bytes: a fixed header, raw little-endian arrays, and an HMAC under a token that the
run's workers share.

Nothing is ever unpickled. Which arrays follow is agreed beforehand (a `Layout`, from the shapes
that a worker's program gives), so a frame of the right size is read as views, and one of another
structure is refused by the structure's hash. Frames start on 64 bytes, and so does every array in
them: they reach the device without being copied.

SHA-256 over four bytes a parameter would cost the host more than all else that an engine does in a
round. So the HMAC is over the header and a fold of the body, 16 bytes for every 2048, made in one
pass on the device under a key derived from the token. Universal hashing below a strong function is
how fast signatures are made since Carter and Wegman (1979); UMAC (RFC 4418) is the best known.

A block of 16-bit halves x_j becomes four sums, with the keys one further for each (a Toeplitz
matrix):

    F_t = Σ_j x_j · k_{j+t}  mod 2³²,  t = 0 … 3

Two bodies that differ do so in some block. Let j be its last half that differs, by d, 0 < |d| <
2¹⁶. For F_t to agree k_{j+t}·d must be what the keys before k_{j+t} leave over. At most 2¹⁵ of the
2³² values of k_{j+t} are right, since 2¹⁵ is the highest power of two in d; so a sum agrees with a
chance of at most 2⁻¹⁷, and all four with 2⁻⁶⁸. No fold is ever sent, so the keys stay secret.
"""

import hashlib
import hmac
import json
import struct
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines.base import Frame
from laconic.engines.identity import Identity, short_hash
from laconic.errors import LaconicError

MAGIC, VERSION = b"LACN", 1
# magic version flags run structure origin round worker weight loss body
FIELDS = struct.Struct("<4sHH16s16s32sQIffQ")
SIGNED = 160  # the fields and spare zeros; the HMAC follows them
MAC = 32
HEADER = SIGNED + MAC
ALIGN = 64
WORD = 4
EMPTY = 1  # flag: the sender takes part without a message, because it is catching up
LANES, BLOCK = 4, 512  # of a body's fold: sums a block, words a block


class Leaf(NamedTuple):
    """Where one array lies in the body."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """How a pytree of arrays lies in a body of `size` bytes; `structure` is a hash of it."""

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
        for view, value in zip(self._views(body), jax.tree.leaves(tree), strict=True):
            view[...] = np.asarray(value)

    def read(self, body: np.ndarray) -> Any:
        """The tree as views into a body; no copy."""
        return jax.tree.unflatten(self.treedef, self._views(body))

    def _views(self, body: np.ndarray) -> list[np.ndarray]:
        return [
            body[leaf.start : leaf.stop].view(leaf.dtype).reshape(leaf.shape)
            for leaf in self.leaves
        ]

    @property
    def frame(self) -> int:
        """The size of a whole frame, header included."""
        return HEADER + self.size


@dataclass(frozen=True)
class Seal:
    """The shared token of a run and the run's identity: they sign messages and check signatures."""

    token: bytes
    identity: Identity

    @classmethod
    def of(cls, token: str, run: str) -> "Seal":
        """From a secret, non-empty token and words that only this run has."""
        return cls.by(token, Identity(settings=short_hash(run)))

    @classmethod
    def by(cls, token: str, identity: Identity) -> "Seal":
        """From a secret, non-empty token and what all workers of a run have in common."""
        if not token:
            raise LaconicError(
                "an engine needs a token that all its workers share: give each the same secret "
                "text."
            )
        return cls(token.encode(), identity)

    def of_run(self, run: str) -> "Seal":
        """The same seal for the run of that id."""
        return replace(self, identity=replace(self.identity, run=run))

    @cached_property
    def run(self) -> bytes:
        """The identity in 16 bytes."""
        return hashlib.sha256(self.identity.text.encode()).digest()[:16]

    @cached_property
    def fold_key(self) -> np.ndarray:
        """The keys of a body's fold."""
        seed = self.sign(b"the keys of a body's fold")
        stream = hashlib.shake_256(seed).digest(4 * (2 * BLOCK + LANES - 1))
        return np.frombuffer(stream, "<u4")

    def sign(self, *parts: Frame) -> bytes:
        """HMAC-SHA256 over the run and the parts."""
        mac = hmac.new(self.token, self.run, "sha256")
        for part in parts:
            mac.update(part)
        return mac.digest()

    def verify(self, signature: bytes, *parts: Frame) -> bool:
        """Whether the signature is ours, in constant time."""
        return hmac.compare_digest(signature, self.sign(*parts))


class Header(NamedTuple):
    """What a message says about itself; `origin` names the state it started from."""

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
    """An unsigned frame, in `frame` if there is one; without a tree its body is only padding."""
    frame = new_frame(layout.frame) if frame is None else frame
    if tree is not None:
        layout.write(frame[HEADER:], tree)
    FIELDS.pack_into(frame.data, 0, MAGIC, VERSION, *header)
    return frame


def header_of(frame: np.ndarray) -> Header:
    """What a frame of our own says about itself; a frame that came is opened by `open_frame`."""
    return Header(*FIELDS.unpack_from(frame.data, 0)[2:])


def sign_frame(seal: Seal, frame: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """The same frame, its header and the fold of its body signed in place."""
    frame[SIGNED:HEADER] = np.frombuffer(seal.sign(frame[:SIGNED], folded), np.uint8)
    return frame


def open_frame(seal: Seal, frame: np.ndarray, folded: np.ndarray) -> tuple[Header | None, str]:
    """The header of a frame that was signed with our token, or the reason why it is refused."""
    if frame.size < HEADER:
        return None, "garbage"
    return open_header(seal, frame, frame.size - HEADER, frame[:SIGNED], folded)


def open_header(
    seal: Seal, head: np.ndarray, room: int, *words: Frame
) -> tuple[Header | None, str]:
    """The header of a message whose signature must be over these words, or the reason why it is
    refused; `room` is the size of the largest body."""
    magic, version, *fields = FIELDS.unpack_from(head.data, 0)
    header = Header(*fields)
    if magic != MAGIC or header.body > room:
        return None, "garbage"
    if version != VERSION:
        return None, "version"
    if not seal.verify(head[SIGNED:HEADER].tobytes(), *words):
        return None, "token"
    return (header, "") if header.run == seal.run else (None, "run")


# --- on the device --------------------------------------------------------------------------------


def fold(key: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The fold of a body, [LANES, blocks], and the sum of its squares, read as float32."""
    whole = words.size // BLOCK * BLOCK
    # The last block, filled up with zeros, is folded apart: padding the whole would copy it.
    rest = jnp.pad(words[whole:], (0, -words.size % BLOCK))
    most, squares = _fold(key, words[:whole])
    last, square = _fold(key, rest)
    return jnp.concatenate([most, last], axis=1), jnp.sum(squares) + jnp.sum(square)


def _fold(key: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    words_NB = words.reshape(-1, BLOCK)
    low = words_NB & 0xFFFF
    high = words_NB >> 16
    numbers = jax.lax.bitcast_convert_type(words_NB, jnp.float32)
    at = lambda start: key[None, start : start + BLOCK]
    terms = (*(low * at(t) + high * at(BLOCK + t) for t in range(LANES)), jnp.square(numbers))
    zeros = (*[np.uint32(0)] * LANES, np.float32(0))
    add = lambda left, right: tuple(a + b for a, b in zip(left, right, strict=True))
    # One reduction of five operands: an integer matrix product takes five times as long on CPUs.
    *lanes, squares = jax.lax.reduce(terms, zeros, add, (1,))
    return jnp.stack(lanes), squares


def unpack(layout: Layout, words: jax.Array) -> Any:
    """The arrays of a body: what `Layout.read` gives on the host."""
    return jax.tree.unflatten(layout.treedef, [_cut(leaf, words) for leaf in layout.leaves])


def _cut(leaf: Leaf, words: jax.Array) -> jax.Array:
    part = words[leaf.start // WORD : -(-leaf.stop // WORD)]
    size = leaf.dtype.itemsize
    if size > WORD:
        part = part.reshape(-1, size // WORD)
    plain = jnp.dtype(jnp.uint8) if leaf.dtype == bool else leaf.dtype
    flat = jax.lax.bitcast_convert_type(part, plain).reshape(-1)[: (leaf.stop - leaf.start) // size]
    return flat.reshape(leaf.shape).astype(leaf.dtype)
