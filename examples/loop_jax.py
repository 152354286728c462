"""A training loop in plain JAX, then the same model in rounds of local steps with a learned outer
step.

python examples/loop_jax.py
"""

import jax
import jax.numpy as jnp
import optax
from loop_digits import OPTIMIZER, ROUNDS, B, H, K, test_x, test_y, x, y

import laconic

# --8<-- [start:before]
data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
test = {"x": jnp.asarray(test_x), "y": jnp.asarray(test_y)}


def init(key):
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


def loss(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def draw(data, key):
    """B random examples."""
    rows = jax.random.randint(key, (B,), 0, len(data["y"]))
    return {name: array[rows] for name, array in data.items()}


def train(params, loss, optimizer, steps):
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, key):
        gradient = jax.grad(loss)(params, draw(data, key))
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for key in jax.random.split(jax.random.key(1), steps):
        params, state = step(params, state, key)
    return params


# --8<-- [end:before]


# --8<-- [start:rounds]
def local_steps(params, loss, local, shard, key):
    """What one worker does in a round: H steps on its own data → Δ, what they changed."""

    def step(carry, key):
        params, state = carry
        gradient = jax.grad(loss)(params, draw(shard, key))
        updates, state = local.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(key, H)
    (after, _), _ = jax.lax.scan(step, (params, local.init(params)), keys)
    return jax.tree.map(jnp.subtract, params, after)


def train_in_rounds(params, loss, local, outer, rounds):
    n = len(data["y"]) // K  # each worker has its own part of the data: leaves [K, n, …]
    shards = {name: a[: n * K].reshape(K, n, *a.shape[1:]) for name, a in data.items()}
    state = outer.init(params)

    @jax.jit
    def communication_round(params, state, key):
        one_worker = lambda shard, key: local_steps(params, loss, local, shard, key)
        deltas = jax.vmap(one_worker)(shards, jax.random.split(key, K))
        mean = jax.tree.map(lambda delta: delta.mean(0), deltas)  # all that is communicated
        updates, state = outer.update(mean, state, params)
        return optax.apply_updates(params, updates), state

    for key in jax.random.split(jax.random.key(1), rounds):
        params, state = communication_round(params, state, key)
    return params


# --8<-- [end:rounds]


# --8<-- [start:check]
def check_it_helps(params, loss):
    """Averaging and the learned outer step on one budget: K·H·ROUNDS local steps."""
    learned = laconic.load(OPTIMIZER)
    recommended = learned.recommended_local.optax()
    rows = {
        "averaging": (recommended, optax.sgd(1.0)),
        "averaging, tuned rate": (optax.sgd(1.0), optax.sgd(1.0)),  # the best of 0.03, 0.1, 0.3, 1
        "Nesterov 0.7 / 0.9": (optax.sgd(0.3), optax.sgd(0.7, momentum=0.9, nesterov=True)),
        learned.name: (recommended, learned.optax()),
    }
    for name, (local, outer) in rows.items():
        after = train_in_rounds(params, loss, local, outer, ROUNDS)
        print(f"{name:24} train loss {loss(after, data):.4f}, test loss {loss(after, test):.4f}")


# --8<-- [end:check]


# --8<-- [start:task]
def make_task():
    return laconic.plain_task("my-digits", init, loss, data, test=test)


# --8<-- [end:task]


if __name__ == "__main__":
    check_it_helps(init(jax.random.key(0)), loss)
