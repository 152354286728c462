"""How a tensor lies in memory for the GPU kernels, how devices share it, and how programs cut it.

Kernels read a tensor in place as [L₀, A, L₁, B], A and B being its factored axes and L₀·L₁ = L the
others. Only a tensor whose last axis is not among its two largest has to be moved: then what comes
after B goes first. A vector is [1, 1, 1, n] and has an accumulator of its own for every parameter
("diagonal"). Letters: n deltas (1 or K) · F features, padded to a power of two · N hidden units ·
G tensors of one shape.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from laconic.architecture import ADAFACTOR, Feature, factored_axes, features_along

R = len(ADAFACTOR)  # decays of a row or column accumulator


class Split(NamedTuple):
    """A tensor split along one of its axes over the devices of a mesh axis; None: not split."""

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


class Geometry(NamedTuple):
    """A tensor as [L₀, A, L₁, B]; `diagonal` for vectors, whose accumulators are not factored."""

    L0: int
    A: int
    L1: int
    B: int
    diagonal: bool = False

    @property
    def L(self) -> int:
        """How many [A, B] layers there are."""
        return self.L0 * self.L1

    @property
    def features(self) -> list[Feature]:
        """The features that kernels make for each parameter.

        Of a vector, row ones are among them: its row and column accumulators are the same numbers.
        """
        return features_along("parameter") + (features_along("row") if self.diagonal else [])


class Layout(NamedTuple):
    """How a tensor's axes become [L₀, A, L₁, B]."""

    geometry: Geometry
    order: tuple[int, ...]
    wide: bool  # whether B is the largest axis: then the row accumulators run along A
    axes: tuple[int, int]  # the tensor's own that are A and B

    @classmethod
    def of(cls, shape: Sequence[int], pair: tuple[int, int]) -> "Layout":
        """Of a tensor, or a device's part of one, with this largest and second largest axis."""
        if len(shape) < 2:
            return cls(Geometry(1, 1, 1, math.prod(shape), diagonal=True), (), True, (-1, 0))
        low, high = sorted(pair)
        after = range(high + 1, len(shape))
        length = lambda axes: math.prod(shape[axis] for axis in axes)
        outer = length(after) * length(range(low))
        geometry = Geometry(outer, shape[low], length(range(low + 1, high)), shape[high])
        return cls(geometry, (*after, *range(high + 1)), pair[0] == high, (low, high))

    @property
    def home(self) -> list[int]:
        """The inverse of `order`."""
        return sorted(range(len(self.order)), key=lambda axis: self.order[axis])

    def see(self, x: jax.Array) -> jax.Array:
        """[*lead, *shape] → [*lead, L₀, A, L₁, B]."""
        g = self.geometry
        lead = x.ndim - max(1, len(self.order))
        if self.order:
            moved = x.transpose(*range(lead), *(lead + axis for axis in self.order))
        else:
            moved = x
        return moved.reshape(*x.shape[:lead], g.L0, g.A, g.L1, g.B)

    def back(self, x: jax.Array, shape: Sequence[int]) -> jax.Array:
        """The inverse of `see`."""
        lead = x.ndim - 4
        if not self.order:
            return x.reshape(*x.shape[:lead], *shape)
        moved = x.reshape(*x.shape[:lead], *(shape[axis] for axis in self.order))
        return moved.transpose(*range(lead), *(lead + axis for axis in self.home))

    def along(self, accumulator: jax.Array, axis: int) -> jax.Array:
        """An accumulator [3, …] that runs along A (axis 0) or B (axis 1), as [L, 3, length]."""
        g = self.geometry
        moved = accumulator.transpose(0, *(1 + axis for axis in self.order))
        if axis == 0:
            return moved.reshape(R, g.L0, g.A, g.L1).transpose(1, 3, 0, 2).reshape(g.L, R, g.A)
        return moved.reshape(R, g.L0, g.L1, g.B).transpose(1, 2, 0, 3).reshape(g.L, R, g.B)

    def from_along(self, x: jax.Array, shape: Sequence[int], axis: int) -> jax.Array:
        """The inverse of `along`, in the accumulator's own shape."""
        g = self.geometry
        if axis == 0:
            moved = x.reshape(g.L0, g.L1, R, g.A).transpose(2, 0, 3, 1)
        else:
            moved = x.reshape(g.L0, g.L1, R, g.B).transpose(2, 0, 1, 3)
        moved = moved.reshape(R, *(shape[1 + axis] for axis in self.order))
        return moved.transpose(0, *(1 + axis for axis in self.home))


def padded(x: jax.Array, length: int) -> jax.Array:
    """Zeros after the last axis's own values, up to `length`."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - x.shape[-1])])


class Big(NamedTuple):
    """What has a value for every parameter, of one tensor or of several concatenated along L₀."""

    deltas: Any  # [n, L₀, A, L₁, B]
    mean: Any  # [L₀, A, L₁, B]; None if it is the only delta
    param: Any
    m: Any  # [3, L₀, A, L₁, B]
    v: Any
    diagonal: Any  # [3, L₀, A, L₁, B], of vectors, else None


class Small(NamedTuple):
    """What the G tensors of one shape share; layers count through all of them."""

    first: Any  # [1]: which of the tensors a launch begins with
    rates: Any  # [7]: 1 − β
    here: Any  # [n]: 1 for a worker that is there; None if nobody can be missing
    lengths: Any  # [G]: of vectors padded to one length, else None
    factors_a: Any  # [G·L, 3, A]: their product with those along B scales Δ and the momenta
    factors_b: Any  # [G·L, 3, B]


class Layers(NamedTuple):
    """φ as the kernel `apply` reads it; rows and columns add to the first layer's sums."""

    w0: Any  # [G, F, N], each tensor's with its normalisers or, with `scales`, without
    by_a: Any  # [G·L, A, N], the bias and time included
    by_b: Any  # [G·L, B, N]
    w1: Any
    b1: Any
    w2: Any  # [2, N], or at precision "half" [N, 16]
    b2: Any  # [G, 2], NaN for a tensor with NaN among its features
    scales: Any  # [G, F] or None: normalisers that features are multiplied with
    back: Any = None  # [2]: what scales the last layer's sums back at precision "half"


class Change(NamedTuple):
    """W ← W − (share·step + decay·W)."""

    share: float
    decay: float
    lam: float
    in_place: bool  # otherwise only the change of W is written, as updates in optax's sense


class Cut(NamedTuple):
    """How a layer is cut into `down` × `across` programs of `rows` × `lanes` parameters."""

    lanes: int
    width: int  # columns among the lanes; the other lanes are the rows below
    rows: int
    down: int
    across: int

    @property
    def tall(self) -> int:
        """Rows among the lanes."""
        return self.lanes // self.width

    def even(self, geometry: Geometry) -> bool:
        """Whether the programs cover a layer and nothing outside it."""
        columns = self.across * self.width
        return columns == geometry.B and self.down * self.rows * self.tall == geometry.A

    @classmethod
    def of(
        cls, geometry: Geometry, lanes: int, rows: int, layers: int = 1, programs: int = 1
    ) -> "Cut":
        """Lanes along B as far as it goes; at most `rows` rows, fewer to launch `programs` of them.

        A GPU that runs a few hundred programs at once waits for the last of them: with few, that
        wait is most of the time. A program has at least two rows, because they share what it reads.
        """
        width = min(lanes, max(16, pl.next_power_of_2(geometry.B)))
        tall, across = lanes // width, pl.cdiv(geometry.B, width)
        rows = min(rows, pl.next_power_of_2(pl.cdiv(geometry.A, tall)))
        while rows > 2 and layers * across * pl.cdiv(geometry.A, tall * rows) < programs:
            rows //= 2
        return cls(lanes, width, rows, pl.cdiv(geometry.A, tall * rows), across)
