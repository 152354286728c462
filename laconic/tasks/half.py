"""What layers do along channels: biases, scales, BatchNorm; in bfloat16 with gradients of their
own.

The gradient of a vector that meets every row of a batch is a sum over the rows. In bfloat16 it is
taken here as a matrix product with ones, of what bfloat16 keeps of each number, added up in
float32. Any other type has JAX's own derivative.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

EPSILON = 1e-5  # beside a variance
ROWS_OF_ONES = 8  # fewer would be no matrix product to XLA, but a sum again


def along_last(vector: jax.Array, like: jax.Array) -> jax.Array:
    """A vector, shaped to meet the last axis of `like`."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def column_sums(x: jax.Array) -> jax.Array:
    """[..., D] → [D], the sums over all other axes in float32, of what bfloat16 keeps of each
    number."""
    flat = x.reshape(-1, x.shape[-1]).astype(jnp.bfloat16)
    # One that comes from the data has the data's axes under `vmap`: a constant would have its
    # product transpose them.
    one = jnp.where(flat[0, 0] > 0, 1.0, 1.0).astype(flat.dtype)
    ones = jnp.broadcast_to(one, (ROWS_OF_ONES, flat.shape[0]))
    return jnp.dot(ones, flat, preferred_element_type=jnp.float32)[0]


# --- biases and scales ----------------------------------------------------------------------------


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
    """x · scale + shift along the last axis of float32 numbers that were made of `dtype` and will
    be it again."""
    return (affine if dtype == jnp.bfloat16 else _affine)(x, scale, shift).astype(dtype)


def _affine(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    return x * along_last(scale, x) + along_last(shift, x)


def _affine_backward(kept: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, shift = kept
    return (
        g * along_last(scale, g),
        column_sums(g * x).astype(scale.dtype),
        column_sums(g).astype(shift.dtype),
    )


affine = jax.custom_vjp(_affine)
affine.defvjp(
    lambda x, scale, shift: (_affine(x, scale, shift), (x, scale, shift)), _affine_backward
)


# --- BatchNorm ------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """The running mean and (biased) variance of each channel: model state, not parameters."""

    mean: jax.Array
    var: jax.Array


def normalise(y: jax.Array, by: Statistics, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Each channel brought from that mean and variance to 0 and 1, scaled and shifted."""
    factor = scale * jax.lax.rsqrt(by.var + EPSILON)
    wide = y.astype(jnp.float32)
    return ((wide - along_last(by.mean, y)) * along_last(factor, y) + along_last(shift, y)).astype(
        y.dtype
    )


def by_own_statistics(
    y: jax.Array, scale: jax.Array, shift: jax.Array
) -> tuple[jax.Array, Statistics]:
    """Normalised by the mean and variance of the batch, and these."""
    if y.dtype == jnp.bfloat16:
        return batch_normal(y, scale, shift)
    wide, axes = y.astype(jnp.float32), tuple(range(y.ndim - 1))
    by = Statistics(jnp.mean(wide, axes), jnp.var(wide, axes))
    return normalise(y, by, scale, shift), by


def _batch_normal(y: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple[jax.Array, Statistics]:
    """The same with sums as products, for bfloat16.

    The statistics it gives are numbers to keep: no gradient comes from them. The backward pass
    takes two sums where a derivative of the formulas would take five.
    """
    count = y.size // y.shape[-1]
    mean = column_sums(y) / count
    var = column_sums(jnp.square(y.astype(jnp.float32) - along_last(mean, y))) / count
    return normalise(y, by := Statistics(mean, var), scale, shift), by


def _batch_normal_forward(y: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple[Any, Any]:
    out, by = _batch_normal(
        y, scale, shift
    )  # not `batch_normal`: whoever differentiates this again goes through `by`
    return (out, by), (y, by, scale, shift)


def _batch_normal_backward(kept: Any, given: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    (y, by, scale, shift), g = kept, given[0].astype(jnp.float32)
    count, steep = y.size // y.shape[-1], jax.lax.rsqrt(by.var + EPSILON)
    normal = (y.astype(jnp.float32) - along_last(by.mean, y)) * along_last(steep, y)
    to_scale, to_shift = column_sums(g * normal), column_sums(given[0])
    apart = g - along_last(to_shift / count, y) - normal * along_last(to_scale / count, y)
    to_y = (apart * along_last(scale * steep, y)).astype(y.dtype)
    return to_y, to_scale.astype(scale.dtype), to_shift.astype(shift.dtype)


batch_normal = jax.custom_vjp(_batch_normal)
batch_normal.defvjp(_batch_normal_forward, _batch_normal_backward)
