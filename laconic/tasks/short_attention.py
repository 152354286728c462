"""Attention over few positions in one kernel for NVIDIA GPUs, forward and backward; nothing but its
result is written.

A model with sixteen patches or tokens has thousands of products of 16 × 16, one for each example
and head. As batched matrix products each wants a pass over memory of its own and fills a sixteenth
of the tile that it is computed in. Here a program has one head of one example: queries, keys,
values and scores all stay in its registers.

Letters: B batch, T positions, D hidden size, N heads, E head size, P positions rounded up to a
power of two.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.units import has_units

LONGEST, WIDEST = 32, 64  # positions and head size that one warp keeps in its registers
NARROWEST = 16  # a side of what matrix units multiply
# of an H200: with two or four, both passes together took longer at T = 17, E = 64 and no less at T
# = E = 16
WARPS = 1


def has_kernel(T: int, E: int, dtype: Any) -> bool:
    """Whether there is a GPU for it and it is made for these: half precision, few positions, a
    power of two as E."""
    if jax.default_backend() != "gpu" or not has_units():
        return False
    return dtype == jnp.bfloat16 and T <= LONGEST and NARROWEST <= E <= WIDEST and E & (E - 1) == 0


Attend = Callable[
    [jax.Array, jax.Array, jax.Array], jax.Array
]  # q, k, v [B, T, N, E] → [B, T, N, E]


def over_heads(attend: Attend, heads: int, qkv: jax.Array) -> jax.Array:
    """Attention by a formula: queries, keys and values side by side [B, T, 3·D] → [B, T, D]."""
    B, T, threefold = qkv.shape
    parts = [part.reshape(B, T, heads, -1) for part in jnp.split(qkv, 3, axis=-1)]
    return attend(*parts).reshape(B, T, threefold // 3)


@cache
def short_attention(
    formula: Attend, heads: int, causal: bool, interpret: bool = False
) -> Callable[..., jax.Array]:
    """`over_heads` with every position seeing all, or those up to it, in the kernel.

    `formula` says the same in JAX. Whoever differentiates the gradient again, as meta-training by
    backpropagation does, differentiates that.
    """
    plain = partial(over_heads, formula, heads)

    def plain_slope(qkv: jax.Array, g_BTD: jax.Array) -> jax.Array:
        return jax.vjp(plain, qkv)[1](g_BTD)[0]

    call = partial(_call, heads, causal, interpret)

    @jax.custom_vjp
    def attend(qkv: jax.Array) -> jax.Array:
        return call(_forward, "attention", jax.eval_shape(plain, qkv), qkv)

    @jax.custom_vjp
    def slope(qkv: jax.Array, g_BTD: jax.Array) -> jax.Array:
        return call(
            _backward, "attention_gradient", jax.eval_shape(plain_slope, qkv, g_BTD), qkv, g_BTD
        )

    attend.defvjp(lambda qkv: (attend(qkv), qkv), lambda qkv, g_BTD: (slope(qkv, g_BTD),))
    slope.defvjp(
        lambda qkv, g_BTD: (slope(qkv, g_BTD), (qkv, g_BTD)),
        lambda kept, h: jax.vjp(plain_slope, *kept)[1](h),
    )
    return attend


def _call(
    heads: int,
    causal: bool,
    interpret: bool,
    program: Callable[..., None],
    name: str,
    out: jax.ShapeDtypeStruct,
    *arrays: jax.Array,
) -> jax.Array:
    """Run a program, whose references are whole arrays, for every head of every example."""
    B, T, threefold = arrays[0].shape
    sizes = T, heads, threefold // 3 // heads, max(NARROWEST, pl.next_power_of_2(T))
    run = pl.pallas_call(
        partial(program, sizes, causal),
        grid=(B * heads,),
        out_shape=out,
        interpret=interpret,
        name=name,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
    )
    return run(*arrays)


_dot = partial(jnp.dot, preferred_element_type=jnp.float32)
Sizes = tuple[int, int, int, int]  # T, N, E, P


def _forward(sizes: Sizes, causal: bool, qkv: Any, out: Any) -> None:
    q_PE, k_PE, v_PE = (_part(sizes, qkv, part) for part in range(3))
    o_PE = _dot(_shares(sizes, causal, q_PE, k_PE).astype(v_PE.dtype), v_PE)
    _write(sizes, out, 0, o_PE)


def _backward(sizes: Sizes, causal: bool, qkv: Any, g: Any, out: Any) -> None:
    q_PE, k_PE, v_PE = (_part(sizes, qkv, part) for part in range(3))
    g_PE = _part(sizes, g, 0)
    p_PP = _shares(sizes, causal, q_PE, k_PE)
    dp_PP = _dot(g_PE, v_PE.T)
    ds_PP = p_PP * (dp_PP - jnp.sum(p_PP * dp_PP, axis=1, keepdims=True)) / math.sqrt(sizes[2])
    ds_PP = ds_PP.astype(q_PE.dtype)
    _write(sizes, out, 0, _dot(ds_PP, k_PE))
    _write(sizes, out, 1, _dot(ds_PP.T, q_PE))
    _write(sizes, out, 2, _dot(p_PP.astype(g_PE.dtype).T, g_PE))


def _shares(sizes: Sizes, causal: bool, q_PE: jax.Array, k_PE: jax.Array) -> jax.Array:
    """How much each position takes from each other: the softmax of their scores."""
    T, _, E, P = sizes
    scores_PP = _dot(q_PE, k_PE.T) / math.sqrt(E)
    to, at = jnp.arange(P)[:, None], jnp.arange(P)[None, :]
    seen = (at < T) & (at <= to) if causal else at < T
    scores_PP = jnp.where(seen, scores_PP, -jnp.inf)
    weights_PP = jnp.exp(scores_PP - jnp.max(scores_PP, axis=1, keepdims=True))
    return weights_PP / jnp.sum(weights_PP, axis=1, keepdims=True)


def _where(sizes: Sizes, part: int) -> tuple[Any, jax.Array]:
    """This program's [P, E] of the part-th D columns, and which of its rows are there."""
    T, N, E, P = sizes
    b, n = pl.program_id(0) // N, pl.program_id(0) % N
    rows, columns = jnp.arange(P)[:, None], jnp.arange(E)[None, :]
    return (b, rows, (part * N + n) * E + columns), jnp.broadcast_to(rows < T, (P, E))


def _part(sizes: Sizes, ref: Any, part: int) -> jax.Array:
    at, live = _where(sizes, part)
    return triton.load(ref.at[at], mask=live, other=0.0)


def _write(sizes: Sizes, ref: Any, part: int, value: jax.Array) -> None:
    at, live = _where(sizes, part)
    triton.store(ref.at[at], value.astype(ref.dtype), mask=live)
