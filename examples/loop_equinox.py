"""A training loop in Equinox, then the same model in rounds of local steps with a learned outer
step.

python examples/loop_equinox.py
"""

import equinox as eqx
import jax
import optax
from loop_jax import check_it_helps, data, draw, test

import laconic


# --8<-- [start:before]
def new_model(key):
    return eqx.nn.MLP(64, 10, width_size=64, depth=1, key=key)


def loss(model, batch):
    logits = jax.vmap(model)(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


@eqx.filter_jit
def step(model, state, optimizer, batch):
    gradient = eqx.filter_grad(loss)(model, batch)
    updates, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state


def train(model, steps):
    optimizer = optax.sgd(0.1)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for key in jax.random.split(jax.random.key(1), steps):
        model, state = step(model, state, optimizer, draw(data, key))
    return model


# --8<-- [end:before]


# --8<-- [start:split]
_, static = eqx.partition(new_model(jax.random.key(0)), eqx.is_inexact_array)


def init(key):
    return eqx.filter(new_model(key), eqx.is_inexact_array)


def loss_of_params(params, batch):
    return loss(eqx.combine(params, static), batch)


# --8<-- [end:split]


# --8<-- [start:task]
def make_task():
    return laconic.plain_task("my-digits", init, loss_of_params, data, test=test)


# --8<-- [end:task]


if __name__ == "__main__":
    check_it_helps(init(jax.random.key(0)), loss_of_params)
