"""Ada features: what a learned optimizer sees of each parameter (the paper's section 3.2).

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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.architecture import (
    ADAFACTOR,
    DECAYS,
    LEAST_SQUARE,
    MEAN_EPSILON,
    MOMENTUM,
    NORMALISER_EPSILON,
    OF_FACTORED,
    OF_M,
    OF_V,
    SQUARE_EPSILON,
    TIMESCALES,
    Feature,
    epsilon_of,
    factored_axes,
    feature_places,
    features_along,
    formula_of,
    normalised_features,
)
from laconic.outer.layout import Split
from laconic.outer.tiles import Masks


class Ada(NamedTuple):
    """One tensor's accumulators; averaged axes are kept with length 1; `col` is None if 1-D."""

    m: jax.Array  # [3, *s]
    v: jax.Array  # [*s]
    row: jax.Array  # [3, …]
    col: jax.Array | None  # [3, …]


class View(NamedTuple):
    """How a tensor is read as [L, A, B]: the axes' order, () if it has no two."""

    order: tuple[int, ...]


class Fields(NamedTuple):
    """All that the features of a tensor are computed from, each as [n, L, A or 1, B or 1].

    In GPU kernels: of a block's parameters, number by number (see `each_number`).
    """

    deltas: Any = None  # the mean (n = 1), or every worker's (n = K)
    mean: Any = None
    param: Any = None
    m: Any = None
    v: Any = None
    row: Any = None
    col: Any = None
    delta_factors: Any = ()  # a tuple of arrays: their product scales the mean delta,
    momentum_factors: Any = ()  # and theirs the momenta


def _factored(x: jax.Array, factors: Sequence[jax.Array]) -> jax.Array:
    for factor in factors:
        x = x * factor
    return x


# Of what is normalised, by name: (fields, the feature's epsilon) → [numbers, L, A or 1, B or 1].
# The same root in two of them is computed once: compilers share common terms.
FORMULAS: dict[str, Callable[[Fields, float], jax.Array]] = {
    "deltas": lambda x, _: x.deltas,
    "parameter": lambda x, _: x.param,
    "m": lambda x, _: x.m,
    "v": lambda x, _: x.v,
    "m_rsqrt_v": lambda x, epsilon: x.m * jax.lax.rsqrt(x.v + epsilon),
    "rsqrt_v": lambda x, epsilon: jax.lax.rsqrt(x.v + epsilon),
    "factored_delta": lambda x, _: _factored(x.mean, x.delta_factors),
    "row": lambda x, _: x.row,
    "col": lambda x, _: x.col,
    "rsqrt_row": lambda x, epsilon: jax.lax.rsqrt(x.row + epsilon),
    "rsqrt_col": lambda x, epsilon: jax.lax.rsqrt(x.col + epsilon),
    "factored_m": lambda x, _: _factored(x.m, x.momentum_factors),
}


def compute(feature: Feature, fields: Fields) -> jax.Array:
    """A feature by its formula."""
    return formula_of(feature, FORMULAS, "JAX")(fields, feature.epsilon)


def time_features(round_t: jax.Array, shift: float) -> jax.Array:
    """tanh(t/x − shift) for the timescales x: shift 0 is the paper's text, 1 its authors' code."""
    return jnp.tanh(round_t.astype(jnp.float32) / jnp.asarray(TIMESCALES, jnp.float32) - shift)


# Of what changes between rounds only: (round, shift of the time) → [numbers].
ROUND_FORMULAS: dict[str, Callable[[jax.Array, float], jax.Array]] = {"time": time_features}


def round_features(round_t: jax.Array, shift: float) -> jax.Array:
    """The features that are the same for all parameters."""
    formulas = [formula_of(f, ROUND_FORMULAS, "JAX") for f in features_along("round")]
    return jnp.concatenate([formula(round_t, shift) for formula in formulas])


def decays(offsets_7: jax.Array) -> jax.Array:
    """1 − β = (1 − β₀)·e^{10θ}, kept at most 1 so that β stays a decay.

    1 − β is passed on because β = 0.999 in float32 would leave only four digits of it.
    """
    complement = jnp.asarray([1 - beta for beta in DECAYS], jnp.float32)
    return jnp.minimum(complement * jnp.exp(10 * offsets_7), 1.0)


def init_ada(param: jax.Array, dtype: Any = jnp.float32) -> Ada:
    """Zeros of the right shapes for one tensor; m and v as `dtype`, the others always in float32.

    In bfloat16 a value changes only by more than 1/256 of itself, so slow decays stop early.
    """
    shape = lift(param).shape
    m = jnp.zeros((len(MOMENTUM), *param.shape), dtype)
    v = jnp.zeros(param.shape, dtype)
    zeros = lambda shape: jnp.zeros((len(ADAFACTOR), *shape), jnp.float32)
    if len(shape) == 1:
        return Ada(m, v, zeros(shape), None)
    largest, second = factored_axes(shape)
    row = [1 if axis == largest else n for axis, n in enumerate(shape)]
    col = [1 if axis == second else n for axis, n in enumerate(shape)]
    return Ada(m, v, zeros(row), zeros(col))


def accumulate(ada: Ada, mean_delta: jax.Array, rate_7: jax.Array, split: Split) -> Ada:
    """The accumulators after this round's mean delta, in float32; the rates are 1 − β."""
    if not mean_delta.size:  # an empty tensor has no means
        return ada

    def decay(old_R: jax.Array, new: jax.Array, rate_R: jax.Array) -> jax.Array:
        rate = rate_R.reshape(-1, *[1] * new.ndim)
        return (1 - rate) * old_R.astype(jnp.float32) + rate * new[None]

    square = mean_delta * mean_delta
    m = decay(ada.m, mean_delta, rate_7[OF_M])
    v = (1 - rate_7[OF_V]) * ada.v.astype(jnp.float32) + rate_7[OF_V] * square
    factored = lift(square) + SQUARE_EPSILON
    if ada.col is None:
        return Ada(m, v, decay(ada.row, factored, rate_7[OF_FACTORED]), None)
    row_mean, col_mean = (
        split.mean(jnp.mean(factored, axis=axis, keepdims=True), axis) for axis in split.pair
    )
    return Ada(
        m,
        v,
        decay(ada.row, row_mean, rate_7[OF_FACTORED]),
        decay(ada.col, col_mean, rate_7[OF_FACTORED]),
    )


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
    """[*lead, *shape] → [n, L, A, B], or 1 for an averaged axis; a copy only if axes move."""
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
        delta_factors = (safe_rsqrt(row + epsilon_of("factored_delta")),)
        momentum_factors = (jax.lax.rsqrt(row + epsilon_of("factored_m")),)
    else:
        _, second = split.pair
        row_mean = split.mean(jnp.mean(ada.row, axis=second + 1, keepdims=True), second)
        row_factor = safe_rsqrt(ada.row / (row_mean + MEAN_EPSILON))
        row, col = see(ada.row), see(ada.col)
        delta_factors = momentum_factors = (see(row_factor), safe_rsqrt(col))
    own = Fields(see(deltas), see(mean), see(param), see(ada.m), see(ada.v), row, col)
    return view, own._replace(delta_factors=delta_factors, momentum_factors=momentum_factors)


def groups(fields: Fields) -> list[jax.Array]:
    """The normalised features in their order; row and column ones are not tiled."""
    return [compute(feature, fields) for feature in normalised_features()]


def each_number(feature: Feature, lists: Fields) -> list[jax.Array]:
    """A feature number by number, from fields that are lists wherever they hold several numbers."""
    pick = lambda field, i: field[i] if i < len(field) else None
    at = lambda i: Fields(*(pick(x, i) if isinstance(x, list) else x for x in lists))
    return [compute(feature, at(i)) for i in range(feature.numbers(len(lists.deltas)))]


def of_side(side: str, accumulator: jax.Array, axis: int) -> jax.Array:
    """The features along rows or columns from that side's accumulators, joined along an axis."""
    fields = Fields(row=accumulator, col=accumulator)
    return jnp.concatenate([compute(f, fields) for f in features_along(side)], axis=axis)


def first_layer(w0: jax.Array, deltas: int, along: str) -> jax.Array:
    """The first layer's weights of the features that change along this."""
    places = feature_places(deltas)
    return jnp.concatenate([w0[places[f.name]] for f in features_along(along)])


def square_sums(groups: list[jax.Array], masks: Masks) -> jax.Array:
    """Σ x² of every feature over a tile [L, A, B], where its masks are 1."""

    def one(x: jax.Array) -> jax.Array:
        square = jnp.square(x)
        if x.shape[3] != masks.cols.shape[3]:  # the same in all columns
            by_row = square * jnp.sum(masks.cols)
        else:
            by_row = jnp.sum(square * masks.cols, axis=3, keepdims=True)
        return jnp.sum(by_row * masks.rows, axis=(1, 2, 3))

    return jnp.concatenate([one(x) for x in groups])


def normaliser(second_moment: Any) -> jax.Array:
    """The factor that makes a feature's second moment over its tensor 1."""
    return jax.lax.rsqrt(NORMALISER_EPSILON + second_moment)


def safe_rsqrt(x: jax.Array) -> jax.Array:
    """1/√x with x kept off 0."""
    return jax.lax.rsqrt(jnp.maximum(x, LEAST_SQUARE))
