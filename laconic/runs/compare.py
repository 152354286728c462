"""Several methods on one task, one after the other, into a folder that can be stopped and taken up
again.

The folder holds `records.jsonl` (a "run" record, one "method" record each, a "summary"),
`checkpoint.safetensors` while a method is under way, and the report. A method's record is written
when it is done; resuming skips what is recorded and continues the rest from the checkpoint, to the
same bits.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from laconic.errors import LaconicError
from laconic.method import Method, Setting
from laconic.runs.simulate import Chunk, Diverged, Simulation, in_parts
from laconic.show import comparison, metrics
from laconic.show.comparison import summarise
from laconic.show.timing import Link, Traffic
from laconic.store import checkpoint
from laconic.store.runlog import RunLog, changed_since, read, rewrite
from laconic.tasks.base import Task

RECORDS, CHECKPOINT = "records.jsonl", "checkpoint.safetensors"
SAVE_SECONDS = 30.0


class Interrupted(LaconicError):
    """Asked to stop; everything done so far is in `folder`."""

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


class Observer(Protocol):
    """Whoever watches a comparison: a progress bar, a test, or nobody."""

    def begin(self, label: str, rounds: int, done: int) -> None:
        """A method starts, or goes on after `done` rounds."""

    def progress(self, label: str, done: int, loss: float) -> None:
        """A chunk of rounds is done."""

    def note(self, text: str) -> None:
        """Something a person should know."""


class Silent:
    """An observer that says nothing."""

    def begin(self, label: str, rounds: int, done: int) -> None:
        """Nothing."""

    def progress(self, label: str, done: int, loss: float) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


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


def run_comparison(
    task: Task,
    methods: Sequence[Method],
    setting: Setting,
    folder: Path,
    options: Options = Options(),
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Run every method that `folder` has no record of, write the summary and the report → all
    records."""
    observer = observer or Silent()
    log, records = RunLog(folder / RECORDS), read(folder / RECORDS)
    since = changed_since(records[0].get("provenance"))
    finished = {r["label"]: r for r in records if r["kind"] == "method"}
    place = _Place(
        folder / CHECKPOINT,
        hashlib.sha256(json.dumps(records[0]).encode()).hexdigest(),
        set(finished),
    )
    for simulation, sizes in prepare(task, methods, setting, options):
        if simulation.method.label in finished:
            _note_another(simulation.method, finished[simulation.method.label], observer)
        else:
            _warn_past_horizon(simulation, observer)
            record = _within_memory(simulation, place, options, observer, stop)
            log.append(
                "method",
                traffic=asdict(sizes),
                step_seconds=options.step_seconds,
                **record,
                **since,
            )
            (folder / CHECKPOINT).unlink(missing_ok=True)
    records = read(folder / RECORDS)
    if records[-1]["kind"] != "summary":
        (folder / CHECKPOINT).unlink(
            missing_ok=True
        )  # left over if a run died between record and clean-up
        place_of = {method.label: i for i, method in enumerate(methods)}
        found = [r for r in records if r["kind"] == "method"]
        in_order = sorted(found, key=lambda method: place_of.get(method["label"], len(methods)))
        if (
            in_order != found
        ):  # methods that were added to others, or run again, come where they were asked for
            rewrite(log.path, [records[0], *in_order])
        log.append("summary", **summarise(in_order, options.target_loss, options.link))
        records = read(folder / RECORDS)
    comparison.write_report(folder, records)
    return records


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
    simulations = [Simulation(task, method, setting, options.mesh) for method in methods]
    return [(simulation, simulation.traffic(options.topology)) for simulation in simulations]


def is_another(record: dict[str, Any], sha256: str | None) -> bool:
    """Whether a record, or a checkpoint's meta, is of another optimizer than this one; older ones
    do not say."""
    return record.get("optimizer_sha256") not in (None, sha256)


def _note_another(method: Method, record: dict[str, Any], observer: Observer) -> None:
    if is_another(record, method.optimizer_sha256):
        observer.note(
            f"{method.name} is not the optimizer that it was when {method.label} was run; that "
            "stays as it is on "
            "record. To have it run by the one of now, compare into another folder."
        )


def _warn_past_horizon(simulation: Simulation, observer: Observer) -> None:
    horizon, rounds = simulation.method.outer.horizon, simulation.setting.rounds
    if horizon is not None and rounds > horizon:
        observer.note(
            f"{simulation.method.label} was meta-trained for {horizon} rounds; beyond them, up to "
            f"{rounds}, "
            "it is out of its depth and may diverge."
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
) -> dict[str, Any]:
    """The method's record; where the seeds do not fit in memory side by side, some are trained at a
    time."""
    too_large = f"{simulation.method.label} does not fit in the device's memory"
    return in_parts(
        partial(_run_method, simulation, place, options, observer, stop),
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
    seeds_at_once: int,
) -> dict[str, Any]:
    if seeds_at_once < simulation.setting.together:
        setting = replace(simulation.setting, seeds_at_once=seeds_at_once)
        simulation = Simulation(simulation.task, simulation.method, setting, options.mesh)
    label, setting = simulation.method.label, simulation.setting
    state, history = _begin(simulation, place)
    done = history.train.shape[1]
    observer.begin(label, setting.rounds, done)
    tick = saved = time.monotonic()
    try:
        for chunk in simulation.run(state, done, options.keep_going):
            history.add(chunk)
            state, done = chunk.state, chunk.done
            now = time.monotonic()
            history.seconds, tick = history.seconds + now - tick, now
            observer.progress(label, done, float(np.mean(chunk.losses[:, -1])))
            if stop() and done < setting.rounds:
                _save(place, simulation.method, state, history)
                raise Interrupted(
                    f"stopped in {label} after round {done} of {setting.rounds}.", place.path.parent
                )
            if now - saved > SAVE_SECONDS:
                _save(place, simulation.method, state, history)
                saved = now
    except Diverged as error:
        _save(place, simulation.method, error.before, history)
        raise LaconicError(
            f"{error} The last good checkpoint is {place.path}, after round {error.done}. "
            "Lower the learning rate, or ask to go on with --on-nan continue."
        ) from None
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
        "rounds_per_second": round(setting.rounds / max(history.seconds, 1e-9), 1),
        "optimizer_sha256": simulation.method.optimizer_sha256,
    }


def _begin(simulation: Simulation, place: _Place) -> tuple[Any, _History]:
    """A fresh start, or where the checkpoint of this method left off; one of another run is
    refused."""
    path, seeds = place.path, len(simulation.setting.seeds)
    meta = checkpoint.peek(path) if path.exists() else None
    if meta is not None and meta.get("run") != place.run:
        raise LaconicError(
            f"{path} belongs to another run; move it away, or resume the run it belongs to."
        )
    if (
        meta is None or meta["label"] in place.finished
    ):  # left over if a run died between record and clean-up
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
    """float32 numbers in the fewest digits that read back to the same bits; null where not finite."""
    return [
        [float(str(x)) if np.isfinite(x) else None for x in row]
        for row in curves.astype(np.float32)
    ]


def _digest(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
