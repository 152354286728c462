"""Training one model as data: a frozen config, ready ones by name, and what a config stands for."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from laconic.compress import parse_compressor
from laconic.errors import LaconicError, require_positive
from laconic.method import Method, Setting, check_workers
from laconic.methods import optimizer_sha256, parse_method
from laconic.recipes.comparisons import command_line
from laconic.tasks.catalog import parse_spec

KEPT_APART = ("out", "checkpoint_every")  # where and how often is each process's own affair


@dataclass(frozen=True)
class TrainConfig:
    """One model, trained with K workers and one outer optimizer."""

    task: str = "digits-mlp"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value."""
    optimizer: str = "lopt-a-digits"
    """The outer optimizer and its workers: a name from `laconic optimizers`, with options as
    name:key=value,…."""
    workers: int = 4
    """K, how many workers there are."""
    local_steps: int = 4
    """H, the local steps each takes in a round."""
    batch: int = 16
    """B, the examples of a local step."""
    rounds: int = 100
    """T, the communication rounds."""
    seed: int = 0
    """The seed of initial weights and minibatches."""
    compress: str = "dense"
    """How messages are compressed: dense, topk:0.01, tensor-topk:0.01, int8, int4, +ef; e.g.
    topk:0.01+int8+ef."""
    norm_limit: float = 100.0
    """A message whose norm is over so many times the usual is left out; near loss 0 honest ones
    vary much."""
    checkpoint_every: int = 50
    """Rounds between two checkpoints; 0: only at the end."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/TASK-TIME."""


TRAIN_RECIPES: dict[str, tuple[str, TrainConfig]] = {
    "digits": (
        "a small MLP on the bundled digits, by an optimizer that was trained on them",
        TrainConfig(),
    ),
    "digits-general": (
        "the same by lopt-a-general, which never saw digits, for longer",
        TrainConfig(optimizer="lopt-a-general", rounds=300),
    ),
    "fmnist": (
        "Fashion-MNIST, 2-layer MLP, K = 8, H = 4, B = 128, by LOpt-A",
        TrainConfig("fmnist-mlp2", "lopt-a-fmnist", workers=8, batch=128, rounds=200),
    ),
    "fmnist-sparse": (
        "the same by SlowMo, sending a hundredth of each update",
        TrainConfig(
            "fmnist-mlp2",
            "slowmo:gamma=0.1,alpha=5,beta=0.3",
            workers=8,
            batch=128,
            rounds=500,
            compress="topk:0.01+ef",
        ),
    ),
    "lm-bytes": (
        "a byte-level language model on Python's own source, AdamW workers and Nesterov momentum",
        TrainConfig("lm-bytes", "diloco:gamma=0.003", rounds=300),
    ),
}


def parts_of(config: TrainConfig) -> tuple[Method, Setting]:
    """The method and the setting of a config; all that can be wrong with it is found here, before
    any data is read."""
    if config.checkpoint_every < 0:
        raise LaconicError(
            f"checkpoint_every counts rounds, or is 0 for none, got {config.checkpoint_every}."
        )
    require_positive(norm_limit=config.norm_limit)
    setting = Setting(
        config.workers,
        config.local_steps,
        config.batch,
        config.rounds,
        (config.seed,),
        config.rounds,
    )
    parse_spec(config.task)
    compressor = parse_compressor(config.compress)
    method = parse_method(config.optimizer, config.workers, compressor, use="train")
    check_workers(method, method.budget(config.workers, config.local_steps)[0])
    return method, setting


def run_name(config: TrainConfig) -> str:
    """What all workers of a run have in common, as text: each setting that changes a number.

    A learned optimizer counts by its contents: its file may lie elsewhere on another machine, and
    another laconic there may have another one of a published name.
    """
    said = {name: value for name, value in asdict(config).items() if name not in KEPT_APART}
    contents = contents_of(config)
    if contents is not None:
        _, colon, options = config.optimizer.partition(":")
        said["optimizer"] = contents + colon + options
    return json.dumps(said, sort_keys=True)


def contents_of(config: TrainConfig) -> str | None:
    """The sha256 of a learned optimizer, of the whole file if it is one; None for all others."""
    name = config.optimizer.partition(":")[0]
    if not name.endswith(".safetensors"):
        return optimizer_sha256(name)
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise LaconicError(f"cannot read the optimizer {name}: {error.strerror}.") from None


def train_command(config: TrainConfig) -> str:
    """The command line that gives this config."""
    return command_line("train", config, TrainConfig())


def to_json(config: TrainConfig) -> dict[str, Any]:
    """A config in a record."""
    return {**asdict(config), "out": str(config.out)}


def from_json(values: Mapping[str, Any], folder: Path) -> TrainConfig:
    """The config of the run in `folder`, from its record."""
    known = {
        f.name: type(getattr(TrainConfig(), f.name)) for f in fields(TrainConfig) if f.name != "out"
    }
    if set(values) != {*known, "out"} or not all(
        type(values[name]) is kind for name, kind in known.items()
    ):
        raise LaconicError(f"the settings in {folder} are not those of this version; start anew.")
    return replace(TrainConfig(**{name: values[name] for name in known}), out=folder)
