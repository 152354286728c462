"""Ada features: what a learned optimizer sees of each parameter (the paper's section 3.2 and its
table of features).

Names: s tensor shape · L, A, B the same tensor as [other axes, factored axis, factored axis] · R
the three decays. Accumulators for a tensor, with no bias correction and starting at 0 (Δ is the
mean delta):

    m_i ← β_i m_i + (1−β_i) Δ             i = 1, 2, 3
    v   ← β_4 v + (1−β_4) Δ²
    r_i ← β_i r_i + (1−β_i) row_mean(Δ²)  i = 5, 6, 7, and c_i likewise with col_mean

Row means run over the largest axis, column means over the second largest (of equals the later axis
is the larger); other axes are kept. Tensors of one axis are not factored: r = c is then one value a
parameter. Features are made a tile at a time and never for a whole tensor at once;
`outer/learned.py` walks the tiles.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.architecture import DECAYS, TIMESCALES, factored_axes
from laconic.outer.layout import Split
from laconic.outer.tiles import Masks


class Ada(NamedTuple):
    """The accumulators of one tensor; `row` and `col` keep the averaged axis with length 1, `col`
    is None if 1-D."""

    m: jax.Array  # [3, *s]
    v: jax.Array  # [*s]
    row: jax.Array  # [3, …]
    col: jax.Array | None  # [3, …]


class View(NamedTuple):
    """How a tensor is read as [L, A, B]: the axes' order, () if it has no two."""

    order: tuple[int, ...]


class Fields(NamedTuple):
    """All that the features of a tensor are computed from, each as [n, L, A or 1, B or 1]."""

    deltas: jax.Array  # the mean (n = 1), or every worker's (n = K)
    mean: jax.Array
    param: jax.Array
    m: jax.Array
    v: jax.Array
    row: jax.Array
    col: jax.Array
    delta_factors: tuple[jax.Array, jax.Array]  # their product scales the mean delta,
    momentum_factors: tuple[jax.Array, jax.Array]  # and theirs the momenta


def decays(offsets_7: jax.Array) -> jax.Array:
    """1 − β = (1 − β₀)·e^{10θ}, kept at most 1 so that β stays a decay.

    It is 1 − β that is passed on, for β = 0.999 in float32 would leave only four digits of it.
    """
    complement = jnp.asarray([1 - beta for beta in DECAYS], jnp.float32)
    return jnp.minimum(complement * jnp.exp(10 * offsets_7), 1.0)


def time_features(round_t: jax.Array, shift: float) -> jax.Array:
    """tanh(t/x − shift) for the eleven timescales x: shift 0 is the paper's text, 1 its authors'
    code."""
    return jnp.tanh(round_t.astype(jnp.float32) / jnp.asarray(TIMESCALES, jnp.float32) - shift)


def init_ada(param: jax.Array, dtype: Any = jnp.float32) -> Ada:
    """Zeros of the right shapes for one tensor; m and v as `dtype`, the others always in float32.

    Float32 is the default whatever the tensor is: in bfloat16 a value moves only by a change of
    over 1/256 of it, and what decays slowly stands still before it is where it should be.
    """
    shape = lift(param).shape
    m, v = jnp.zeros((3, *param.shape), dtype), jnp.zeros(param.shape, dtype)
    if len(shape) == 1:
        return Ada(m, v, jnp.zeros((3, *shape)), None)
    largest, second = factored_axes(shape)
    row = [1 if axis == largest else n for axis, n in enumerate(shape)]
    col = [1 if axis == second else n for axis, n in enumerate(shape)]
    return Ada(m, v, jnp.zeros((3, *row)), jnp.zeros((3, *col)))


def accumulate(ada: Ada, mean_delta: jax.Array, rate_7: jax.Array, split: Split) -> Ada:
    """The accumulators after this round's mean delta, in float32; the rates are 1 − β."""
    if not mean_delta.size:  # an empty tensor has no means
        return ada

    def decay(old_R: jax.Array, new: jax.Array, rate_R: jax.Array) -> jax.Array:
        rate = rate_R.reshape(-1, *[1] * new.ndim)
        return (1 - rate) * old_R.astype(jnp.float32) + rate * new[None]

    square = mean_delta * mean_delta
    m = decay(ada.m, mean_delta, rate_7[:3])
    v = (1 - rate_7[3]) * ada.v.astype(jnp.float32) + rate_7[3] * square
    factored = lift(square) + 1e-30
    if ada.col is None:
        return Ada(m, v, decay(ada.row, factored, rate_7[4:]), None)
    row_mean, col_mean = (
        split.mean(jnp.mean(factored, axis=axis, keepdims=True), axis) for axis in split.pair
    )
    return Ada(m, v, decay(ada.row, row_mean, rate_7[4:]), decay(ada.col, col_mean, rate_7[4:]))


def lift(x: jax.Array) -> jax.Array:
    """A scalar counts as a tensor of one axis."""
    return x.reshape(1) if x.ndim == 0 else x


def view_of(split: Split) -> View:
    """The [L, A, B] view: factored axes last, in their own order; one axis or none is [1, n, 1]."""
    if len(split.shape) < 2:
        return View(())
    pair = tuple(sorted(split.pair))
    return View(tuple(axis for axis in range(len(split.shape)) if axis not in pair) + pair)


def to_view(view: View, x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """[*lead, *shape] → [n, L, A, B] (or with 1 for an averaged axis); a copy only if axes really
    move."""
    lead = x.ndim - len(shape)
    if not view.order:
        return x.reshape(-1, 1, x.shape[-1] if shape else 1, 1)
    moved = x.transpose(*range(lead), *(lead + axis for axis in view.order))
    return moved.reshape(-1 if lead else 1, math.prod(moved.shape[lead:-2]), *moved.shape[-2:])


def from_view(view: View, x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """[1, L, A, B] → the tensor's own shape."""
    if not view.order:
        return x.reshape(shape)
    back = sorted(range(len(shape)), key=lambda axis: view.order[axis])
    return x.reshape([shape[axis] for axis in view.order]).transpose(back)


def fields_of(
    param: jax.Array, ada: Ada, mean: jax.Array, deltas: jax.Array, split: Split
) -> tuple[View, Fields]:
    """Everything about one tensor in its [L, A, B] view; `deltas` is [n, *s]."""
    shape = param.shape
    view = view_of(split)
    see = lambda x: to_view(view, x, shape)
    if ada.col is None:
        row = col = see(ada.row if shape else ada.row[:, 0])
        delta_factors = (safe_rsqrt(row + 1e-9), jnp.ones((1, 1, 1, 1), row.dtype))
        momentum_factors = (jax.lax.rsqrt(row + 1e-6), delta_factors[1])
    else:
        _, second = split.pair
        row_mean = split.mean(jnp.mean(ada.row, axis=second + 1, keepdims=True), second)
        row_factor = safe_rsqrt(ada.row / (row_mean + 1e-9))
        row, col = see(ada.row), see(ada.col)
        delta_factors = momentum_factors = (see(row_factor), safe_rsqrt(col))
    return view, Fields(
        see(deltas),
        see(mean),
        see(param),
        see(ada.m),
        see(ada.v),
        row,
        col,
        delta_factors,
        momentum_factors,
    )


def groups(f: Fields) -> list[jax.Array]:
    """Items 1-12 of the input vector in their order, each [count, L, A or 1, B or 1]; row and
    column ones not tiled."""
    rsqrt_v = jax.lax.rsqrt(f.v + 1e-6)
    scaled_delta = f.mean * f.delta_factors[0] * f.delta_factors[1]
    scaled_m = f.m * f.momentum_factors[0] * f.momentum_factors[1]
    rsqrt_row, rsqrt_col = jax.lax.rsqrt(f.row + 1e-8), jax.lax.rsqrt(f.col + 1e-8)
    by_parameter = [f.deltas, f.param, f.m, f.v, f.m * rsqrt_v, rsqrt_v, scaled_delta]
    return [*by_parameter, f.row, f.col, rsqrt_row, rsqrt_col, scaled_m]


def square_sums(groups: list[jax.Array], masks: Masks) -> jax.Array:
    """Σ x² of every feature over a tile [L, A, B], where its masks are 1."""

    def one(x: jax.Array) -> jax.Array:
        square = jnp.square(x)
        same_across = x.shape[3] != masks.cols.shape[3]
        by_row = (
            square * jnp.sum(masks.cols)
            if same_across
            else jnp.sum(square * masks.cols, axis=3, keepdims=True)
        )
        return jnp.sum(by_row * masks.rows, axis=(1, 2, 3))

    return jnp.concatenate([one(x) for x in groups])


def normaliser(second_moment: Any) -> jax.Array:
    """What makes a feature's second moment over its tensor 1."""
    return jax.lax.rsqrt(1e-5 + second_moment)


def safe_rsqrt(x: jax.Array) -> jax.Array:
    """1/√x with x kept off 0."""
    return jax.lax.rsqrt(jnp.maximum(x, 1e-9))
