"""How much of a meta-gradient of `lopt-r` is noise, by estimator: the mean cosine of estimates that
share φ and nothing else.

    python benchmarks/gradient_noise.py [--pairs 32] [--repeats 8] [--out FILE.json] [--small]

An estimate is the sum over five truncations of 20 rounds of as many pairs, on one family. Of
estimates g = s + n with the same s, and n of variance v each its own, the cosine is about
|s|²/(|s|² + v): the column `noise` is v/|s|², from the mean cosine c as 1/c − 1. What a biased
estimator's s is worth is another question. The last line is one JSON object.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

import laconic
from laconic.meta.estimator import Horizon
from laconic.meta.problem import Inner
from laconic.meta.shifts import watched_problem
from laconic.meta.train import ESTIMATORS
from laconic.meta.varied import varied_problem
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.runs.meta_config import parse_inner
from laconic.store.records import provenance, write_json
from laconic.tasks.catalog import make_task

SIGMAS = {"es": 0.1, "pes": 0.1, "nres": 0.1, "shifts": 1.0}
STEPS, OUTLYING = 5, 3.0
FAMILIES = (
    "fmnist-mlp2:pool=4,width=32@workers=8,local_steps=4,batch=16,gamma=0.25",
    "fmnist-mlp3:pool=4,width=24,activation=silu"
    "@workers=8,local_steps=4,batch=8,local=adamw,gamma=0.005",
    "imagenet32-mlp2:pool=4,half=first,width=32"
    "@workers=16,local_steps=2,batch=8,local=adamw,gamma=0.006",
)
DIGITS = ("digits-mlp:width=8@workers=2,local_steps=2,batch=8,gamma=0.2",)


def estimates(name: str, inner: Inner, pairs: int, repeats: int, truncation: int) -> np.ndarray:
    """Sums of the gradients of `STEPS` steps [repeats, |φ|], each from runs of its own."""
    own = laconic.load("lopt-r")
    spec: Any = own.learned
    theta = {name: jax.numpy.asarray(x) for name, x in own.theta.items()}
    task = make_task(inner.task)
    make, _, heads = ESTIMATORS[name]
    estimator = make(
        (watched_problem if heads else varied_problem)(task, spec, inner),
        pairs=pairs,
        truncation=truncation,
        sigma=SIGMAS[name],
        horizon=Horizon(2 * truncation, 6 * truncation),
        outlying=OUTLYING,
    )
    begin, step = jax.jit(estimator.init), jax.jit(estimator.estimate)
    found = []
    for repeat in range(repeats):
        key = jax.random.key(repeat)
        state, parts = begin(theta, key), []
        for t in range(STEPS):
            gradient, state, _ = step(theta, state, jax.random.fold_in(key, 1 + t))
            parts.append(np.concatenate([np.ravel(gradient[name]) for name in sorted(gradient)]))
        found.append(np.sum(parts, axis=0, dtype=np.float64))
    return np.array(found)


def mean_cosine(vectors: np.ndarray) -> float:
    """Over all pairs of different rows."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    count = len(unit)
    return float((np.sum(unit @ unit.T) - count) / (count * (count - 1)))


def measure(families: tuple[str, ...], pairs: int, repeats: int, truncation: int) -> Any:
    """Mean cosine, noise and seconds by family and estimator."""
    config = META_RECIPES["lopt-r-wide"][1]
    rows = []
    for family in families:
        inner = parse_inner(family, config)
        for name in SIGMAS:
            begin = time.perf_counter()
            cosine = mean_cosine(estimates(name, inner, pairs, repeats, truncation))
            row = {"family": family, "estimator": name, "cosine": cosine}
            row["noise"] = 1 / cosine - 1 if cosine > 0 else None
            row["seconds"] = time.perf_counter() - begin
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=32, help="pairs of an estimate")
    parser.add_argument("--repeats", type=int, default=8, help="estimates to compare")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    parser.add_argument("--small", action="store_true", help="on the digits, in seconds")
    given = parser.parse_args()
    families, truncation = (DIGITS, 2) if given.small else (FAMILIES, 20)
    settings = {"pairs": given.pairs, "repeats": given.repeats, "truncation": truncation}
    rows = measure(families, **settings)
    shared = {"steps": STEPS, "sigmas": SIGMAS, "outlying": OUTLYING, "optimizer": "lopt-r"}
    result = {"benchmark": "gradient-noise", **settings, **shared, "rows": rows} | provenance()
    if given.out:
        write_json(given.out, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
