"""A transformer's block and its attention: everywhere or only back in time, with or without rotary
positions.

Letters: B batch, T S time, D hidden size, N heads, E head size.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.errors import LaconicError, require_positive
from laconic.tasks.layers import LayerNorm, Linear
from laconic.tasks.short_attention import Attend, has_kernel, over_heads, short_attention
from laconic.tasks.tower import through

ROTARY_BASE = 10_000.0


def everywhere(q_BTNE: jax.Array, k_BSNE: jax.Array, v_BSNE: jax.Array) -> jax.Array:
    """Every position sees every position."""
    return _mix(_scores(q_BTNE, k_BSNE), v_BSNE)


def causal(q_BTNE: jax.Array, k_BSNE: jax.Array, v_BSNE: jax.Array) -> jax.Array:
    """Position t sees positions 0…t."""
    scores_BNTS = _scores(q_BTNE, k_BSNE)
    seen_TS = jnp.tril(jnp.ones(scores_BNTS.shape[-2:], bool))
    return _mix(jnp.where(seen_TS[None, None], scores_BNTS, -jnp.inf), v_BSNE)


def rotary(attend: Attend) -> Attend:
    """The same with queries and keys turned by their positions: scores depend on distances only (Su
    et al., 2021)."""
    return lambda q_BTNE, k_BSNE, v_BSNE: attend(turned(q_BTNE), turned(k_BSNE), v_BSNE)


def turned(x_BTNE: jax.Array) -> jax.Array:
    """Pairs (i, i + E/2) of position t turned by the angle t·10000^(−2i/E)."""
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
        if attend in (everywhere, causal) and has_kernel(
            T, threefold // 3 // self.heads, qkv.dtype
        ):
            return short_attention(attend, self.heads, attend is causal)(qkv)
        return over_heads(attend, self.heads, qkv)


def block_shapes(hidden: int, heads: int, layers: int) -> list[tuple[int, int]]:
    """The shapes of the four weights of each of so many blocks, one after the other."""
    require_positive(hidden=hidden, heads=heads, layers=layers)
    if hidden % heads:
        raise LaconicError(
            f"hidden={hidden} cannot be shared evenly by heads={heads}; make it a multiple."
        )
    return [
        (hidden, 3 * hidden),
        (hidden, hidden),
        (hidden, 4 * hidden),
        (4 * hidden, hidden),
    ] * layers


def blocks_of(weights: Sequence[jax.Array], heads: int) -> tuple[Block, ...]:
    """The blocks made of weights of those shapes."""
    return tuple(Block(weights[i : i + 4], heads) for i in range(0, len(weights), 4))


def through_blocks(blocks: Sequence[Block], x_BTD: jax.Array, attend: Attend) -> jax.Array:
    """All blocks in turn.

    Of each only what its matrix products give is kept for the backward pass: all else is cheaper to
    compute again than to write out and read back.
    """
    lean = jax.checkpoint(
        lambda block, x, state: (block(x, attend), state),
        policy=jax.checkpoint_policies.dots_saveable,
        prevent_cse=False,  # nothing to merge with across the steps of a scan
    )
    return through(blocks, x_BTD, [()] * len(blocks), lean)[0]
