"""A small convolutional network, without and with BatchNorm.

Three 3×3 layers of width, 2·width and 2·width channels (strides 2, 1, 1, "same" padding, ReLU), the
average over all places, and a linear layer.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.tasks.layers import Conv, ConvNorm, Linear, Statistics, fan_in_normals

STRIDES = (2, 1, 1)


def _weights(key: jax.Array, inputs: int, width: int, classes: int) -> list[jax.Array]:
    channels = (inputs, width, 2 * width, 2 * width)
    return fan_in_normals(
        key, *((3, 3, *pair) for pair in itertools.pairwise(channels)), (channels[-1], classes)
    )


class CNN(eqx.Module):
    """The network without normalisation."""

    convs: tuple[Conv, ...]
    head: Linear

    def __init__(self, key: jax.Array, inputs: int, width: int, classes: int):
        *kernels, head = _weights(key, inputs, width, classes)
        self.convs = tuple(map(Conv, kernels, STRIDES))
        self.head = Linear(head)

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """[B, H, W, C] → logits [B, classes]."""
        for conv in self.convs:
            x_BHWC = jax.nn.relu(conv(x_BHWC))
        return self.head(jnp.mean(x_BHWC, (1, 2)))


class NormCNN(eqx.Module):
    """The network with BatchNorm after each convolution; its running statistics are the model
    state."""

    convs: tuple[ConvNorm, ...]
    head: Linear

    def __init__(self, key: jax.Array, inputs: int, width: int, classes: int):
        *kernels, head = _weights(key, inputs, width, classes)
        self.convs = tuple(map(ConvNorm, kernels, STRIDES))
        self.head = Linear(head)

    def begin(self) -> tuple[Statistics, ...]:
        """Statistics before the first batch."""
        return tuple(conv.begin() for conv in self.convs)

    def train(
        self, x_BHWC: jax.Array, state: tuple[Statistics, ...]
    ) -> tuple[jax.Array, tuple[Statistics, ...]]:
        """Logits by the batch's statistics, and the running statistics after it."""
        after = []
        for conv, running in zip(self.convs, state, strict=True):
            y, running = conv.train(x_BHWC, running)
            x_BHWC = jax.nn.relu(y)
            after.append(running)
        return self.head(jnp.mean(x_BHWC, (1, 2))), tuple(after)

    def infer(self, x_BHWC: jax.Array, state: tuple[Statistics, ...]) -> jax.Array:
        """Logits by the running statistics."""
        for conv, running in zip(self.convs, state, strict=True):
            x_BHWC = jax.nn.relu(conv.infer(x_BHWC, running))
        return self.head(jnp.mean(x_BHWC, (1, 2)))
