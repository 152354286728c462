"""What attackers among Flower's clients leave of a model's accuracy, with each robust mean and
without one.

    python benchmarks/attacks.py [--rounds 15] [--seeds 2] [--out results/benchmarks/attacks.json]

Ten clients train a network of one hidden layer on the bundled digits, a tenth of the training data
each, through `LearnedStrategy("fedavg")` and a grid in this process; Flower's own FedAvg stands
beside it. None, two or four of the clients attack, in one of four ways. Each mean has a process of
its own. The record holds the test
accuracy after the last round, by mean, attack, attackers and seed.
"""
# pyright: reportMissingImports=false

import argparse
import json
import logging
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

from laconic.flower import LearnedStrategy
from laconic.flower.replies import LOG
from laconic.store.records import provenance
from laconic.tasks.catalog import make_task
from tests.flower.grids import FakeGrid, answer, record

Weights = dict[str, np.ndarray]
CLIENTS, ATTACKERS = 10, (2, 4)
STEPS, BATCH, RATE, HIDDEN, CLASSES = 10, 16, 0.1, 32, 10
MEANS = ("mean", "median", "trimmed:0.4", "krum:f=3", "multi-krum:f=3", "clip:1", "centred-clip:1")
PLAIN = "Flower's FedAvg"
CALM = "none"


# --- what clients train ---------------------------------------------------------------------------


def digits() -> tuple[Any, Any]:
    """Train and test images as vectors, and their labels."""
    splits = make_task("digits-mlp").feed.splits
    found = []
    for name in ("train", "test"):
        x, y = np.asarray(splits[name]["x"]), np.asarray(splits[name]["y"])
        found.append((x.reshape(len(x), -1).astype(np.float32) / x.max(), y))
    return found[0], found[1]


def new_weights(seed: int, width: int) -> Weights:
    """Random weights, and a layer's running mean and variance of its inputs."""
    draw = np.random.default_rng(seed)
    dense = lambda n, m: (draw.standard_normal((n, m)) / np.sqrt(n)).astype(np.float32)
    return {
        "hidden": dense(width, HIDDEN),
        "bias": np.zeros(HIDDEN, np.float32),
        "out": dense(HIDDEN, CLASSES),
        "norm.running_mean": np.zeros(width, np.float32),
        "norm.running_var": np.ones(width, np.float32),
    }


def forward(w: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalised inputs, hidden values and class probabilities."""
    z = (x - w["norm.running_mean"]) / np.sqrt(w["norm.running_var"] + 0.01)
    hidden = np.tanh(z @ w["hidden"] + w["bias"])
    scores = hidden @ w["out"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return z, hidden, scores / scores.sum(axis=1, keepdims=True)


def train(w: Weights, x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Weights:
    """Local SGD, then the statistics of the client's own data, a third of the way."""
    w = dict(w)
    for _ in range(STEPS):
        rows = draw.integers(len(x), size=BATCH)
        z, hidden, p = forward(w, x[rows])
        error = (p - np.eye(CLASSES)[y[rows]]) / BATCH
        back = (error @ w["out"].T) * (1 - hidden**2)
        steps = {"out": hidden.T @ error, "hidden": z.T @ back, "bias": back.sum(axis=0)}
        w |= {n: (w[n] - RATE * step).astype(np.float32) for n, step in steps.items()}
    seen = {"norm.running_mean": x.mean(axis=0), "norm.running_var": x.var(axis=0)}
    return w | {n: (w[n] + (s - w[n]) / 3).astype(np.float32) for n, s in seen.items()}


def accuracy(w: Weights, test: Any) -> float:
    """On test images; 0.1 is a guess, and a model that is not finite is worth 0."""
    if not all(np.isfinite(x).all() for x in w.values()):
        return 0.0
    with np.errstate(all="ignore"):
        p = forward(w, test[0])[2]
    return float(np.mean(p.argmax(axis=1) == test[1])) if np.isfinite(p).all() else 0.0


# --- attackers ------------------------------------------------------------------------------------


def _flip(w: Weights, others: list[Weights], draw: np.random.Generator, k: int) -> Weights:
    """The mean honest change, ten times and backwards."""
    return {n: (x - 10 * _change(w, others, n)[0]).astype(np.float32) for n, x in w.items()}


def _noise(w: Weights, others: list[Weights], draw: np.random.Generator, k: int) -> Weights:
    """Noise ten times as large as the honest changes."""
    found = {}
    for n, x in w.items():
        size = 10 * np.sqrt(np.mean([np.mean((o[n] - x) ** 2) for o in others]))
        found[n] = (x + size * draw.standard_normal(x.shape)).astype(np.float32)
    return found


def _huge(w: Weights, others: list[Weights], draw: np.random.Generator, k: int) -> Weights:
    """Numbers of 1e30, or NaN, from every other attacker."""
    return {n: np.full_like(x, np.nan if k % 2 else 1e30) for n, x in w.items()}


def _little(w: Weights, others: list[Weights], draw: np.random.Generator, k: int) -> Weights:
    """All attackers 1.5 standard deviations off the honest mean (Baruch et al., 2019)."""
    found = {}
    for n, x in w.items():
        mean, deviation = _change(w, others, n)
        found[n] = (x + mean - 1.5 * deviation).astype(np.float32)
    return found


def _change(w: Weights, others: list[Weights], n: str) -> tuple[np.ndarray, np.ndarray]:
    changes = np.stack([other[n] - w[n] for other in others])
    return changes.mean(axis=0), changes.std(axis=0)


ATTACKS = {
    "sign flip ×10": _flip,
    "noise ×10": _noise,
    "1e30 and NaN": _huge,
    "a little is enough": _little,
}


class Crowd:
    """The clients of one run; attackers see what the honest send, as the worst ones would."""

    def __init__(self, data: Any, attack: str, attackers: int, seed: int):
        x, y = data
        order = np.random.default_rng(seed).permutation(len(x))
        self.parts = [(x[rows], y[rows]) for rows in np.array_split(order, CLIENTS)]
        self.attack, self.bad, self.seed = attack, range(CLIENTS - attackers, CLIENTS), seed
        self._round, self._honest = -1, []

    def clients(self) -> dict[int, Any]:
        """As the grid takes them."""
        return {k + 1: self._client(k) for k in range(CLIENTS)}

    def _client(self, k: int) -> Any:
        def reply(now: int, w: Weights) -> Any:
            if now != self._round:
                draws = [np.random.default_rng([self.seed, now, j]) for j in range(CLIENTS)]
                trained = [train(w, *self.parts[j], draws[j]) for j in range(CLIENTS)]
                self._round = now
                self._honest = [one for j, one in enumerate(trained) if j not in self.bad]
            if k not in self.bad:
                return answer(self._honest[k], len(self.parts[k][0]))
            draw = np.random.default_rng([self.seed, now, k, 1])
            with np.errstate(all="ignore"):
                spoiled = ATTACKS[self.attack](w, self._honest, draw, k)
            return answer(spoiled, len(self.parts[k][0]))

        return reply


# --- the record -----------------------------------------------------------------------------------


def final(mean: str, attack: str, attackers: int, seed: int, rounds: int, sets: Any) -> float:
    """The test accuracy at the end of one run."""
    data, test = sets
    crowd = Crowd(data, attack, attackers, seed)
    if mean == PLAIN:
        strategy = FedAvg(fraction_evaluate=0.0)
    else:
        strategy = LearnedStrategy(
            "fedavg", aggregate=mean, layout="as-is", fraction_evaluate=0.0, min_train_nodes=CLIENTS
        )
    first = record(new_weights(seed, data[0].shape[1]))
    with np.errstate(all="ignore"):
        result = strategy.start(FakeGrid(crowd.clients()), first, num_rounds=rounds)
    arrays: ArrayRecord = result.arrays
    return accuracy({name: array.numpy() for name, array in arrays.items()}, test)


def of_mean(mean: str, sizes: tuple[int, int]) -> list[dict[str, Any]]:
    """The rows of one mean under all attacks, printed as they come."""
    LOG.setLevel(logging.ERROR)
    sets, rows = digits(), []
    rounds, seeds = sizes
    for attack, attackers in [(CALM, 0), *((a, n) for n in ATTACKERS for a in ATTACKS)]:
        found = [final(mean, attack, attackers, seed, rounds, sets) for seed in range(seeds)]
        rows.append({"mean": mean, "attack": attack, "attackers": attackers, "accuracy": found})
        print(f"{mean:16} {attackers} × {attack:20} {100 * np.mean(found):6.2f} %", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--means", nargs="+", default=[PLAIN, *MEANS])
    parser.add_argument("--out", type=Path, help="where the record goes; it is printed in any case")
    options = parser.parse_args()
    begun, sizes = time.monotonic(), (options.rounds, options.seeds)
    with ProcessPoolExecutor(len(options.means), get_context("spawn")) as pool:
        found = pool.map(partial(of_mean, sizes=sizes), options.means)
        rows = [row for rows in found for row in rows]
    whole = {
        "benchmark": "attacks",
        "rounds": options.rounds,
        "seeds": options.seeds,
        "clients": CLIENTS,
        "rows": rows,
        "seconds": round(time.monotonic() - begun, 1),
        **provenance(),
    }
    print(json.dumps(whole))
    if options.out is not None:
        options.out.write_text(json.dumps(whole, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
