"""Equal blocks one after the other, compiled once: twelve layers of a decoder, thirty-five of a
ResNet's stage.

Each block keeps parameters of its own. The learned optimizers normalise their features over one
tensor, so layers stacked into a single tensor would be trained by another rule than the same layers
apart. They are stacked only inside the forward pass, for `scan` to walk over: that costs a copy of
the weights a step and saves most of the compile time.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

SCAN_FROM = 4  # fewer blocks compile fast enough one by one

Block = TypeVar("Block")
Step = Callable[
    [Any, jax.Array, Any], tuple[jax.Array, Any]
]  # (block, x, the block's state) → (x, the state after)


def through(
    blocks: Sequence[Block], x: jax.Array, states: Sequence[Any], step: Step
) -> tuple[jax.Array, list[Any]]:
    """x after all blocks in turn, and each block's state after it. All blocks and all states have
    the same shapes."""
    if len(blocks) < SCAN_FROM:
        return one_by_one(blocks, x, states, step)
    stack = lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    x, after = jax.lax.scan(
        lambda x, pair: step(pair[0], x, pair[1]), x, (stack(blocks), stack(states))
    )
    return x, [jax.tree.map(lambda leaf, i=i: leaf[i], after) for i in range(len(blocks))]


def one_by_one(
    blocks: Sequence[Block], x: jax.Array, states: Sequence[Any], step: Step
) -> tuple[jax.Array, list[Any]]:
    """The same without `scan`; blocks may differ."""
    after = []
    for block, state in zip(blocks, states, strict=True):
        x, state = step(block, x, state)
        after.append(state)
    return x, after
