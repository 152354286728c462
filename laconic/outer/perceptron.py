"""The MLP inside a GPU kernel: features of P parameters → the two outputs for each.

| precision | what is multiplied                          | relative error of a product, about |
| ---       | ---                                         | --- |
| float32   | float32 on ordinary units, slow             | 2⁻²⁴ |
| tf32x3    | three TF32 products, 2 × 11 bits a factor   | 2⁻²² |
| bf16x3    | three bfloat16 products, 2 × 8 bits         | 2⁻¹⁶ |
| tf32      | one TF32 product, 11 bits                   | 2⁻¹¹ |
| fp16      | one float16 product, 11 bits, small range   | 2⁻¹¹ |
| half      | the same in all three layers                | 2⁻¹¹ |
| bf16      | one bfloat16 product, 8 bits                | 2⁻⁸ |

Sums are float32 in all of them; under Pallas's interpreter the operands are rounded likewise and
multiplied in float32. At "fp16" only the second layer is in float16: features range over more
powers of ten than float16 does, so the first layer is that of bf16x3. At "half" features are
normalised before they are multiplied, ReLUs take two float16 numbers at a time, and the last layer
is on matrix units too. Its weights come in two parts, a number and what float16 leaves of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset

from laconic.outer.layout import Layers

# Columns of the last layer's weights at "half", the fewest that Triton multiplies by; half for each
# output.
WIDE = 16
SUM = 14  # at "fp16" and "half" sums stay below 2¹⁵,
WEIGHT = 7  # and the largest weight into a unit of the second layer below 2⁸
FAR = 100  # exponents of weights beyond 2^±100 are clipped
_PRESETS = {
    "float32": DotAlgorithmPreset.F32_F32_F32,
    "tf32x3": DotAlgorithmPreset.TF32_TF32_F32_X3,
    "tf32": DotAlgorithmPreset.TF32_TF32_F32,
}
# Bits of exponent and mantissa that are stored.
_BITS = {"tf32x3": (8, 10), "bf16x3": (8, 7), "tf32": (8, 10), "fp16": (5, 10), "bf16": (8, 7)}
PRECISIONS = ("float32", "tf32x3", "bf16x3", "tf32", "fp16", "half", "bf16")
_LAYERS = {"fp16": ("bf16x3", "fp16")}
Perceptron = Callable[[Sequence[jax.Array], jax.Array], tuple[jax.Array, jax.Array]]
Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def perceptron(phi: Layers, tensor: Any, by_b: jax.Array | None, P: int, tuning: Any) -> Perceptron:
    """(features [P] each, what their rows add [·, N]) → two outputs [P]."""
    return (_in_half if tuning.precision == "half" else _in_parts)(phi, tensor, by_b, P, tuning)


def _in_parts(phi: Layers, tensor: Any, by_b: jax.Array | None, P: int, tuning: Any) -> Perceptron:
    first, second = _LAYERS.get(tuning.precision, (tuning.precision, tuning.precision))
    dot_first, dot_second = product(first, tuning.interpret), product(second, tuning.interpret)
    tile = (P, phi.b1.shape[0])
    w0, w1, b1 = phi.w0[tensor], phi.w1[...], jnp.broadcast_to(phi.b1[...][None, :], tile)
    last = [phi.w2[out, :] for out in (0, 1)] if tuning.hold else []

    def run(features: Sequence[jax.Array], by_a: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.broadcast_to(by_a, tile) if by_b is None else by_b + by_a
        if tuning.first == "dot":
            h = dot_first(h, joined(features, w0.shape[0]), w0)
        else:
            for f, x in enumerate(features):
                h = h + x[:, None] * phi.w0[tensor, f, :][None, :]
        h = relu(dot_second(b1, relu(h), w1))
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
        normalised = [half(x * scale) for x, scale in zip(features, scales, strict=True)]
        h = relu(half(dot(first, joined(normalised, w0.shape[0]), w0) + by_a))
        h = relu(half(dot(second, h, w1)))
        both = dot(jnp.zeros((P, WIDE), jnp.float32), h, w2)
        left, right = (jnp.sum(jnp.where(mine, both, 0.0), axis=1) for mine in (is_left, ~is_left))
        return left * phi.back[0] + phi.b2[tensor, 0], right * phi.back[1] + phi.b2[tensor, 1]

    return run


def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), which Triton takes to be 0 for NaN."""
    return jnp.maximum(x, jnp.zeros_like(x))


def joined(columns: Sequence[jax.Array], count: int) -> jax.Array:
    """Vectors [P] side by side as [P, count], the rest 0; in registers, by pairs of pairs."""
    parts = [*columns, *[jnp.zeros_like(columns[0])] * (count - len(columns))]
    while len(parts) > 1:
        middle = len(parts) // 2
        pairs = zip(parts[:middle], parts[middle:], strict=True)
        parts = [jnp.concatenate([x[..., None], y[..., None]], axis=-1) for x, y in pairs]
    return parts[0].reshape(columns[0].shape[0], count)


def can_multiply(width: int) -> bool:
    """Whether Triton can multiply matrices of this width: a power of two from 16 on."""
    return width >= 16 and width & (width - 1) == 0


def product(precision: str, interpret: bool) -> Product:
    """(acc, x, w) → acc + x·w, all float32; Triton adds inside the product if acc comes first."""
    if interpret:
        return lambda acc, x, w: acc + _imitated(precision, x, w)
    if precision in _PRESETS:
        return lambda acc, x, w: acc + jnp.dot(x, w, precision=_PRESETS[precision])
    half = rounded(False) if precision == "fp16" else lambda x: x.astype(jnp.bfloat16)
    add = lambda acc, x, w: acc + jnp.dot(x, w, preferred_element_type=jnp.float32)
    if precision in ("bf16", "fp16"):
        return lambda acc, x, w: add(acc, half(x), half(w))
    assert precision == "bf16x3", precision

    def in_three(acc: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        x_high, w_high = _cut(x), half(w)
        x_low, w_low = half(x - x_high), half(w - w_high.astype(jnp.float32))
        acc = add(add(acc, x_low, w_high), half(x_high), w_low)  # the small ones first
        return add(acc, half(x_high), w_high)

    return in_three


def rounded(interpret: bool) -> Callable[[jax.Array], jax.Array]:
    """Rounds to float16; under the interpreter the result stays a float32."""
    if interpret:
        return lambda x: jax.lax.reduce_precision(x, *_BITS["fp16"])
    return lambda x: x.astype(jnp.float16)


def _cut(x: jax.Array) -> jax.Array:
    """A float32 rounded towards zero to the 16 bits of a bfloat16, by a single instruction."""
    upper = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-65536)
    return jax.lax.bitcast_convert_type(upper, jnp.float32)


def _imitated(precision: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """The same terms with operands rounded explicitly: XLA drops casts there and back."""
    dot = lambda x, w: jnp.dot(x, w, precision=jax.lax.Precision.HIGHEST)
    if precision == "float32":
        return dot(x, w)
    high = lambda x: jax.lax.reduce_precision(x, *_BITS[precision])
    if not precision.endswith("x3"):
        return dot(high(x), high(w))
    x_high, w_high = _cut(x) if precision == "bf16x3" else high(x), high(w)
    return dot(high(x - x_high), w_high) + dot(x_high, high(w - w_high)) + dot(x_high, w_high)


# Powers of two keep the hidden layers inside float16, whose largest number is 65504. A ReLU lets a
# positive factor through: relu(s·x) = s·relu(x). So each hidden unit's sum is scaled before the
# ReLU, and the weights after it scale back, once for all parameters of a tensor; powers of two
# round nothing. Sums are bounded: a feature whose mean square over n parameters is at most 1 is
# nowhere above √n.


def largest_sums(w0_FN: jax.Array, bias_N: jax.Array, size: int) -> jax.Array:
    """A bound of every hidden unit's sum over normalised features of `size` parameters."""
    return jnp.sqrt(jnp.float32(size)) * jnp.sum(jnp.abs(w0_FN), axis=0) + jnp.abs(bias_N)


def second_within_float16(phi: Layers, largest_N: jax.Array) -> Layers:
    """The same function, the first layer's sums and the second's weights within float16."""
    phi = _scale_first(phi, largest_N)
    return _scale_second(phi, WEIGHT - _exponent(jnp.max(jnp.abs(phi.w1), axis=0)))


def all_within_float16(phi: Layers, largest_N: jax.Array) -> Layers:
    """The same function, all hidden units' sums within float16, the last weights in two parts.

    If the first layer's sums are below 2¹⁵, the second's are below Σ |w|·2¹⁵ + |b|.
    """
    phi = _scale_first(phi, largest_N)
    largest = jnp.sum(jnp.abs(phi.w1), axis=0) * 2.0 ** (SUM + 1) + jnp.abs(phi.b1)
    phi = _scale_second(phi, SUM - _exponent(largest))
    top = _exponent(jnp.max(jnp.abs(phi.w2), axis=1))
    w2 = phi.w2 * _two_to(WEIGHT - top)[:, None]
    half = lambda x: jax.lax.reduce_precision(x, 5, 10)  # a cast there and back may be left out
    parts = jnp.stack([half(w2), half(w2 - half(w2))], axis=1)  # [2, parts, N]
    columns = jnp.pad(parts, ((0, 0), (0, WIDE // 2 - 2), (0, 0))).reshape(WIDE, -1)
    return phi._replace(w2=columns.T, back=_two_to(top - WEIGHT))


def _scale_first(phi: Layers, largest_N: jax.Array) -> Layers:
    """With sums of the first layer below 2¹⁵."""
    up = _exponent(largest_N)
    before = _two_to(SUM - up).reshape(1, 1, -1)
    by_b = None if phi.by_b is None else phi.by_b * before
    w1 = phi.w1 * _two_to(up - SUM)[:, None]
    return phi._replace(w0=phi.w0 * before, by_a=phi.by_a * before, by_b=by_b, w1=w1)


def _scale_second(phi: Layers, exponent_N: jax.Array) -> Layers:
    """With the second layer's sums times 2^exponent."""
    after, back = _two_to(exponent_N), _two_to(-exponent_N)
    return phi._replace(w1=phi.w1 * after[None, :], b1=phi.b1 * after, w2=phi.w2 * back[None, :])


def _exponent(x: jax.Array) -> jax.Array:
    """⌊log₂ x⌋ of a float32 that is not negative, from its bits."""
    return jnp.clip((jax.lax.bitcast_convert_type(x, jnp.int32) >> 23) - 127, -FAR, FAR)


def _two_to(exponent: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
