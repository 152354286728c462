"""Tensors that are spread over processes (DTensor): what this process holds, and means over all.

The step works on the part of each tensor that this process holds. Only means and sums cross
processes, and all of them are here. `Shard` of any axis, in even or uneven parts, and `Replicate`
will do, on meshes of any number of dimensions.
"""
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
# Where PyTorch is not installed, pyright takes this folder for it.

import math
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from laconic.errors import LaconicError


class Cut(NamedTuple):
    """An axis that the processes of a group hold parts of."""

    axis: int
    group: Any


class Spread(NamedTuple):
    """The shape of the whole of a tensor, and where it is cut; nowhere for an ordinary one."""

    shape: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers the whole tensor has."""
        return math.prod(self.shape)

    def total(self, x: torch.Tensor, axis: int | None = None) -> torch.Tensor:
        """The sum of the processes' `x`, in place; with `axis`, over those that share that axis."""
        for cut in self.cuts:
            if axis is None or cut.axis == axis:
                torch.distributed.all_reduce(x, group=cut.group)
        return x

    def mean(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """The mean of `x` [*lead, *s] along an axis of s, which is kept with length 1."""
        at = x.ndim - len(self.shape) + axis
        if not any(cut.axis == axis for cut in self.cuts):
            return x.mean(at, True)
        return self.total(x.sum(at, True), axis).div_(self.shape[axis])

    def means(self, stacks: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean over s of each stack [G, *s]: [number of stacks, G]."""
        sums = [x.reshape(len(x), x.numel() // len(x)).sum(1) for x in stacks]
        return self.total(torch.stack(sums)).div_(self.size)


def is_spread(x: Any) -> bool:
    """Whether it is a DTensor."""
    # Nothing is one before their module is loaded, which takes a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def spread_of(p: Any, name: str) -> Spread:
    """How a parameter is spread; a LaconicError if neither in shards nor in copies."""
    if not is_spread(p):
        return Spread(tuple(p.shape))
    cuts = []
    for i, placement in enumerate(p.placements):
        if placement.is_shard():
            cuts.append(Cut(placement.dim, p.device_mesh.get_group(i)))
        elif not placement.is_replicate():
            raise LaconicError(
                f"{name} is placed as {placement}, and a learned step is taken on Shard and "
                "Replicate only: redistribute it to one of them."
            )
    return Spread(tuple(p.shape), tuple(cuts))


def held(p: Any) -> torch.Tensor:
    """The part of a tensor that this process holds; a view."""
    return p.to_local() if is_spread(p) else p


def spread_as(p: Any, x: Any) -> Any:
    """`x` [*lead, *s] spread as the parameter p [*s] is; a tensor that is whole is the same in all
    processes."""
    if not is_spread(p):
        return x.full_tensor() if is_spread(x) else x
    from torch.distributed.tensor import distribute_tensor

    placements = _placements(p, x.ndim - p.ndim)
    if is_spread(x) and x.device_mesh != p.device_mesh:
        x = x.full_tensor()
    if is_spread(x):
        return x.redistribute(placements=placements)
    return distribute_tensor(x, p.device_mesh, placements, src_data_rank=None)


def zeros(p: Any, shape: tuple[int, ...], averaged: int | None) -> torch.Tensor:
    """An accumulator of a parameter, float32, spread as it is but for an axis averaged over."""
    new = lambda size: torch.zeros(size, dtype=torch.float32, device=p.device)
    if not is_spread(p):
        return new(shape)
    from torch.distributed.tensor import DTensor, Replicate

    lead = len(shape) - p.ndim
    if lead < 0:  # a number for the whole tensor
        return DTensor.from_local(new(shape), p.device_mesh, [Replicate()] * p.device_mesh.ndim)
    own = (1 if axis == averaged else n for axis, n in enumerate(held(p).shape))
    local = new((*shape[:lead], *own))
    placements = _placements(p, lead, averaged)
    whole = torch.empty(shape, device="meta")
    return DTensor.from_local(
        local, p.device_mesh, placements, shape=whole.shape, stride=whole.stride()
    )


def _placements(p: Any, lead: int, averaged: int | None = None) -> list[Any]:
    """The parameter's placements, for a tensor with so many axes before the parameter's own and
    copies along an axis averaged over."""
    from torch.distributed.tensor import Replicate, Shard

    return [
        Replicate() if one.is_replicate() or one.dim == averaged else Shard(one.dim + lead)
        for one in p.placements
    ]
