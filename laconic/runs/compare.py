"""Several methods on one task, one after the other, into a run folder.

The folder's records are a "run", one "method" each and a "summary". A checkpoint is there while a
method is under way, the report at the end. A method's record is written when it is done; a resumed
run skips what is recorded and continues the rest from the checkpoint, to the same bits.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from laconic.compress import parse_compressor
from laconic.errors import LaconicError
from laconic.fragments import Fragments
from laconic.means import name_of, parse_aggregate
from laconic.method import Method, Setting, seeds_from
from laconic.runs.ahead import Ahead, compiled_ahead
from laconic.runs.configs import CompareConfig
from laconic.runs.early import Looks, check_patience, watched
from laconic.runs.estimate import Forecast, Outlook, Program, Trial, of_methods
from laconic.runs.folder import (
    Interrupted,
    Observer,
    RunFolder,
    check_task,
    describe,
    is_another,
)
from laconic.runs.measure import local_step_seconds
from laconic.runs.ready import Optimizer, about_ready, methods_of, spoken
from laconic.runs.settings import begun_with, resume_command
from laconic.runs.simulate import TOPOLOGIES, Chunk, Diverged, Simulation, in_parts
from laconic.runs.trackers import heldout_numbers
from laconic.show import comparison, metrics
from laconic.show.summary import summarise
from laconic.show.timing import Link, Traffic, parse_duration, parse_link
from laconic.store import checkpoint
from laconic.tasks.base import Task
from laconic.tasks.catalog import OWN_TASK, given_task
from laconic.workers import worker_mesh

SAVE_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """What does not change the training: the network it is priced on, the target, and what to do
    about NaN."""

    topology: str = "server"
    link: Link | None = None
    step_seconds: float | None = None
    target_loss: float | None = None
    keep_going: bool = False
    mesh: Mesh | None = None


def compare(
    config: CompareConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Train by several optimizers on one task, and write records and a report.

    Args:
        config: what to compare and how.
        task: a task of your own instead of the one that `config.task` names.
        observer: is told of every chunk of rounds.
        stop: is asked after each chunk and each method; when it says True and something remains to
            be done, the run saves and raises `Interrupted`.
        command: what the report says the run was started with.

    Returns:
        The run's folder and its records: a "run", a "method" each, a "summary".

    Example::

        folder, records = laconic.compare(laconic.CompareConfig(rounds=20, seeds=1))
        print(records[-1]["rows"])
    """
    observer = observer or Observer()
    setting, options, methods = _parsed(config)
    ready = about_ready(config.optimizers, methods)
    if command is None:
        command = begun_with("compare", config, own_task=task is not None or bool(ready))
    config = replace(config, optimizers=spoken(config.optimizers, methods))
    task, source = given_task(task, config.task)
    config = replace(config, task=config.task if source != OWN_TASK else task.name)
    about = describe(task, source, config.batch)
    prepared = prepare(task, methods, setting, options)
    first = prepared[0][0]
    if first.plan is not None:
        config = replace(config, local_steps=first.H)  # the data of a population decides it
    if options.link is not None and options.step_seconds is None:
        options = replace(options, step_seconds=local_step_seconds(task, config.batch))
    if "test" not in task.feed.splits:
        observer.note(f"{task.name} has no test split, so no test loss or accuracy is shown.")
    facts = {"task": about, "step_seconds": options.step_seconds}
    facts |= {"ready": ready} if ready else {}
    new = RunFolder.create("compare", config.out, config.task, config, command, **facts)
    with new as folder, folder.watched_by(observer):
        return folder.path, run_comparison(prepared, folder, options, observer, stop)


def resume_compare(
    folder: Path,
    task: Task | None = None,
    *,
    optimizers: Sequence[Optimizer] | None = None,
    on_nan: Literal["stop", "continue"] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, list[dict[str, Any]]]:
    """Take up a comparison where it stopped, with the settings it was begun with."""
    observer = observer or Observer()
    with RunFolder.open(folder, "compare", observer) as opened:
        config = opened.config(CompareConfig)
        ready = opened.header.get("ready", {})
        if ready and optimizers is None:
            raise LaconicError(
                f"{folder} was begun from Python with ready optimizers ({', '.join(ready)}): give "
                f"all of its optimizers again, laconic.resume({str(folder)!r}, optimizers=(…))."
            )
        then: tuple[Any, ...] = config.optimizers
        config = replace(config, optimizers=tuple(optimizers or then))
        setting, options, methods = _parsed(replace(config, on_nan=on_nan or config.on_nan))
        if (now := spoken(config.optimizers, methods)) != then:
            raise LaconicError(
                f"{folder} was begun with the optimizers {', '.join(then)}, and now they are "
                f"{', '.join(now)}; give the same as before."
            )
        options = replace(options, step_seconds=opened.header["step_seconds"])
        task = opened.same_task(task, config.task, config.batch, observer)
        prepared = prepare(task, methods, setting, options)
        with opened.watched_by(observer):
            return folder, run_comparison(prepared, opened, options, observer, stop)


def check(config: CompareConfig, folder: Path, header: dict[str, Any]) -> list[str]:
    """Refuse what the comparison in `folder` cannot be resumed with → the labels of its methods."""
    setting, options, methods = _parsed(config)
    task, source = given_task(None, config.task)
    check_task(folder, header, header["task"], describe(task, source, config.batch))
    return [simulation.method.label for simulation, _ in prepare(task, methods, setting, options)]


def _parsed(config: CompareConfig) -> tuple[Setting, Options, list]:
    """Everything that can be wrong about a config, found before any data is read or folder made."""
    seeds = seeds_from(config.first_seed, config.seeds)
    check_patience(config.patience, config.rounds, config.evaluate_every)
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
        config.patience,
        Fragments(config.fragments, config.delay, config.mix),
        config.fresh_statistics,
    )
    if setting.fragments.active and config.link is not None:
        raise LaconicError(
            "--link prices rounds in which nobody computes while messages travel, which fragments "
            "are there to change: leave out one of them."
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
    aggregate = parse_aggregate(config.aggregate)
    methods = methods_of(config.optimizers, config.workers, compressor, aggregate)
    mesh = worker_mesh(config.devices) if config.devices > 1 else None
    options = Options(
        config.topology, link, step, config.target_loss, config.on_nan == "continue", mesh
    )
    return setting, options, methods


def run_comparison(
    prepared: Sequence[tuple[Simulation, Traffic]],
    folder: RunFolder,
    options: Options = Options(),
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Run every method of `prepare` that `folder` has no record of, write the summary and the
    report → all records."""
    observer = observer or Observer()
    since = folder.changes()
    finished = {record["label"]: record for record in folder.of_kind("method")}
    run = hashlib.sha256(json.dumps(folder.header).encode()).hexdigest()
    place = _Place(folder.checkpoint, run, set(finished))
    labels = [simulation.method.label for simulation, _ in prepared]
    remaining = [label for label in labels if label not in finished]
    todo = [simulation for simulation, _ in prepared if simulation.method.label in remaining]
    outlook = _outlook(todo, folder, observer)
    with compiled_ahead(todo) as ahead:
        for simulation, sizes in prepared:
            label = simulation.method.label
            if label in finished:
                _note_another(simulation.method, finished[label], observer)
                continue
            _warn_past_horizon(simulation, observer)
            ahead.wait(label)
            record = _within_memory(simulation, place, options, observer, stop, outlook, ahead)
            times = {"traffic": asdict(sizes), "step_seconds": options.step_seconds}
            folder.append("method", **times, **record, **since)
            folder.checkpoint.unlink(missing_ok=True)
            remaining.remove(label)
            if remaining and stop():
                raise Interrupted(f"stopped after {label}, before {remaining[0]}.", folder.path)
    records = folder.records()
    if records[-1]["kind"] != "summary":
        # left over if a run died between record and clean-up
        folder.checkpoint.unlink(missing_ok=True)
        place_of = {label: i for i, label in enumerate(labels)}
        found = [r for r in records if r["kind"] == "method"]
        in_order = sorted(found, key=lambda method: place_of.get(method["label"], len(labels)))
        # methods that were added to others, or run again, come where they were asked for; the
        # summary from before them is replaced
        if in_order != found or any(r["kind"] == "summary" for r in records):
            folder.rewrite([records[0], *in_order])
        folder.append("summary", **summarise(in_order, options.target_loss, options.link))
        records = folder.records()
    comparison.write_report(folder.path, records)
    return records


def _outlook(todo: Sequence[Simulation], folder: RunFolder, observer: Observer) -> Outlook | None:
    """What tells how long the rest takes; None if there is none."""
    if not todo:
        return None
    sizes = {"seeds": len(todo[0].setting.seeds), "rounds": todo[0].setting.rounds}
    return of_methods(Forecast(observer, folder.header.get("command", ""), sizes), todo)


def prepare(
    task: Task, methods: Sequence[Method], setting: Setting, options: Options
) -> list[tuple[Simulation, Traffic]]:
    """Every method ready to run, with its traffic; what cannot work is refused here, before
    anything is computed."""
    labels = [method.label for method in methods]
    if len(set(labels)) < len(labels):
        raise LaconicError(
            f"two optimizers have the same label in {labels}; tell them apart with label=NAME."
        )
    if setting.patience is not None:
        watched(task)
    simulations = [Simulation(task, method, setting, options.mesh) for method in methods]
    return [(simulation, simulation.traffic(options.topology)) for simulation in simulations]


def _note_another(method: Method, record: dict[str, Any], observer: Observer) -> None:
    if is_another(record, method.optimizer_sha256):
        observer.note(
            f"{method.name} is not the optimizer that it was when {method.label} was run; that "
            "stays as it is on record. To run it with the present one, compare into another folder."
        )


def _warn_past_horizon(simulation: Simulation, observer: Observer) -> None:
    horizon, rounds = simulation.method.outer.horizon, simulation.setting.rounds
    if horizon is not None and rounds > horizon:
        observer.note(
            f"{simulation.method.label} was meta-trained for {horizon} rounds; beyond them, up to "
            f"{rounds}, it may diverge."
        )


@dataclass
class _History:
    """What a method under way has shown so far: train loss [S, done] and held-out metrics [S,
    chunks]."""

    train: np.ndarray
    heldout: dict[str, np.ndarray]
    evaluated_at: list[int]
    finite: np.ndarray  # [S], whether the weights are
    seconds: float = 0.0

    def add(self, chunk: Chunk) -> None:
        """Take in a chunk."""
        self.train = np.concatenate([self.train, chunk.losses.mean(axis=2)], axis=1)
        for name, value_S in chunk.heldout.items():
            old = self.heldout.get(name, np.zeros((len(value_S), 0), np.float32))
            self.heldout[name] = np.concatenate([old, value_S[:, None]], axis=1)
        self.evaluated_at.append(chunk.done)
        self.finite = chunk.finite


@dataclass(frozen=True)
class _Place:
    """Where a method under way is saved, the run it belongs to, and what that run has finished."""

    path: Path
    run: str
    finished: set[str]


def _within_memory(
    simulation: Simulation,
    place: _Place,
    options: Options,
    observer: Observer,
    stop: Callable[[], bool],
    outlook: Outlook | None,
    ahead: Ahead,
) -> dict[str, Any]:
    """The method's record; where the seeds do not fit in memory side by side, some are trained at a
    time."""
    too_large = f"{simulation.method.label} does not fit in the device's memory"
    return in_parts(
        partial(_run_method, simulation, place, options, observer, stop, outlook, ahead),
        simulation.setting.together,
        lambda seeds: observer.note(f"{too_large} like this; {seeds} of the seeds at a time now."),
        f"{too_large}, even one seed at a time. Use smaller batches or fewer workers",
    )


def _run_method(
    simulation: Simulation,
    place: _Place,
    options: Options,
    observer: Observer,
    stop: Callable[[], bool],
    outlook: Outlook | None,
    ahead: Ahead,
    seeds_at_once: int,
) -> dict[str, Any]:
    if seeds_at_once < simulation.setting.together:
        setting = replace(simulation.setting, seeds_at_once=seeds_at_once)
        simulation = Simulation(simulation.task, simulation.method, setting, options.mesh)
    label, setting = simulation.method.label, simulation.setting
    aggregate = simulation.method.aggregate
    state, history = _begin(simulation, place)
    done = history.train.shape[1]
    observer.begin(label, setting.rounds, done)
    tick = saved = time.monotonic()

    def ready(program: Program, trial: Trial) -> None:
        ahead.begin()
        if outlook is not None:
            outlook.ready(done, program, trial)

    try:
        chunks = simulation.run(state, done, options.keep_going, ready)
        for chunk in () if _over(simulation, history) else chunks:
            history.add(chunk)
            state, done = chunk.state, chunk.done
            now = time.monotonic()
            last = done == setting.rounds or _over(simulation, history)
            if outlook is not None:
                outlook.took(chunk.losses.shape[1], now - tick, last=last)
            history.seconds, tick = history.seconds + now - tick, now
            observer.progress(label, done, float(np.mean(chunk.losses[:, -1])))
            _tell_numbers(observer, label, chunk)
            if last:
                break
            if stop():
                _save(place, simulation.method, state, history)
                raise Interrupted(
                    f"stopped in {label} after round {done} of {setting.rounds}.", place.path.parent
                )
            if now - saved > SAVE_SECONDS:
                _save(place, simulation.method, state, history)
                saved = now
    except Diverged as error:
        go_on = resume_command("compare", place.path.parent)
        _save(place, simulation.method, error.before, history)
        raise LaconicError(
            f"{error} The last good checkpoint is {place.path}, after round {error.done}. "
            f"{error.advice}, or go on with: {go_on} --on-nan continue"
        ) from None
    early = _looks(simulation, history)
    if early and early["stopped"]:
        observer.note(f"{label} {metrics.stopped_early(early)}.")
    return {
        "label": label,
        "method": simulation.method.name,
        "compressor": simulation.method.compressor.name,
        "workers": simulation.K,
        "local_steps": simulation.H,
        "train": _exact(history.train),
        "heldout": {name: _exact(values) for name, values in history.heldout.items()},
        "evaluated_at": history.evaluated_at,
        "diverged": (metrics.diverged(history.train) | ~history.finite).tolist(),
        "params_sha256": _digest(state.shared),
        "seconds": round(history.seconds, 3),
        "rounds_per_second": round(done / max(history.seconds, 1e-9), 1),
        "optimizer_sha256": simulation.method.optimizer_sha256,
        **({"early": early} if early else {}),
        **({"aggregate": name_of(aggregate)} if aggregate else {}),
    }


def _tell_numbers(observer: Observer, label: str, chunk: Chunk) -> None:
    """The means over seeds of a chunk: the train loss of each round, held-out metrics after it."""
    losses = chunk.losses.mean(axis=(0, 2)).tolist()
    before = chunk.done - len(losses)
    for i, loss in enumerate(losses[:-1], 1):
        observer.numbers(label, before + i, {"train_loss": loss})
    heldout = heldout_numbers({name: x_S.mean() for name, x_S in chunk.heldout.items()})
    observer.numbers(label, chunk.done, {"train_loss": losses[-1], **heldout})


def _looks(simulation: Simulation, history: _History) -> dict[str, Any]:
    """What is to be said about early stopping; nothing if it was not asked for."""
    patience = simulation.setting.patience
    if patience is None or not history.evaluated_at:
        return {}
    name = watched(simulation.task)
    losses = metrics.mean_curve(history.heldout[name])
    return Looks(history.evaluated_at, losses.tolist(), patience).facts(name)


def _over(simulation: Simulation, history: _History) -> bool:
    """Whether held-out loss says that a method is to stop."""
    return bool(_looks(simulation, history).get("stopped"))


def _begin(simulation: Simulation, place: _Place) -> tuple[Any, _History]:
    """A fresh start, or where the checkpoint of this method left off; one of another run is
    refused."""
    path, seeds = place.path, len(simulation.setting.seeds)
    meta = checkpoint.peek(path) if path.exists() else None
    if meta is not None and meta.get("run") != place.run:
        raise LaconicError(
            f"{path} belongs to another run; move it away, or resume the run it belongs to."
        )
    # the checkpoint of a finished method is left over if a run died between record and clean-up
    if meta is None or meta["label"] in place.finished:
        start = _History(np.zeros((seeds, 0), np.float32), {}, [], np.ones(seeds, bool))
        return simulation.start(), start
    if meta["label"] != simulation.method.label:
        raise LaconicError(
            f"{path} is of {meta['label']!r}, which this run does not do next; its settings were "
            "changed."
        )
    if is_another(meta, simulation.method.optimizer_sha256):
        raise LaconicError(
            f"{path} was begun with another {simulation.method.name} than there is now; delete it "
            "to begin "
            f"{meta['label']} anew."
        )
    empty = jax.ShapeDtypeStruct((seeds, len(meta["evaluated_at"])), np.float32)
    like = {
        "state": jax.eval_shape(simulation.start),
        "train": jax.ShapeDtypeStruct((seeds, meta["done"]), np.float32),
        "heldout": dict.fromkeys(meta["heldout"], empty),
    }
    tree, meta = checkpoint.load(path, like)
    heldout = {name: np.asarray(value) for name, value in tree["heldout"].items()}
    train, finite = np.asarray(tree["train"]), np.asarray(meta["finite"])
    return tree["state"], _History(train, heldout, meta["evaluated_at"], finite, meta["seconds"])


def _save(place: _Place, method: Method, state: Any, history: _History) -> None:
    meta = {
        "run": place.run,
        "label": method.label,
        "optimizer_sha256": method.optimizer_sha256,
        "done": history.train.shape[1],
        "evaluated_at": history.evaluated_at,
        "heldout": sorted(history.heldout),
        "finite": history.finite.tolist(),
        "seconds": history.seconds,
    }
    checkpoint.save(
        place.path, {"state": state, "train": history.train, "heldout": history.heldout}, meta
    )


def _exact(curves: np.ndarray) -> list[list[float | None]]:
    """float32 numbers in the fewest digits that give the same bits again; null where not finite."""
    return [
        [float(str(x)) if np.isfinite(x) else None for x in row]
        for row in curves.astype(np.float32)
    ]


def _digest(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
