"""The layers models are built from, with weights as [in, out] and HWIO.

The learned optimizers' row and column features are defined on that layout. Every weight starts from
a normal distribution truncated at ±2σ, σ = 1/√fan_in (not corrected for the truncation), every bias
from zero. Layers take whole batches; letters: B batch, H W height and width, C channels, T time, D
hidden size.

A layer computes in the type of its weight matrix: given in bfloat16, products are too. Means,
variances and what is done with them are float32 whatever the type, for bfloat16 has three digits.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from laconic.tasks.half import (
    EPSILON,
    Statistics,
    by_own_statistics,
    normalise,
    plus_bias,
    scaled_and_shifted,
)

FEW_CHANNELS = 8


def fan_in_normals(key: jax.Array, *shapes: tuple[int, ...]) -> list[jax.Array]:
    """An array a shape from the truncated normal (±2σ), σ = 1/√fan_in; fan_in is the product of all
    axes but the last.

    One long draw is cut up, because XLA takes about a second to compile each separate one.
    """
    sizes = [math.prod(shape) for shape in shapes]
    pieces = jnp.split(
        jax.random.truncated_normal(key, -2.0, 2.0, (sum(sizes),), jnp.float32),
        np.cumsum(sizes)[:-1],
    )
    return [
        piece.reshape(shape) / math.sqrt(math.prod(shape[:-1]))
        for piece, shape in zip(pieces, shapes, strict=True)
    ]


class Linear(eqx.Module):
    """x W + b, for any number of leading axes."""

    weight: jax.Array  # [in, out]
    bias: jax.Array

    def __init__(self, weight: jax.Array):
        self.weight, self.bias = weight, jnp.zeros(weight.shape[-1])

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in] → [..., out]."""
        return plus_bias(x @ self.weight, self.bias)


Convolve = Callable[[jax.Array, jax.Array, int], jax.Array]  # (images BHWC, kernel HWIO, stride)


def same_conv(x_BHWC: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """Convolution with an HWIO kernel and XLA's "SAME" padding, as one matrix product over shifted
    slices.

    Under `vmap` over workers XLA's own convolution becomes a grouped one: its gradient took 3.7
    times as long on a CPU (three 3×3 layers, K = 8, B = 32).
    """
    height, width, inputs, outputs = weight.shape
    rows, row_padding = _same_padding(x_BHWC.shape[1], height, stride)
    columns, column_padding = _same_padding(x_BHWC.shape[2], width, stride)
    padded = jnp.pad(x_BHWC, ((0, 0), row_padding, column_padding, (0, 0)))
    if stride > 1 and inputs < FEW_CHANNELS and min(height, width) > 2 * stride:
        padded, weight = _in_tiles(padded, weight, stride, rows, columns)
        (height, width, *_), stride = weight.shape, 1
    patches = [
        padded[
            :, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride
        ]
        for i in range(height)
        for j in range(width)
    ]
    return jnp.concatenate(patches, axis=-1) @ weight.reshape(-1, outputs)


def _in_tiles(
    padded: jax.Array, weight: jax.Array, side: int, rows: int, columns: int
) -> tuple[jax.Array, jax.Array]:
    """Images and a kernel for stride 1 that give the same: tiles of side × side pixels as channels
    of one.

    Slices of few channels are slow to put side by side: a 7×7 kernel has 49 of three channels, and
    in tiles of 2×2 it has 16 of twelve.
    """
    height, width, inputs, outputs = weight.shape
    up, along = -(-height // side), -(-width // side)
    more = (0, up * side - height), (0, along * side - width), (0, 0), (0, 0)
    weight = (
        jnp.pad(weight, more)
        .reshape(up, side, along, side, inputs, outputs)
        .transpose(0, 2, 1, 3, 4, 5)
    )
    sizes = rows - 1 + up, columns - 1 + along
    missing = [size * side - old for size, old in zip(sizes, padded.shape[1:3], strict=True)]
    padded = jax.lax.pad(
        padded, jnp.zeros((), padded.dtype), ((0, 0, 0), *((0, m, 0) for m in missing), (0, 0, 0))
    )
    tiles = padded.reshape(-1, sizes[0], side, sizes[1], side, inputs).transpose(0, 1, 3, 2, 4, 5)
    return tiles.reshape(-1, *sizes, side * side * inputs), weight.reshape(up, along, -1, outputs)


def xla_conv(x_BHWC: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """The same by XLA's own convolution, which holds no slices: for large images, and one worker a
    device."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x_BHWC, weight, (stride, stride), "SAME", dimension_numbers=layout
    )


CONVOLUTIONS: dict[str, Convolve] = {"product": same_conv, "xla": xla_conv}


def max_pool(x_BHWC: jax.Array, size: int, stride: int) -> jax.Array:
    """The largest value of each window, "SAME" padding: [B, H, W, C] → [B, ⌈H/stride⌉, ⌈W/stride⌉,
    C]."""
    least = np.array(
        -np.inf, x_BHWC.dtype
    )  # an array of JAX would hide from it that this is a maximum
    return jax.lax.reduce_window(
        x_BHWC, least, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), "SAME"
    )


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, tuple[int, int]]:
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return out, (total // 2, total - total // 2)


class Conv(eqx.Module):
    """A convolution with bias."""

    weight: jax.Array  # [height, width, in, out]
    bias: jax.Array
    stride: int = eqx.field(static=True)

    def __init__(self, weight: jax.Array, stride: int):
        self.weight, self.bias, self.stride = weight, jnp.zeros(weight.shape[-1]), stride

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """[B, H, W, in] → [B, ⌈H/stride⌉, ⌈W/stride⌉, out]."""
        return plus_bias(same_conv(x_BHWC, self.weight, self.stride), self.bias)


class LayerNorm(eqx.Module):
    """Each vector along the last axis brought to mean 0 and variance 1, then scaled and shifted."""

    scale: jax.Array
    shift: jax.Array

    def __init__(self, size: int):
        self.scale, self.shift = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] → [..., D]."""
        wide = x.astype(jnp.float32)
        mean, var = jnp.mean(wide, -1, keepdims=True), jnp.var(wide, -1, keepdims=True)
        normal = (wide - mean) * jax.lax.rsqrt(var + EPSILON)
        return scaled_and_shifted(normal, self.scale, self.shift, x.dtype)


class ConvNorm(eqx.Module):
    """A convolution without bias, then BatchNorm: normalised over batch and space, scaled and
    shifted."""

    weight: jax.Array  # [height, width, in, out]
    scale: jax.Array
    shift: jax.Array
    stride: int = eqx.field(static=True)
    keep: float = eqx.field(static=True)
    convolve: Convolve = eqx.field(static=True)

    def __init__(
        self, weight: jax.Array, stride: int, keep: float = 0.9, convolve: Convolve = same_conv
    ):
        self.weight, self.stride, self.keep, self.convolve = weight, stride, keep, convolve
        self.scale, self.shift = jnp.ones(weight.shape[-1]), jnp.zeros(weight.shape[-1])

    def begin(self) -> Statistics:
        """Running statistics before the first batch."""
        return Statistics(jnp.zeros_like(self.shift), jnp.ones_like(self.scale))

    def train(self, x_BHWC: jax.Array, running: Statistics) -> tuple[jax.Array, Statistics]:
        """Normalise by the batch's own statistics; the running ones keep 0.9 of themselves."""
        y = self.convolve(x_BHWC, self.weight, self.stride)
        y, batch = by_own_statistics(y, self.scale, self.shift)
        return y, jax.tree.map(
            lambda old, new: self.keep * old + (1 - self.keep) * new, running, batch
        )

    def infer(self, x_BHWC: jax.Array, running: Statistics) -> jax.Array:
        """Normalise by the running statistics."""
        return normalise(
            self.convolve(x_BHWC, self.weight, self.stride), running, self.scale, self.shift
        )
