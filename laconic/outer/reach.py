"""Powers of two that keep the second layer's factors inside float16, whose largest number is 65504.

A ReLU lets a factor above 0 through: relu(s·x) = s·relu(x). So each hidden unit's sum is scaled before it, and what it
is multiplied by afterwards is scaled back, once for all parameters of a tensor; powers of two round nothing. How large
a sum can be is known: a feature whose mean square over n parameters is at most 1 is nowhere above √n.
"""

import jax
import jax.numpy as jnp

from laconic.outer.blocks import Layers

SUM, WEIGHT = 14, 7  # sums stay below 2¹⁵, the largest weight into a unit of the second layer below 2⁸
FAR = 60  # exponents of weights beyond 2^±60 are left outside


def largest_sums(w0_FN: jax.Array, bias_N: jax.Array, size: int) -> jax.Array:
    """No hidden unit's sum over normalised features of a tensor of `size` parameters is beyond this."""
    return jnp.sqrt(jnp.float32(size)) * jnp.sum(jnp.abs(w0_FN), axis=0) + jnp.abs(bias_N)


def within_float16(phi: Layers, largest_N: jax.Array) -> Layers:
    """The same function, with sums and weights of the second layer in float16's range."""
    up = _exponent(largest_N)
    before = _two_to(SUM - up).reshape(1, 1, -1)
    w1 = phi.w1 * _two_to(up - SUM)[:, None]
    out = _exponent(jnp.max(jnp.abs(w1), axis=0))
    after, back = _two_to(WEIGHT - out), _two_to(out - WEIGHT)[None, :]
    by_b = None if phi.by_b is None else phi.by_b * before
    scaled = phi._replace(w0=phi.w0 * before, by_a=phi.by_a * before, by_b=by_b)
    return scaled._replace(w1=w1 * after[None, :], b1=phi.b1 * after, w2=phi.w2 * back)


def _exponent(x: jax.Array) -> jax.Array:
    """⌊log₂ x⌋ of a float32 that is not negative, from its bits."""
    return jnp.clip((jax.lax.bitcast_convert_type(x, jnp.int32) >> 23) - 127, -FAR, FAR)


def _two_to(exponent: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
