"""The two scales: `full` is the paper's setting, `smoke` the same methods in numbers for a laptop.

What tells panels apart stays apart: K and H are quartered, so 8, 16 and 32 become 2, 4 and 8. At
smoke scale compiling takes longer than computing, so programs are compiled with few optimizations.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import jax

from laconic.bench.overhead import OverheadConfig
from laconic.runs.configs import CompareConfig, SweepConfig
from laconic.runs.grid import parse_grid
from laconic.runs.meta_config import MetaConfig
from laconic.tasks.catalog import TASKS

SCALES = ("smoke", "full")
SMOKE_LINE = "smoke scale: shows that it works, not what it reaches"
ROUNDS = 50
SEEDS = 2
BATCH = 8
TARGET = 1.5
STEPS = 5  # outer steps of meta-training
SMOKE_SIZES = (
    f"K and H are a quarter of what panels and labels say; {ROUNDS} rounds of batch {BATCH}, "
    f"{SEEDS} seeds, narrow networks, {STEPS} outer steps of meta-training; with a population its "
    "data decides H"
)
EIGHTHS = {"width": 8, "side": 16}  # sizes that tell tasks apart, if a task gives them; the least
SIZES = ("hidden", "heads", "layers")  # of a decoder or a ViT
FEW = 100  # points of a grid that are not too many
POINTS = {"slowmo": ("gamma=1,0.5,0.3,0.1", "alpha=1/gamma,0.1/gamma", "beta=0.95,0.8")}  # of 487
# Compile times of learned optimizers about halve without XLA's fusion emitters. Level 1 is for
# convolutions; all else is compiled at level 0, by `compiled_for`.
XLA_FLAGS = ("--xla_backend_optimization_level=1", "--xla_cpu_use_fusion_emitters=false")


class Small(NamedTuple):
    """A model at smoke scale: its options, and whether it is slow if compiled without effort."""

    options: dict[str, str]
    optimized: bool = False


_CNN = Small({"width": "2"}, optimized=True)
_RESNET = Small({"width": "2", "blocks": "1-1", "stem": "large"})
_VIT = {"patch": "8", "hidden": "16", "heads": "2", "layers": "1"}
_DECODER = {"context": "16", "hidden": "16", "heads": "2", "layers": "1", "tokenizer": "bytes"}
MODELS: dict[str, Small] = {  # by the model of a task DATA-MODEL; all others have a width of 16
    "cnn": _CNN,
    "cnn-bn": _CNN,
    "resnet50": _RESNET,
    "resnet152": _RESNET,
    "deit-tiny": Small(_VIT),
    "vit-b": Small(_VIT | {"patch": "4"}),
    "decoder": Small(_DECODER),
}


def _small(spec: str) -> Small:
    name = spec.partition(":")[0]
    default = Small({"width": "16"} if "width" in TASKS[name].options else {})
    return MODELS.get(name.partition("-")[2], default)


def small_task(spec: str) -> str:
    """The task at a small size; a width or side that it gives becomes an eighth. Numbers of its
    meta-training, after an @, stay."""
    spec, at, numbers = spec.partition("@")
    name, _, given = spec.partition(":")
    own = dict(item.split("=", 1) for item in given.split(",") if given)
    for key, least in EIGHTHS.items():
        if key in own:
            own[key] = str(max(least, int(own[key]) // 8))
    for key in ("compute", "stem"):  # bfloat16 is slow on CPUs, and so are images at full size
        own.pop(key, None)
    small = _small(spec).options
    for key in SIZES:  # these tell no tasks apart
        if key in small:
            own.pop(key, None)
    options = small | own
    words = ",".join(f"{key}={value}" for key, value in options.items())
    return (f"{name}:{words}" if words else name) + at + numbers


def quarter(count: int) -> int:
    """A fourth of K or H, at least 1."""
    return max(1, count // 4)


def smoke(config: CompareConfig) -> CompareConfig:
    """A comparison made small; a target loss becomes one that is in reach."""
    return replace(
        config,
        task=small_task(config.task),
        workers=quarter(config.workers),
        local_steps=quarter(config.local_steps),
        delay=config.delay // 4,
        batch=BATCH,
        rounds=ROUNDS,
        seeds=SEEDS,
        evaluate_every=ROUNDS // 5,
        target_loss=None if config.target_loss is None else TARGET,
    )


def smoke_meta(config: MetaConfig) -> MetaConfig:
    """A meta-training made small; runs of one fixed length keep one."""
    return replace(
        config,
        tasks=tuple(small_task(task) for task in config.tasks),
        workers=quarter(config.workers),
        local_steps=quarter(config.local_steps),
        batch=BATCH,
        steps=STEPS,
        pairs=2,
        truncation=5,
        shortest=20 if config.shortest == config.longest else 10,
        longest=20,
        ramp=0,
        warmup=1,
        average=0.0,
        judge_every=STEPS,
        judge_seeds=1,
        judge_tasks=tuple(small_task(task) for task in config.judge_tasks),
        checkpoint_every=STEPS,
        init=None,  # what it would begin from has other sizes
    )


def smoke_sweep(config: SweepConfig) -> SweepConfig:
    """A sweep made small: fewer points of a large grid; longer runs stay longer."""
    many = len(parse_grid(config.grid)) > FEW
    return replace(
        config,
        task=small_task(config.task),
        grid=POINTS.get(config.method, config.grid) if many else config.grid,
        points=(),
        points_at_once=SweepConfig().points_at_once,
        workers=quarter(config.workers),
        local_steps=quarter(config.local_steps),
        batch=BATCH,
        rounds=max(ROUNDS, config.rounds // 640),
        seeds=SEEDS,
    )


def smoke_times(config: OverheadConfig) -> OverheadConfig:
    """Timings of a tiny model; steps and restarts stay, as they cost little then."""
    task = small_task(config.task)
    return replace(config, task=task, batch=BATCH, workers=quarter(config.workers))


# --- compiling ------------------------------------------------------------------------------------


def compile_quickly(
    environment: MutableMapping[str, str], version: tuple[int, ...] = jax.__version_info__
) -> None:
    """Put `XLA_FLAGS` before the flags of an environment, which win; XLA reads them when it starts.

    XLA ends the process at a flag it does not know, so other releases of JAX get none.
    """
    if version[:2] == (0, 10):
        environment["XLA_FLAGS"] = " ".join([*XLA_FLAGS, *environment.get("XLA_FLAGS", "").split()])


@contextmanager
def compiled_for(scale: str, tasks: Sequence[str]) -> Iterator[None]:
    """Compile with few optimizations at smoke scale, unless a task's model would run too slowly."""
    before = jax.config.read("jax_disable_most_optimizations")
    quick = scale == "smoke" and not any(_small(task).optimized for task in tasks)
    jax.config.update("jax_disable_most_optimizations", before or quick)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
