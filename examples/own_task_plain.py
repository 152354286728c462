"""A task of your own from two plain JAX functions: fit a noisy wave with a small network.

python examples/own_task_plain.py
"""

import jax
import jax.numpy as jnp

import laconic


# task begins
def init(key):
    return {"w": jax.random.normal(key, (1, 32)), "b": jnp.zeros(32), "out": jnp.zeros((32, 1))}


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["w"] + params["b"][None])
    return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)


x = jnp.linspace(-3, 3, 1024)[:, None]
y = jnp.sin(2 * x) + 0.1 * jax.random.normal(jax.random.key(0), x.shape)
task = laconic.plain_task("wave", init, loss, {"x": x, "y": y})
# task ends

if __name__ == "__main__":
    config = laconic.CompareConfig(
        optimizers=("local-sgd:gamma=0.05", "slowmo:gamma=0.05,beta=0.8"), rounds=100, seeds=2
    )
    folder, records = laconic.compare(config, task)
    for row in records[-1]["rows"]:
        print(
            f"{row['label']:28} final train loss {row['final_train']:.4f}, speedup {row['speedup']}"
        )
    print(f"report: {folder / 'report.html'}")
