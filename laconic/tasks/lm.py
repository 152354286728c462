"""A byte-level language model: a decoder with pre-LayerNorm, learned positions and causal attention.

Letters: B batch, T time, D hidden size, N heads, E head size.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.data.feed import Batch
from laconic.data.splits import Dataset
from laconic.errors import LaconicError, require_positive
from laconic.tasks.base import Task
from laconic.tasks.classifier import classifier_task
from laconic.tasks.layers import LayerNorm, Linear, fan_in_normals


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

    @staticmethod
    def shapes(hidden: int) -> list[tuple[int, int]]:
        """The shapes of a block's four weights."""
        return [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """[B, T, D] → [B, T, D]; position t sees positions 0…t."""
        x_BTD = x_BTD + self.out(self._attend(self.qkv(self.norm_attention(x_BTD))))
        return x_BTD + self.down(jax.nn.gelu(self.up(self.norm_mlp(x_BTD))))

    def _attend(self, qkv: jax.Array) -> jax.Array:
        B, T, threefold = qkv.shape
        hidden = threefold // 3
        q_BTNE, k_BTNE, v_BTNE = (
            part.reshape(B, T, self.heads, hidden // self.heads) for part in jnp.split(qkv, 3, axis=-1)
        )
        scores_BNTS = jnp.einsum("btne,bsne->bnts", q_BTNE, k_BTNE) / math.sqrt(hidden // self.heads)
        seen_TS = jnp.tril(jnp.ones((T, T), bool))
        weights_BNTS = jax.nn.softmax(jnp.where(seen_TS[None, None], scores_BNTS, -jnp.inf))
        return jnp.einsum("bnts,bsne->btne", weights_BNTS, v_BTNE).reshape(B, T, hidden)


class ByteDecoder(eqx.Module):
    """Bytes → logits of the next byte. The head is not tied to the embedding."""

    tokens: jax.Array  # [vocabulary, D]
    positions: jax.Array  # [context, D]
    blocks: tuple[Block, ...]
    norm: LayerNorm
    head: Linear

    def __init__(self, key: jax.Array, vocabulary: int, context: int, hidden: int, heads: int, layers: int):
        require_positive(context=context, hidden=hidden, heads=heads, layers=layers)
        if hidden % heads:
            raise LaconicError(f"hidden={hidden} cannot be shared evenly by heads={heads}; make it a multiple.")
        block = Block.shapes(hidden)
        outer = [(vocabulary, hidden), (context, hidden), (hidden, vocabulary)]
        self.tokens, self.positions, head, *inner = fan_in_normals(key, *outer, *block * layers)
        self.blocks = tuple(Block(inner[i : i + len(block)], heads) for i in range(0, len(inner), len(block)))
        self.norm = LayerNorm(hidden)
        self.head = Linear(head)

    def __call__(self, bytes_BT: jax.Array) -> jax.Array:
        """Integers [B, T] with T ≤ context → logits [B, T, vocabulary]."""
        chosen = jax.nn.one_hot(bytes_BT, self.tokens.shape[0])  # a product: indexing has a slow scatter as gradient
        x_BTD = chosen @ self.tokens + self.positions[None, : bytes_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


def next_bytes(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Windows [B, T + 1] as inputs [B, T] and, one place on, targets [B, T]."""
    window = batch["x"].astype(jnp.int32)
    return window[:, :-1], window[:, 1:]


def byte_lm_task(name: str, dataset: Dataset, *, context: int, hidden: int, heads: int, layers: int) -> Task:
    """Next-byte prediction on a text: mean cross-entropy in nats a byte."""
    sizes = dataset.classes, context, hidden, heads, layers
    return classifier_task(name, lambda key: ByteDecoder(key, *sizes), dataset, next_bytes)
