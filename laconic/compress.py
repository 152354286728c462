"""What a message looks like on the wire: dense, top-k, quantised, with error feedback, chained.

A compressor turns Δ into a *payload*, a pytree of arrays whose raw bytes are exactly what is sent;
indices are packed at ⌈log₂ n⌉ bits and 4-bit values two to a byte, so the size of a message is
counted, never estimated. Sparse payloads cannot be summed on the way: whoever combines messages
decodes them first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from laconic.errors import LaconicError, unknown

Tree = Any
BUCKET = 256  # values that share one scale when quantised
BITS = 31  # of a float32 without its sign


@dataclass(frozen=True)
class Compressor:
    """How a message is encoded, as pure functions.

    Args:
        name: its words, as `parse_compressor` takes them.
        init: params → the state that a worker keeps, such as the error-feedback residual.
        encode: (delta, state, key) → (payload, new state).
        decode: (payload, params or anything of their structure) → delta.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from laconic import parse_compressor
        >>> delta = {"w": jnp.array([0.1, -3.0, 0.2, 1.0])}
        >>> half = parse_compressor("topk:0.5")
        >>> payload, state = half.encode(delta, half.init(delta), jax.random.key(0))
        >>> half.decode(payload, delta)["w"].tolist(), half.bits(delta)
        ([0.0, -3.0, 0.0, 1.0], 72)
    """

    name: str
    init: Callable[[Tree], Any]
    encode: Callable[[Tree, Any, jax.Array], tuple[Any, Any]]
    decode: Callable[[Any, Tree], Tree]

    def bits(self, params: Tree) -> int:
        """Bits of one message for parameters of this structure: eight times the payload's bytes."""
        like = lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p))
        delta = jax.tree.map(like, params)
        state = jax.eval_shape(self.init, delta)
        key = jax.eval_shape(lambda: jax.random.key(0))
        return tree_bits(jax.eval_shape(self.encode, delta, state, key)[0])


def tree_bits(tree: Tree) -> int:
    """Bits of a pytree's arrays as they lie in memory."""
    return sum(8 * math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(tree))


def payload_bytes(payload: Any) -> bytes:
    """The bytes that cross the network."""
    return b"".join(jax.device_get(leaf).tobytes() for leaf in jax.tree.leaves(payload))


# --- vectors: the codecs that compressors are made of ---------------------------------------------


class Codec(NamedTuple):
    """Encodes one vector [n]; `decode` is told n."""

    encode: Callable[[jax.Array, jax.Array], Any]
    decode: Callable[[Any, int], jax.Array]


class Quantised(NamedTuple):
    """Integer levels (4-bit ones packed in pairs) and one scale a bucket."""

    levels: jax.Array
    scales: jax.Array


class Sparse(NamedTuple):
    """The values kept, encoded, and their packed positions."""

    values: Any
    indices: jax.Array


def raw() -> Codec:
    """float32, as it is."""
    return Codec(lambda x, key: x, lambda payload, n: payload)


def quantised(width: int) -> Codec:
    """Stochastic rounding to signed integers of 8 or 4 bits; unbiased: E[decode(encode(x))] = x."""
    top = {8: 127, 4: 7}[width]

    def encode(x: jax.Array, key: jax.Array) -> Quantised:
        n = x.shape[0]
        x_NB = jnp.pad(x, (0, -n % BUCKET)).reshape(-1, BUCKET)
        scales = jnp.max(jnp.abs(x_NB), axis=1)
        ratio = x_NB / jnp.where(scales > 0, scales, 1.0)[:, None]
        noise = jnp.pad(jax.random.uniform(key, (n,)), (0, -n % BUCKET)).reshape(-1, BUCKET)
        levels = jnp.clip(jnp.floor(ratio * top + noise), -top, top)
        levels = levels.astype(jnp.int8).reshape(-1)[:n]
        return Quantised(levels if width == 8 else _pack_nibbles(levels), scales)

    def decode(payload: Quantised, n: int) -> jax.Array:
        levels = payload.levels if width == 8 else _unpack_nibbles(payload.levels, n)
        x_NB = jnp.pad(levels.astype(jnp.float32), (0, -n % BUCKET)).reshape(-1, BUCKET)
        return (x_NB * (payload.scales / top)[:, None]).reshape(-1)[:n]

    return Codec(encode, decode)


def top_k(fraction: float, values: Codec) -> Codec:
    """Keep the ⌈fraction·n⌉ entries of largest magnitude; ties go to the lower index."""

    def encode(x: jax.Array, key: jax.Array) -> Sparse:
        indices = largest(x, kept(fraction, x.shape[0]))
        return Sparse(values.encode(x[indices], key), _pack_bits(indices, index_width(x.shape[0])))

    def decode(payload: Sparse, n: int) -> jax.Array:
        k = kept(fraction, n)
        indices = _unpack_bits(payload.indices, k, index_width(n))
        return jnp.zeros(n, jnp.float32).at[indices].set(values.decode(payload.values, k))

    return Codec(encode, decode)


def kept(fraction: float, n: int) -> int:
    """How many of n entries top-k keeps; exact decimal arithmetic, so that 0.1 of 30 is 3."""
    return min(n, max(1, math.ceil(Fraction(str(fraction)) * n)))


def index_width(n: int) -> int:
    """Bits that name one of n positions."""
    return max(1, (n - 1).bit_length())


def _pack_bits(values: jax.Array, width: int) -> jax.Array:
    bits = (values.astype(jnp.uint32)[:, None] >> jnp.arange(width, dtype=jnp.uint32)[None, :]) & 1
    return jnp.packbits(bits.astype(jnp.uint8).reshape(-1), bitorder="little")


def _unpack_bits(packed: jax.Array, count: int, width: int) -> jax.Array:
    bits = jnp.unpackbits(packed, count=count * width, bitorder="little").reshape(count, width)
    placed = bits.astype(jnp.uint32) << jnp.arange(width, dtype=jnp.uint32)[None, :]
    return jnp.sum(placed, axis=1, dtype=jnp.uint32)


def _pack_nibbles(levels: jax.Array) -> jax.Array:
    nibbles = jnp.pad((levels + 8).astype(jnp.uint8), (0, levels.shape[0] % 2)).reshape(-1, 2)
    return nibbles[:, 0] | (nibbles[:, 1] << 4)


def _unpack_nibbles(packed: jax.Array, n: int) -> jax.Array:
    nibbles = jnp.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:n]
    return nibbles.astype(jnp.int8) - 8


# --- trees: the compressors -----------------------------------------------------------------------

# Every number as it is.
DENSE = Compressor(
    "dense",
    lambda params: (),
    lambda delta, state, key: (delta, state),
    lambda payload, like: payload,
)


def over_model(name: str, codec: Codec) -> Compressor:
    """One codec over the whole model flattened into a vector."""

    def encode(delta: Tree, state: Any, key: jax.Array) -> tuple[Any, Any]:
        return codec.encode(ravel_pytree(_float32(delta))[0], key), state

    def decode(payload: Any, like: Tree) -> Tree:
        flat, unravel = ravel_pytree(_float32(like))
        decoded = unravel(codec.decode(payload, flat.shape[0]))
        return jax.tree.map(lambda x, p: x.astype(p.dtype), decoded, like)

    return Compressor(name, lambda params: (), encode, decode)


def over_tensors(name: str, codec: Codec) -> Compressor:
    """The codec over each tensor on its own."""

    def encode(delta: Tree, state: Any, key: jax.Array) -> tuple[Any, Any]:
        leaves = jax.tree.leaves(_float32(delta))
        keys = jax.random.split(key, len(leaves))
        return [codec.encode(leaf.reshape(-1), keys[i]) for i, leaf in enumerate(leaves)], state

    def decode(payload: Any, like: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(like)
        back = [
            codec.decode(p, leaf.size).reshape(leaf.shape).astype(leaf.dtype)
            for p, leaf in zip(payload, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, back)

    return Compressor(name, lambda params: (), encode, decode)


def _float32(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def error_feedback(inner: Compressor) -> Compressor:
    """Adds what a message lost to the next Δ: e ← (Δ + e) − decode(encode(Δ + e))."""

    def encode(delta: Tree, state: Any, key: jax.Array) -> tuple[Any, Any]:
        residual, inner_state = state
        corrected = jax.tree.map(jnp.add, delta, residual)
        payload, inner_state = inner.encode(corrected, inner_state, key)
        lost = jax.tree.map(jnp.subtract, corrected, inner.decode(payload, corrected))
        return payload, (lost, inner_state)

    def init(params: Tree) -> Any:
        return jax.tree.map(jnp.zeros_like, params), inner.init(params)

    return Compressor(f"{inner.name}+ef", init, encode, inner.decode)


# --- by name --------------------------------------------------------------------------------------

STAGES = {
    "dense": "every number as float32 (no compression)",
    "topk:F": "the fraction F of largest magnitude, over the whole model",
    "tensor-topk:F": "the fraction F of largest magnitude, in each tensor",
    "int8": "8-bit stochastic rounding, one scale per 256 values",
    "int4": "4-bit stochastic rounding, one scale per 256 values",
    "ef": "error feedback: remember what was lost and send it later",
}


def parse_compressor(spec: str) -> Compressor:
    """A compressor by name.

    Args:
        spec: words of `STAGES` joined by '+' in the order [topk:F][+int8|+int4][+ef], as in
            "topk:0.01+ef", "int4", "topk:0.1+int8+ef" or "dense".

    Returns:
        A `Compressor`.

    Example:
        >>> from laconic import parse_compressor
        >>> parse_compressor("topk:0.01+ef").name
        'topk:0.01+ef'
    """
    words = spec.split("+")
    feedback = words[-1] == "ef"
    words = words[:-1] if feedback else words
    if not words:
        raise LaconicError(
            "'ef' remembers what a compressor lost: name one before it, as in 'topk:0.01+ef'."
        )
    values, sparse = raw(), None
    for position, word in enumerate(words):
        name, _, number = word.partition(":")
        if name in ("topk", "tensor-topk") and position == 0:
            sparse = (name, _fraction(word, number))
        elif name in ("int8", "int4") and not number and position == len(words) - 1:
            values = quantised(int(name[3:]))
        elif word == "dense" and len(words) == 1:
            continue
        elif name in {s.partition(":")[0] for s in STAGES}:
            raise LaconicError(
                f"{word!r} is out of place in {spec!r}. The order is [topk:F][+int8|+int4][+ef]."
            )
        else:
            raise unknown("compressor", word, STAGES)
    name = "+".join(words)
    if sparse is not None:
        scope = over_model if sparse[0] == "topk" else over_tensors
        base = scope(name, top_k(sparse[1], values))
    else:
        base = DENSE if words == ["dense"] else over_model(name, values)
    return error_feedback(base) if feedback else base


def _fraction(word: str, number: str) -> float:
    try:
        fraction = float(number)
    except ValueError:
        fraction = math.nan
    if not 0 < fraction <= 1:
        raise LaconicError(
            f"{word!r} needs the fraction to keep, above 0 and at most 1, as in 'topk:0.01'."
        )
    return fraction


# Where the k largest magnitudes of a vector are, without sorting the vector. A float32 that is not
# negative orders like its bits read as an integer, infinity above all finite numbers and NaN above
# infinity. So the k-th largest magnitude is found one bit at a time, from the highest: a bit is in
# it if at least k entries reach the number that the bit would make. These 31 passes only count,
# which a GPU does many times faster than it sorts; only the k that are kept are sorted in the end.


def largest(x_N: jax.Array, k: int) -> jax.Array:
    """Indices [k] of the largest |x|, the largest first; equal ones in order, NaN first of all."""
    # A CPU has a partial sort, which for k = n/100 is several times faster than 31 passes over n.
    return jax.lax.platform_dependent(
        jax.lax.stop_gradient(x_N),
        cpu=lambda x: by_partial_sort(x, k),
        default=lambda x: by_bisection(x, k),
    )


def by_partial_sort(x_N: jax.Array, k: int) -> jax.Array:
    """`largest` by XLA's own top-k."""
    return jax.lax.top_k(jnp.abs(x_N), k)[1]


def by_bisection(x_N: jax.Array, k: int) -> jax.Array:
    """`largest` by counting: the threshold first, then the places, then their order."""
    size_N = jax.lax.bitcast_convert_type(jnp.abs(x_N), jnp.uint32)
    threshold = kth_largest(size_N, k)
    above_N, equal_N = size_N > threshold, size_N == threshold
    room = k - jnp.sum(above_N, dtype=jnp.int32)  # of those at the threshold the first are kept
    equal_so_far_N = jnp.minimum(jnp.cumsum(equal_N, dtype=jnp.int32), room)
    kept_N = jnp.cumsum(above_N, dtype=jnp.int32) + equal_so_far_N
    places_k = jnp.searchsorted(kept_N, jnp.arange(1, k + 1, dtype=jnp.int32)).astype(jnp.int32)
    return jax.lax.sort((~size_N[places_k], places_k), num_keys=1, is_stable=True)[1]


def kth_largest(size_N: jax.Array, k: int) -> jax.Array:
    """The largest number below 2³¹ that at least k of N uint32 reach."""

    def with_bit(i: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | jnp.uint32(1) << (BITS - 1 - i).astype(jnp.uint32)
        return jnp.where(jnp.sum(size_N >= tried, dtype=jnp.int32) >= k, tried, found)

    # The sum of nothing: inside `shard_map` it differs by device, as what is found does.
    zero = jnp.sum(size_N[:0], dtype=jnp.uint32)
    return jax.lax.fori_loop(0, BITS, with_bit, zero)
