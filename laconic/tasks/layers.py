"""The layers models are built from, with weights as [in, out] and HWIO.

The learned optimizers' row and column features are defined on that layout. Every weight starts from
a normal distribution truncated at ±2σ, σ = 1/√fan_in (not corrected for the truncation), every bias
from zero. Layers take whole batches; letters: B batch, H W height and width, C channels, T time, D
hidden size.

A layer computes in the type of its weight matrix, bfloat16 included; means and variances are always
float32. The gradient of a vector that is added to or multiplied with every row is a sum over the
rows. In bfloat16 this sum is a matrix product with ones, accumulated in float32; other types use
JAX's own derivative.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

EPSILON = 1e-5  # added to variances
FEW_CHANNELS = 8
ROWS_OF_ONES = 8  # with fewer, XLA turns the matrix product into a sum again
SCAN_FROM = 4  # fewer blocks compile fast enough one by one


def fan_in_normals(key: jax.Array, *shapes: tuple[int, ...]) -> list[jax.Array]:
    """An array of truncated normals a shape; fan_in is the product of all axes but the last.

    One long draw is cut up, because XLA takes about a second to compile each separate one.
    """
    sizes = [math.prod(shape) for shape in shapes]
    drawn = jax.random.truncated_normal(key, -2.0, 2.0, (sum(sizes),), jnp.float32)
    return [
        piece.reshape(shape) / math.sqrt(math.prod(shape[:-1]))
        for piece, shape in zip(jnp.split(drawn, np.cumsum(sizes)[:-1]), shapes, strict=True)
    ]


# --- biases and scales ----------------------------------------------------------------------------


def along_last(vector: jax.Array, like: jax.Array) -> jax.Array:
    """A vector, shaped to broadcast along the last axis of `like`."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def column_sums(x: jax.Array) -> jax.Array:
    """[..., D] → [D]: x rounded to bfloat16, summed over all other axes in float32."""
    flat = x.reshape(-1, x.shape[-1]).astype(jnp.bfloat16)
    # Derived from the data, the ones are batched with it under `vmap`; a constant would not be, and
    # its product would transpose the data.
    one = jnp.where(flat[0, 0] > 0, 1.0, 1.0).astype(flat.dtype)
    ones = jnp.broadcast_to(one, (ROWS_OF_ONES, flat.shape[0]))
    return jnp.dot(ones, flat, preferred_element_type=jnp.float32)[0]


def plus_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """y + bias along the last axis, in y's type."""
    return shifted(y, bias) if y.dtype == jnp.bfloat16 else _shifted(y, bias)


def _shifted(y: jax.Array, bias: jax.Array) -> jax.Array:
    return y + along_last(bias, y).astype(y.dtype)


shifted = jax.custom_vjp(_shifted)
shifted.defvjp(
    lambda y, bias: (_shifted(y, bias), bias),
    lambda bias, g: (g, column_sums(g).astype(bias.dtype)),
)


def scaled_and_shifted(x: jax.Array, scale: jax.Array, shift: jax.Array, dtype: Any) -> jax.Array:
    """x · scale + shift along the last axis, computed in float32 and returned as `dtype`."""
    return (affine if dtype == jnp.bfloat16 else _affine)(x, scale, shift).astype(dtype)


def _affine(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    return x * along_last(scale, x) + along_last(shift, x)


def _affine_backward(kept: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, shift = kept
    to_scale = column_sums(g * x).astype(scale.dtype)
    return g * along_last(scale, g), to_scale, column_sums(g).astype(shift.dtype)


affine = jax.custom_vjp(_affine)
affine.defvjp(lambda *inputs: (_affine(*inputs), inputs), _affine_backward)


# --- BatchNorm ------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """The running mean and (biased) variance of each channel: model state, not parameters."""

    mean: jax.Array
    var: jax.Array


def normalise(y: jax.Array, by: Statistics, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Bring each channel from that mean and variance to 0 and 1, then scale and shift it."""
    factor = scale * jax.lax.rsqrt(by.var + EPSILON)
    centred = y.astype(jnp.float32) - along_last(by.mean, y)
    return (centred * along_last(factor, y) + along_last(shift, y)).astype(y.dtype)


def by_own_statistics(
    y: jax.Array, scale: jax.Array, shift: jax.Array
) -> tuple[jax.Array, Statistics]:
    """y normalised by the batch's mean and variance, and these."""
    if y.dtype == jnp.bfloat16:
        return batch_normal(y, scale, shift)
    wide, axes = y.astype(jnp.float32), tuple(range(y.ndim - 1))
    by = Statistics(jnp.mean(wide, axes), jnp.var(wide, axes))
    return normalise(y, by, scale, shift), by


def _batch_normal(y: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple[jax.Array, Statistics]:
    """The same for bfloat16, with sums as matrix products.

    No gradient flows from the statistics. The backward pass takes two sums where a derivative of
    the formulas would take five.
    """
    count = y.size // y.shape[-1]
    mean = column_sums(y) / count
    var = column_sums(jnp.square(y.astype(jnp.float32) - along_last(mean, y))) / count
    by = Statistics(mean, var)
    return normalise(y, by, scale, shift), by


def _batch_normal_forward(y: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple[Any, Any]:
    # Not `batch_normal`: a second derivative has to go through `by`.
    out, by = _batch_normal(y, scale, shift)
    return (out, by), (y, by, scale, shift)


def _batch_normal_backward(kept: Any, given: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    y, by, scale, shift = kept
    g = given[0].astype(jnp.float32)
    count, steep = y.size // y.shape[-1], jax.lax.rsqrt(by.var + EPSILON)
    normal = (y.astype(jnp.float32) - along_last(by.mean, y)) * along_last(steep, y)
    to_scale, to_shift = column_sums(g * normal), column_sums(given[0])
    apart = g - along_last(to_shift / count, y) - normal * along_last(to_scale / count, y)
    to_y = (apart * along_last(scale * steep, y)).astype(y.dtype)
    return to_y, to_scale.astype(scale.dtype), to_shift.astype(shift.dtype)


batch_normal = jax.custom_vjp(_batch_normal)
batch_normal.defvjp(_batch_normal_forward, _batch_normal_backward)


# --- convolutions ---------------------------------------------------------------------------------

Convolve = Callable[[jax.Array, jax.Array, int], jax.Array]  # (images BHWC, kernel HWIO, stride)


def same_conv(x_BHWC: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """Convolution with "SAME" padding, as one matrix product over shifted slices.

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
    down, along = stride * (rows - 1) + 1, stride * (columns - 1) + 1
    slices = [
        padded[:, i : i + down : stride, j : j + along : stride]
        for i in range(height)
        for j in range(width)
    ]
    return jnp.concatenate(slices, axis=-1) @ weight.reshape(-1, outputs)


def _in_tiles(
    padded: jax.Array, weight: jax.Array, side: int, rows: int, columns: int
) -> tuple[jax.Array, jax.Array]:
    """Equivalent images and kernel for stride 1: tiles of side × side pixels become channels.

    Slices of few channels are slow to put side by side: a 7×7 kernel has 49 of three channels, and
    in tiles of 2×2 it has 16 of twelve.
    """
    height, width, inputs, outputs = weight.shape
    up, along = -(-height // side), -(-width // side)
    more = (0, up * side - height), (0, along * side - width), (0, 0), (0, 0)
    weight = jnp.pad(weight, more).reshape(up, side, along, side, inputs, outputs)
    weight = weight.transpose(0, 2, 1, 3, 4, 5).reshape(up, along, -1, outputs)
    sizes = rows - 1 + up, columns - 1 + along
    missing = [size * side - old for size, old in zip(sizes, padded.shape[1:3], strict=True)]
    edges = (0, 0, 0), *((0, m, 0) for m in missing), (0, 0, 0)
    padded = jax.lax.pad(padded, jnp.zeros((), padded.dtype), edges)
    tiles = padded.reshape(-1, sizes[0], side, sizes[1], side, inputs).transpose(0, 1, 3, 2, 4, 5)
    return tiles.reshape(-1, *sizes, side * side * inputs), weight


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, tuple[int, int]]:
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return out, (total // 2, total - total // 2)


def xla_conv(x_BHWC: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """XLA's own convolution, which holds no slices: for large images and one worker a device."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x_BHWC, weight, (stride, stride), "SAME", dimension_numbers=layout
    )


CONVOLUTIONS: dict[str, Convolve] = {"product": same_conv, "xla": xla_conv}


def max_pool(x_BHWC: jax.Array, size: int, stride: int) -> jax.Array:
    """The largest value of each window: [B, H, W, C] → [B, ⌈H/stride⌉, ⌈W/stride⌉, C]."""
    least = np.array(-np.inf, x_BHWC.dtype)  # JAX recognises a maximum only by a NumPy constant
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return jax.lax.reduce_window(x_BHWC, least, jax.lax.max, window, strides, "SAME")


# --- modules --------------------------------------------------------------------------------------


class Linear(eqx.Module):
    """x W + b, for any number of leading axes."""

    weight: jax.Array  # [in, out]
    bias: jax.Array

    def __init__(self, weight: jax.Array):
        self.weight = weight
        self.bias = jnp.zeros(weight.shape[-1])

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in] → [..., out]."""
        return plus_bias(x @ self.weight, self.bias)


class Conv(eqx.Module):
    """A convolution with bias."""

    weight: jax.Array  # [height, width, in, out]
    bias: jax.Array
    stride: int = eqx.field(static=True)

    def __init__(self, weight: jax.Array, stride: int):
        self.weight = weight
        self.bias = jnp.zeros(weight.shape[-1])
        self.stride = stride

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """[B, H, W, in] → [B, ⌈H/stride⌉, ⌈W/stride⌉, out]."""
        return plus_bias(same_conv(x_BHWC, self.weight, self.stride), self.bias)


class LayerNorm(eqx.Module):
    """Each vector along the last axis brought to mean 0 and variance 1, then scaled and shifted."""

    scale: jax.Array
    shift: jax.Array

    def __init__(self, size: int):
        self.scale = jnp.ones(size)
        self.shift = jnp.zeros(size)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] → [..., D]."""
        wide = x.astype(jnp.float32)
        mean, var = jnp.mean(wide, -1, keepdims=True), jnp.var(wide, -1, keepdims=True)
        normal = (wide - mean) * jax.lax.rsqrt(var + EPSILON)
        return scaled_and_shifted(normal, self.scale, self.shift, x.dtype)


class ConvNorm(eqx.Module):
    """A convolution without bias, then BatchNorm over batch and space."""

    weight: jax.Array  # [height, width, in, out]
    scale: jax.Array
    shift: jax.Array
    stride: int = eqx.field(static=True)
    keep: float = eqx.field(static=True)
    convolve: Convolve = eqx.field(static=True)

    def __init__(
        self, weight: jax.Array, stride: int, keep: float = 0.9, convolve: Convolve = same_conv
    ):
        self.weight = weight
        self.scale = jnp.ones(weight.shape[-1])
        self.shift = jnp.zeros(weight.shape[-1])
        self.stride = stride
        self.keep = keep
        self.convolve = convolve

    def begin(self) -> Statistics:
        """Running statistics before the first batch."""
        return Statistics(jnp.zeros_like(self.shift), jnp.ones_like(self.scale))

    def train(self, x_BHWC: jax.Array, running: Statistics) -> tuple[jax.Array, Statistics]:
        """Normalise by the batch's statistics; the running ones move towards them."""
        y = self.convolve(x_BHWC, self.weight, self.stride)
        y, batch = by_own_statistics(y, self.scale, self.shift)
        blend = lambda old, new: self.keep * old + (1 - self.keep) * new
        return y, jax.tree.map(blend, running, batch)

    def infer(self, x_BHWC: jax.Array, running: Statistics) -> jax.Array:
        """Normalise by the running statistics."""
        y = self.convolve(x_BHWC, self.weight, self.stride)
        return normalise(y, running, self.scale, self.shift)


# --- equal blocks, compiled once ------------------------------------------------------------------

Step = Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]  # (block, x, its state) → (x, state)


def apply_blocks(
    blocks: Sequence[Any], x: jax.Array, states: Sequence[Any], step: Step
) -> tuple[jax.Array, list[Any]]:
    """x after all blocks (of equal shapes) in turn, and each block's state after it.

    Each block keeps parameters of its own, because the learned optimizers normalise features over
    one tensor. They are stacked only here, for `scan`: a copy of the weights a step saves most of
    the compile time.
    """
    after = []
    if len(blocks) < SCAN_FROM:
        for block, state in zip(blocks, states, strict=True):
            x, state = step(block, x, state)
            after.append(state)
        return x, after
    stack = lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    x, stacked = jax.lax.scan(
        lambda x, pair: step(pair[0], x, pair[1]), x, (stack(blocks), stack(states))
    )
    return x, [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(len(blocks))]
