"""Ada features in PyTorch: the accumulators of a tensor, and what the MLP sees of each parameter.

The mathematics is that of `laconic/outer/features.py`, in the tensor's own shape s: averaged axes
are kept with length 1, so that everything broadcasts, and a tile is a slice of that shape. Names: D
how many delta features there are.
"""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

from collections.abc import Sequence
from typing import NamedTuple

import torch

from laconic.architecture import axis_order, factored_axes

Axes = (
    tuple[int, int] | None
)  # the largest axis and the second largest; None if the tensor is not factored


class Ada(NamedTuple):
    """The accumulators of one tensor, float32; `col` is None if it is not factored."""

    m: torch.Tensor  # [3, *s]
    v: torch.Tensor  # [*s]
    row: torch.Tensor  # [3, *s], with 1 for the largest axis
    col: torch.Tensor | None  # [3, *s], with 1 for the second largest


class Fields(NamedTuple):
    """All that the features of a tensor are computed from, each [n, *s] with 1 for an axis along
    which it is constant.

    `ada` is None for an architecture without accumulators. The factors' products scale the mean
    delta and the momenta.
    """

    deltas: torch.Tensor  # the mean (D = 1), or every worker's (D = K)
    param: torch.Tensor
    ada: Ada | None = None
    mean: torch.Tensor | None = None
    delta_factors: tuple[torch.Tensor, ...] = ()
    momentum_factors: tuple[torch.Tensor, ...] = ()


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

    def averaged(over: int) -> tuple[int, ...]:
        return (3, *(1 if axis == over else n for axis, n in enumerate(shape)))

    whole = {"m": (3, *shape), "v": tuple(shape)}
    if axes is None:
        return {**whole, "row": (3, *shape)}
    return {**whole, "row": averaged(axes[0]), "col": averaged(axes[1])}


def accumulate(ada: Ada, mean: torch.Tensor, rate_7: Sequence[float], axes: Axes) -> None:
    """Take this round's mean delta in; the rates are 1 − β."""
    if not mean.numel():  # an empty tensor has no means
        return
    square = mean.square()
    for m, rate in zip(ada.m, rate_7[:3], strict=True):
        m.mul_(1 - rate).add_(mean, alpha=rate)
    ada.v.mul_(1 - rate_7[3]).add_(square, alpha=rate_7[3])
    factored = square.add_(1e-30)
    averages = [(ada.row, factored)]
    if ada.col is not None and axes is not None:
        averages = [
            (ada.row, factored.mean(axes[0], True)),
            (ada.col, factored.mean(axes[1], True)),
        ]
    for old, new in averages:
        for part, rate in zip(old, rate_7[4:], strict=True):
            part.mul_(1 - rate).add_(new, alpha=rate)


def fields_of(
    param: torch.Tensor, ada: Ada, mean: torch.Tensor, deltas: torch.Tensor, axes: Axes
) -> Fields:
    """Everything about one tensor; `deltas` is [D, *s], the rest as it is kept."""
    if ada.col is None or axes is None:
        by_delta, by_momentum = (_safe_rsqrt(ada.row + 1e-9),), (torch.rsqrt(ada.row + 1e-6),)
    else:
        row_factor = _safe_rsqrt(ada.row / (ada.row.mean(axes[1] + 1, True) + 1e-9))
        by_delta = by_momentum = (row_factor, _safe_rsqrt(ada.col))
    lead = lambda x: x[None]
    return Fields(
        deltas, lead(param), ada._replace(v=lead(ada.v)), lead(mean), by_delta, by_momentum
    )


def cut(fields: Fields, at: Sequence[slice]) -> Fields:
    """The fields of a tile; an axis of length 1 is the same for all tiles."""

    def one(x: torch.Tensor) -> torch.Tensor:
        along = [
            slice(None) if n == 1 else where for n, where in zip(x.shape[1:], at, strict=False)
        ]
        return x[(slice(None), *along)]

    ada, mean = fields.ada, fields.mean
    return Fields(
        one(fields.deltas),
        one(fields.param),
        ada
        and Ada(one(ada.m), one(ada.v), one(ada.row), None if ada.col is None else one(ada.col)),
        None if mean is None else one(mean),
        tuple(map(one, fields.delta_factors)),
        tuple(map(one, fields.momentum_factors)),
    )


def write(fields: Fields, into: torch.Tensor) -> None:
    """Items 1-12 of the input vector in their order into [D + 27, *tile], or the first D + 1
    without accumulators."""
    D = len(fields.deltas)
    into[:D] = fields.deltas
    into[D] = fields.param[0]
    if fields.ada is None or fields.mean is None:
        return
    m, v, row, col = fields.ada
    col = row if col is None else col
    momenta, second, scaled_m, rsqrt_v, scaled_delta, *averages, factored_m = into[D + 1 :].split(
        [3, 1, 3, 1, 3, 3, 3, 3, 3, 3]
    )
    momenta.copy_(m)
    second.copy_(v)
    torch.add(second, 1e-6, out=rsqrt_v).rsqrt_()
    torch.mul(momenta, rsqrt_v, out=scaled_m)
    _product(fields.delta_factors, scaled_delta).mul_(fields.mean)
    for part, x in zip(
        averages, (row, col, torch.rsqrt(row + 1e-8), torch.rsqrt(col + 1e-8)), strict=True
    ):
        part.copy_(x)
    _product(fields.momentum_factors, factored_m).mul_(momenta)


def _product(factors: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
    first, *rest = factors
    out.copy_(first)
    for factor in rest:
        out.mul_(factor)
    return out


def _safe_rsqrt(x: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(x.clamp(min=1e-9))
