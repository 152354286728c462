"""Matrix products inside a GPU kernel at a chosen precision; under the interpreter, the same
roundings in float32.

| name    | what is multiplied                          | relative error of a product, about |
| ---     | ---                                         | --- |
| float32 | float32 on ordinary units, slow             | 2⁻²⁴ |
| tf32x3  | three TF32 products, 2 × 11 bits a factor   | 2⁻²² |
| bf16x3  | three bfloat16 products, 2 × 8 bits         | 2⁻¹⁶ |
| tf32    | one TF32 product, 11 bits                   | 2⁻¹¹ |
| fp16    | one float16 product, 11 bits, small range   | 2⁻¹¹ |
| bf16    | one bfloat16 product, 8 bits                | 2⁻⁸ |

Sums are float32 in all of them. In a step at precision "fp16" only the second layer is multiplied
so, kept in range by `outer/reach.py`: features reach over more powers of ten than float16 does, and
the first layer is that of bf16x3. At precision "half" all three layers are, of features that have
been normalised before; see `outer/perceptron.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset

_PRESETS = {
    "float32": DotAlgorithmPreset.F32_F32_F32,
    "tf32x3": DotAlgorithmPreset.TF32_TF32_F32_X3,
    "tf32": DotAlgorithmPreset.TF32_TF32_F32,
}
# Bits of exponent and mantissa that are stored.
_BITS = {"tf32x3": (8, 10), "bf16x3": (8, 7), "tf32": (8, 10), "fp16": (5, 10), "bf16": (8, 7)}
PRECISIONS = ("float32", "tf32x3", "bf16x3", "tf32", "fp16", "half", "bf16")
_LAYERS = {"fp16": ("bf16x3", "fp16")}
Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def can_multiply(width: int) -> bool:
    """Whether Triton can multiply matrices of this width: a power of two from 16 on."""
    return width >= 16 and width & (width - 1) == 0


def products(precision: str, interpret: bool) -> tuple[Product, Product]:
    """The two hidden layers' products of a step at that precision."""
    first, second = _LAYERS.get(precision, (precision, precision))
    return product(first, interpret), product(second, interpret)


def product(precision: str, interpret: bool) -> Product:
    """(acc [P, N], x [P, F], w [F, N]) → acc + x·w, all float32; Triton adds inside the product if
    acc comes first."""
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
    """Numbers as float16; under the interpreter as float32 that have been rounded so."""
    return (
        (lambda x: jax.lax.reduce_precision(x, *_BITS["fp16"]))
        if interpret
        else (lambda x: x.astype(jnp.float16))
    )


def _cut(x: jax.Array) -> jax.Array:
    """The upper 16 bits of a float32 as one: a bfloat16 rounded towards zero, at the price of a
    single instruction."""
    upper = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-65536)
    return jax.lax.bitcast_convert_type(upper, jnp.float32)


def _imitated(precision: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """The same terms with operands rounded in the open: a CPU has no such units, and XLA drops
    casts there and back."""
    dot = lambda x, w: jnp.dot(x, w, precision=jax.lax.Precision.HIGHEST)
    if precision == "float32":
        return dot(x, w)
    high = lambda x: jax.lax.reduce_precision(x, *_BITS[precision])
    if not precision.endswith("x3"):
        return dot(high(x), high(w))
    x_high, w_high = _cut(x) if precision == "bf16x3" else high(x), high(w)
    return dot(high(x - x_high), w_high) + dot(x_high, high(w - w_high)) + dot(x_high, w_high)
