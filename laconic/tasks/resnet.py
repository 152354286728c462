"""Residual networks of bottleneck blocks (He et al., 2015).

ResNet-50 has 3-4-6-3 blocks, ResNet-152 3-8-36-3. The first 3×3 convolution of a stage carries its
stride, as is common today. Images of up to 64×64 enter by a 3×3 convolution of stride 1 (with a
pool of stride 2 if asked), larger ones by a 7×7 convolution and a pool that shrink them fourfold.
The model state is the running statistics of every BatchNorm; a round carries and averages it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.data.splits import Dataset, image_shape
from laconic.errors import LaconicError, require_positive, unknown
from laconic.tasks.base import Task
from laconic.tasks.classifier import Compute, stateful_classifier_task
from laconic.tasks.layers import (
    CONVOLUTIONS,
    ConvNorm,
    Linear,
    Statistics,
    apply_blocks,
    fan_in_normals,
    max_pool,
)

EXPANSION = 4  # output channels of a block over its inner ones
SMALL_SIDE = 64


class Stem(NamedTuple):
    """The side of the first kernel, its stride, and whether a pool of stride 2 follows."""

    kernel: int
    stride: int
    pooled: bool


STEMS = {"small": Stem(3, 1, False), "pooled": Stem(3, 1, True), "large": Stem(7, 2, True)}

Apply = Callable[[ConvNorm, jax.Array, Statistics], tuple[jax.Array, Statistics]]


class Bottleneck(eqx.Module):
    """ReLU(x + f(x)), f: 1×1 to fewer channels, 3×3, 1×1 to four times as many, with BatchNorms.

    Where f changes the shape, `shortcut` is a 1×1 convolution of x; otherwise None.
    """

    convs: tuple[ConvNorm, ConvNorm, ConvNorm]
    shortcut: ConvNorm | None

    @property
    def all(self) -> tuple[ConvNorm, ...]:
        """The three convolutions, and the shortcut's where there is one."""
        return self.convs if self.shortcut is None else (*self.convs, self.shortcut)

    def __call__(
        self, x: jax.Array, state: Sequence[Statistics], apply: Apply
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """The block's output, and the statistics of `all` after it."""
        y, after = x, []
        for i, conv in enumerate(self.convs):
            y, new = apply(conv, jax.nn.relu(y) if i else y, state[i])
            after.append(new)
        if self.shortcut is not None:
            x, new = apply(self.shortcut, x, state[-1])
            after.append(new)
        return jax.nn.relu(x + y), tuple(after)


class ResNet(eqx.Module):
    """A stem, a stage for each number in `blocks` (doubling width, halving size), a linear head."""

    stem: ConvNorm
    stages: tuple[tuple[Bottleneck, ...], ...]
    head: Linear
    pooled: bool = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        inputs: int,
        classes: int,
        blocks: Sequence[int],
        width: int,
        stem: str,
        conv: str,
    ):
        require_positive(width=width)
        for kind, name, known in (("stem", stem, STEMS), ("convolution", conv, CONVOLUTIONS)):
            if name not in known:
                raise unknown(kind, name, known)
        kernel, first_stride, self.pooled = STEMS[stem]
        shapes = _shapes(inputs, classes, blocks, width, kernel)
        weights = iter(fan_in_normals(key, *shapes))

        def layer(stride: int) -> ConvNorm:
            return ConvNorm(next(weights), stride, convolve=CONVOLUTIONS[conv])

        def block(stage: int, first: bool) -> Bottleneck:
            stride = 2 if first and stage > 0 else 1
            return Bottleneck((layer(1), layer(stride), layer(1)), layer(stride) if first else None)

        self.stem = layer(first_stride)
        self.stages = tuple(tuple(block(s, i == 0) for i in range(n)) for s, n in enumerate(blocks))
        self.head = Linear(next(weights))

    def begin(self) -> tuple[Any, ...]:
        """Statistics before the first batch: the stem's, then those of each stage's blocks."""
        start = lambda block: tuple(conv.begin() for conv in block.all)
        return self.stem.begin(), tuple(tuple(map(start, stage)) for stage in self.stages)

    def train(self, x_BHWC: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Logits by the batch's statistics, and the running statistics after it."""
        return self._run(x_BHWC, state, ConvNorm.train)

    def infer(self, x_BHWC: jax.Array, state: Any) -> jax.Array:
        """Logits by the running statistics."""
        infer = lambda conv, x, running: (conv.infer(x, running), running)
        return self._run(x_BHWC, state, infer)[0]

    def _run(self, x: jax.Array, state: Any, apply: Apply) -> tuple[jax.Array, Any]:
        stem, stages = state
        x, stem = apply(self.stem, x, stem)
        x = jax.nn.relu(x)
        if self.pooled:
            x = max_pool(x, 3, 2)
        after = []
        step = lambda block, x, running: block(x, running, apply)
        for (first, *rest), (first_state, *states) in zip(self.stages, stages, strict=True):
            x, first_state = step(first, x, first_state)
            x, states = apply_blocks(rest, x, states, step)
            after.append((first_state, *states))
        pooled = jnp.mean(x.astype(jnp.float32), (1, 2)).astype(x.dtype)
        return self.head(pooled), (stem, tuple(after))


def _shapes(
    inputs: int, classes: int, blocks: Sequence[int], width: int, kernel: int
) -> Iterator[tuple[int, ...]]:
    """The shapes of all kernels in the order of use, a shortcut's after its block's."""
    yield kernel, kernel, inputs, width
    channels = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for index in range(count):
            yield 1, 1, channels, inner
            yield 3, 3, inner, inner
            yield 1, 1, inner, EXPANSION * inner
            if index == 0:
                yield 1, 1, channels, EXPANSION * inner
            channels = EXPANSION * inner
    yield channels, classes


def parse_blocks(text: str) -> tuple[int, ...]:
    """`3-4-6-3` as numbers of blocks."""
    parts = text.split("-")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 1000 for part in parts):
        raise LaconicError(f"blocks are the blocks of each stage, as in 3-4-6-3, got {text!r}.")
    return tuple(map(int, parts))


def resnet_task(
    name: str,
    dataset: Dataset,
    *,
    blocks: Sequence[int],
    width: int = 64,
    stem: str = "",
    conv: str = "product",
    compute: Compute = None,
) -> Task:
    """Classification of images; unless given, the stem is chosen by their size."""
    *sides, inputs = image_shape(dataset)
    stem = stem or ("small" if max(sides) <= SMALL_SIDE else "large")
    sizes = inputs, dataset.classes, blocks, width, stem, conv
    return stateful_classifier_task(name, lambda key: ResNet(key, *sizes), dataset, compute=compute)
