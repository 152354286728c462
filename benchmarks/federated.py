"""How fast federated rounds are: 400 clients, 10 of them a round, Fashion-MNIST's MLP, one seed.

    python benchmarks/federated.py [--rounds 1000] [--repeats 5] [--alpha 0.1]

FedAvg and FedLOpt (LOpt-A with random weights; what they are changes no time) against bare vmapped SGD steps on the
same number of minibatches: no sampling, no partition, no server. Ratios are taken within one run, alternating the
programs. The last line is one JSON object.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.bench.round import fmnist, seconds
from laconic.evaluate.run import Setting, Simulation
from laconic.federated import Federated
from laconic.recipes.methods import parse_method
from laconic.store.runlog import provenance

CLIENTS, K, B, GAMMA, SIZES = 400, 10, 20, 0.1, (784, 128, 128, 10)
METHODS = {"fedavg": f"fedavg:gamma={GAMMA}", "fedlopt": f"lopt-a:gamma={GAMMA}"}


def bare_steps(arrays, params, indices_RKHB):
    """H SGD steps of K workers from the same weights, R times over: scan over rounds and steps, vmap over workers."""

    def loss(params, batch):
        x = batch["x"].reshape(B, -1).astype(jnp.float32) / 255
        for i, (w, b) in enumerate(params):
            x = x @ w + b[None, :]
            x = jax.nn.relu(x) if i < 2 else x
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x, batch["y"]))

    def step(params, indices):
        value, grads = jax.value_and_grad(loss)(params, jax.tree.map(lambda a: a[indices], arrays))
        return jax.tree.map(lambda p, g: p - GAMMA * g, params, grads), value

    def one_round(params_K, indices_KHB):
        return jax.vmap(lambda p, i: jax.lax.scan(step, p, i))(params_K, indices_KHB)

    params_K = jax.tree.map(lambda p: jnp.broadcast_to(p, (K, *p.shape)), params)
    return jax.lax.scan(one_round, params_K, indices_RKHB)


def first_weights():
    """Weights of the MLP's shapes."""
    keys = jax.random.split(jax.random.key(0), 3)
    pairs = itertools.pairwise(SIZES)
    return [
        (jax.random.normal(key, shape) / shape[0] ** 0.5, jnp.zeros(shape[1]))
        for key, shape in zip(keys, pairs, strict=True)
    ]


def bench(rounds, repeats, alpha):
    """Rounds a second of each method, and of bare steps."""
    task, data = fmnist()
    setting = Setting(K, 1, B, rounds, (0,), rounds, Federated(CLIENTS, alpha))
    programs, steps = {}, 0
    for name, spec in METHODS.items():
        simulation = Simulation(task, parse_method(spec, K), setting)
        state, steps = simulation.start(), simulation.H
        programs[name] = lambda simulation=simulation, state=state: [c.losses for c in simulation.run(state)]
    indices = jax.random.randint(jax.random.key(1), (rounds, K, steps, B), 0, task.feed.size())
    arrays, params = jax.device_put(task.feed.splits["train"]), first_weights()
    bare = jax.jit(bare_steps)
    took = seconds(programs | {"bare": lambda: bare(arrays, params, indices)}, repeats)
    figures = {"data": data, "clients": CLIENTS, "workers": K, "local_steps": steps, "batch": B, "rounds": rounds}
    figures |= {f"{name}_rounds_per_second": round(rounds / took[name], 1) for name in took}
    return figures | {f"{name}_ratio": round(took["bare"] / took[name], 4) for name in METHODS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds in one timed call")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each program; the median counts")
    parser.add_argument("--alpha", type=float, default=0.1, help="Dirichlet α of the clients' class mixes")
    options = parser.parse_args()
    figures = bench(options.rounds, options.repeats, options.alpha)
    for name, value in figures.items():
        print(f"{name:30} {value}")
    print(json.dumps({"benchmark": "federated", **figures, **provenance()}))


if __name__ == "__main__":
    main()
