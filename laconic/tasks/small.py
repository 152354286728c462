"""Small image classifiers: a multi-layer perceptron, and a CNN without and with BatchNorm.

The CNN has three 3×3 layers of width, 2·width and 2·width channels (strides 2, 1, 1, "same"
padding, ReLU), an average over all positions, and a linear layer.
"""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from laconic.tasks.layers import Conv, ConvNorm, Linear, Statistics, fan_in_normals

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jax.nn.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
STRIDES = (2, 1, 1)


class MLP(eqx.Module):
    """Linear layers of the given sizes (inputs, hidden…, classes), an activation between them."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, key: jax.Array, sizes: Sequence[int], activation: str = "relu"):
        self.activation = activation
        self.layers = tuple(map(Linear, fan_in_normals(key, *itertools.pairwise(sizes))))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, …] → logits [B, classes]."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


def _cnn_weights(key: jax.Array, inputs: int, width: int, classes: int) -> list[jax.Array]:
    channels = (inputs, width, 2 * width, 2 * width)
    kernels = [(3, 3, *pair) for pair in itertools.pairwise(channels)]
    return fan_in_normals(key, *kernels, (channels[-1], classes))


class CNN(eqx.Module):
    """The network without normalisation."""

    convs: tuple[Conv, ...]
    head: Linear

    def __init__(self, key: jax.Array, inputs: int, width: int, classes: int):
        *kernels, head = _cnn_weights(key, inputs, width, classes)
        self.convs = tuple(map(Conv, kernels, STRIDES))
        self.head = Linear(head)

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """[B, H, W, C] → logits [B, classes]."""
        for conv in self.convs:
            x_BHWC = jax.nn.relu(conv(x_BHWC))
        return self.head(jnp.mean(x_BHWC, (1, 2)))


class NormCNN(eqx.Module):
    """The network with BatchNorm after each convolution; the model state is its statistics."""

    convs: tuple[ConvNorm, ...]
    head: Linear

    def __init__(self, key: jax.Array, inputs: int, width: int, classes: int):
        *kernels, head = _cnn_weights(key, inputs, width, classes)
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
