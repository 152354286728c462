"""How fast meta-training is: communication rounds a second in outer steps of PES.

An outer step unrolls pairs × 2 × truncation rounds; medians of timings, without compilation.
"""

import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import jax

from laconic.bench.timing import Tick
from laconic.errors import require_positive, require_some
from laconic.local import LocalOptimizer
from laconic.meta.problem import Inner
from laconic.meta.train import MetaTrainer, Outer
from laconic.outer.learned import LearnedOptimizer
from laconic.tasks.catalog import make_task


@dataclass(frozen=True)
class MetaTrainConfig:
    """Communication rounds a second in meta-training; on a CPU the defaults are smaller."""

    task: str = "fmnist-mlp2"
    """The task, as `laconic tasks` lists it."""
    architectures: tuple[str, ...] = ("lopt-a", "lagg-a")
    """What is meta-trained."""
    workers: int = 8
    """K."""
    local_steps: int = 4
    """H."""
    batch: int = 128
    """Examples in a local step."""
    pairs: int | None = None
    """Antithetic pairs; 8, or 2 on a CPU."""
    truncation: int | None = None
    """Rounds of an unroll; 50, or 5 on a CPU."""
    repeats: int | None = None
    """Timings; 5, or 3 on a CPU."""
    steps: int | None = None
    """Outer steps in a timing; 10, or 1 on a CPU."""
    precision: Literal["default", "highest", "bfloat16"] = "default"
    """Precision of matrix products; default is TF32 on a large GPU, highest is full float32."""

    def filled(self) -> "MetaTrainConfig":
        """The config with defaults of the platform filled in."""
        slow = jax.default_backend() == "cpu"
        suited = {"pairs": 2 if slow else 8, "truncation": 5 if slow else 50}
        suited |= {"repeats": 3 if slow else 5, "steps": 1 if slow else 10}
        given = {name: getattr(self, name) for name in suited}
        given = {name: value for name, value in given.items() if value is not None}
        require_positive(**given)
        return replace(self, **{**suited, **given})


def measure(config: MetaTrainConfig, tick: Tick = lambda name: None) -> dict[str, Any]:
    """Figures by architecture: rounds a second and seconds of an outer step."""
    require_some(architectures=config.architectures)
    sizes = asdict(config.filled())
    inner = Inner(
        config.task, config.workers, config.local_steps, config.batch, LocalOptimizer("sgd", 0.1)
    )
    outer = Outer(pairs=sizes["pairs"], truncation=sizes["truncation"])
    before = jax.config.values["jax_default_matmul_precision"]
    if config.precision != "default":
        jax.config.update("jax_default_matmul_precision", config.precision)
    try:
        figures = {}
        for architecture in config.architectures:
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
    """Median seconds of an outer step over `repeats` timings of `steps` steps each."""
    K = inner.workers if architecture.startswith("lagg") else None
    learned = LearnedOptimizer(architecture, K, output_scale=0.01)
    trainer = MetaTrainer([make_task(inner.task)], learned, [inner], outer)
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
        "seconds": median,
        "outer_step_seconds": round(median, 5),
        "fastest": round(min(seconds), 5),
        "slowest": round(max(seconds), 5),
        "first_step_seconds": round(compiled, 2),
    }
