"""A plain optax loop of local SGD, then the same loop with a learned outer optimizer: three lines
change.

python examples/optax_swap.py [NAME | FILE.safetensors]
"""

import sys

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import laconic  # line 1

NAME = sys.argv[1] if len(sys.argv) > 1 else "lopt-a-fmnist"
K, H, B, ROUNDS, GAMMA = (
    8,
    4,
    32,
    100,
    0.3,
)  # workers, local steps, batch, rounds, the workers' learning rate
images, labels = load_digits(return_X_y=True)
X, Y = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)


def init(key):
    w1, w2 = jax.random.normal(key, (64, 32)) / 8, jnp.zeros((32, 10))
    return {"w1": w1, "b1": jnp.zeros(32), "w2": w2, "b2": jnp.zeros(10)}


def loss(params, rows):
    hidden = jax.nn.relu(X[rows] @ params["w1"] + params["b1"][None])
    logits = hidden @ params["w2"] + params["b2"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, Y[rows]).mean()


def local_steps(params, rows_HB):
    """What one worker does in a round: H steps of SGD. It sends its delta, which points uphill like
    a gradient."""
    step = lambda p, rows: (
        jax.tree.map(lambda w, g: w - GAMMA * g, p, jax.grad(loss)(p, rows)),
        None,
    )
    return jax.tree.map(jnp.subtract, params, jax.lax.scan(step, params, rows_HB)[0])


def train(outer, seed=0):
    """Local SGD with any optax optimizer on the server → the final loss on all data."""
    outer = optax.with_extra_args_support(outer)

    @jax.jit
    def communication_round(params, state, key):
        deltas = jax.vmap(local_steps, (None, 0))(
            params, jax.random.randint(key, (K, H, B), 0, len(X))
        )
        mean = jax.tree.map(lambda d: d.mean(axis=0), deltas)
        updates, state = outer.update(
            mean, state, params, worker_deltas=deltas
        )  # lagg-a looks at every delta
        return optax.apply_updates(params, updates), state

    params = init(jax.random.key(seed))
    state = outer.init(params)
    for key in jax.random.split(jax.random.key(seed + 1), ROUNDS):
        params, state = communication_round(params, state, key)
    return float(loss(params, jnp.arange(len(X))))


if __name__ == "__main__":
    print(f"optax.sgd(1.0), which averages: loss {train(optax.sgd(1.0)):.4f} after {ROUNDS} rounds")
    learned = laconic.load(NAME)  # line 2
    print(f"{learned.name}: loss {train(learned.optax()):.4f} after {ROUNDS} rounds")  # line 3
