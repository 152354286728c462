"""A message's body on the device: one vector of 32-bit words, which is cut into arrays and folded
by a keyed hash.

SHA-256 over four bytes a parameter would cost the host more than all else that an engine does in a
round. So what is signed with HMAC-SHA256 is a fold of the body, 16 bytes for every 2048, made in
one pass where the numbers lie, under a key that follows from the token. Universal hashing below a
strong function is how fast signatures are made since Carter and Wegman (1979); UMAC (RFC 4418) is
the best known.

A block of 16-bit halves x_j becomes four sums, with the keys one further for each (a Toeplitz
matrix):

    F_t = Σ_j x_j · k_{j+t}  mod 2³²,  t = 0 … 3

Two bodies that differ do so in some block. Let j be its last half that differs, by d, 0 < |d| <
2¹⁶. For F_t to agree k_{j+t}·d must be what the keys before k_{j+t} leave over. At most 2¹⁵ of the
2³² values of k_{j+t} are right, since 2¹⁵ is the highest power of two in d; so a sum agrees with a
chance of at most 2⁻¹⁷, and all four with 2⁻⁶⁸. Nobody learns anything of the keys, for no fold is
ever sent.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines.wire import BLOCK, LANES, Layout, Leaf

WORD = 4


def fold(key: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The fold of a body, [LANES, blocks], and the sum of its squares, read as float32; one pass
    for both.

    The last block is filled up with zeros.
    """
    whole = words.size // BLOCK * BLOCK
    rest = jnp.pad(
        words[whole:], (0, -words.size % BLOCK)
    )  # apart, so that not all is copied to make room
    (most, squares), (last, square) = _fold(key, words[:whole]), _fold(key, rest)
    return jnp.concatenate([most, last], axis=1), jnp.sum(squares) + jnp.sum(square)


def _fold(key: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    words_NB = words.reshape(-1, BLOCK)
    low, high, numbers = (
        words_NB & 0xFFFF,
        words_NB >> 16,
        jax.lax.bitcast_convert_type(words_NB, jnp.float32),
    )
    at = lambda start: key[None, start : start + BLOCK]
    terms = (*(low * at(t) + high * at(BLOCK + t) for t in range(LANES)), jnp.square(numbers))
    zeros = (*[np.uint32(0)] * LANES, np.float32(0))
    add = lambda left, right: tuple(a + b for a, b in zip(left, right, strict=True))
    # One reduction of five operands: on CPUs a product of matrices of integers takes five times as
    # long.
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
