"""How fast federated rounds are: 400 clients, 10 of them a round, Fashion-MNIST's MLP, one seed.

    python benchmarks/federated.py [--rounds 1000] [--repeats 5] [--alpha 0.1]

FedAvg and FedLOpt (LOpt-A with random weights; what they are changes no time) against bare vmapped
SGD steps on the same number of minibatches: no sampling, no partition, no server. Ratios are taken
within one run, alternating the programs. The last line is one JSON object.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.bench.round import bare_steps, first_weights, fmnist, seconds
from laconic.federated.population import Federated
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.runs.simulate import Simulation
from laconic.store.records import provenance

CLIENTS, K, B, GAMMA = 400, 10, 20, 0.1
METHODS = {"fedavg": f"fedavg:gamma={GAMMA}", "fedlopt": f"lopt-a:gamma={GAMMA}"}


def bench(rounds, repeats, alpha):
    """Rounds a second of each method, and of bare steps."""
    task, data = fmnist()
    setting = Setting(K, 1, B, rounds, (0,), rounds, Federated(CLIENTS, alpha))
    programs, steps = {}, 0
    for name, spec in METHODS.items():
        simulation = Simulation(task, parse_method(spec, K), setting)
        state, steps = simulation.start(), simulation.H
        programs[name] = lambda simulation=simulation, state=state: [
            c.losses for c in simulation.run(state)
        ]
    indices = jax.random.randint(jax.random.key(1), (rounds, K, steps, B), 0, task.feed.size())
    arrays, params_K = jax.device_put(task.feed.splits["train"]), first_weights(K)
    bare = jax.jit(partial(bare_steps, gamma=GAMMA))
    took = seconds(programs | {"bare": lambda: bare(arrays, params_K, indices)}, repeats)
    figures = {
        "data": data,
        "clients": CLIENTS,
        "workers": K,
        "local_steps": steps,
        "batch": B,
        "rounds": rounds,
    }
    figures |= {f"{name}_rounds_per_second": round(rounds / took[name], 1) for name in took}
    return figures | {f"{name}_ratio": round(took["bare"] / took[name], 4) for name in METHODS}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000, help="rounds in one timed call")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed calls of each program; the median counts"
    )
    parser.add_argument(
        "--alpha", type=float, default=0.1, help="Dirichlet α of the clients' class mixes"
    )
    options = parser.parse_args()
    figures = bench(options.rounds, options.repeats, options.alpha)
    for name, value in figures.items():
        print(f"{name:30} {value}")
    print(json.dumps({"benchmark": "federated", **figures, **provenance()}))


if __name__ == "__main__":
    main()
