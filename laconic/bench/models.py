"""Tensor shapes of real models, for server steps without the models: name → what it is and its
tensors."""

import math
from itertools import pairwise
from typing import NamedTuple

Shapes = list[tuple[int, ...]]


class Model(NamedTuple):
    """A line about it, and the shapes of all its tensors."""

    summary: str
    shapes: Shapes

    @property
    def parameters(self) -> int:
        """How many numbers they hold."""
        return sum(math.prod(shape) for shape in self.shapes)


def mlp(sizes: tuple[int, ...]) -> Shapes:
    """Weights and biases of a multi-layer perceptron."""
    return [shape for n_in, n_out in pairwise(sizes) for shape in ((n_in, n_out), (n_out,))]


def transformer(layers: int, width: int) -> Shapes:
    """Blocks of a transformer: two norms, joint q, k, v, projection, and an MLP four times as wide."""
    block = [(width,)] * 4 + [(width, 3 * width), (3 * width,), (width, width), (width,)]
    return (block + mlp((width, 4 * width, width))) * layers + [(width,)] * 2


def vit(layers: int, width: int, patch: int, tokens: int, classes: int) -> Shapes:
    """A vision transformer: patches, class token, positions, blocks, head."""
    stem = [(patch * patch * 3, width), (width,), (1, 1, width), (1, tokens, width)]
    return stem + transformer(layers, width) + mlp((width, classes))


def gpt(layers: int, width: int, vocabulary: int, context: int) -> Shapes:
    """A decoder whose head is its embedding."""
    return [(vocabulary, width), (context, width), *transformer(layers, width)]


def resnet(blocks: tuple[int, ...], classes: int) -> Shapes:
    """A bottleneck ResNet: kernels as [height, width, in, out], two vectors a BatchNorm, head."""
    conv = lambda k, n_in, n_out: [(k, k, n_in, n_out), (n_out,), (n_out,)]
    shapes, channels = conv(7, 3, 64), 64
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        for i in range(count):
            shapes += conv(1, channels, inner) + conv(3, inner, inner) + conv(1, inner, 4 * inner)
            shapes += conv(1, channels, 4 * inner) if i == 0 else []
            channels = 4 * inner
    return shapes + mlp((channels, classes))


MODELS: dict[str, Model] = {
    "mlp": Model("2-layer MLP on 28 × 28 images", mlp((784, 128, 128, 10))),
    "matrix": Model("one 3162 × 3162 matrix, for comparisons between machines", [(3162, 3162)]),
    "resnet50": Model("ResNet-50 with 1000 classes", resnet((3, 4, 6, 3), 1000)),
    "vit-b": Model("ViT-B/16 with 1000 classes", vit(12, 768, 16, 197, 1000)),
    "gpt2-medium": Model("GPT-2 medium", gpt(24, 1024, 50257, 1024)),
}
