"""How fast meta-training is: communication rounds and local steps a second in outer steps of PES.

An outer step unrolls pairs × 2 × truncation rounds; medians of timings, without compilation. A
population is what generalisation needs: hundreds of pairs of tiny runs, each with a setting of its
own, whose speed is bound by how many kernels a local step and a round are made of.
"""

import statistics
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from laconic.bench.round import fmnist
from laconic.bench.timing import Tick
from laconic.data.feed import Resident
from laconic.data.splits import Dataset
from laconic.errors import require_positive, require_some
from laconic.local import LocalOptimizer
from laconic.meta.estimator import Horizon
from laconic.meta.problem import Inner, Learned
from laconic.meta.train import MetaState, MetaTrainer, Outer
from laconic.meta.varied import drawn
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.relative import RelativeOptimizer
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task
from laconic.tasks.classifier import classifier_task
from laconic.tasks.small import MLP

TINY = "mlp-64-32-10"  # one hidden layer, on 8×8 images
ONE_TASK = {
    "task": "fmnist-mlp2",
    "architectures": ("lopt-a", "lagg-a"),
    "workers": 8,
    "local_steps": 4,
    "batch": 128,
    "spread": 0.0,
}
POPULATION = {
    "task": TINY,
    "architectures": ("lopt-r", "lopt-a"),
    "workers": 4,
    "local_steps": 8,
    "batch": 32,
    "spread": 3.0,
}


@dataclass(frozen=True)
class MetaTrainConfig:
    """Rounds and local steps a second in meta-training; on a CPU the defaults are smaller."""

    population: bool = False
    """Many runs of a tiny MLP (64-32-10 on 8×8 images), each with a setting of its own."""
    task: str | None = None
    """The task, as `laconic tasks` lists it; fmnist-mlp2."""
    architectures: tuple[str, ...] | None = None
    """What is meta-trained; lopt-a and lagg-a, or lopt-r and lopt-a for a population."""
    workers: int | None = None
    """K, or the largest; 8, or 4 for a population."""
    local_steps: int | None = None
    """H, or the largest; 4, or 8 for a population."""
    batch: int | None = None
    """Examples in a local step; 128, or 32 for a population."""
    local: Literal["sgd", "adamw"] = "sgd"
    """The workers' optimizer."""
    spread: float | None = None
    """0: one setting; from 1 on each run draws its own. 0, or 3 for a population."""
    pairs: int | None = None
    """Antithetic pairs; 8, or 256 for a population; on a CPU 2 and 32."""
    truncation: int | None = None
    """Rounds of an unroll; 50, or 20 for a population; 5 on a CPU."""
    repeats: int | None = None
    """Timings; 5, or 3 on a CPU."""
    steps: int | None = None
    """Outer steps in a timing; 10, or 1 on a CPU."""
    precision: Literal["default", "highest", "bfloat16"] = "default"
    """Precision of matrix products; default is TF32 on a large GPU, highest is full float32."""

    def filled(self) -> "MetaTrainConfig":
        """The config with defaults of the platform and of a population filled in."""
        slow = jax.default_backend() == "cpu"
        suited: dict[str, Any] = POPULATION if self.population else ONE_TASK
        if self.population:
            suited = suited | {"pairs": 32 if slow else 256, "truncation": 5 if slow else 20}
        else:
            suited = suited | {"pairs": 2 if slow else 8, "truncation": 5 if slow else 50}
        suited = suited | {"repeats": 3 if slow else 5, "steps": 1 if slow else 10}
        given = {name: getattr(self, name) for name in suited}
        given = {name: value for name, value in given.items() if value is not None}
        own = {"task", "architectures", "spread"}  # no counts
        require_positive(**{name: x for name, x in given.items() if name not in own})
        return replace(self, **{**suited, **given})


def measure(config: MetaTrainConfig, tick: Tick = lambda name: None) -> dict[str, Any]:
    """Figures by architecture: rounds and local steps a second, and seconds of an outer step."""
    chosen = config.filled()
    architectures = chosen.architectures or ()
    require_some(architectures=architectures)
    sizes = asdict(chosen)
    rate = 0.1 if config.local == "sgd" else 0.003
    inner = Inner(
        sizes["task"],
        sizes["workers"],
        sizes["local_steps"],
        sizes["batch"],
        LocalOptimizer(config.local, rate),
        spread=sizes["spread"],
    )
    horizon = Horizon(40, 300) if config.population else Horizon()
    outer = Outer(pairs=sizes["pairs"], truncation=sizes["truncation"], horizon=horizon)
    before = jax.config.values["jax_default_matmul_precision"]
    if config.precision != "default":
        jax.config.update("jax_default_matmul_precision", config.precision)
    try:
        figures = {}
        for architecture in architectures:
            figures[architecture] = time_one(
                architecture, inner, outer, sizes["repeats"], sizes["steps"]
            )
            tick(architecture)
    finally:
        jax.config.update("jax_default_matmul_precision", before)
    return {
        "precision": config.precision,
        "inner": asdict(inner),
        "pairs": outer.pairs,
        "truncation": outer.truncation,
        "figures": figures,
    }


def time_one(
    architecture: str, inner: Inner, outer: Outer, repeats: int, steps: int
) -> dict[str, float]:
    """Median seconds of an outer step over `repeats` timings of `steps` steps each.

    Local steps are those that are computed; where runs draw K and H, `steps_taken` is the share
    that is not masked.
    """
    trainer = MetaTrainer([_task(inner.task)], _learned(architecture, inner), [inner], outer)
    state = trainer.start(0)
    began = time.perf_counter()
    state, progress = trainer.advance(state)
    jax.block_until_ready(progress)
    compiled = time.perf_counter() - began
    share = _share_taken(trainer, inner, state) if inner.spread else None
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(steps):
            state, progress = trainer.advance(state)
        jax.block_until_ready(progress)
        seconds.append((time.perf_counter() - began) / steps)
    median = statistics.median(seconds)
    rounds = trainer.rounds_per_step / median
    found = {
        "rounds_per_second": round(rounds, 1),
        "local_steps_per_second": round(rounds * inner.workers * inner.local_steps),
        "seconds": median,
        "outer_step_seconds": round(median, 5),
        "fastest": round(min(seconds), 5),
        "slowest": round(max(seconds), 5),
        "first_step_seconds": round(compiled, 2),
    }
    return found if share is None else found | {"steps_taken": round(share, 3)}


def _task(name: str) -> Task:
    """A task by name; random images for the tiny one, whose speed does not depend on them."""
    if name == ONE_TASK["task"]:
        return fmnist()[0]
    if name != TINY:
        return make_task(name)
    rng = np.random.default_rng(0)
    splits = {
        split: {
            "x": rng.integers(0, 256, (count, 8, 8, 1), np.uint8),
            "y": rng.integers(0, 10, count, np.int32),
        }
        for split, count in (("train", 1200), ("valid", 150))
    }
    return classifier_task(
        name, partial(MLP, sizes=(64, 32, 10)), Dataset(Resident(splits), 10, "random")
    )


def _learned(architecture: str, inner: Inner) -> Learned:
    if architecture == "lopt-r":
        return RelativeOptimizer(0.7, hidden=8)
    K = inner.workers if architecture.startswith("lagg") else None
    return LearnedOptimizer(architecture, K, output_scale=0.01)


def _share_taken(trainer: MetaTrainer, inner: Inner, state: MetaState) -> float:
    """The share of the local steps computed that the runs under way take."""
    feed: Any = trainer.tasks[0].feed
    keys_N = state.estimators[0].runs.state.key[:, 0]
    found = jax.vmap(partial(drawn, inner, feed.size()))(keys_N)
    most = inner.workers * inner.local_steps
    return float(jnp.mean(found.workers * found.local_steps) / most)
