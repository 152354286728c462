"""A multi-layer perceptron: images flattened, ReLU between layers."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax

from laconic.tasks.layers import Linear, fan_in_normals


class MLP(eqx.Module):
    """Linear layers of the given sizes (inputs, hidden…, classes)."""

    layers: tuple[Linear, ...]

    def __init__(self, key: jax.Array, sizes: Sequence[int]):
        self.layers = tuple(map(Linear, fan_in_normals(key, *itertools.pairwise(sizes))))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, …] → logits [B, classes]."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)
