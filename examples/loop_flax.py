"""A training loop in Flax NNX, then the same model in rounds of local steps with a learned outer
step.

python examples/loop_flax.py
"""
# pyright: reportMissingImports=false

import jax
import optax
from flax import nnx
from loop_jax import check_it_helps, data, draw, test

import laconic


# --8<-- [start:before]
class Net(nnx.Module):
    """8×8 pixels → 10 logits."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        """Take a batch [B, 64]."""
        return self.out(nnx.relu(self.hidden(x)))


def loss(model, batch):
    logits = model(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


@nnx.jit
def step(model, optimizer, batch):
    optimizer.update(model, nnx.grad(loss)(model, batch))


def train(model, steps):
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    for key in jax.random.split(jax.random.key(1), steps):
        step(model, optimizer, draw(data, key))


# --8<-- [end:before]


# --8<-- [start:split]
graph, _ = nnx.split(Net(nnx.Rngs(0)))  # the model without its numbers


def init(key):
    return nnx.split(Net(nnx.Rngs(key)))[1]


def loss_of_params(params, batch):
    return loss(nnx.merge(graph, params), batch)


# --8<-- [end:split]


# --8<-- [start:task]
def make_task():
    return laconic.plain_task("my-digits", init, loss_of_params, data, test=test)


# --8<-- [end:task]


if __name__ == "__main__":
    check_it_helps(init(jax.random.key(0)), loss_of_params)
