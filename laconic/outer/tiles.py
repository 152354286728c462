"""Walking over a tensor a tile at a time: features never exist for all parameters at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# On a CPU. Sums over a tile start some forty small programs, so their tiles are large. A product of
# up to 1152 columns runs in the calling thread, its layers in that core's cache; a larger one is
# spread over all cores, which costs more than it saves. Small tensors are stepped at once:
# meta-training has many of them side by side.
SUMS = 1 << 15
STEPS = 1152
SMALL = 1 << 12
FEW_ROWS = 5  # tiles of two to four rows take longer than those of one
LANES = 16  # numbers in a cache line
ACCELERATOR_TILE = 1 << 22  # keeps the hidden layers under half a gigabyte


class Tiles(NamedTuple):
    """How many parameters to work on at a time: for sums over a tensor, and for its steps."""

    sums: int
    steps: int
    small: int  # up to how many a tensor is stepped at once
    lanes: int  # what a tile of one row of steps is a multiple of; 1 for as many rows as fit

    def walk(self, shape: tuple[int, int, int]) -> "Walk":
        """The walk that steps a tensor [L, A, B]."""
        return Walk(shape, self.small if math.prod(shape) <= self.small else self.steps, self.lanes)


def default_tiles(tile: int | None = None) -> Tiles:
    """What suits the platform JAX runs on, or `tile` in all places."""
    if jax.default_backend() == "cpu":
        return Tiles(tile or SUMS, tile or STEPS, tile or SMALL, LANES)
    return Tiles(*[tile or ACCELERATOR_TILE] * 3, lanes=1)


class Masks(NamedTuple):
    """1 on the rows [1, 1, a, 1] and columns [1, 1, 1, b] of a tile that are new to it, else 0."""

    rows: jax.Array
    cols: jax.Array


class Walk(NamedTuple):
    """Goes over a tensor [L, A, B] in tiles of one layer, or over all of it at once if small."""

    shape: tuple[int, int, int]
    tile: int
    lanes: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a tile: whole rows if they fit; with lanes, one or many."""
        _, A, B = self.shape
        cols = min(B, self.tile)
        rows = max(1, min(A, self.tile // cols))
        if self.lanes == 1:
            return rows, cols
        if self.tile // cols >= FEW_ROWS:
            return _share(A, rows), cols
        return 1, min(cols, -(-_share(B, cols) // self.lanes) * self.lanes)

    @property
    def whole(self) -> bool:
        """Whether one tile holds everything."""
        L, A, B = self.shape
        return L * A * B <= self.tile

    @property
    def _blocks(self) -> tuple[int, int]:
        (_, A, B), (rows, cols) = self.shape, self.size
        return -(-A // rows), -(-B // cols)

    @property
    def _count(self) -> int:
        down, across = self._blocks
        return self.shape[0] * down * across

    def _place(self, i: jax.Array) -> tuple[tuple[jax.Array, jax.Array, jax.Array], Masks]:
        """Where tile i begins; the last ones are moved back to stay inside, hence the masks."""
        _, A, B = self.shape
        rows, cols = self.size
        down, across = self._blocks
        row, col = (i // across % down) * rows, (i % across) * cols
        at = (i // (down * across), jnp.minimum(row, A - rows), jnp.minimum(col, B - cols))
        fresh = lambda begin, nominal, n: (begin + jnp.arange(n) >= nominal).astype(jnp.float32)
        masks = Masks(
            fresh(at[1], row, rows).reshape(1, 1, -1, 1),
            fresh(at[2], col, cols).reshape(1, 1, 1, -1),
        )
        return at, masks if across > 1 else masks._replace(cols=jnp.ones((1, 1, 1, cols)))

    def _cut(self, fields: Any, bare: Any, at: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        """The tile of every field, from the same fields `bare`; axes of length 1 are not cut."""
        begins = (0, *at)

        def cut(field: jax.Array, x: jax.Array) -> jax.Array:
            shape = field.shape
            lengths = (shape[0], 1, *self.size)
            for i, axis in enumerate(_cut_axes(shape)):
                if shape[axis] not in (1, lengths[axis]):
                    x = jax.lax.dynamic_slice_in_dim(x, begins[axis], lengths[axis], i)
            return x.reshape([min(pair) for pair in zip(shape, lengths, strict=True)])

        return jax.tree.map(cut, fields, bare)

    def reduce(self, function: Callable[[Any, Masks], jax.Array], fields: Any) -> jax.Array:
        """Sum of `function(tile, masks)` over the tiles."""
        if self.whole:
            _, A, B = self.shape
            return function(fields, Masks(jnp.ones((1, 1, A, 1)), jnp.ones((1, 1, 1, B))))
        bare = _bare(fields)

        def one(i: jax.Array) -> jax.Array:
            at, masks = self._place(i)
            return function(self._cut(fields, bare, at), masks)

        def body(i: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, lost = both  # Kahan's sum: thousands of like tiles would round the same way
            term = one(i) - lost
            new = total + term
            return new, (new - total) - term

        zeros = jnp.zeros(jax.eval_shape(one, jnp.int32(0)).shape)
        return jax.lax.fori_loop(0, self._count, body, (zeros, zeros))[0]

    def fill(
        self, function: Callable[[Any, Any], tuple[jax.Array, Any]], fields: Any, scratch: Any
    ) -> jax.Array:
        """The values [1, L, A, B] by `function(tile, scratch) → values, scratch` of every tile.

        `scratch` is memory that is handed on from tile to tile, or None.
        """
        if self.whole:
            return function(fields, scratch)[0]
        bare = _bare(fields)

        def body(i: jax.Array, both: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            at, _ = self._place(i)
            values, scratch = function(self._cut(fields, bare, at), both[1])
            return jax.lax.dynamic_update_slice(both[0], values, (0, *at)), scratch

        return jax.lax.fori_loop(0, self._count, body, (jnp.zeros((1, *self.shape)), scratch))[0]


def _cut_axes(shape: Sequence[int]) -> list[int]:
    """The axes that a tensor has while it is cut: on a CPU those longer than 1, see `_bare`."""
    every = jax.default_backend() != "cpu"
    return [axis for axis, length in enumerate(shape) if length > 1 or every]


def _bare(fields: Any) -> Any:
    """Without axes of length 1: for their layout XLA's CPU compiler would copy the whole tensor."""
    return jax.tree.map(lambda x: x.reshape([x.shape[axis] for axis in _cut_axes(x.shape)]), fields)


def _share(length: int, most: int) -> int:
    """The longest of equal shares of `length` that are at most `most` each."""
    return -(-length // -(-length // most))
