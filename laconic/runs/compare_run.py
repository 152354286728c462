"""Carrying a comparison out: everything checked first, a folder made, and taken up again after a
stop."""

import math
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

import jax

from laconic.compress import parse_compressor
from laconic.errors import LaconicError
from laconic.federated.population import read_federated
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.recipes.comparisons import CompareConfig, command_of
from laconic.runs.compare import RECORDS, Observer, Options, Silent, prepare, run_comparison
from laconic.runs.folder import (
    check_records,
    check_task,
    describe,
    new_folder,
    note_changes,
    read_run,
)
from laconic.runs.measure import local_step_seconds
from laconic.runs.simulate import TOPOLOGIES
from laconic.show.timing import Link, parse_duration, parse_link
from laconic.store import atomic
from laconic.store.runlog import RunLog, provenance
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task_and_source
from laconic.workers import worker_mesh

ADDED = ("missing", "seeds_at_once")  # settings that there were none of in the first records
OWN_TASK = "given by the caller"  # where the data of a task of one's own comes from


def compare(
    config: CompareConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Carry a comparison out → (its folder, its records). `task` may be one of your own instead of
    a named one."""
    observer = observer or Silent()
    setting, options, methods = _parsed(config)
    source, command = (
        OWN_TASK,
        command or (command_of(config) if task is None else "laconic.compare, from Python"),
    )
    if task is None:
        task, source = make_task_and_source(config.task)
    else:
        config = replace(config, task=task.name)
    (first, _), *_ = prepare(task, methods, setting, options)
    if first.plan is not None:
        config = replace(config, local_steps=first.H)  # the data of a population decides it
    if options.link is not None and options.step_seconds is None:
        options = replace(options, step_seconds=local_step_seconds(task, config.batch))
    if "test" not in task.feed.splits:
        observer.note(f"{task.name} has no test split, so no test loss or accuracy is shown.")
    folder = new_folder(config.out, config.task)
    RunLog(folder / RECORDS).append(
        "run",
        config=_json(replace(config, out=folder)),
        command=command,
        task=describe(task, source),
        step_seconds=options.step_seconds,
        provenance=provenance(),
    )
    atomic.write_text(folder / "command.txt", command + "\n")
    return folder, run_comparison(task, methods, setting, folder, options, observer, stop)


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
    header = _header(folder)
    config = _from_json(header["config"], folder)
    setting, options, methods = _parsed(replace(config, on_nan=on_nan or config.on_nan))
    options = replace(options, step_seconds=header["step_seconds"])
    own = header["task"]["source"] == OWN_TASK
    if own and task is None:
        raise LaconicError(
            f"{folder} was begun with a task of its own; resume it from Python with that task."
        )
    source = OWN_TASK
    if task is None:
        task, source = make_task_and_source(config.task)
    check_task(folder, header, task, source)
    note_changes(header, observer.note)
    return folder, run_comparison(task, methods, setting, folder, options, observer, stop)


def check(config: CompareConfig, folder: Path, header: dict[str, Any]) -> list[str]:
    """Refuse what a comparison in `folder` could not be taken up with → the labels of its methods."""
    setting, options, methods = _parsed(config)
    task, source = make_task_and_source(config.task)
    check_task(folder, header, task, source)
    return [simulation.method.label for simulation, _ in prepare(task, methods, setting, options)]


def _header(folder: Path) -> dict[str, Any]:
    """The run record that a folder begins with; anything else is refused."""
    path, records = folder / RECORDS, read_run(folder)
    shape = {"config": dict, "task": dict, "provenance": dict}
    ours = bool(records) and records[0].get("kind") == "run" and "step_seconds" in records[0]
    ours = ours and all(isinstance(records[0].get(key), kind) for key, kind in shape.items())
    if not ours or not all(r.get("kind") in ("run", "method", "summary") for r in records):
        raise LaconicError(
            f"{path} holds no records of a comparison by this version; it cannot be resumed."
        )
    check_records(path, records)
    return records[0]


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
        config.federated,
        config.missing,
        config.seeds_at_once,
    )
    if config.topology not in TOPOLOGIES or not config.optimizers:
        raise LaconicError(
            f"a comparison needs optimizers and a topology of {', '.join(TOPOLOGIES)}."
        )
    if config.devices < 1 or config.devices > len(jax.devices()):
        raise LaconicError(
            f"devices must be between 1 and the {len(jax.devices())} here, got {config.devices}."
        )
    if config.devices > 1 and config.workers % config.devices:
        raise LaconicError(f"{config.workers} workers do not divide over {config.devices} devices.")
    if config.target_loss is not None and not math.isfinite(config.target_loss):
        raise LaconicError(f"the target loss must be finite, got {config.target_loss}.")
    link: Link | None = None if config.link is None else parse_link(config.link)
    step = None if config.step_time is None else parse_duration(config.step_time)
    compressor = parse_compressor(config.compress)
    methods = [parse_method(spec, config.workers, compressor) for spec in config.optimizers]
    mesh = worker_mesh(config.devices) if config.devices > 1 else None
    options = Options(
        config.topology, link, step, config.target_loss, config.on_nan == "continue", mesh
    )
    return setting, options, methods


def _json(config: CompareConfig) -> dict[str, Any]:
    return {**asdict(config), "optimizers": list(config.optimizers), "out": str(config.out)}


def _from_json(values: dict[str, Any], folder: Path) -> CompareConfig:
    default = _json(CompareConfig())
    values = {**{name: default[name] for name in ADDED}, **read_federated(values, str(folder))}
    wrong = sorted(set(values) ^ set(default))
    if wrong:
        raise LaconicError(
            f"the settings in {folder} differ from this version's in {', '.join(wrong)}; start "
            "anew."
        )
    config = CompareConfig(**{**values, "optimizers": tuple(values["optimizers"]), "out": folder})
    for field in fields(CompareConfig):
        kinds = {
            type(getattr(d, field.name))
            for d in (CompareConfig(), config)
            if getattr(d, field.name) is not None
        }
        if len(kinds - {type(folder)}) > 1:
            raise LaconicError(
                f"the settings in {folder} have a {field.name} of the wrong type; start anew."
            )
    return config
