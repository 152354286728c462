"""How a tensor lies for the kernels, in place as [L₀, A, L₁, B] with A and B factored, and how
devices share it.

Only a tensor whose last axis is not among its two largest has to be moved: then what comes after B
goes first.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from laconic.architecture import factored_axes
from laconic.outer.blocks import Geometry


class Split(NamedTuple):
    """A tensor of `shape` split along one of its axes over the devices of a mesh axis; with None it
    is whole."""

    shape: tuple[int, ...]
    axis: int | None = None
    mesh_axis: str = "shards"

    @property
    def size(self) -> int:
        """Parameters of the whole tensor."""
        return math.prod(self.shape)

    @property
    def pair(self) -> tuple[int, int]:
        """The whole tensor's largest and second largest axis, or (0, 0) of a vector."""
        return factored_axes(self.shape) if len(self.shape) > 1 else (0, 0)

    def mean(self, local_mean: jax.Array, axis: int) -> jax.Array:
        """The mean along `axis` from each device's own."""
        return jax.lax.pmean(local_mean, self.mesh_axis) if self.axis == axis else local_mean

    def total(self, sums: jax.Array) -> jax.Array:
        """Sums over the tensor from each device's own."""
        return sums if self.axis is None else jax.lax.psum(sums, self.mesh_axis)


class Layout(NamedTuple):
    """`order` of the axes, and whether B is the largest of them: then the row accumulators run
    along A."""

    geometry: Geometry
    order: tuple[int, ...]
    wide: bool
    axes: tuple[int, int]  # the tensor's own that are A and B

    @classmethod
    def of(cls, shape: Sequence[int], pair: tuple[int, int]) -> "Layout":
        """Of a tensor, or of a device's part of one whose largest and second largest axes are
        `pair`."""
        if len(shape) < 2:
            return cls(Geometry(1, 1, 1, math.prod(shape), diagonal=True), (), True, (-1, 0))
        low, high = sorted(pair)
        after = range(high + 1, len(shape))
        length = lambda axes: math.prod(shape[axis] for axis in axes)
        outer, inner = length(after) * length(range(low)), length(range(low + 1, high))
        geometry = Geometry(outer, shape[low], inner, shape[high])
        return cls(geometry, (*after, *range(high + 1)), pair[0] == high, (low, high))

    def see(self, x: jax.Array) -> jax.Array:
        """[*lead, *shape] → [*lead, L₀, A, L₁, B]."""
        g = self.geometry
        lead = x.ndim - len(self.order) if self.order else x.ndim - 1
        moved = (
            x.transpose(*range(lead), *(lead + axis for axis in self.order)) if self.order else x
        )
        return moved.reshape(*x.shape[:lead], g.L0, g.A, g.L1, g.B)

    def back(self, x: jax.Array, shape: Sequence[int]) -> jax.Array:
        """The inverse of `see`."""
        lead = x.ndim - 4
        if not self.order:
            return x.reshape(*x.shape[:lead], *shape)
        home = sorted(range(len(shape)), key=lambda axis: self.order[axis])
        moved = x.reshape(*x.shape[:lead], *(shape[axis] for axis in self.order))
        return moved.transpose(*range(lead), *(lead + axis for axis in home))

    def along(self, accumulator: jax.Array, axis: int) -> jax.Array:
        """A row or column accumulator [3, …] that runs along A (axis 0) or B (1), as [L, 3,
        length]."""
        g = self.geometry
        moved = accumulator.transpose(0, *(1 + axis for axis in self.order))
        if axis == 0:
            return moved.reshape(3, g.L0, g.A, g.L1).transpose(1, 3, 0, 2).reshape(g.L, 3, g.A)
        return moved.reshape(3, g.L0, g.L1, g.B).transpose(1, 2, 0, 3).reshape(g.L, 3, g.B)

    def from_along(self, x: jax.Array, shape: Sequence[int], axis: int) -> jax.Array:
        """The inverse of `along`, in the accumulator's own shape."""
        g = self.geometry
        if axis == 0:
            moved = x.reshape(g.L0, g.L1, 3, g.A).transpose(2, 0, 3, 1)
        else:
            moved = x.reshape(g.L0, g.L1, 3, g.B).transpose(2, 0, 1, 3)
        home = sorted(range(len(self.order)), key=lambda axis: self.order[axis])
        return moved.reshape(3, *(shape[1 + axis] for axis in self.order)).transpose(
            0, *(1 + axis for axis in home)
        )


def padded(x: jax.Array, length: int) -> jax.Array:
    """Zeros after the last axis's own values, up to `length`."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - x.shape[-1])])
