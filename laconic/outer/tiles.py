"""Walking over a tensor a tile at a time, so that what is computed per parameter never exists for all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

CPU_TILE = 1 << 15  # features and hidden layers of a tile stay in a core's cache
ACCELERATOR_TILE = 1 << 22  # as much at once as keeps the hidden layers under half a gigabyte


def default_tile() -> int:
    """Parameters to work on at a time, for the platform JAX runs on."""
    return CPU_TILE if jax.default_backend() == "cpu" else ACCELERATOR_TILE


class Walk(NamedTuple):
    """Goes over a tensor of shape [L, A, B] in tiles of whole rows of B, or all at once if it is small."""

    shape: tuple[int, int, int]
    tile: int

    @property
    def rows(self) -> int:
        """Rows of B in a tile."""
        _, A, B = self.shape
        return max(1, min(A, self.tile // max(B, 1)))

    @property
    def whole(self) -> bool:
        """Whether one tile holds everything."""
        L, A, B = self.shape
        return L * A * B <= self.tile

    def _place(self, i: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(l, first row, first row not done before): the last tile of a column is moved up to stay inside."""
        _, A, _ = self.shape
        blocks = -(-A // self.rows)
        begin = (i % blocks) * self.rows
        return i // blocks, jnp.minimum(begin, A - self.rows), begin

    def _cut(self, fields: Any, layer: jax.Array, row: jax.Array) -> Any:
        def cut(x: jax.Array) -> jax.Array:
            x = jax.lax.dynamic_slice_in_dim(x, layer, 1, axis=1) if x.shape[1] > 1 else x
            return x if x.shape[2] == 1 else jax.lax.dynamic_slice_in_dim(x, row, self.rows, axis=2)

        return jax.tree.map(cut, fields)

    @property
    def _count(self) -> int:
        L, A, _ = self.shape
        return L * -(-A // self.rows)

    def reduce(self, function: Callable[[Any, jax.Array], jax.Array], fields: Any) -> jax.Array:
        """Sum of `function(tile, mask)` over the tiles; the mask is 0 on rows that an earlier tile had."""
        if self.whole:
            return function(fields, jnp.ones((1, 1, self.shape[1], 1)))

        def body(i: jax.Array, total: jax.Array) -> jax.Array:
            layer, row, fresh = self._place(i)
            mask = (row + jnp.arange(self.rows) >= fresh).astype(jnp.float32).reshape(1, 1, -1, 1)
            return total + function(self._cut(fields, layer, row), mask)

        like = jax.eval_shape(lambda: body(jnp.int32(0), jnp.float32(0)))
        return jax.lax.fori_loop(0, self._count, body, jnp.zeros(like.shape))

    def fill(self, function: Callable[[Any], jax.Array], fields: Any) -> jax.Array:
        """`function(tile)` of every tile, put together as [1, L, A, B]."""
        if self.whole:
            return function(fields)

        def body(i: jax.Array, out: jax.Array) -> jax.Array:
            layer, row, _ = self._place(i)
            done = function(self._cut(fields, layer, row))
            return jax.lax.dynamic_update_slice(out, done, (0, layer, row, 0))

        return jax.lax.fori_loop(0, self._count, body, jnp.zeros((1, *self.shape)))
