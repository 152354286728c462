"""A message in pieces, and the card that says what each of them must be.

In a reduce-scatter worker j averages everyone's piece j, and nobody but its sender sees a whole
message. What the guard has to know of one is on its *card*, which all get before anything is
averaged: the header of the message and, for each piece, a digest, the sum of its squares and a
checksum; the squared norm of each tensor, if the optimizer wants it; the statistics beside Δ. It is
signed as a whole.

The checksum of a piece is Σ r_i x_i, with r_i of random sign and 0.5 ≤ |r_i| < 1, the same in every
piece. It is linear: the checksum of a mean is the mean of the checksums. So all who hold the cards
can tell whether a mean piece is the mean of what its owner was sent.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines.base import Frame
from laconic.engines.wire import (
    ALIGN,
    BLOCK,
    FIELDS,
    HEADER,
    LANES,
    MAC,
    MAGIC,
    SIGNED,
    VERSION,
    WORD,
    Header,
    Seal,
    fold_blocks,
    new_frame,
)

CARD, WHOLE, BROKEN = 2, 4, 8  # flags: a card; it asks for whole messages; some number is no number
DIGEST = 8  # bytes of a piece's digest: as sure as its fold, and nobody can try out guesses
FINE = 100  # blocks from which on a piece consists of whole blocks
TRUST = 1e-3  # by how much two sums of the same numbers may differ
NOTHING = 1e-12  # below this a norm is none


class Cut(NamedTuple):
    """`pieces` of a vector of `words` float32; the last ones may be padding, even wholly."""

    words: int
    pieces: int

    @property
    def size(self) -> int:
        """Words of a piece: whole blocks of the fold if that adds less than a hundredth."""
        least = -(-self.words // self.pieces)
        grain = BLOCK if least > FINE * BLOCK else ALIGN // WORD
        return max(1, -(-least // grain)) * grain

    @property
    def bytes(self) -> int:
        """Of a piece."""
        return self.size * WORD

    @property
    def whole(self) -> int:
        """Bytes of all pieces."""
        return self.pieces * self.bytes


class Facts(NamedTuple):
    """What a card says of a message: of each piece [K] its digest, squares and checksum, of each
    tensor the squares, and the statistics' bytes."""

    digests: np.ndarray
    squares: np.ndarray
    checks: np.ndarray
    tensors: np.ndarray
    extra: np.ndarray

    @property
    def norm(self) -> np.float32:
        """Of the whole Δ; the sum is exact, so that all machines find the same."""
        total = math.fsum(self.squares.tolist())
        return np.float32(math.sqrt(total)) if total >= 0 else np.float32(np.nan)

    @property
    def sound(self) -> bool:
        """Whether tensors and pieces add up to the same."""
        if not self.tensors.size or not np.all(np.isfinite(self.squares)):
            return True
        total, tensors = math.fsum(self.squares.tolist()), self.tensors.tolist()
        return all(x >= 0 for x in tensors) and abs(math.fsum(tensors) - total) <= TRUST * total


@dataclass(frozen=True)
class CardLayout:
    """How a card lies in bytes: for `pieces` pieces, `tensors` tensors and `extra` bytes of
    statistics."""

    pieces: int
    tensors: int
    extra: int

    @property
    def size(self) -> int:
        """Bytes of a card."""
        return HEADER + self.pieces * (DIGEST + 2 * WORD) + self.tensors * WORD + self.extra

    def empty(self) -> Facts:
        """What the card of a worker says that has no message."""
        zeros = lambda n: np.zeros(n, np.float32)
        return Facts(
            np.zeros((self.pieces, DIGEST), np.uint8),
            zeros(self.pieces),
            zeros(self.pieces),
            zeros(self.tensors),
            np.zeros(self.extra, np.uint8),
        )

    def write(self, seal: Seal, header: Header, facts: Facts) -> np.ndarray:
        """A signed card."""
        card = new_frame(self.size)
        FIELDS.pack_into(card.data, 0, MAGIC, VERSION, *header)
        rest = b"".join(np.ascontiguousarray(x).tobytes() for x in facts)
        card[HEADER:] = np.frombuffer(rest, np.uint8)
        card[SIGNED:HEADER] = np.frombuffer(seal.sign(card[:SIGNED], rest), np.uint8)
        return card

    def read(self, card: np.ndarray) -> Facts:
        """What a card says."""
        n, start, found = self.pieces, HEADER, []
        for size in (n * DIGEST, n * WORD, n * WORD, self.tensors * WORD, self.extra):
            found.append(card[start : start + size])
            start += size
        floats = lambda x: x.copy().view(np.float32)
        digests, squares, checks, tensors, extra = found
        digests = digests.reshape(n, DIGEST)
        return Facts(digests, floats(squares), floats(checks), floats(tensors), extra)


def digest_of(seal: Seal, folded: np.ndarray) -> np.ndarray:
    """The digest of a piece with this fold."""
    mac = seal.sign(b"piece", np.ascontiguousarray(folded))
    return np.frombuffer(mac[:DIGEST], np.uint8)


def sign_mean(seal: Seal, about: bytes, piece: int, folded: np.ndarray) -> bytes:
    """The signature of a mean piece, in the exchange that `about` names."""
    return seal.sign(b"mean", about, piece.to_bytes(8, "little"), np.ascontiguousarray(folded))


@dataclass(frozen=True)
class Verdict:
    """The workers whose card or piece an owner found bad."""

    bad: frozenset[int]

    @staticmethod
    def size(slots: int) -> int:
        """Bytes of a signed verdict."""
        return -(-slots // 8) + MAC

    def write(self, seal: Seal, about: bytes, owner: int, slots: int) -> np.ndarray:
        """Signed, for the exchange that `about` names."""
        bits = np.packbits([k in self.bad for k in range(slots)], bitorder="little").tobytes()
        return np.frombuffer(bits + seal.sign(*_verdict(about, owner, bits)), np.uint8)

    @classmethod
    def read(
        cls, seal: Seal, about: bytes, owner: int, slots: int, said: Frame
    ) -> "Verdict | None":
        """A verdict; None without the owner's signature."""
        text = bytes(said)
        bits, signature = text[:-MAC], text[-MAC:]
        if not seal.verify(signature, *_verdict(about, owner, bits)):
            return None
        found = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:slots]
        return cls(frozenset(np.flatnonzero(found).tolist()))


def _verdict(about: bytes, owner: int, bits: bytes) -> tuple[bytes, ...]:
    return b"verdict", about, owner.to_bytes(8, "little"), bits


# --- on the device --------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What pieces are like: folds [J, LANES, blocks], sums of squares [J] and checksums [J]."""

    folds: jax.Array
    squares: jax.Array
    checks: jax.Array


def measure(key: jax.Array, words_JN: jax.Array) -> Seen:
    """J pieces, folded under a key and measured in one pass."""
    count = words_JN.shape[0]
    # Large pieces are whole blocks, so that this copies only small ones.
    words_JN = jnp.pad(words_JN, ((0, 0), (0, -words_JN.shape[1] % BLOCK)))
    blocks = words_JN.shape[1] // BLOCK
    words = words_JN.reshape(count * blocks, BLOCK)
    numbers = jax.lax.bitcast_convert_type(words, jnp.float32)
    place = jax.lax.broadcasted_iota(jnp.uint32, words.shape, 0) % blocks * BLOCK
    place = place + jax.lax.broadcasted_iota(jnp.uint32, words.shape, 1)
    terms = jnp.square(numbers), numbers * _signs(key[0], place)
    lanes, squares, checks = fold_blocks(key, words, *terms)
    folds = lanes.reshape(LANES, count, blocks).swapaxes(0, 1)
    by_piece = lambda x: jnp.sum(x.reshape(count, blocks), axis=1)
    return Seen(folds, by_piece(squares), by_piece(checks))


def _signs(seed: jax.Array, place: jax.Array) -> jax.Array:
    """Numbers of random sign from 0.5 to 1, which depend on a seed and the place."""
    mixed = (place ^ seed) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
    mixed = mixed ^ (mixed >> 16)
    bits = (mixed & np.uint32(0x807FFFFF)) | np.uint32(0x3F000000)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
