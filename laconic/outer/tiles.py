"""Walking over a tensor a tile at a time, so that what is computed per parameter never exists for all of them."""

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

CPU_TILE = 1 << 12  # features and hidden layers of a tile stay in a core's cache
STRANDS = 8  # at most: loops side by side over one tensor, each of which a core can take
STRANDED = 1 << 20  # parameters from which a tensor is worth compiling several loops for
ACCELERATOR_TILE = 1 << 22  # as much at once as keeps the hidden layers under half a gigabyte


def default_tile() -> int:
    """Parameters to work on at a time, for the platform JAX runs on."""
    return CPU_TILE if jax.default_backend() == "cpu" else ACCELERATOR_TILE


def default_strands(parameters: int) -> int:
    """How many loops a tensor's tiles are shared out to, for the platform JAX runs on: a loop keeps one core busy."""
    if jax.default_backend() != "cpu" or parameters < STRANDED:
        return 1
    return min(STRANDS, os.cpu_count() or 1)


class Masks(NamedTuple):
    """1 on the rows [1, 1, a, 1] and columns [1, 1, 1, b] of a tile that no earlier tile had, else 0."""

    rows: jax.Array
    cols: jax.Array


class Walk(NamedTuple):
    """Goes over a tensor of shape [L, A, B] in tiles of one layer, or over all of it at once if it is small."""

    shape: tuple[int, int, int]
    tile: int
    strands: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a tile: whole rows if they fit."""
        _, A, B = self.shape
        cols = min(B, self.tile)
        return max(1, min(A, self.tile // cols)), cols

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
        """Where tile i begins; the last ones of a row or column are moved back to stay inside, hence the masks."""
        (_, A, B), (rows, cols), (down, across) = self.shape, self.size, self._blocks
        row, col = (i // across % down) * rows, (i % across) * cols
        at = (i // (down * across), jnp.minimum(row, A - rows), jnp.minimum(col, B - cols))
        fresh = lambda begin, nominal, n: (begin + jnp.arange(n) >= nominal).astype(jnp.float32)
        masks = Masks(fresh(at[1], row, rows).reshape(1, 1, -1, 1), fresh(at[2], col, cols).reshape(1, 1, 1, -1))
        return at, masks if across > 1 else masks._replace(cols=jnp.ones((1, 1, 1, cols)))

    def _cut(self, fields: Any, at: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        """The tile of every field; an axis of length 1 is the same for all tiles."""

        def cut(x: jax.Array) -> jax.Array:
            for axis, begin, n in zip((1, 2, 3), at, (1, *self.size), strict=True):
                x = x if x.shape[axis] in (1, n) else jax.lax.dynamic_slice_in_dim(x, begin, n, axis)
            return x

        return jax.tree.map(cut, fields)

    def reduce(self, function: Callable[[Any, Masks], jax.Array], fields: Any) -> jax.Array:
        """Sum of `function(tile, masks)` over the tiles."""
        if self.whole:
            _, A, B = self.shape
            return function(fields, Masks(jnp.ones((1, 1, A, 1)), jnp.ones((1, 1, 1, B))))

        def one(i: jax.Array) -> jax.Array:
            at, masks = self._place(i)
            return function(self._cut(fields, at), masks)

        def body(i: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, lost = both  # Kahan's sum: thousands of tiles of the same size would round the same way
            term = one(i) - lost
            new = total + term
            return new, (new - total) - term

        zeros = jnp.zeros(jax.eval_shape(one, jnp.int32(0)).shape)
        ends = [self._count * s // self.strands for s in range(self.strands + 1)]
        totals = [jax.lax.fori_loop(a, b, body, (zeros, zeros))[0] for a, b in pairwise(ends)]
        return sum(totals[1:], totals[0])

    def fill(self, function: Callable[[Any], jax.Array], fields: Any) -> jax.Array:
        """`function(tile)` of every tile, put together as [1, L, A, B]."""
        if self.whole:
            return function(fields)
        (L, A, B), (rows, _), (down, across) = self.shape, self.size, self._blocks
        layers, blocks = ([0, L], self._shares(down)) if L == 1 else (self._shares(L), [0, down])

        def part(layer: int, end_layer: int, block: int, end_block: int) -> jax.Array:
            top, bottom = block * rows, min(end_block * rows, A)
            first, last = (layer * down + block) * across, ((end_layer - 1) * down + end_block) * across

            def body(i: jax.Array, out: jax.Array) -> jax.Array:
                at, _ = self._place(i)
                here = (0, at[0] - layer, at[1] - top, at[2])
                return jax.lax.dynamic_update_slice(out, function(self._cut(fields, at)), here)

            return jax.lax.fori_loop(first, last, body, jnp.zeros((1, end_layer - layer, bottom - top, B)))

        parts = [part(*a, *b) for a in pairwise(layers) for b in pairwise(blocks)]
        return jnp.concatenate(parts, axis=2 if L == 1 else 1)

    def _shares(self, count: int) -> list[int]:
        """Where each loop's share of `count` begins and ends; two each at least, for the last tile is moved back."""
        strands = max(1, min(self.strands, count // 2))
        return [count * s // strands for s in range(strands + 1)]
