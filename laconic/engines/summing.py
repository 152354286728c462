"""The mean of messages that came whole, one after the other, so that the device never holds more
than one of them decoded beside the sum."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.means import nothing_of, plus_share
from laconic.outer.relative import squared_norms


class Summing:
    """The compiled programs of a weighted mean: begin, add one message, end."""

    def __init__(self, read: Callable[[jax.Array], tuple[Any, Any]], one: Any, norms: bool):
        """`read` gives a message's decoded Δ and its statistics, which have the shapes of `one`;
        `norms`: whether the squared norms of every worker's tensors are wanted too."""
        self._read, self._one, self._norms = read, one, norms
        self._begun = jax.jit(self._begin)
        self._added = jax.jit(self._add, donate_argnums=0)
        self._ended = jax.jit(self._end, donate_argnums=0)

    def mean(self, words: Sequence[jax.Array], shares_K: np.ndarray) -> tuple[Any, Any, Any]:
        """Δ, statistics and norms [K] of messages with these shares; one with 0 is not read."""
        total, found = self._begun(), []
        none = jax.tree.map(lambda x: jnp.zeros(1, jnp.float32), self._one[0])
        for one, share in zip(words, shares_K, strict=True):
            squares = none
            if share > 0:
                total, squares = self._added(total, one, share)
            found.append(squares)
        delta, extra = self._ended(total)
        if not self._norms:
            return delta, extra, None
        return delta, extra, jax.tree.map(lambda *each: jnp.concatenate(each), *found)

    def _begin(self) -> Any:
        return jax.tree.map(lambda x: nothing_of(x.shape, x.dtype), self._one)

    def _add(self, total: Any, words: jax.Array, share: jax.Array) -> tuple[Any, Any]:
        delta, extra = self._read(words)
        add = lambda total, x: plus_share(total, x, share)
        squares = squared_norms(jax.tree.map(lambda x: x[None], delta)) if self._norms else ()
        return jax.tree.map(add, total, (delta, extra)), squares

    def _end(self, total: Any) -> Any:
        return jax.tree.map(lambda x, like: x.astype(like.dtype), total, self._one)
