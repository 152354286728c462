"""`laconic compare` as data: a frozen config, ready ones by name, and the function that carries one out."""

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import jax

from laconic.compress import parse_compressor
from laconic.errors import LaconicError
from laconic.evaluate.compare import CHECKPOINT, RECORDS, Observer, Options, Silent, prepare, run_comparison
from laconic.evaluate.run import TOPOLOGIES, Setting, local_step_seconds
from laconic.evaluate.timing import Link, parse_duration, parse_link
from laconic.recipes.methods import parse_method
from laconic.store import atomic
from laconic.store.runlog import RunLog, provenance, read
from laconic.tasks.base import Task, count_parameters
from laconic.tasks.catalog import make_task_and_source
from laconic.workers import worker_mesh


@dataclass(frozen=True)
class CompareConfig:
    """Several optimizers on one task with K workers, over several seeds."""

    task: str = "digits-mlp"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value."""
    optimizers: tuple[str, ...] = (
        "local-sgd",
        "slowmo:gamma=0.3,beta=0.8",
        "fedadam:gamma=0.3,eta=0.03",
        "adam:alpha=0.02",
        "diloco",
    )
    """What to compare: names from `laconic optimizers`, with options as name:key=value,key=value."""
    workers: int = 8
    """K, how many workers there are."""
    local_steps: int = 4
    """H, the local steps each takes in a round."""
    batch: int = 16
    """B, the examples of a local step."""
    rounds: int = 100
    """T, the communication rounds."""
    seeds: int = 5
    """How many seeds, each with its own initial weights and minibatches."""
    first_seed: int = 0
    """The first seed; the others follow it."""
    evaluate_every: int = 20
    """Rounds between two looks at the test set; also how often a run can be stopped."""
    compress: str = "dense"
    """How messages are compressed: dense, topk:0.01, tensor-topk:0.01, int8, int4, +ef; e.g. topk:0.01+int8+ef."""
    topology: Literal["server", "all-gather", "ring"] = "server"
    """How messages travel, for counting bits."""
    link: str | None = None
    """Price the rounds on a network: bandwidth/latency, e.g. 100Mbit/20ms."""
    step_time: str | None = None
    """How long one local step takes, e.g. 12ms; measured on this machine if a link is given without it."""
    target_loss: float | None = None
    """The train loss to race to; by default the lowest that local SGD reaches."""
    on_nan: Literal["stop", "continue"] = "stop"
    """What to do when a loss is NaN or infinite."""
    devices: int = 1
    """Spread the workers over this many devices (K must be a multiple)."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/TASK-TIME."""


RECIPES: dict[str, tuple[str, CompareConfig]] = {
    "digits": ("five hand-designed optimizers on the bundled digits, under a minute on a laptop", CompareConfig()),
    "fmnist-baselines": (
        "the paper's tuned baselines on Fashion-MNIST: 2-layer MLP, K = 8, H = 4, B = 128, 1000 rounds, 10 seeds",
        CompareConfig(
            task="fmnist-mlp2",
            optimizers=(
                *(f"local-sgd:gamma={gamma}" for gamma in (1, 0.5, 0.3, 0.1)),
                "slowmo:gamma=0.1,alpha=1,beta=0.95",
                "sgd:alpha=0.1",
                "adam:alpha=0.01",
                "diloco",
            ),
            batch=128,
            rounds=1000,
            seeds=10,
            target_loss=0.2,
            on_nan="continue",
        ),
    ),
    "fmnist-undivided": (
        "tuned local SGD and SlowMo on all 60,000 images of Fashion-MNIST's train file instead of 80 % of them",
        CompareConfig(
            task="fmnist-mlp2:split=all",
            optimizers=("local-sgd:gamma=0.5", "local-sgd:gamma=0.3", "slowmo:gamma=0.1,alpha=1,beta=0.95"),
            batch=128,
            rounds=1000,
            seeds=10,
            target_loss=0.2,
        ),
    ),
    "fmnist-compress": (
        "local SGD and SlowMo on Fashion-MNIST, dense and compressed, priced on a 100 Mbit link",
        CompareConfig(
            task="fmnist-mlp2",
            optimizers=(
                "local-sgd",
                "slowmo",
                "slowmo:gamma=0.3,alpha=1.66,beta=0.8,compress=topk:0.1+ef",
                "slowmo:gamma=0.1,alpha=5,beta=0.3,compress=topk:0.01+ef",
                "slowmo:compress=int8",
                "slowmo:compress=int4",
            ),
            batch=128,
            rounds=1000,
            seeds=3,
            link="100Mbit/20ms",
        ),
    ),
    "lm-bytes": (
        "a byte-level language model on Python's own source, SGD and AdamW workers",
        CompareConfig(
            task="lm-bytes",
            optimizers=("local-sgd", "slowmo:gamma=0.3,beta=0.9", "diloco:gamma=0.003", "fedadam"),
            workers=4,
            rounds=300,
            seeds=2,
        ),
    ),
}


def compare(
    config: CompareConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Carry a comparison out → (its folder, its records). `task` may be one of your own instead of a named one."""
    observer = observer or Silent()
    setting, options, methods = _parsed(config)
    source = "given by the caller"
    if task is None:
        task, source = make_task_and_source(config.task)
    else:
        config = replace(config, task=task.name)
    prepare(task, methods, setting, options)
    folder = _new_folder(config)
    config = replace(config, out=folder)
    RunLog(folder / RECORDS).append(
        "run",
        config=_json(config),
        command=command or command_of(config),
        task=_describe(task, source),
        provenance=provenance(),
    )
    atomic.write_text(folder / "command.txt", (command or command_of(config)) + "\n")
    return _finish(folder, task, methods, setting, options, config, observer, stop)


def resume(
    folder: Path,
    task: Task | None = None,
    *,
    on_nan: Literal["stop", "continue"] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, list[dict[str, Any]]]:
    """Take up a comparison where it stopped, with the settings it was begun with."""
    observer = observer or Silent()
    if not (folder / RECORDS).is_file():
        raise LaconicError(f"{folder} holds no {RECORDS}, so there is nothing to resume; give the folder of a run.")
    records = read(folder / RECORDS)
    if not records or records[0].get("kind") != "run":
        raise LaconicError(f"{folder / RECORDS} does not begin with the run's settings; it cannot be resumed.")
    header = records[0]
    config = _from_json(header["config"], folder)
    config = replace(config, on_nan=on_nan or config.on_nan, out=folder)
    setting, options, methods = _parsed(config)
    if task is None:
        if header["task"]["source"] == "given by the caller":
            raise LaconicError(f"{folder} was begun with a task of its own; resume it from Python with that task.")
        task, _ = make_task_and_source(config.task)
    now, then = provenance(), header["provenance"]
    for what in ("commit", "versions", "device"):
        if now.get(what) != then.get(what):
            observer.note(f"{what} was {then.get(what)} and is {now.get(what)}: results may differ in the last digits.")
    return _finish(folder, task, methods, setting, options, config, observer, stop)


def _finish(folder, task, methods, setting, options, config, observer, stop) -> tuple[Path, list[dict[str, Any]]]:
    if options.link is not None and options.step_seconds is None:
        options = replace(options, step_seconds=local_step_seconds(task, config.batch))
    if "test" not in task.feed.splits:
        observer.note(f"{task.name} has no test split, so no test loss or accuracy is shown.")
    return folder, run_comparison(task, methods, setting, folder, options, observer, stop)


def _parsed(config: CompareConfig) -> tuple[Setting, Options, list]:
    """Everything that can be wrong about a config, found before any data is read or folder made."""
    if config.seeds < 1:
        raise LaconicError(f"seeds must be positive, got {config.seeds}.")
    seeds = tuple(range(config.first_seed, config.first_seed + config.seeds))
    setting = Setting(
        config.workers,
        config.local_steps,
        config.batch,
        config.rounds,
        seeds,
        min(config.evaluate_every, config.rounds),
    )
    if config.topology not in TOPOLOGIES or not config.optimizers:
        raise LaconicError(f"a comparison needs optimizers and a topology of {', '.join(TOPOLOGIES)}.")
    if config.devices < 1 or config.devices > len(jax.devices()):
        raise LaconicError(f"devices must be between 1 and the {len(jax.devices())} here, got {config.devices}.")
    if config.devices > 1 and config.workers % config.devices:
        raise LaconicError(f"{config.workers} workers do not divide over {config.devices} devices.")
    link: Link | None = parse_link(config.link) if config.link else None
    step = parse_duration(config.step_time) if config.step_time else None
    compressor = parse_compressor(config.compress)
    methods = [parse_method(spec, config.workers, compressor) for spec in config.optimizers]
    mesh = worker_mesh(config.devices) if config.devices > 1 else None
    options = Options(config.topology, link, step, config.target_loss, config.on_nan == "continue", mesh)
    return setting, options, methods


def _new_folder(config: CompareConfig) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.task)
    folder = config.out or Path("runs") / f"{name}-{stamp}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = f" or go on with --resume {folder}" if (folder / RECORDS).exists() else ""
        raise LaconicError(
            f"{folder} is already there and not empty; nothing is overwritten. Choose another --out{hint}."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{CHECKPOINT}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LaconicError(f"cannot write to {folder}: {error.strerror}. Choose another folder with --out.") from None
    return folder


def _describe(task: Task, source: str) -> dict[str, Any]:
    params, _ = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    return {"name": task.name, "parameters": count_parameters(params), "classes": task.classes, "source": source}


def _json(config: CompareConfig) -> dict[str, Any]:
    return {**asdict(config), "optimizers": list(config.optimizers), "out": str(config.out)}


def _from_json(values: dict[str, Any], folder: Path) -> CompareConfig:
    known = {f.name for f in fields(CompareConfig)}
    if set(values) != known:
        wrong = sorted(set(values) ^ known)
        raise LaconicError(f"the settings in {folder} differ from this version's in {', '.join(wrong)}; start anew.")
    return CompareConfig(**{**values, "optimizers": tuple(values["optimizers"]), "out": folder})


def command_of(config: CompareConfig) -> str:
    """The command line that gives this config."""
    default, words = CompareConfig(), ["laconic", "compare"]
    for field in fields(config):
        value = getattr(config, field.name)
        if value != getattr(default, field.name):
            many = value if isinstance(value, tuple) else (value,)
            words += [f"--{field.name.replace('_', '-')}", *(str(v) for v in many)]
    return shlex.join(words)


__all__ = ["RECIPES", "CompareConfig", "command_of", "compare", "resume"]
