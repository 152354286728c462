"""How far the passes' steps on this device are from float64, at each precision: LOpt-A, and LAgg-A
with 8 workers.

    python benchmarks/step_accuracy.py [--rounds 3] [--precisions bf16x3 half …]

Random φ, weights and deltas; the reference is the tests' NumPy twin in float64. For each precision
the largest relative error of a tensor's change, ‖ours − twin's‖ / ‖twin's‖, over tensors and
rounds. Without a GPU the kernels are interpreted, and roundings of matrix units imitated. The last
line is one JSON object.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.outer.kernels import Tuning
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.perceptron import PRECISIONS
from laconic.store.records import provenance
from tests.outer.cases import Case, step

SPECS = {"lopt-a": LearnedOptimizer("lopt-a"), "lagg-a": LearnedOptimizer("lagg-a", 8)}
# Matrices that share launches and one that fills several programs, a kernel of a convolution,
# vectors of two lengths.
SHAPES = {"a": (64, 128), "b": (64, 128), "large": (200, 500), "kernel": (3, 3, 16, 24)}
SHAPES |= {f"vector {i}": (300 if i % 2 else 500,) for i in range(6)}
SMALL = {"a": (7, 40), "b": (7, 40), "vector": (6,)}


def errors(precisions, rounds, shapes):
    """architecture → precision → the largest relative error."""
    found = {}
    for name, spec in SPECS.items():
        case = Case(spec, shapes, seed=330)
        twin = case.twin()[:rounds]
        found[name] = {precision: _error(case, twin, precision) for precision in precisions}
    return found


def _error(case, twin, precision):
    tuning = Tuning(precision=precision, interpret=jax.default_backend() == "cpu")
    run = jax.jit(lambda *args: step(case.spec, *args, path="passes", tuning=tuning))
    params, state, largest = case.params, case.init(), 0.0
    for t, (_, change, _) in enumerate(twin):
        params, updates, state = run(case.theta, params, state, *case.at(t))
        for name, expected in change.items():
            off = np.linalg.norm(np.asarray(updates[name], np.float64) - expected) / np.linalg.norm(
                expected
            )
            largest = max(largest, float(off))
    return largest


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds, each from the state that the last one left"
    )
    parser.add_argument(
        "--precisions", nargs="+", default=list(PRECISIONS), choices=list(PRECISIONS)
    )
    parser.add_argument("--small", action="store_true", help="tiny tensors, for the interpreter")
    options = parser.parse_args()
    found = errors(options.precisions, options.rounds, SMALL if options.small else SHAPES)
    for precision in options.precisions:
        print(
            f"{precision:10}" + "".join(f" {name} {found[name][precision]:.2e}" for name in found)
        )
    print(
        json.dumps(
            {
                "benchmark": "step-accuracy",
                "rounds": options.rounds,
                "errors": found,
                **provenance(),
            }
        )
    )


if __name__ == "__main__":
    main()
