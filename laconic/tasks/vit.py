"""A vision transformer (Dosovitskiy et al., 2020) with a class token and pre-LayerNorm blocks.

DeiT-tiny has hidden 192, 3 heads, 12 layers; ViT-B hidden 768, 12 heads, 12 layers. No dropout, no
distillation token. Letters: B batch, T patches, D hidden size, P side of a patch.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.data.splits import Dataset, image_shape
from laconic.errors import LaconicError, require_positive
from laconic.tasks.base import Task
from laconic.tasks.classifier import Compute, classifier_task
from laconic.tasks.layers import LayerNorm, Linear, fan_in_normals
from laconic.tasks.transformer import (
    Block,
    apply_transformer,
    block_shapes,
    full_attention,
    make_blocks,
)


class ViT(eqx.Module):
    """Images → logits, read off the class token."""

    embed: Linear  # [P·P·C, D]
    token: jax.Array  # [D]
    positions: jax.Array  # [1 + T, D]
    blocks: tuple[Block, ...]
    norm: LayerNorm
    head: Linear
    patch: int = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        shape: tuple[int, ...],
        classes: int,
        patch: int,
        hidden: int,
        heads: int,
        layers: int,
    ):
        require_positive(patch=patch)
        height, width, channels = shape
        if height % patch or width % patch:
            raise LaconicError(
                f"patches of {patch} do not tile images of {height}×{width}; use a divisor of both."
            )
        tokens = 1 + (height // patch) * (width // patch)
        outer = [(patch * patch * channels, hidden), (tokens, hidden), (hidden, classes)]
        embed, self.positions, head, *inner = fan_in_normals(
            key, *outer, *block_shapes(hidden, heads, layers)
        )
        self.embed = Linear(embed)
        self.head = Linear(head)
        self.token = jnp.zeros(hidden)
        self.blocks = make_blocks(inner, heads)
        self.norm = LayerNorm(hidden)
        self.patch = patch

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """[B, H, W, C] → logits [B, classes]."""
        x_BTD = self.embed(patches(x_BHWC, self.patch))
        B, _, D = x_BTD.shape
        first = jnp.broadcast_to(self.token.astype(x_BTD.dtype), (B, 1, D))
        x_BTD = jnp.concatenate([first, x_BTD], axis=1) + self.positions[None]
        return self.head(self.norm(apply_transformer(self.blocks, x_BTD, full_attention)[:, 0]))


def patches(x_BHWC: jax.Array, side: int) -> jax.Array:
    """[B, H, W, C] → [B, T, P·P·C], row by row."""
    B, H, W, C = x_BHWC.shape
    tiles = x_BHWC.reshape(B, H // side, side, W // side, side, C)
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(B, -1, side * side * C)


def vit_task(
    name: str,
    dataset: Dataset,
    *,
    patch: int,
    hidden: int,
    heads: int,
    layers: int,
    compute: Compute = None,
) -> Task:
    """Classification of images cut into square patches."""
    sizes = image_shape(dataset), dataset.classes, patch, hidden, heads, layers
    return classifier_task(name, lambda key: ViT(key, *sizes), dataset, compute=compute)
