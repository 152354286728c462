"""Powers of two that keep factors of the hidden layers inside float16, whose largest number is
65504.

A ReLU lets a factor above 0 through: relu(s·x) = s·relu(x). So each hidden unit's sum is scaled
before it, and what it is multiplied by afterwards is scaled back, once for all parameters of a
tensor; powers of two round nothing. How large a sum can be is known: a feature whose mean square
over n parameters is at most 1 is nowhere above √n.
"""

import jax
import jax.numpy as jnp

from laconic.outer.blocks import Layers
from laconic.outer.perceptron import WIDE

SUM, WEIGHT = (
    14,
    7,
)  # sums stay below 2¹⁵, the largest weight into a unit of the second layer below 2⁸
FAR = 100  # exponents of weights beyond 2^±100 are left outside


def largest_sums(w0_FN: jax.Array, bias_N: jax.Array, size: int) -> jax.Array:
    """No hidden unit's sum over normalised features of a tensor of `size` parameters is beyond
    this."""
    return jnp.sqrt(jnp.float32(size)) * jnp.sum(jnp.abs(w0_FN), axis=0) + jnp.abs(bias_N)


def second_within_float16(phi: Layers, largest_N: jax.Array) -> Layers:
    """The same function, with the first layer's sums and the second's weights in float16's range."""
    phi = _first_sums(phi, largest_N)
    return _second_sums(phi, WEIGHT - _exponent(jnp.max(jnp.abs(phi.w1), axis=0)))


def all_within_float16(phi: Layers, largest_N: jax.Array) -> Layers:
    """The same function, with all hidden units' sums in float16's range and the last layer's
    weights in two parts.

    What cannot be beyond 2¹⁵ after the first layer cannot be beyond Σ |w|·2¹⁵ + |b| after the
    second.
    """
    phi = _first_sums(phi, largest_N)
    largest = jnp.sum(jnp.abs(phi.w1), axis=0) * 2.0 ** (SUM + 1) + jnp.abs(phi.b1)
    phi = _second_sums(phi, SUM - _exponent(largest))
    top = _exponent(jnp.max(jnp.abs(phi.w2), axis=1))
    w2 = phi.w2 * _two_to(WEIGHT - top)[:, None]
    half = lambda x: jax.lax.reduce_precision(x, 5, 10)  # a cast there and back may be left out
    parts = jnp.stack([half(w2), half(w2 - half(w2))], axis=1)  # [2, parts, N]
    columns = jnp.pad(parts, ((0, 0), (0, WIDE // 2 - 2), (0, 0))).reshape(WIDE, -1)
    return phi._replace(w2=columns.T, back=_two_to(top - WEIGHT))


def _first_sums(phi: Layers, largest_N: jax.Array) -> Layers:
    """With sums of the first layer below 2¹⁵."""
    up = _exponent(largest_N)
    before = _two_to(SUM - up).reshape(1, 1, -1)
    by_b = None if phi.by_b is None else phi.by_b * before
    w1 = phi.w1 * _two_to(up - SUM)[:, None]
    return phi._replace(w0=phi.w0 * before, by_a=phi.by_a * before, by_b=by_b, w1=w1)


def _second_sums(phi: Layers, exponent_N: jax.Array) -> Layers:
    """With the second layer's sums times 2^exponent."""
    after, back = _two_to(exponent_N), _two_to(-exponent_N)
    return phi._replace(w1=phi.w1 * after[None, :], b1=phi.b1 * after, w2=phi.w2 * back[None, :])


def _exponent(x: jax.Array) -> jax.Array:
    """⌊log₂ x⌋ of a float32 that is not negative, from its bits."""
    return jnp.clip((jax.lax.bitcast_convert_type(x, jnp.int32) >> 23) - 127, -FAR, FAR)


def _two_to(exponent: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
