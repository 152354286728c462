"""Seeds side by side or, where they would not fit in memory together, some at a time."""

from collections.abc import Callable
from typing import Any

import jax


def over_seeds(one_seed: Callable[..., Any], seeds: int, at_once: int) -> Callable[..., Any]:
    """`one_seed` over the first axis of its arguments, `at_once` of them side by side; 0: all."""
    if at_once == 0 or at_once >= seeds:
        return jax.vmap(one_seed)
    # alone, a seed is not batched by one: a convolution would become a grouped one
    batch_size = None if at_once == 1 else at_once
    return lambda *arguments: jax.lax.map(
        lambda each: one_seed(*each), arguments, batch_size=batch_size
    )
