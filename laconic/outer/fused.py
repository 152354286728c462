"""The MLP of one tensor's learned step as a single GPU kernel: only raw fields are read from
memory.

The tensor is seen as [L, A, B], its two factored axes last. Features that are the same along a row
or a column enter the first layer as precomputed vectors; the per-parameter ones are formed in
registers from the raw fields (Δ, W, m, v), so per parameter only those are read and one number is
written. Letters: n deltas (1 or K) · N hidden units · c one of the three decays · λ the scale of a
step.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.architecture import features_along
from laconic.outer.features import Ada, Fields, each_number, first_layer, of_side
from laconic.outer.kernels import whole
from laconic.outer.perceptron import can_multiply

BLOCK = 64  # columns of a program; on an H200 faster than 32 and 128, with four warps


class First(NamedTuple):
    """The first layer: weights of per-parameter features, and what rows and columns add."""

    parameter: jax.Array  # [F, N]
    by_row: jax.Array  # [L, A, N], the bias included
    by_column: jax.Array  # [L, N, B]


class Layers(NamedTuple):
    """The second and third layer, as [out, in]."""

    w1: jax.Array
    b1: jax.Array
    w2: jax.Array
    b2: jax.Array


class Raw(NamedTuple):
    """What is read for each parameter, and factors of its row [3, L, A] and column [3, L, B]."""

    deltas: jax.Array  # [n, L, A, B]
    mean: jax.Array | None  # [L, A, B]; None if it is the only delta
    parameter: jax.Array
    m: jax.Array  # [3, L, A, B]
    v: jax.Array
    row_factors: jax.Array
    col_factors: jax.Array


def serves(hidden: int, ada: Ada | None) -> bool:
    """Whether the kernel can take this tensor: factored, of a width that Triton can multiply."""
    return ada is not None and ada.col is not None and can_multiply(hidden)


def learned_step(
    theta: dict[str, jax.Array], fields: Fields, lam: float, interpret: bool = False
) -> jax.Array:
    """λ·d·exp(λ·m) [1, L, A, B] from a factored tensor's fields.

    φ's first layer has normalisers and time folded in. `interpret`: on any device, slowly.
    """
    n = fields.deltas.shape[0]
    parameter, w_rows, w_cols = (
        first_layer(theta["w0"], n, along) for along in ("parameter", "row", "column")
    )
    # Row accumulators average over the largest axis; if that is A, they run along the columns.
    of_row, of_col = fields.delta_factors
    sides = [("row", fields.row, of_row, w_rows), ("column", fields.col, of_col, w_cols)]
    along_a = fields.row.shape[2:] == (fields.param.shape[2], 1)
    (side_a, rows, row_factors, w_a), (side_b, cols, col_factors, w_b) = (
        sides if along_a else sides[::-1]
    )
    by_row = jnp.einsum("fn,fla->lan", w_a, of_side(side_a, rows, axis=0)[..., 0])
    by_column = jnp.einsum("fn,flb->lnb", w_b, of_side(side_b, cols, axis=0)[:, :, 0])
    first = First(parameter, by_row + theta["b0"][None, None, :], by_column)
    layers = Layers(theta["w1"].T, theta["b1"], theta["w2"].T, theta["b2"])
    mean = None if n == 1 else fields.mean[0]
    factors = row_factors[..., 0], col_factors[:, :, 0]
    raw = Raw(fields.deltas, mean, fields.param[0], fields.m, fields.v[0], *factors)
    return _run(first, layers, raw, lam, interpret)[None]


def _run(first: First, layers: Layers, raw: Raw, lam: float, interpret: bool) -> jax.Array:
    """The kernel over every parameter [L, A, B]."""
    L, A, B = raw.parameter.shape
    block = min(BLOCK, max(16, pl.next_power_of_2(B)))
    arrays = [x for x in (*first, *layers, *raw) if x is not None]
    run = pl.pallas_call(
        partial(_kernel, raw.mean is not None, block, lam),
        grid=(L * A, pl.cdiv(B, block)),
        in_specs=[whole(x.shape) for x in arrays],
        out_specs=whole((L, A, B)),
        out_shape=jax.ShapeDtypeStruct((L, A, B), jnp.float32),
        interpret=interpret,
        name="learned_step",
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
    )
    return run(*arrays)


def _kernel(separate_mean: bool, block: int, lam: float, *refs: Any) -> None:
    """Program (i, j): row i, block j of columns."""
    w_parameter, by_row, by_column, w1, b1, w2, b2, deltas, *rest, out = refs
    mean, rest = (rest[0], rest[1:]) if separate_mean else (None, rest)
    parameter, m, v, row_factors, col_factors = rest
    L, A, B = parameter.shape
    i = pl.program_id(0)
    columns = pl.program_id(1) * block + jnp.arange(block)
    inside = columns < B
    live = inside & (i < L * A)
    a, layer = jax.lax.rem(i, A), jnp.minimum(jax.lax.div(i, A), L - 1)
    dot = partial(jnp.dot, preferred_element_type=jnp.float32)
    load = partial(triton.load, other=0.0)
    read = lambda ref, *lead: load(ref.at[(*lead, layer, a, columns)], mask=live)
    hidden = jnp.arange(by_column.shape[1])
    own = by_column.at[layer, hidden[:, None], columns[None, :]]
    wide = jnp.broadcast_to(inside[None, :], (hidden.size, columns.size))
    h = by_row[layer, a, :][:, None] + load(own, mask=wide)
    deltas_n = [read(deltas, k) for k in range(deltas.shape[0])]
    delta = deltas_n[0] if mean is None else read(mean)
    by_col = lambda c: load(col_factors.at[c, layer, columns], mask=inside)
    factors = [(row_factors[c, layer, a] * by_col(c),) for c in range(row_factors.shape[0])]
    m_3 = [read(m, c) for c in range(m.shape[0])]
    fields = Fields(deltas_n, delta, read(parameter), m_3, read(v), [], [], factors, factors)
    found = [x for f in features_along("parameter") for x in each_number(f, fields)]
    for number, feature in enumerate(found):
        h += w_parameter[number, :][:, None] * feature[None, :]
    h = jnp.maximum(dot(w1[...], jnp.maximum(h, 0.0)) + b1[...][:, None], 0.0)
    direction = jnp.sum(w2[0, :][:, None] * h, axis=0) + b2[0]
    magnitude = jnp.sum(w2[1, :][:, None] * h, axis=0) + b2[1]
    step = lam * direction * jnp.exp(lam * magnitude)
    step = jnp.where(jnp.isnan(delta), delta, step)  # a ReLU on a GPU turns NaN into 0
    triton.store(out.at[layer, a, columns], step, mask=live)
