"""What a message looks like on the wire: dense, top-k, quantised, with error feedback, chained.

A compressor turns Δ into a *payload*, a pytree of arrays whose raw bytes are exactly what is sent;
indices are packed at ⌈log₂ n⌉ bits and 4-bit values two to a byte, so the size of a message is
counted, never estimated. Sparse payloads cannot be summed on the way: whoever combines messages
decodes them first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from laconic.errors import LaconicError, unknown
from laconic.largest import largest

Tree = Any
BUCKET = 256  # values that share one scale when quantised
CHUNK = 4096  # at most so many entries of a tensor, 64 × 64, compete with each other in chunk-topk
BINS, SIGMAS = 4, 6.0  # 2-bit values: so many bins of equal width within ±6σ of the mean


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


class Binned(NamedTuple):
    """2-bit codes, four to a byte, and what each of them stands for."""

    codes: jax.Array
    means: jax.Array


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


def binned() -> Codec:
    """2-bit codes: the bin of each value among 4 within ±6σ of the mean; outliers are in the outer
    ones. A bin is decoded as the mean of the values in it, so the sum is kept."""

    def encode(x: jax.Array, key: jax.Array) -> Binned:
        width = 2 * SIGMAS / BINS * jnp.std(x)
        place = jnp.floor((x - jnp.mean(x)) / jnp.where(width > 0, width, 1.0))
        codes = jnp.clip(place + BINS // 2, 0, BINS - 1).astype(jnp.uint8)
        in_bin_BN = codes[None] == jnp.arange(BINS, dtype=jnp.uint8)[:, None]
        totals = jnp.sum(jnp.where(in_bin_BN, x[None], 0.0), axis=1)
        counts = jnp.sum(in_bin_BN, axis=1, dtype=jnp.float32)
        return Binned(_pack_bits(codes, 2), totals / jnp.maximum(counts, 1.0))

    def decode(payload: Binned, n: int) -> jax.Array:
        return payload.means[_unpack_bits(payload.codes, n, 2)]

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


def chunk_top_k(fraction: float, values: Codec) -> Codec:
    """`top_k` in every chunk of a vector; an index counts from the start of its chunk, so it takes
    12 bits at most."""

    def encode(x: jax.Array, key: jax.Array) -> Sparse:
        count, size = chunks(x.shape[0])
        x_CS = jnp.pad(x, (0, count * size - x.shape[0])).reshape(count, size)
        indices_Ck = jax.vmap(lambda x_S: largest(x_S, kept(fraction, size)))(x_CS)
        found = jnp.take_along_axis(x_CS, indices_Ck, axis=1).reshape(-1)
        packed = _pack_bits(indices_Ck.reshape(-1), index_width(size))
        return Sparse(values.encode(found, key), packed)

    def decode(payload: Sparse, n: int) -> jax.Array:
        count, size = chunks(n)
        k = kept(fraction, size)
        indices = _unpack_bits(payload.indices, count * k, index_width(size)).astype(jnp.int32)
        starts = jnp.repeat(size * jnp.arange(count, dtype=jnp.int32), k)
        found = values.decode(payload.values, count * k)
        return jnp.zeros(count * size, jnp.float32).at[starts + indices].set(found)[:n]

    return Codec(encode, decode)


def chunks(n: int) -> tuple[int, int]:
    """How many chunks n entries are cut into, and the size of each; zeros fill up the last one."""
    count = -(-n // CHUNK)
    return count, -(-n // count)


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


def error_feedback(inner: Compressor, decay: float = 1.0) -> Compressor:
    """Adds what a message lost to the next Δ: c = Δ + decay·e;  e ← c − decode(encode(c)).

    With a decay below 1, e is a momentum of what has not been sent (SparseLoCo).
    """

    def encode(delta: Tree, state: Any, key: jax.Array) -> tuple[Any, Any]:
        residual, inner_state = state
        if decay != 1:
            residual = jax.tree.map(lambda e: decay * e, residual)
        corrected = jax.tree.map(jnp.add, delta, residual)
        payload, inner_state = inner.encode(corrected, inner_state, key)
        lost = jax.tree.map(jnp.subtract, corrected, inner.decode(payload, corrected))
        return payload, (lost, inner_state)

    def init(params: Tree) -> Any:
        return jax.tree.map(jnp.zeros_like, params), inner.init(params)

    word = "ef" if decay == 1 else f"ef:{decay}"
    return Compressor(f"{inner.name}+{word}", init, encode, inner.decode)


# --- by name --------------------------------------------------------------------------------------

STAGES = {
    "dense": "every number as float32 (no compression)",
    "topk:F": "the fraction F of largest magnitude, over the whole model",
    "tensor-topk:F": "the fraction F of largest magnitude, in each tensor",
    "chunk-topk:F": "the fraction F of largest magnitude, in each 4,096 entries of a tensor",
    "int8": "8-bit stochastic rounding, one scale per 256 values",
    "int4": "4-bit stochastic rounding, one scale per 256 values",
    "int2": "2 bits: one of 4 bins within ±6σ; after tensor-topk or chunk-topk, for each tensor",
    "ef": "error feedback: remember what was lost and send it later",
    "ef:D": "the same, what was lost counting D as much each round",
    "sparseloco:F": "chunk-topk:F+int2+ef:0.95, by default with F = 64/4096",
}
SPARSE = {
    "topk": (over_model, top_k),
    "tensor-topk": (over_tensors, top_k),
    "chunk-topk": (over_tensors, chunk_top_k),
}
VALUES = {"int8": lambda: quantised(8), "int4": lambda: quantised(4), "int2": binned}


def parse_compressor(spec: str) -> Compressor:
    """A compressor by name.

    Args:
        spec: words of `STAGES` joined by '+' in the order [topk:F][+int8|+int4|+int2][+ef], as in
            "topk:0.01+ef", "int4", "topk:0.1+int8+ef" or "dense"; or "sparseloco" alone.

    Returns:
        A `Compressor`.

    Example:
        >>> from laconic import parse_compressor
        >>> parse_compressor("topk:0.01+ef").name
        'topk:0.01+ef'
    """
    head, colon, share = spec.partition(":")
    if head == "sparseloco" and "+" not in spec:
        share = _fraction(spec, share) if colon else 64 / CHUNK
        return replace(parse_compressor(f"chunk-topk:{share}+int2+ef:0.95"), name=spec)
    words = spec.split("+")
    feedback, given, decay = words[-1].partition(":")
    words = words[:-1] if feedback == "ef" else words
    if not words:
        raise LaconicError(
            "'ef' remembers what a compressor lost: name one before it, as in 'topk:0.01+ef'."
        )
    base = _base(spec, words)
    if feedback != "ef":
        return base
    if not given:
        return error_feedback(base)
    what = "the share of the residual that is left a round later"
    return replace(error_feedback(base, _fraction(f"ef:{decay}", decay, what)), name=spec)


def _base(spec: str, words: list[str]) -> Compressor:
    """The compressor without its error feedback."""
    values, sparse = raw(), None
    for position, word in enumerate(words):
        name, _, number = word.partition(":")
        if name in SPARSE and position == 0:
            sparse = (*SPARSE[name], _fraction(word, number))
        elif name in VALUES and not number and position == len(words) - 1:
            values = VALUES[name]()
        elif word == "dense" and len(words) == 1:
            continue
        elif name in {s.partition(":")[0] for s in STAGES}:
            raise LaconicError(
                f"{word!r} is out of place in {spec!r}. The order is [topk:F][+int8|+int4|+int2]"
                "[+ef], or sparseloco alone."
            )
        else:
            raise unknown("compressor", word, STAGES)
    name = "+".join(words)
    if sparse is not None:
        scope, codec, fraction = sparse
        return scope(name, codec(fraction, values))
    return DENSE if words == ["dense"] else over_model(name, values)


def _fraction(word: str, number: str, what: str = "the fraction to keep") -> float:
    try:
        fraction = float(number)
    except ValueError:
        fraction = math.nan
    if not 0 < fraction <= 1:
        raise LaconicError(
            f"{word!r} needs {what}, above 0 and at most 1, as in 'topk:0.01+ef:0.95'."
        )
    return fraction
