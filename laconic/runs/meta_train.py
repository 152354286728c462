"""Meta-training: a learned optimizer φ trained by a config, into a run folder.

The folder's records are a "run", then "progress" and "judged" as it goes, and a "summary". Beside
them lie the checkpoint, `best.safetensors` and `last.safetensors` (loadable optimizers with a card)
and the learning curve. A resumed run goes on from its checkpoint to the same bits; records written
after that checkpoint are dropped, and written again.

Several processes that `jax.distributed` joined train as one: all of them call the same function
with the same config, the groups of runs are spread over the devices of all, and the first process
writes the folder. With one process, that costs and changes nothing.
"""

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from laconic.errors import CannotBegin, LaconicError, require_seed
from laconic.meta.problem import Learned
from laconic.meta.train import MetaState, MetaTrainer, Progress, group_mesh
from laconic.outer.learned import LearnedOptimizer, Theta
from laconic.outer.relative import RelativeOptimizer
from laconic.runs.estimate import Forecast, Outlook, TooLarge, compiled_all, step_operations
from laconic.runs.folder import (
    Interrupted,
    Observer,
    RunFolder,
    check_task,
    describe,
    require_own,
)
from laconic.runs.meta_config import MetaConfig
from laconic.runs.publish import publish_run
from laconic.runs.simulate import out_of_memory
from laconic.show.meta import write_learning_curve
from laconic.store import checkpoint
from laconic.tasks.base import Task
from laconic.tasks.catalog import given_task
from laconic.zoo import load

LOOK_SECONDS = 0.5  # outer steps are sent off in bursts of about this long, then looked at
LABEL = "meta-training"
# what must be alike in a φ to begin from; the other options change nothing about what it is
LEARNED_AS = ("workers", "hidden", "time")
RELATIVE_AS = ("rate", "momentum", "gates", "inputs")
T = TypeVar("T")


def meta_train(
    config: MetaConfig,
    tasks: Sequence[Task | str] | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
    name: str = "own",
) -> tuple[Path, list[dict[str, Any]]]:
    """Meta-train a learned optimizer.

    Args:
        config: what to train on and how.
        tasks: tasks of your own, and names of others, instead of those that `config.tasks` names.
            Numbers for one of yours go with its name there, as in "wave@batch=8".
        observer: is told of every outer step and every judgement.
        stop: is asked between bursts of outer steps; when it says True, the run saves and raises
            `Interrupted`.
        command: what the header says the run was started with.
        name: part of the folder's name, where `config.out` gives none.

    Returns:
        The run's folder, with `best.safetensors` in it, and its records. Of several processes only
        the first has records.

    Example::

        config = laconic.MetaConfig(tasks=("digits-mlp",), batch=16, steps=200, pairs=4)
        folder, records = laconic.meta_train(config)
        optimizer = laconic.load(folder / "best.safetensors")
    """
    command = command or _call(config, own_tasks=tasks is not None)
    config, own = _named(config, tasks)
    trainer, described = _prepare(config, own)
    initial = _initial(config)
    facts = {"recipe": name, "sources": [each["source"] for each in described]}
    facts |= {"tasks": described, "init_sha256": _init_sha256(config)}
    folder = by_the_first(
        lambda: RunFolder.create("meta-train", config.out, f"meta-{name}", config, command, **facts)
    )
    with folder or RunFolder(config.out or Path("runs")) as opened:
        state = trainer.start(config.seed, initial)
        best = Best(kept(state.theta))
        return _train(MetaRun(config, opened, trainer, state, best, observer or Observer()), stop)


def resume_meta_train(
    folder: Path,
    task: Task | Sequence[Task] | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    minutes: float | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Go on from a folder's checkpoint, with the settings it was begun with; every process must see
    the folder.

    A finished meta-training is returned as it is.
    """
    observer = observer or Observer()
    first = by_the_first(lambda: RunFolder.open(folder, "meta-train"))
    with first or RunFolder(folder) as opened:
        (finished,) = agreed(int(_nothing_left(opened)))
        if finished:
            observer.note(f"{folder} is finished: there is nothing left to do.")
            return folder, by_the_first(opened.records) or []
        config = replace(opened.config(MetaConfig), minutes=minutes)
        own = {each.name: each for each in ([task] if isinstance(task, Task) else task or ())}
        sources = opened.header["sources"]
        tasks = opened.header.get("tasks", [{}] * len(sources))  # absent from old records
        begun_on = [{**t, "source": source} for t, source in zip(tasks, sources, strict=True)]
        names = [inner.task for inner in config.inners()]
        require_own(folder, begun_on, [own.get(name) for name in names])
        trainer, described = _prepare(config, own)
        for then, now in zip(begun_on, described, strict=True):
            check_task(folder, opened.header, then, now)
        opened.note_changes(observer)
        saved = opened.checkpoint.exists()
        then = opened.header.get("init_sha256")  # absent from old records
        if not saved and then is not None and then != _init_sha256(config):
            raise LaconicError(
                f"{folder} was begun from another {config.init} than there is now; put that back, "
                "or begin anew with another --out."
            )
        state = trainer.start(config.seed, None if saved else _initial(config))
        run = MetaRun(config, opened, trainer, state, Best(kept(state.theta)), observer)
        run.since = opened.changes()
        if saved:
            run.restore()
        run.forget_rest()
        return _train(run, stop)


def _nothing_left(folder: RunFolder) -> bool:
    """Whether a run is finished; one whose records tell of steps but has no checkpoint is
    refused."""
    if folder.checkpoint.exists():
        return folder.is_finished() and (folder.path / "best.safetensors").exists()
    if not folder.is_finished() and folder.of_kind("progress"):
        done = folder.of_kind("progress")[-1]["end"]
        raise LaconicError(
            f"{folder.path} has no {folder.checkpoint.name}, the checkpoint after outer step "
            f"{done} of its records, so it cannot go on from there; nothing was changed. Put the "
            "file back, or begin anew with another --out."
        )
    return folder.is_finished()


# --- the run --------------------------------------------------------------------------------------


@dataclass
class Best:
    """The best φ so far, its score on held-out seeds and the step it is of."""

    theta: Theta
    score: float = float("inf")
    step: int = 0


@dataclass
class MetaRun:
    """A meta-training under way: how far it is, what it showed so far, how much of that is on
    record."""

    config: MetaConfig
    folder: RunFolder
    trainer: MetaTrainer
    state: MetaState
    best: Best
    observer: Observer
    done: int = 0
    seconds: float = 0.0
    losses: list[np.ndarray] = field(default_factory=list)
    norms: list[np.ndarray] = field(default_factory=list)
    recorded: int = 0
    since: dict[str, Any] = field(default_factory=dict)  # what changed since the run was begun

    def append(self, kind: str, **values: Any) -> None:
        """Add a record."""
        by_the_first(lambda: self.folder.append(kind, **values))

    def save(self) -> None:
        """Progress since the last time as a record, then the checkpoint."""
        if self.done > self.recorded:
            fresh = slice(self.recorded, self.done)
            self.append(
                "progress",
                begin=self.recorded,
                end=self.done,
                loss=np.stack(self.losses[fresh]),
                norm=np.stack(self.norms[fresh]),
                seconds=round(self.seconds, 3),
                **self.since,
            )
            self.recorded = self.done
        state = self.trainer.collect(self.state)
        tree = {
            "state": state,
            "best": self.best.theta,
            "loss": np.stack(self.losses),
            "norm": np.stack(self.norms),
        }
        meta = {"done": self.done, "seconds": self.seconds, "best_step": self.best.step}
        meta["best_score"] = self.best.score if np.isfinite(self.best.score) else None
        by_the_first(lambda: checkpoint.save(self.folder.checkpoint, tree, meta))

    def forget_rest(self) -> None:
        """Drop the records of later outer steps: they are done again, and recorded again."""

        def write() -> None:
            records = self.folder.records()
            before = [r for r in records if r.get("end", r.get("step", 0)) <= self.done]
            # a judgement made only because the run stopped is not part of the resumed run
            before = [r for r in before if not r.get("best") or r["step"] <= self.best.step]
            if len(before) < len(records):
                self.folder.rewrite(before)

        by_the_first(write)

    def restore(self) -> None:
        """Go back to where the folder's checkpoint is."""
        path = self.folder.checkpoint
        meta = checkpoint.peek(path)
        history = jax.ShapeDtypeStruct((meta["done"], len(self.config.tasks)), np.float32)
        like = {"state": self.state, "best": self.best.theta, "loss": history, "norm": history}
        tree, meta = checkpoint.load(path, jax.eval_shape(lambda: like))
        self.state = self.trainer.place(tree["state"])
        value = float("inf") if meta["best_score"] is None else meta["best_score"]
        self.best = Best(kept(tree["best"]), value, meta["best_step"])
        self.losses, self.norms = list(np.asarray(tree["loss"])), list(np.asarray(tree["norm"]))
        self.done = self.recorded = meta["done"]
        self.seconds = meta["seconds"]

    def publish(self) -> None:
        """The best φ, once one was judged, and the latest as files that `laconic.load` reads."""

        def write() -> None:
            last = Best(kept(self.state.theta), step=self.done)
            judged = {"best": self.best} if self.best.step else {}
            for which, found in {**judged, "last": last}.items():
                publish_run(
                    self.folder.path / f"{which}.safetensors",
                    self.config,
                    self.folder.header,
                    found.theta,
                    found.step,
                    self.seconds,
                    self.trainer.inners,
                )

        by_the_first(write)

    def finish(self) -> list[dict[str, Any]]:
        """φ, the summary and the learning curve → all records; none but in the first process."""
        self.publish()

        def write() -> list[dict[str, Any]]:
            picture = self.folder.path / "learning-curve.png"
            write_learning_curve(self.folder.records(), picture)
            if not self.folder.is_finished():
                rounds = self.done * self.trainer.rounds_per_step
                self.folder.append(
                    "summary",
                    steps=self.done,
                    seconds=round(self.seconds, 3),
                    rounds_per_second=round(rounds / max(self.seconds, 1e-9), 1),
                    best_step=self.best.step,
                    best_score=self.best.score,
                )
            return self.folder.records()

        return by_the_first(write) or []


def _named(
    config: MetaConfig, tasks: Sequence[Task | str] | None
) -> tuple[MetaConfig, dict[str, Task]]:
    """The config with the names of tasks from Python, and those tasks by name."""
    if tasks is None:
        return config, {}
    if not isinstance(tasks, list | tuple) or not all(isinstance(x, Task | str) for x in tasks):
        raise LaconicError("tasks is a list of Tasks, as laconic.plain_task makes them, or names.")
    own = {each.name: each for each in tasks if isinstance(each, Task)}
    names = [each if isinstance(each, str) else each.name for each in tasks]
    if len(set(names)) < len(names) or any("@" in name for name in own):
        raise LaconicError(f"each task needs a name of its own, without an @, got {names}.")
    numbers = {spec.partition("@")[0]: spec for spec in config.tasks}
    specs = [numbers.get(name, name) if name in own else name for name in names]
    return replace(config, tasks=tuple(specs)), own


def _prepare(
    config: MetaConfig, own: Mapping[str, Task]
) -> tuple[MetaTrainer, list[dict[str, Any]]]:
    """Everything that can be wrong about a config, found before a folder is made → the trainer, and
    its tasks as records."""
    if config.minutes is not None and not config.minutes > 0:
        raise LaconicError(f"minutes must be positive, got {config.minutes}.")
    if (
        config.judge_every < 1
        or config.judge_seeds < 1
        or config.checkpoint_every < 1
        or config.devices < 1
    ):
        raise LaconicError(
            "judge_every, judge_seeds, checkpoint_every and devices must be positive."
        )
    require_seed(config.seed)
    learned, inners, outer = config.learned(), config.inners(), config.outer()
    judged = config.judged()
    mixed = len({inner.spread > 0 for inner in judged or inners}) > 1
    if mixed:
        raise LaconicError("the tasks to judge φ on must all have a spread, or none of them.")
    mesh = group_mesh(config.devices) if max(config.devices, jax.process_count()) > 1 else None
    names = dict.fromkeys(inner.task for inner in (*inners, *judged))
    made = {name: given_task(own.get(name), name) for name in names}
    described = [describe(*made[inner.task], inner.batch) for inner in inners]
    of = lambda some: [made[inner.task][0] for inner in some]
    held_out = (of(judged), judged) if judged else None
    return MetaTrainer(of(inners), learned, inners, outer, mesh, held_out), described


def _call(config: MetaConfig, own_tasks: bool) -> str:
    """The call from Python that trains by a config, with the settings not at their defaults."""
    changed = [
        f"{f.name}={getattr(config, f.name)!r}"
        for f in fields(config)
        if f.name != "out" and getattr(config, f.name) != getattr(MetaConfig(), f.name)
    ]
    own = ", tasks=[…]" if own_tasks else ""
    return f"laconic.meta_train(laconic.MetaConfig({', '.join(changed)}){own})"


def _init_sha256(config: MetaConfig) -> str | None:
    return None if config.init is None else load(config.init).sha256


def _initial(config: MetaConfig) -> Theta | None:
    """The φ to begin from, if one is named; another architecture is refused."""
    if config.init is None:
        return None
    found, wanted = load(config.init), config.learned()
    own = RELATIVE_AS if isinstance(wanted, RelativeOptimizer) else LEARNED_AS
    fewer = _multiple(found.learned, wanted)
    for what in ("architecture", *own):
        theirs, ours = getattr(found.learned, what), getattr(wanted, what)
        if what == "workers" and fewer:
            continue
        if theirs != ours:
            raise LaconicError(
                f"training cannot begin from {config.init}: its {what} is {theirs}, and this run's "
                f"is {ours}. "
                f"Begin from another one, or change the run to fit it."
            )
    if isinstance(wanted, LearnedOptimizer):
        theta = wanted.widened(found.theta, fewer) if fewer else found.theta
        return wanted.seen(theta)
    return wanted.grown(found.theta)


def _multiple(found: Learned, wanted: Learned) -> int:
    """The workers that an optimizer sees, if the wanted one sees a multiple of them; else 0."""
    if found.architecture != wanted.architecture or not found.gathers:
        return 0
    few, many = found.workers or 0, wanted.workers or 0
    return few if 0 < few < many and many % few == 0 else 0


def _train(run: MetaRun, stop: Callable[[], bool]) -> tuple[Path, list[dict[str, Any]]]:
    if jax.process_index():  # the first process writes the folder
        return _steps(run, stop)
    with run.folder.watched_by(run.observer):
        return _steps(run, stop)


def _steps(run: MetaRun, stop: Callable[[], bool]) -> tuple[Path, list[dict[str, Any]]]:
    config, start = run.config, time.monotonic()
    run.observer.begin(LABEL, config.steps, run.done, run.trainer.rounds_per_step)
    _replay(run)
    outlook = _outlook(run)
    deadline = None if config.minutes is None else start + 60 * config.minutes
    tick, burst, first = start, 1, run.done + 1
    while run.done < config.steps:
        ends = [config.steps] + [
            (run.done // n + 1) * n for n in (config.judge_every, config.checkpoint_every)
        ]
        count = min(burst, min(ends) - run.done)
        began = time.monotonic()
        _advance(run, count)
        now = time.monotonic()
        outlook.took(count, now - tick)
        burst = max(1, min(100, round(LOOK_SECONDS * count / max(now - began, 1e-6))))
        run.seconds, tick = run.seconds + now - tick, now
        if run.done % config.judge_every == 0 or run.done == config.steps:
            _judge(run)
        out_of_time = deadline is not None and time.monotonic() > deadline
        # Processes that left at different steps, or looked at different ones, would wait for each
        # other for ever.
        asked, out_of_time, burst = agreed(stop(), out_of_time, burst)
        if asked or out_of_time or run.done % config.checkpoint_every == 0:
            run.save()
            run.publish()
        if (asked or out_of_time) and run.done < config.steps:
            too_short = deadline is not None and now > deadline and run.done == first and not asked
            if not run.best.step and not too_short:
                _judge(run)  # after the checkpoint: a resumed run ends as if it had not stopped
            if too_short:
                raise _too_short(run, now - start)
            why = "asked to stop" if asked else f"the {config.minutes} minutes are over"
            raise Interrupted(
                f"{why} after outer step {run.done} of {config.steps}.", run.folder.path
            )
    run.save()
    return run.folder.path, run.finish()


def _outlook(run: MetaRun) -> Outlook:
    """Compile an outer step → what tells how long the rest takes, unless --minutes does."""
    config, trainer = run.config, run.trainer
    runs = trainer.rounds_per_step // len(trainer.inners)  # rounds of each task in an outer step
    judged = config.judge_seeds * config.longest * (2 if config.average else 1)
    judging = 1 + judged / (runs * config.judge_every)

    def work() -> float:
        rows = zip(trainer.tasks, trainer.inners, strict=True)
        each = [x.workers * x.local_steps * step_operations(task, x.batch) for task, x in rows]
        return runs * sum(each)

    def trial() -> tuple[float, float]:
        trainer.judge(run.state.theta, 1, 1)
        began = time.monotonic()
        trainer.judge(run.state.theta, 1, 1)
        return runs * (time.monotonic() - began), 0.0

    command = by_the_first(lambda: run.folder.header["command"]) or ""
    outlook = Outlook(
        Forecast(run.observer, command, {}, told=jax.process_count() > 1),
        work,
        lambda done, step, _: (config.steps - done) * step * judging,
        programs=2,
    )
    if run.done < config.steps and not outlook.forecast.told:
        program = _fitting(run, lambda: compiled_all(trainer.programs(run.state)))
        outlook.forecast.told = config.minutes is not None
        outlook.ready(run.done, program, trial)
    return outlook


def _replay(run: MetaRun) -> None:
    """Show the observer what a resumed run has shown before."""
    _show(run, 0)
    if run.best.step:
        run.observer.judged(run.best.step, run.best.score, True)


def _show(run: MetaRun, since: int) -> None:
    """Tell the observer of the outer steps after `since`, each by its mean over tasks."""
    for step in range(since, run.done):
        loss = float(run.losses[step].mean())
        norm = float(run.norms[step].mean())
        run.observer.progress(LABEL, step + 1, loss, norm)
        run.observer.numbers(LABEL, step + 1, {"meta_loss": loss, "gradient_norm": norm})


def _too_short(run: MetaRun, seconds: float) -> LaconicError:
    least = math.ceil(seconds / 3) / 10  # minutes, at least twice what the first step took
    command = shlex.join(
        ["laconic", "meta-train", "--resume", str(run.folder.path), "--minutes", str(least)]
    )
    return LaconicError(
        f"{run.config.minutes:g} minutes are too few for one outer step: the first took "
        f"{seconds:.1f} s, most of it "
        f"compiling. It is saved; go on with: {command}"
    )


def _fitting(run: MetaRun, action: Callable[[], T]) -> T:
    """What `action` gives; if memory is too small for it, the error says what to lower."""
    try:
        return action()
    except (jax.errors.JaxRuntimeError, TooLarge) as error:
        if not out_of_memory(error):
            raise
        needed = f" ({error})" if isinstance(error, TooLarge) else ""
        raise CannotBegin(
            f"meta-training does not fit in the device's memory with {run.config.pairs} pairs of "
            f"runs for each task{needed}. Begin anew with fewer --pairs, a smaller --batch or "
            "fewer workers, or spread them with --devices."
        ) from None


def _advance(run: MetaRun, count: int) -> None:
    def steps() -> list[Progress]:
        shown = []
        for _ in range(count):
            run.state, progress = run.trainer.advance(run.state)
            shown.append(progress)
        return jax.device_get(shown)

    shown = _fitting(run, steps)
    run.done += count
    run.losses += [np.asarray(progress.loss) for progress in shown]
    run.norms += [np.asarray(progress.norm) for progress in shown]
    _show(run, run.done - count)


def _judge(run: MetaRun) -> None:
    """Score φ (and its running average) on held-out seeds; keep the better one if it beats the best
    so far."""
    began = time.monotonic()
    candidates = {"theta": run.state.theta} | (
        {"average": run.state.average} if run.config.average else {}
    )
    for which, theta in candidates.items():
        curves = run.trainer.judge(theta, run.config.judge_seeds)
        value = run.trainer.score(curves)
        better = value < run.best.score
        if better:
            run.best = Best(kept(theta), value, run.done)
        finals = [float(c[:, -10:].mean()) for c in curves]
        ends = np.unique(np.geomspace(10, curves[0].shape[1], 13).round().astype(int)).clip(
            max=curves[0].shape[1]
        )
        run.append(
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
        run.observer.numbers(LABEL, run.done, {f"{which}_score": value})
    if run.best.step == run.done:
        run.publish()


def kept(theta: Theta) -> Theta:
    """A copy that outlives the state it is part of, which the next outer step uses up."""
    return {name: jnp.array(np.asarray(value)) for name, value in theta.items()}


# --- several processes ----------------------------------------------------------------------------


def agreed(*values: int) -> tuple[int, ...]:
    """The largest of each number over all processes, so that all of them go by the same ones."""
    if jax.process_count() == 1:
        return values
    return tuple(multihost_utils.process_allgather(np.array(values)).max(axis=0).tolist())


def by_the_first(action: Callable[[], T]) -> T | None:
    """What `action` gives in process 0, while the others wait and get None; if it fails there, all
    of them fail."""
    if jax.process_count() == 1:
        return action()
    result, error = None, None
    if jax.process_index() == 0:
        try:
            result = action()
        except LaconicError as caught:
            error = caught
    (failed,) = agreed(int(error is not None))
    if error is not None:
        raise error
    if failed:
        raise LaconicError("process 0 could not go on; it says why.")
    return result
