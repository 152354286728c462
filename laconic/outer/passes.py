"""The learned step of a whole model by the three kernels of `outer/kernels.py`, tensors of one
shape together.

Between the passes only vectors and sums are computed, once for all tensors of a shape.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from laconic.architecture import (
    LAMBDA,
    MEAN_EPSILON,
    OF_FACTORED,
    SQUARE_EPSILON,
    normalised_features,
    numbers_in,
)
from laconic.outer import kernels
from laconic.outer.features import Ada, first_layer, normaliser, of_side, safe_rsqrt
from laconic.outer.kernels import Tuning
from laconic.outer.layout import Change, Layers, Small, Split
from laconic.outer.perceptron import (
    all_within_float16,
    can_multiply,
    largest_sums,
    second_within_float16,
)
from laconic.outer.stacks import SMALL, Stack, Tensor, gather, scatter

# Numbers that 32-bit offsets can address; three momenta or K deltas of a tensor are one array.
OFFSETS = 1 << 31


class Phi(NamedTuple):
    """φ with time in its first bias, decays as rates, and what else all tensors share."""

    theta: dict[str, jax.Array]
    bias: jax.Array
    rates: jax.Array
    here: jax.Array | None  # [K]: above 0 for a worker that is there
    fill_mean: bool
    decay: float
    in_place: bool  # otherwise parameters come back as their change, for optax to add


def serves(hidden: int, deltas: int, sizes: Sequence[int]) -> bool:
    """Whether the kernels can take such tensors: a width Triton multiplies, offsets of 32 bits."""
    # Small tensors may all be in one array, where vectors are padded.
    packed = sum(pl.next_power_of_2(size) for size in sizes if 0 < size <= SMALL)
    return can_multiply(hidden) and max(3, deltas) * max([packed, *sizes]) < OFFSETS


def model_step(phi: Phi, tensors: Sequence[Tensor], tuning: Tuning) -> list[tuple[jax.Array, Ada]]:
    """New parameters and accumulators of every tensor."""
    tuning = tuning.check()
    kinds: dict[Any, list[int]] = {}
    found: dict[int, tuple[jax.Array, Ada]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.param.size:
            kinds.setdefault(tensor.kind, []).append(i)
        else:
            found[i] = tensor.param, tensor.ada
    for members in kinds.values():
        stepped = _stack_step(phi, [tensors[i] for i in members], tuning)
        found |= dict(zip(members, stepped, strict=True))
    return [found[i] for i in range(len(tensors))]


def _stack_step(phi: Phi, tensors: Sequence[Tensor], tuning: Tuning) -> list[tuple[jax.Array, Ada]]:
    stack, split, G = gather(tensors), tensors[0].split, len(tensors)
    factors = (None, None)
    if not stack.geometry.diagonal:
        stack = _accumulate(stack, split, phi.rates, tuning)
        factors = _factors(stack, split)
    shared = Small(None, phi.rates, phi.here, stack.lengths, *factors)
    rows, by_tensor = [], []
    for first, bigs in _groups(stack.launches, tuning.together):
        small = shared._replace(first=jnp.full(1, first, jnp.int32))
        sums = kernels.moments(stack.geometry, bigs, small, phi.fill_mean, tuning)
        count = G if len(stack.launches) == 1 else len(bigs)
        by_tensor.append(jnp.sum(sums.reshape(count, -1, sums.shape[1]), axis=1))
        rows.append((bigs, small))
    sizes = jnp.asarray([t.split.size for t in tensors], jnp.float32)
    moments = split.total(jnp.concatenate(by_tensor)) / sizes[:, None]
    layers = _fold(phi, stack, split, moments, into_weights=tuning.precision != "half")
    if tuning.precision in ("fp16", "half"):
        normalised = numbers_in(normalised_features(), stack.launches[0].deltas.shape[0])
        inputs = phi.theta["w0"][:normalised]
        largest = largest_sums(inputs, phi.bias, max(t.split.size for t in tensors))
        within = all_within_float16 if tuning.precision == "half" else second_within_float16
        layers = within(layers, largest)
    change = Change(tensors[0].share, phi.decay, LAMBDA, phi.in_place)
    done = [
        kernels.apply(stack.geometry, bigs, small, layers, phi.fill_mean, change, tuning)
        for bigs, small in rows
    ]
    return scatter(tensors, stack, [big for bigs in done for big in bigs], tuning)


def _groups(launches: Sequence[Any], together: int) -> list[tuple[int, Sequence[Any]]]:
    """The fewest groups of up to `together`, nearly equal in size, each with its first's number."""
    count = -(-len(launches) // together)
    begins = [len(launches) * g // count for g in range(count + 1)]
    return [(begin, launches[begin:end]) for begin, end in pairwise(begins)]


def _accumulate(stack: Stack, split: Split, rates: jax.Array, tuning: Tuning) -> Stack:
    """Row and column accumulators after this round, from a pass over the mean Δ."""
    means = [big.deltas[0] if big.mean is None else big.mean for big in stack.launches]
    g = stack.geometry
    sums = [kernels.squares(g, group, tuning) for _, group in _groups(means, tuning.together)]
    over_b = jnp.concatenate([jnp.sum(by_row, axis=2) for by_row, _ in sums]) / g.B  # along A
    over_a = jnp.concatenate([jnp.sum(by_column, axis=1) for _, by_column in sums]) / g.A
    axis_a, axis_b = stack.layout.axes
    over_b = split.mean(over_b, axis_b) + SQUARE_EPSILON
    over_a = split.mean(over_a, axis_a) + SQUARE_EPSILON
    rate = rates[OF_FACTORED].reshape(1, -1, 1)
    decay = lambda old, new: (1 - rate) * old + rate * new[:, None, :]
    return stack._replace(
        along_a=decay(stack.along_a, over_b), along_b=decay(stack.along_b, over_a)
    )


def _factors(stack: Stack, split: Split) -> tuple[jax.Array, jax.Array]:
    """What scales Δ and the momenta along A and along B."""
    wide, (axis_a, axis_b) = stack.layout.wide, stack.layout.axes
    rows, cols = (stack.along_a, stack.along_b) if wide else (stack.along_b, stack.along_a)
    mean = split.mean(jnp.mean(rows, axis=2, keepdims=True), axis_a if wide else axis_b)
    of_rows, of_cols = safe_rsqrt(rows / (mean + MEAN_EPSILON)), safe_rsqrt(cols)
    return (of_rows, of_cols) if wide else (of_cols, of_rows)


def _fold(
    phi: Phi, stack: Stack, split: Split, moments_GF: jax.Array, into_weights: bool
) -> Layers:
    """φ with normalisers in the first layer's weights or beside them, rows and columns added."""
    theta, (G, F) = phi.theta, moments_GF.shape
    n = stack.launches[0].deltas.shape[0]
    own, of_rows, of_cols = (
        first_layer(theta["w0"], n, along) for along in ("parameter", "row", "column")
    )
    if stack.geometry.diagonal:  # row and column features of a vector are the same numbers
        own = jnp.concatenate([own, of_rows + of_cols])
    scales = normaliser(moments_GF)
    w0 = (scales if into_weights else jnp.ones_like(scales))[:, :, None] * own[None]
    w0 = jnp.pad(w0, ((0, 0), (0, max(16, pl.next_power_of_2(F)) - F), (0, 0)))
    # A ReLU on a GPU turns NaN into 0: the last bias keeps it.
    lost = jnp.isnan(jnp.sum(moments_GF, axis=1, keepdims=True))
    b2 = jnp.where(lost, jnp.nan, theta["b2"][None, :])
    rest = theta["w1"], theta["b1"], theta["w2"].T, b2, None if into_weights else scales
    bias = phi.bias.reshape(1, 1, -1)
    if stack.geometry.diagonal:
        return Layers(w0, jnp.broadcast_to(bias, (G, 1, bias.shape[2])), None, *rest)
    by_rows, by_cols = ("row", of_rows), ("column", of_cols)
    of_a, of_b = (by_rows, by_cols) if stack.layout.wide else (by_cols, by_rows)
    by_a = _through(stack.along_a, *of_a, G, split)
    by_b = _through(stack.along_b, *of_b, G, split)
    return Layers(w0, by_a + bias, by_b, *rest)


def _through(x: jax.Array, side: str, w_FN: jax.Array, G: int, split: Split) -> jax.Array:
    """[G·L, 3, length] → [G·L, length, N]: a side's features, normalised, by the first layer."""
    features = of_side(side, x, axis=1)
    squares = jnp.mean(jnp.square(features).reshape(G, -1, *features.shape[1:]), axis=(1, 3))
    if split.axis is not None:  # right also for values that are the same on every device
        squares = jax.lax.pmean(squares, split.mesh_axis)
    w = jnp.repeat(normaliser(squares)[:, :, None] * w_FN[None], features.shape[0] // G, axis=0)
    terms = [features[:, f, :, None] * w[:, f, None, :] for f in range(features.shape[1])]
    return sum(terms[1:], terms[0])  # written out: one fused loop, no product in low precision
