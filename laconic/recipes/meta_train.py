"""Carrying meta-training out: a folder with records, checkpoints and the trained φ, stopped and taken up at will.

The folder holds `records.jsonl` ("run", then "progress" and "judged" as it goes, "summary" at the end), the checkpoint,
`best.safetensors` and `last.safetensors` (loadable optimizers with a card) and the learning curve. A resumed run goes
on from its checkpoint to the same bits; records written after that checkpoint are superseded by those written again.
"""

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from laconic.errors import LaconicError, require_seed
from laconic.evaluate.compare import CHECKPOINT, RECORDS, Interrupted
from laconic.evaluate.learning_curve import learning_curve
from laconic.meta.train import MetaState, MetaTrainer, Progress, group_mesh, score
from laconic.outer.learned import Theta
from laconic.recipes.folder import new_folder
from laconic.recipes.meta_config import MetaConfig
from laconic.recipes.publish import publish_run
from laconic.store import checkpoint
from laconic.store.runlog import RunLog, provenance, read
from laconic.tasks.catalog import make_task_and_source
from laconic.zoo import load

LOOK_SECONDS = 0.5  # outer steps are sent off in bursts of about this long, then looked at


class MetaObserver(Protocol):
    """Whoever watches: a live display, a test, or nobody."""

    def begin(self, config: MetaConfig, done: int, rounds_per_step: int) -> None:
        """Training starts, or goes on after `done` outer steps."""

    def progress(self, done: int, losses: np.ndarray, norms: np.ndarray) -> None:
        """Some outer steps are done: mean meta-loss and gradient norm of each [steps]."""

    def judged(self, done: int, value: float, best: bool) -> None:
        """φ was judged on held-out seeds."""

    def note(self, text: str) -> None:
        """Something a person should know."""


@dataclass
class _Best:
    """The best φ so far, its score on held-out seeds and the step it is of."""

    theta: Theta
    score: float = float("inf")
    step: int = 0


@dataclass
class _Run:
    """A meta-training under way."""

    config: MetaConfig
    folder: Path
    trainer: MetaTrainer
    state: MetaState
    best: _Best
    observer: MetaObserver
    done: int = 0
    seconds: float = 0.0
    losses: list[np.ndarray] = field(default_factory=list)
    norms: list[np.ndarray] = field(default_factory=list)
    recorded: int = 0


def meta_train(
    config: MetaConfig,
    *,
    observer: MetaObserver,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
    name: str = "own",
) -> tuple[Path, list[dict[str, Any]]]:
    """Meta-train by a config → (its folder, its records)."""
    trainer, sources = _prepare(config)
    state = trainer.start(config.seed, _initial(config))
    folder = new_folder(config.out, f"meta-{name}")
    RunLog(folder / RECORDS).append(
        "run",
        recipe=name,
        config=_json(replace(config, out=folder)),
        command=command or f"laconic meta-train {name}",
        sources=sources,
        provenance=provenance(),
    )
    return _train(_Run(config, folder, trainer, state, _Best(_host(state.theta)), observer), stop)


def resume_meta_train(
    folder: Path,
    *,
    observer: MetaObserver,
    stop: Callable[[], bool] = lambda: False,
    minutes: float | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Go on from a folder's checkpoint, with the settings it was begun with."""
    header = _header(folder)
    config = replace(_from_json(header["config"], folder), minutes=minutes)
    trainer, sources = _prepare(config)
    if sources != header["sources"]:
        raise LaconicError(f"{folder} was begun on {header['sources']}, and the data is now {sources}; start anew.")
    now, then = provenance(), header["provenance"]
    for what in ("commit", "versions", "device"):
        if now.get(what) != then.get(what):
            observer.note(f"{what} was {then.get(what)} and is {now.get(what)}: results may differ in the last digits.")
    saved = (folder / CHECKPOINT).exists()
    state = trainer.start(config.seed, None if saved else _initial(config))
    run = _Run(config, folder, trainer, state, _Best(_host(state.theta)), observer)
    if saved:
        _restore(run)
    return _train(run, stop)


def _prepare(config: MetaConfig) -> tuple[MetaTrainer, list[str]]:
    """Everything that can be wrong about a config, found before a folder is made."""
    if config.minutes is not None and not config.minutes > 0:
        raise LaconicError(f"minutes must be positive, got {config.minutes}.")
    if config.judge_every < 1 or config.judge_seeds < 1 or config.checkpoint_every < 1 or config.devices < 1:
        raise LaconicError("judge_every, judge_seeds, checkpoint_every and devices must be positive.")
    require_seed(config.seed)
    learned, inners, outer = config.learned(), config.inners(), config.outer()
    mesh = group_mesh(config.devices) if config.devices > 1 else None
    made = {spec: make_task_and_source(spec) for spec in dict.fromkeys(inner.task for inner in inners)}
    tasks = [made[inner.task][0] for inner in inners]
    return MetaTrainer(tasks, learned, inners, outer, mesh), [made[inner.task][1] for inner in inners]


def _initial(config: MetaConfig) -> Theta | None:
    """The φ to begin from, if one is named; it must be of the architecture that is to be trained."""
    if config.init is None:
        return None
    found, wanted = load(config.init), config.learned()
    for what in ("architecture", "workers", "hidden", "time"):  # output_scale matters to random weights alone
        theirs, ours = getattr(found.learned, what), getattr(wanted, what)
        if theirs != ours:
            raise LaconicError(
                f"training cannot begin from {config.init}: its {what} is {theirs}, and this run's is {ours}. "
                f"Begin from another one, or change the run to fit it."
            )
    return found.theta


def _train(run: _Run, stop: Callable[[], bool]) -> tuple[Path, list[dict[str, Any]]]:
    config, start = run.config, time.monotonic()
    run.observer.begin(config, run.done, run.trainer.rounds_per_step)
    _replay(run)
    deadline = None if config.minutes is None else start + 60 * config.minutes
    tick, burst, first = start, 1, run.done + 1
    while run.done < config.steps:
        ends = [config.steps] + [(run.done // n + 1) * n for n in (config.judge_every, config.checkpoint_every)]
        count = min(burst, min(ends) - run.done)
        began = time.monotonic()
        _advance(run, count)
        now = time.monotonic()
        burst = max(1, min(100, round(LOOK_SECONDS * count / max(now - began, 1e-6))))
        run.seconds, tick = run.seconds + now - tick, now
        if run.done % config.judge_every == 0 or run.done == config.steps:
            _judge(run)
        out_of_time = deadline is not None and time.monotonic() > deadline
        if stop() or out_of_time or run.done % config.checkpoint_every == 0:
            _save(run)
        if (stop() or out_of_time) and run.done < config.steps:
            _publish(run)
            if deadline is not None and now > deadline and run.done == first and not stop():
                raise _too_short(run, now - start)
            why = "asked to stop" if stop() else f"the {config.minutes} minutes are over"
            raise Interrupted(f"{why} after outer step {run.done} of {config.steps}.", run.folder)
    _save(run)
    return _finish(run)


def _replay(run: _Run) -> None:
    """Show the observer what a resumed run has shown before."""
    if run.losses:
        run.observer.progress(run.done, *(np.stack(x).mean(axis=1) for x in (run.losses, run.norms)))
    if run.best.step:
        run.observer.judged(run.best.step, run.best.score, True)


def _too_short(run: _Run, seconds: float) -> LaconicError:
    least = math.ceil(seconds / 3) / 10  # minutes, at least twice what the first step took
    command = shlex.join(["laconic", "meta-train", "--resume", str(run.folder), "--minutes", str(least)])
    return LaconicError(
        f"{run.config.minutes:g} minutes are too few for one outer step: the first took {seconds:.1f} s, most of it "
        f"compiling. It is saved; go on with: {command}"
    )


def _advance(run: _Run, count: int) -> None:
    shown: list[Progress] = []
    for _ in range(count):
        run.state, progress = run.trainer.advance(run.state)
        shown.append(progress)
    losses, norms = (np.stack([np.asarray(getattr(p, what)) for p in shown]) for what in ("loss", "norm"))
    run.done += count
    run.losses += list(losses)
    run.norms += list(norms)
    run.observer.progress(run.done, losses.mean(axis=1), norms.mean(axis=1))


def _judge(run: _Run) -> None:
    """Score φ (and its running average) on held-out seeds; keep the better one if it beats the best so far."""
    began = time.monotonic()
    candidates = {"theta": run.state.theta} | ({"average": run.state.average} if run.config.average else {})
    for which, theta in candidates.items():
        curves = run.trainer.judge(theta, run.config.judge_seeds)
        value = score(curves, run.trainer.tasks, run.trainer.outer.horizon)
        better = value < run.best.score
        if better:
            run.best = _Best(_host(theta), value, run.done)
        finals = [float(c[:, -10:].mean()) for c in curves]
        ends = np.unique(np.geomspace(10, curves[0].shape[1], 13).round().astype(int)).clip(max=curves[0].shape[1])
        RunLog(run.folder / RECORDS).append(
            "judged",
            step=run.done,
            which=which,
            score=value,
            best=better,
            final_losses=finals,
            at=ends.tolist(),
            losses=[[float(c[:, max(0, end - 10) : end].mean()) for end in ends] for c in curves],
            seconds=round(time.monotonic() - began, 3),
        )
        run.observer.judged(run.done, value, better)
    if run.best.step == run.done:
        _publish(run)


def _publish(run: _Run) -> None:
    """The best and the latest φ as files that `laconic.load` reads."""
    header = read(run.folder / RECORDS)[0]
    for which, theta, step in (("best", run.best.theta, run.best.step), ("last", _host(run.state.theta), run.done)):
        publish_run(run.folder / f"{which}.safetensors", run.config, header, theta, step, run.seconds)


def _save(run: _Run) -> None:
    """Progress since the last time as a record, then the checkpoint."""
    if run.done > run.recorded:
        fresh = slice(run.recorded, run.done)
        RunLog(run.folder / RECORDS).append(
            "progress",
            begin=run.recorded,
            end=run.done,
            loss=np.stack(run.losses[fresh]),
            norm=np.stack(run.norms[fresh]),
            seconds=round(run.seconds, 3),
        )
        run.recorded = run.done
    tree = {"state": run.state, "best": run.best.theta, "loss": np.stack(run.losses), "norm": np.stack(run.norms)}
    meta = {"done": run.done, "seconds": run.seconds, "best_step": run.best.step, "best_score": run.best.score}
    meta["best_score"] = run.best.score if np.isfinite(run.best.score) else None
    checkpoint.save(run.folder / CHECKPOINT, tree, meta)


def _restore(run: _Run) -> None:
    path = run.folder / CHECKPOINT
    meta = checkpoint.peek(path)
    history = jax.ShapeDtypeStruct((meta["done"], len(run.config.tasks)), np.float32)
    like = {"state": run.state, "best": run.best.theta, "loss": history, "norm": history}
    tree, meta = checkpoint.load(path, jax.eval_shape(lambda: like))
    run.state = run.trainer.place(tree["state"])
    value = float("inf") if meta["best_score"] is None else meta["best_score"]
    run.best = _Best(_host(tree["best"]), value, meta["best_step"])
    run.losses, run.norms = list(np.asarray(tree["loss"])), list(np.asarray(tree["norm"]))
    run.done = run.recorded = meta["done"]
    run.seconds = meta["seconds"]


def _finish(run: _Run) -> tuple[Path, list[dict[str, Any]]]:
    _publish(run)
    log, records = RunLog(run.folder / RECORDS), read(run.folder / RECORDS)
    if records[-1]["kind"] != "summary":
        rounds = run.done * run.trainer.rounds_per_step
        log.append(
            "summary",
            steps=run.done,
            seconds=round(run.seconds, 3),
            rounds_per_second=round(rounds / max(run.seconds, 1e-9), 1),
            best_step=run.best.step,
            best_score=run.best.score,
        )
        records = read(run.folder / RECORDS)
    learning_curve(records, run.folder / "learning-curve.png")
    return run.folder, records


def _header(folder: Path) -> dict[str, Any]:
    path = folder / RECORDS
    try:
        found = path.is_file()
    except OSError as error:
        raise LaconicError(f"cannot read {folder}: {error.strerror}.") from None
    if not found:
        raise LaconicError(f"{folder} holds no {RECORDS}, so there is nothing to resume; give the folder of a run.")
    records = read(path)
    shape = {"config": dict, "sources": list, "provenance": dict}
    ours = bool(records) and records[0].get("kind") == "run"
    if not ours or not all(isinstance(records[0].get(key), kind) for key, kind in shape.items()):
        raise LaconicError(f"{path} holds no records of meta-training by this version; it cannot be resumed.")
    return records[0]


def _json(config: MetaConfig) -> dict[str, Any]:
    return {**asdict(config), "tasks": list(config.tasks), "out": str(config.out)}


def _from_json(values: dict[str, Any], folder: Path) -> MetaConfig:
    known = {f.name for f in fields(MetaConfig)}
    if set(values) != known:
        wrong = ", ".join(sorted(set(values) ^ known))
        raise LaconicError(f"the settings in {folder} differ from this version's in {wrong}; start anew.")
    for name in known:
        default, value = getattr(MetaConfig(), name), values[name]
        kinds = {float: (float, int), tuple: list}.get(type(default), type(default))
        if default is not None and not isinstance(value, kinds):
            raise LaconicError(f"the settings in {folder} have a {name} of the wrong type; start anew.")
    return MetaConfig(**{**values, "tasks": tuple(values["tasks"]), "out": folder})


def _host(theta: Theta) -> Theta:
    """A copy that outlives the state it is part of, which the next outer step uses up."""
    return {name: jnp.copy(value) for name, value in theta.items()}
