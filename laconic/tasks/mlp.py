"""A multi-layer perceptron: images flattened, ReLU or a smooth function between layers."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax

from laconic.tasks.layers import Linear, fan_in_normals

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jax.nn.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class MLP(eqx.Module):
    """Linear layers of the given sizes (inputs, hidden…, classes) and one of `ACTIVATIONS` between
    them."""

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
