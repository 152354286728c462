"""A decoder-only language model: pre-LayerNorm, causal attention, learned or rotary positions.

Letters: B batch, T time, D hidden size.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.data.feed import Batch
from laconic.data.splits import Dataset
from laconic.errors import LaconicError, require_positive, unknown
from laconic.tasks.base import Task
from laconic.tasks.classifier import Compute, classifier_task
from laconic.tasks.layers import LayerNorm, Linear, fan_in_normals
from laconic.tasks.transformer import (
    Attend,
    Block,
    apply_transformer,
    block_shapes,
    causal_attention,
    make_blocks,
    rotary,
)

POSITIONS: dict[str, Attend] = {"learned": causal_attention, "rotary": rotary(causal_attention)}


class Decoder(eqx.Module):
    """Tokens → logits of the next token. The head is not tied to the embedding."""

    tokens: jax.Array  # [vocabulary, D]
    positions: jax.Array | None  # [context, D]; None where they are rotary
    blocks: tuple[Block, ...]
    norm: LayerNorm
    head: Linear
    attend: Attend = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        vocabulary: int,
        context: int,
        hidden: int,
        heads: int,
        layers: int,
        positions: str = "learned",
    ):
        require_positive(vocabulary=vocabulary, context=context)
        if positions not in POSITIONS:
            raise unknown("kind of positions", positions, POSITIONS)
        if positions == "rotary" and hidden % (2 * heads):
            raise LaconicError(
                f"rotary positions rotate pairs, but hidden={hidden} by heads={heads} gives heads "
                "of an odd size; make hidden a multiple of twice the heads."
            )
        learned = [(context, hidden)] if positions == "learned" else []
        outer = [(vocabulary, hidden), *learned, (hidden, vocabulary)]
        drawn = fan_in_normals(key, *outer, *block_shapes(hidden, heads, layers))
        self.tokens, *table, head = drawn[: len(outer)]
        self.positions = table[0] if table else None
        self.blocks = make_blocks(drawn[len(outer) :], heads)
        self.norm = LayerNorm(hidden)
        self.head = Linear(head)
        self.attend = POSITIONS[positions]

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        """Integers [B, T] with T ≤ context → logits [B, T, vocabulary]."""
        x_BTD = embed(self.tokens, tokens_BT)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions[None, : tokens_BT.shape[1]]
        return self.head(self.norm(apply_transformer(self.blocks, x_BTD, self.attend)))


@jax.custom_vjp
def embed(table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
    """Rows of the table, whose gradient is a product with one-hot vectors.

    The derivative of indexing is a scatter: slow, and summed in no fixed order on a GPU.
    """
    return table_VD[tokens_BT]


def _embed_backward(kept: tuple[jax.Array, jax.Array], g_BTD: jax.Array) -> tuple[jax.Array, None]:
    table_VD, tokens_BT = kept
    one_hot_BTV = jax.nn.one_hot(tokens_BT, table_VD.shape[0], dtype=g_BTD.dtype)
    return jnp.einsum("btv,btd->vd", one_hot_BTV, g_BTD), None


embed.defvjp(lambda table, tokens: (embed(table, tokens), (table, tokens)), _embed_backward)


def next_tokens(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Windows [B, T + 1] as inputs [B, T] and, one place on, targets [B, T]."""
    window = batch["x"].astype(jnp.int32)
    return window[:, :-1], window[:, 1:]


def lm_task(
    name: str,
    dataset: Dataset,
    *,
    context: int,
    hidden: int,
    heads: int,
    layers: int,
    positions: str = "learned",
    compute: Compute = None,
) -> Task:
    """Next-token prediction on a text: mean cross-entropy in nats a token."""
    sizes = dataset.classes, context, hidden, heads, layers, positions
    return classifier_task(name, lambda key: Decoder(key, *sizes), dataset, next_tokens, compute)
