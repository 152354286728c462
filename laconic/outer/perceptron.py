"""The MLP inside a GPU kernel: features of P parameters → what the two output units say of each.

Most instructions are on [P, N] hidden units. At precision "half" there are fewer: ReLUs take two
float16 numbers at a time, and the last layer is on matrix units too. Its weights come in two parts,
a number and what float16 leaves of it, in columns that are free.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from laconic.outer.blocks import Layers
from laconic.outer.products import product, products, rounded

# columns of the last layer's weights at "half", the fewest that Triton multiplies by; half for each
# output
WIDE = 16
Perceptron = Callable[[Sequence[jax.Array], jax.Array], tuple[jax.Array, jax.Array]]


def perceptron(phi: Layers, tensor: Any, by_b: jax.Array | None, P: int, tuning: Any) -> Perceptron:
    """(features [P] each, what their rows add [·, N]) → two outputs [P]; weights are read, or held,
    by what it says."""
    return (_in_half if tuning.precision == "half" else _in_parts)(phi, tensor, by_b, P, tuning)


def _in_parts(phi: Layers, tensor: Any, by_b: jax.Array | None, P: int, tuning: Any) -> Perceptron:
    dot_first, dot_second = products(tuning.precision, tuning.interpret)
    tile = (P, phi.b1.shape[0])
    w0, w1, second = phi.w0[tensor], phi.w1[...], jnp.broadcast_to(phi.b1[...][None, :], tile)
    last = [phi.w2[out, :] for out in (0, 1)] if tuning.hold else []

    def run(features: Sequence[jax.Array], by_a: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.broadcast_to(by_a, tile) if by_b is None else by_b + by_a
        if tuning.first == "dot":
            h = dot_first(h, joined(features, w0.shape[0]), w0)
        else:
            for f, x in enumerate(features):
                h = h + x[:, None] * phi.w0[tensor, f, :][None, :]
        h = relu(dot_second(second, relu(h), w1))
        w2 = last or [phi.w2[out, :] for out in (0, 1)]
        direction, magnitude = (
            jnp.sum(h * w2[out][None, :], axis=1) + phi.b2[tensor, out] for out in (0, 1)
        )
        return direction, magnitude

    return run


def _in_half(phi: Layers, tensor: Any, by_b: jax.Array | None, P: int, tuning: Any) -> Perceptron:
    half, dot = rounded(tuning.interpret), product("fp16", tuning.interpret)
    scales = [phi.scales[tensor, f] for f in range(phi.scales.shape[1])]
    w0, w1, w2 = half(phi.w0[tensor]), half(phi.w1[...]), half(phi.w2[...])
    second = jnp.broadcast_to(phi.b1[...][None, :], (P, phi.b1.shape[0]))
    first = jnp.zeros_like(second) if by_b is None else by_b
    is_left = jnp.broadcast_to(jnp.arange(WIDE)[None, :] < WIDE // 2, (P, WIDE))

    def run(features: Sequence[jax.Array], by_a: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = joined(
            [half(x * scale) for x, scale in zip(features, scales, strict=True)], w0.shape[0]
        )
        h = relu(half(dot(first, x, w0) + by_a))
        h = relu(half(dot(second, h, w1)))
        both = dot(jnp.zeros((P, WIDE), jnp.float32), h, w2)
        left, right = (jnp.sum(jnp.where(mine, both, 0.0), axis=1) for mine in (is_left, ~is_left))
        return left * phi.back[0] + phi.b2[tensor, 0], right * phi.back[1] + phi.b2[tensor, 1]

    return run


def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), which Triton takes to be 0 for NaN."""
    return jnp.maximum(x, jnp.zeros_like(x))


def joined(columns: Sequence[jax.Array], count: int) -> jax.Array:
    """Vectors [P] side by side as [P, count], the rest 0, in registers: pairs, then pairs of pairs,
    and so on."""
    parts = [*columns, *[jnp.zeros_like(columns[0])] * (count - len(columns))]
    while len(parts) > 1:
        middle = len(parts) // 2
        pairs = zip(parts[:middle], parts[middle:], strict=True)
        parts = [jnp.concatenate([x[..., None], y[..., None]], axis=-1) for x, y in pairs]
    return parts[0].reshape(columns[0].shape[0], count)
