"""Ada features in PyTorch: the accumulators of a tensor, and what the MLP sees of each parameter.

The mathematics is that of `laconic/outer/features.py`, for a stack of G tensors of one shape s, or
for the parts of them that this process holds; G is 1 for a tensor by itself. Averaged axes are kept
with length 1, so that everything broadcasts, and a tile is a slice of [G, *s]. D is the number of
delta features.
"""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from laconic.architecture import (
    ADAFACTOR,
    LEAST_SQUARE,
    MEAN_EPSILON,
    MOMENTUM,
    OF_FACTORED,
    OF_M,
    OF_V,
    SQUARE_EPSILON,
    TIMESCALES,
    axis_order,
    epsilon_of,
    factored_axes,
    features_along,
    formula_of,
    normalised_features,
)
from laconic.torch.shards import Spread

CPU = torch.device("cpu")
# The largest axis and the second largest; None if the tensor is not factored.
Axes = tuple[int, int] | None


class Ada(NamedTuple):
    """The accumulators of a stack, float32; `col` is None if its tensors are not factored."""

    m: torch.Tensor  # [3, G, *s]
    v: torch.Tensor  # [G, *s]
    row: torch.Tensor  # [3, G, *s], with 1 for the largest axis
    col: torch.Tensor | None  # [3, G, *s], with 1 for the second largest


class Fields(NamedTuple):
    """All that the features of a stack are computed from, each [n, G, *s] with 1 for an axis along
    which it is constant.

    `ada` is None for an architecture without accumulators. The factors' products scale the mean
    delta and the momenta.
    """

    deltas: torch.Tensor  # the mean (D = 1), or every worker's (D = K)
    param: torch.Tensor
    ada: Any = None  # an Ada with `col` for every tensor
    mean: Any = None
    delta_factors: tuple[torch.Tensor, ...] = ()
    momentum_factors: tuple[torch.Tensor, ...] = ()


def _product(factors: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
    first, *rest = factors
    out.copy_(first)
    for factor in rest:
        out.mul_(factor)
    return out


# By name: (fields, the feature's epsilon, where to write it [numbers, *tile]).
FORMULAS: dict[str, Callable[[Fields, float, torch.Tensor], Any]] = {
    "deltas": lambda x, _, out: out.copy_(x.deltas),
    "parameter": lambda x, _, out: out.copy_(x.param),
    "m": lambda x, _, out: out.copy_(x.ada.m),
    "v": lambda x, _, out: out.copy_(x.ada.v),
    "m_rsqrt_v": lambda x, epsilon, out: torch.mul(x.ada.m, (x.ada.v + epsilon).rsqrt_(), out=out),
    "rsqrt_v": lambda x, epsilon, out: torch.add(x.ada.v, epsilon, out=out).rsqrt_(),
    "factored_delta": lambda x, _, out: _product(x.delta_factors, out).mul_(x.mean),
    "row": lambda x, _, out: out.copy_(x.ada.row),
    "col": lambda x, _, out: out.copy_(x.ada.col),
    "rsqrt_row": lambda x, epsilon, out: out.copy_((x.ada.row + epsilon).rsqrt_()),
    "rsqrt_col": lambda x, epsilon, out: out.copy_((x.ada.col + epsilon).rsqrt_()),
    "factored_m": lambda x, _, out: _product(x.momentum_factors, out).mul_(x.ada.m),
}


def time_features(round_t: int, shift: float) -> torch.Tensor:
    """tanh(t/x − shift) for the timescales x: shift 0 is the paper's text, 1 its authors' code."""
    times = [np.float32(round_t) / np.float32(x) - np.float32(shift) for x in TIMESCALES]
    return torch.tanh(torch.tensor(times, dtype=torch.float32, device=CPU))


# Of what changes between rounds only: (round, shift of the time) → [numbers].
ROUND_FORMULAS: dict[str, Callable[[int, float], torch.Tensor]] = {"time": time_features}


def round_features(round_t: int, shift: float) -> torch.Tensor:
    """The features that are the same for all parameters, on the CPU."""
    formulas = [formula_of(f, ROUND_FORMULAS, "PyTorch") for f in features_along("round")]
    return torch.cat([formula(round_t, shift) for formula in formulas])


def axes_of(shape: Sequence[int], layout: str) -> Axes:
    """The factored axes. The layout decides between equal ones: the later in [in, out] or HWIO is
    the larger."""
    if len(shape) < 2:
        return None
    order = axis_order(len(shape), layout)
    largest, second = factored_axes([shape[axis] for axis in order])
    return order[largest], order[second]


def inputs_first(shape: Sequence[int], layout: str) -> list[int]:
    """The shape as [in, out] or HWIO."""
    return [shape[axis] for axis in axis_order(len(shape), layout)]


def shapes_of(shape: Sequence[int], axes: Axes) -> dict[str, tuple[int, ...]]:
    """The shapes of a tensor's accumulators."""

    def averaged(over: int | None) -> tuple[int, ...]:
        return (len(ADAFACTOR), *(1 if axis == over else n for axis, n in enumerate(shape)))

    whole = {"m": (len(MOMENTUM), *shape), "v": tuple(shape)}
    if axes is None:
        return {**whole, "row": averaged(None)}
    return {**whole, "row": averaged(axes[0]), "col": averaged(axes[1])}


def averaged_axes(axes: Axes) -> dict[str, int]:
    """Which axis is averaged over, in the accumulators where one is."""
    return {} if axes is None else {"row": axes[0], "col": axes[1]}


def accumulate(
    ada: Ada, mean: torch.Tensor, rate_7: Sequence[float], axes: Axes, spread: Spread
) -> None:
    """Take this round's mean delta [G, *s] in; the rates are 1 − β."""
    square = mean.square()
    for m, rate in zip(ada.m, rate_7[OF_M], strict=True):
        m.mul_(1 - rate).add_(mean, alpha=rate)
    ada.v.mul_(1 - rate_7[OF_V]).add_(square, alpha=rate_7[OF_V])
    factored = square.add_(SQUARE_EPSILON)
    averages = [(ada.row, factored)]
    if ada.col is not None and axes is not None:
        averages = [
            (ada.row, spread.mean(factored, axes[0])),
            (ada.col, spread.mean(factored, axes[1])),
        ]
    for old, new in averages:
        for part, rate in zip(old, rate_7[OF_FACTORED], strict=True):
            part.mul_(1 - rate).add_(new, alpha=rate)


def fields_of(
    param: torch.Tensor,
    ada: Ada,
    mean: torch.Tensor,
    deltas: torch.Tensor,
    axes: Axes,
    spread: Spread,
) -> Fields:
    """Everything about one stack; `deltas` is [D, G, *s], parameters and mean [G, *s]."""
    if ada.col is None or axes is None:
        col = ada.row
        by_delta = (_safe_rsqrt(ada.row + epsilon_of("factored_delta")),)
        by_momentum = (torch.rsqrt(ada.row + epsilon_of("factored_m")),)
    else:
        col = ada.col
        row_factor = _safe_rsqrt(ada.row / (spread.mean(ada.row, axes[1]) + MEAN_EPSILON))
        by_delta = by_momentum = (row_factor, _safe_rsqrt(col))
    seen = ada._replace(v=ada.v[None], col=col)
    return Fields(deltas, param[None], seen, mean[None], by_delta, by_momentum)


def cut(fields: Fields, at: Sequence[slice]) -> Fields:
    """The fields of a tile; an axis of length 1 is the same for all tiles."""

    def one(x: torch.Tensor) -> torch.Tensor:
        along = [
            slice(None) if n == 1 else where for n, where in zip(x.shape[1:], at, strict=False)
        ]
        return x[(slice(None), *along)]

    return Fields(
        one(fields.deltas),
        one(fields.param),
        fields.ada and Ada(*map(one, fields.ada)),
        None if fields.mean is None else one(fields.mean),
        tuple(map(one, fields.delta_factors)),
        tuple(map(one, fields.momentum_factors)),
    )


def write(fields: Fields, into: torch.Tensor) -> None:
    """The normalised features in their order into [their count, *tile]."""
    features = normalised_features(fields.ada is not None)
    parts = into.split([f.numbers(len(fields.deltas)) for f in features])
    for feature, part in zip(features, parts, strict=True):
        formula_of(feature, FORMULAS, "PyTorch")(fields, feature.epsilon, part)


def _safe_rsqrt(x: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(x.clamp(min=LEAST_SQUARE))
