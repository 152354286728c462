"""How fast meta-training is: communication rounds a second in outer steps of PES on Fashion-MNIST's 2-layer MLP.

    python benchmarks/meta_train.py                      the published setting: K = 8, H = 4, B = 128, 8 pairs, T = 50
    python benchmarks/meta_train.py --precision highest  … with matrix products in full float32

The last line is JSON. An outer step unrolls pairs × 2 × truncation rounds; medians of several timings, compilation left
out. On a machine without an accelerator the defaults are smaller (they are in the JSON).
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laconic.client import LocalOptimizer
from laconic.meta.problem import Inner
from laconic.meta.train import MetaTrainer, Outer
from laconic.outer.learned import LearnedOptimizer
from laconic.store.runlog import provenance, write_json
from laconic.tasks.catalog import make_task


def measure(architecture: str, inner: Inner, outer: Outer, repeats: int, steps: int) -> dict[str, float]:
    """Median seconds of an outer step over `repeats` timings of `steps` steps each."""
    K = inner.workers if architecture.startswith("lagg") else None
    trainer = MetaTrainer([make_task(inner.task)], LearnedOptimizer(architecture, K, output_scale=0.01), [inner], outer)
    state = trainer.start(0)
    began = time.perf_counter()
    state, progress = trainer.advance(state)
    jax.block_until_ready(progress)
    compiled = time.perf_counter() - began
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(steps):
            state, progress = trainer.advance(state)
        jax.block_until_ready(progress)
        seconds.append((time.perf_counter() - began) / steps)
    median = statistics.median(seconds)
    return {
        "rounds_per_second": round(trainer.rounds_per_step / median, 1),
        "outer_step_seconds": round(median, 5),
        "fastest": round(min(seconds), 5),
        "slowest": round(max(seconds), 5),
        "first_step_seconds": round(compiled, 2),
    }


def main() -> None:
    slow = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="fmnist-mlp2")
    parser.add_argument("--architectures", nargs="+", default=["lopt-a", "lagg-a"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--local-steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=2 if slow else 8)
    parser.add_argument("--truncation", type=int, default=5 if slow else 50)
    parser.add_argument("--repeats", type=int, default=3 if slow else 5)
    parser.add_argument("--steps", type=int, default=1 if slow else 10)
    parser.add_argument("--precision", choices=["default", "highest", "bfloat16"], default="default")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args()
    if options.precision != "default":
        jax.config.update("jax_default_matmul_precision", options.precision)
    inner = Inner(options.task, options.workers, options.local_steps, options.batch, LocalOptimizer("sgd", 0.1))
    outer = Outer(pairs=options.pairs, truncation=options.truncation)
    figures = {}
    for architecture in options.architectures:
        figures[architecture] = measure(architecture, inner, outer, options.repeats, options.steps)
        print(f"{architecture}: {figures[architecture]['rounds_per_second']:,} rounds/s", flush=True)
    record = {
        "benchmark": "meta-train",
        "precision": options.precision,
        "inner": asdict(inner),
        "pairs": options.pairs,
        "truncation": options.truncation,
        "figures": figures,
        "provenance": provenance(),
    }
    if options.out:
        write_json(options.out, record)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
