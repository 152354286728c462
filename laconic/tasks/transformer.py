"""Transformer blocks and their attention: full or causal, with or without rotary positions.

On NVIDIA GPUs, bfloat16 attention over few positions is one kernel, forward and backward. A model
with sixteen patches or tokens has thousands of products of 16 × 16, one for each example and head.
As batched matrix products each needs its own pass over memory and fills a sixteenth of the tile it
is computed in. In the kernel a program takes one head of one example and keeps queries, keys,
values and scores in registers.

Letters: B batch, T S time, D hidden size, N heads, E head size, P positions rounded up to a power
of two.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.device import has_tensor_cores
from laconic.errors import LaconicError, require_positive
from laconic.tasks.layers import LayerNorm, Linear, apply_blocks

ROTARY_BASE = 10_000.0
LONGEST, WIDEST = 32, 64  # positions and head size that one warp keeps in its registers
NARROWEST = 16  # smallest side that matrix units multiply
WARPS = 1  # measured on an H200: two or four are slower at T = 17, E = 64, no faster at T = E = 16

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # q, k, v [B, T, N, E] → the same


# --- attention as formulas ------------------------------------------------------------------------


def full_attention(q_BTNE: jax.Array, k_BSNE: jax.Array, v_BSNE: jax.Array) -> jax.Array:
    """Every position sees every position."""
    return _mix(_scores(q_BTNE, k_BSNE), v_BSNE)


def causal_attention(q_BTNE: jax.Array, k_BSNE: jax.Array, v_BSNE: jax.Array) -> jax.Array:
    """Position t sees positions 0…t."""
    scores_BNTS = _scores(q_BTNE, k_BSNE)
    seen_TS = jnp.tril(jnp.ones(scores_BNTS.shape[-2:], bool))
    return _mix(jnp.where(seen_TS[None, None], scores_BNTS, -jnp.inf), v_BSNE)


def rotary(attend: Attend) -> Attend:
    """The same with rotated queries and keys: scores depend on distances only (Su et al., 2021)."""
    return lambda q_BTNE, k_BSNE, v_BSNE: attend(rotate(q_BTNE), rotate(k_BSNE), v_BSNE)


def rotate(x_BTNE: jax.Array) -> jax.Array:
    """Pairs (i, i + E/2) of position t rotated by the angle t·10000^(−2i/E)."""
    _, T, _, E = x_BTNE.shape
    speeds = ROTARY_BASE ** (-jnp.arange(0, E, 2, dtype=jnp.float32) / E)
    angles_TE = jnp.arange(T, dtype=jnp.float32)[:, None] * speeds[None]
    cos, sin = jnp.cos(angles_TE)[None, :, None], jnp.sin(angles_TE)[None, :, None]
    a, b = jnp.split(x_BTNE.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x_BTNE.dtype)


def _scores(q_BTNE: jax.Array, k_BSNE: jax.Array) -> jax.Array:
    scores_BNTS = jnp.einsum("btne,bsne->bnts", q_BTNE, k_BSNE) / math.sqrt(q_BTNE.shape[-1])
    return scores_BNTS.astype(jnp.float32)


def _mix(scores_BNTS: jax.Array, v_BSNE: jax.Array) -> jax.Array:
    return jnp.einsum("bnts,bsne->btne", jax.nn.softmax(scores_BNTS).astype(v_BSNE.dtype), v_BSNE)


def over_heads(attend: Attend, heads: int, qkv: jax.Array) -> jax.Array:
    """Attention by a formula: queries, keys and values side by side [B, T, 3·D] → [B, T, D]."""
    B, T, threefold = qkv.shape
    parts = [part.reshape(B, T, heads, -1) for part in jnp.split(qkv, 3, axis=-1)]
    return attend(*parts).reshape(B, T, threefold // 3)


# --- attention over few positions as a kernel -----------------------------------------------------


def has_kernel(T: int, E: int, dtype: Any) -> bool:
    """Whether a GPU can run the kernel: bfloat16, few positions, E a power of two."""
    if jax.default_backend() != "gpu" or not has_tensor_cores():
        return False
    return dtype == jnp.bfloat16 and T <= LONGEST and NARROWEST <= E <= WIDEST and E & (E - 1) == 0


@cache
def short_attention(
    formula: Attend, heads: int, causal: bool, interpret: bool = False
) -> Callable[..., jax.Array]:
    """`over_heads` in the kernel; `formula` is the same attention in JAX.

    Second derivatives, as in meta-training by backpropagation, are those of the formula.
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
        out = jax.eval_shape(plain_slope, qkv, g_BTD)
        return call(_backward, "attention_gradient", out, qkv, g_BTD)

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
    o_PE = _dot(_weights(sizes, causal, q_PE, k_PE).astype(v_PE.dtype), v_PE)
    _write(sizes, out, 0, o_PE)


def _backward(sizes: Sizes, causal: bool, qkv: Any, g: Any, out: Any) -> None:
    q_PE, k_PE, v_PE = (_part(sizes, qkv, part) for part in range(3))
    g_PE = _part(sizes, g, 0)
    p_PP = _weights(sizes, causal, q_PE, k_PE)
    dp_PP = _dot(g_PE, v_PE.T)
    ds_PP = p_PP * (dp_PP - jnp.sum(p_PP * dp_PP, axis=1, keepdims=True)) / math.sqrt(sizes[2])
    ds_PP = ds_PP.astype(q_PE.dtype)
    _write(sizes, out, 0, _dot(ds_PP, k_PE))
    _write(sizes, out, 1, _dot(ds_PP.T, q_PE))
    _write(sizes, out, 2, _dot(p_PP.astype(g_PE.dtype).T, g_PE))


def _weights(sizes: Sizes, causal: bool, q_PE: jax.Array, k_PE: jax.Array) -> jax.Array:
    """Attention weights: the softmax of the scores."""
    T, _, E, P = sizes
    scores_PP = _dot(q_PE, k_PE.T) / math.sqrt(E)
    to, at = jnp.arange(P)[:, None], jnp.arange(P)[None, :]
    seen = (at < T) & (at <= to) if causal else at < T
    scores_PP = jnp.where(seen, scores_PP, -jnp.inf)
    weights_PP = jnp.exp(scores_PP - jnp.max(scores_PP, axis=1, keepdims=True))
    return weights_PP / jnp.sum(weights_PP, axis=1, keepdims=True)


def _where(sizes: Sizes, part: int) -> tuple[Any, jax.Array]:
    """The indices of this program's [P, E] in the part-th D columns, and a mask of valid rows."""
    T, N, E, P = sizes
    b, n = pl.program_id(0) // N, pl.program_id(0) % N
    rows, columns = jnp.arange(P)[:, None], jnp.arange(E)[None, :]
    return (b, rows, (part * N + n) * E + columns), jnp.broadcast_to(rows < T, (P, E))


def _part(sizes: Sizes, ref: Any, part: int) -> jax.Array:
    at, valid = _where(sizes, part)
    return triton.load(ref.at[at], mask=valid, other=0.0)


def _write(sizes: Sizes, ref: Any, part: int, value: jax.Array) -> None:
    at, valid = _where(sizes, part)
    triton.store(ref.at[at], value.astype(ref.dtype), mask=valid)


# --- blocks ---------------------------------------------------------------------------------------


class Block(eqx.Module):
    """x + attention(LN x), then x + MLP(LN x) with 4·D hidden units and GELU."""

    norm_attention: LayerNorm
    qkv: Linear
    out: Linear
    norm_mlp: LayerNorm
    up: Linear
    down: Linear
    heads: int = eqx.field(static=True)

    def __init__(self, weights: Sequence[jax.Array], heads: int):
        self.qkv, self.out, self.up, self.down = map(Linear, weights)
        self.norm_attention, self.norm_mlp = (LayerNorm(weights[0].shape[0]) for _ in range(2))
        self.heads = heads

    def __call__(self, x_BTD: jax.Array, attend: Attend) -> jax.Array:
        """[B, T, D] → [B, T, D]."""
        x_BTD = x_BTD + self.out(self._attend(self.qkv(self.norm_attention(x_BTD)), attend))
        return x_BTD + self.down(jax.nn.gelu(self.up(self.norm_mlp(x_BTD))))

    def _attend(self, qkv: jax.Array, attend: Attend) -> jax.Array:
        _, T, threefold = qkv.shape
        plain = attend in (full_attention, causal_attention)
        if plain and has_kernel(T, threefold // 3 // self.heads, qkv.dtype):
            return short_attention(attend, self.heads, attend is causal_attention)(qkv)
        return over_heads(attend, self.heads, qkv)


def block_shapes(hidden: int, heads: int, layers: int) -> list[tuple[int, int]]:
    """The shapes of the four weights of each block, block after block."""
    require_positive(hidden=hidden, heads=heads, layers=layers)
    if hidden % heads:
        raise LaconicError(
            f"hidden={hidden} cannot be shared evenly by heads={heads}; make it a multiple."
        )
    qkv, out = (hidden, 3 * hidden), (hidden, hidden)
    up, down = (hidden, 4 * hidden), (4 * hidden, hidden)
    return [qkv, out, up, down] * layers


def make_blocks(weights: Sequence[jax.Array], heads: int) -> tuple[Block, ...]:
    """The blocks made of weights of those shapes."""
    return tuple(Block(weights[i : i + 4], heads) for i in range(0, len(weights), 4))


def apply_transformer(blocks: Sequence[Block], x_BTD: jax.Array, attend: Attend) -> jax.Array:
    """All blocks in turn.

    The backward pass keeps only the results of matrix products: everything else is cheaper to
    recompute than to write out and read back.
    """
    lean = jax.checkpoint(
        lambda block, x, state: (block(x, attend), state),
        policy=jax.checkpoint_policies.dots_saveable,
        prevent_cse=False,  # nothing to merge with across the steps of a scan
    )
    return apply_blocks(blocks, x_BTD, [()] * len(blocks), lean)[0]
