"""What the GPU kernels work on: a tensor's geometry, its arrays, and the block that one program
takes of it.

A tensor is read in place as [L₀, A, L₁, B], A and B being its factored axes and L₀·L₁ = L the
others; a vector is [1, 1, 1, n] and has an accumulator of its own for every parameter ("diagonal").
Letters: n deltas (1 or K) · F features, padded to a power of two · N hidden units · G tensors of
one shape.
"""

from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl

from laconic.architecture import Feature, features_along


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
        """The features that kernels make for each parameter; of a vector, row ones are among them.

        Row and column accumulators of a vector are the same numbers.
        """
        return features_along("parameter") + (features_along("row") if self.diagonal else [])


class Big(NamedTuple):
    """What has a value for every parameter, of one tensor or of several laid one after another
    along L₀.

    The kernels see the four axes as one.
    """

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
    """φ as `apply` reads it: the first layer's weights, normalisers, and what rows and columns add
    to its sums."""

    w0: Any  # [G, F, N], each tensor's with its normalisers or, with `scales`, without
    by_a: Any  # [G·L, A, N], the bias and time included
    by_b: Any  # [G·L, B, N]
    w1: Any
    b1: Any
    w2: Any  # [2, N], or at precision "half" [N, 16]
    b2: Any  # [G, 2], not a number for a tensor with features that are not
    scales: Any  # [G, F] or None: normalisers that features are multiplied with
    back: Any = None  # [2]: what scales the last layer's sums back at precision "half"


class Change(NamedTuple):
    """W ← W − (share·step + decay·W); an absent worker's slot is filled with the mean or with 0."""

    share: float
    decay: float
    lam: float
    in_place: bool  # otherwise only the change of W is written, as updates in optax's sense


class Cut(NamedTuple):
    """How a tensor is cut into programs: `down` × `across` of them a layer, `rows` times `lanes`
    parameters each."""

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
        return (
            self.across * self.width == geometry.B
            and self.down * self.rows * self.tall == geometry.A
        )

    @classmethod
    def of(
        cls, geometry: Geometry, lanes: int, rows: int, layers: int = 1, programs: int = 1
    ) -> "Cut":
        """Lanes along B as far as it goes; of the rows no more than there are, nor than leave
        `programs` to launch.

        A GPU that runs a few hundred programs at once waits for the last of them: with few, that
        wait is most of the time. Two rows are the least, because what a program reads once it reads
        for all of its rows.
        """
        width = min(lanes, max(16, pl.next_power_of_2(geometry.B)))
        tall, across = lanes // width, pl.cdiv(geometry.B, width)
        rows = min(rows, pl.next_power_of_2(pl.cdiv(geometry.A, tall)))
        while rows > 2 and layers * across * pl.cdiv(geometry.A, tall * rows) < programs:
            rows //= 2
        return cls(lanes, width, rows, pl.cdiv(geometry.A, tall * rows), across)


class Place(NamedTuple):
    """Where a program stands: its layer in its own arrays and among all tensors, its block of rows
    and of columns."""

    layer: jax.Array
    of_all: jax.Array
    tensor: jax.Array
    down: jax.Array
    across: jax.Array


class Lanes(NamedTuple):
    """Where a program's lanes stand, and what stays the same for them while it goes down its rows."""

    place: Place
    columns: jax.Array  # [lanes]
    row: jax.Array | None  # [lanes]: how far below the first, if they go over several rows
    length: Any  # of a padded vector, else None
    rates: list[jax.Array]
    here: list[jax.Array]
    factors_b: list[jax.Array]


class Row(NamedTuple):
    """What a step reads of its lanes' parameters, as it lies in memory."""

    deltas: list[jax.Array]
    mean: jax.Array
    param: jax.Array
    m: list[jax.Array]
    v: jax.Array
    diagonal: list[jax.Array]
    factors_a: list[jax.Array]
    by_a: jax.Array  # [N], or [lanes, N] if the lanes go over several rows
