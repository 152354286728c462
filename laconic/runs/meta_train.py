"""Carrying meta-training out: a folder with records, checkpoints and the trained φ, stopped and
taken up at will.

The folder holds `records.jsonl` ("run", then "progress" and "judged" as it goes, "summary" at the
end), the checkpoint, `best.safetensors` and `last.safetensors` (loadable optimizers with a card)
and the learning curve. A resumed run goes on from its checkpoint to the same bits; records written
after that checkpoint are dropped, and written again.

Several processes that `jax.distributed` joined train as one: all of them call the same function
with the same config, the groups of runs are spread over the devices of all, and the first process
writes the folder.
"""

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from laconic.errors import LaconicError, require_seed
from laconic.meta.train import MetaTrainer, Progress, group_mesh, score
from laconic.outer.learned import Theta
from laconic.runs import meta_folder
from laconic.runs.compare import CHECKPOINT, Interrupted
from laconic.runs.folder import note_changes
from laconic.runs.meta_config import MetaConfig
from laconic.runs.meta_run import Best, MetaObserver, MetaRun, Unwatched, kept
from laconic.runs.processes import agreed
from laconic.runs.simulate import out_of_memory
from laconic.tasks.catalog import make_task_and_source
from laconic.zoo import load

LOOK_SECONDS = 0.5  # outer steps are sent off in bursts of about this long, then looked at


def meta_train(
    config: MetaConfig,
    *,
    observer: MetaObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
    name: str = "own",
) -> tuple[Path, list[dict[str, Any]]]:
    """Meta-train by a config → (its folder, its records); of several processes the first has the
    records."""
    trainer, sources = _prepare(config)
    state = trainer.start(config.seed, _initial(config))
    folder = meta_folder.begin_folder(config, name, command, sources)
    return _train(
        MetaRun(config, folder, trainer, state, Best(kept(state.theta)), observer or Unwatched()),
        stop,
    )


def resume_meta_train(
    folder: Path,
    *,
    observer: MetaObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
    minutes: float | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Go on from a folder's checkpoint, with the settings it was begun with; every process must see
    the folder."""
    observer, header = observer or Unwatched(), meta_folder.read_header(folder)
    config = replace(meta_folder.read_config(header, folder), minutes=minutes)
    trainer, sources = _prepare(config)
    if sources != header["sources"]:
        raise LaconicError(
            f"{folder} was begun on {header['sources']}, and the data is now {sources}; start anew."
        )
    note_changes(header, observer.note)
    saved = (folder / CHECKPOINT).exists()
    state = trainer.start(config.seed, None if saved else _initial(config))
    run = MetaRun(config, folder, trainer, state, Best(kept(state.theta)), observer)
    if saved:
        meta_folder.restore(run)
    meta_folder.forget_after(folder, run.done)
    return _train(run, stop)


def _prepare(config: MetaConfig) -> tuple[MetaTrainer, list[str]]:
    """Everything that can be wrong about a config, found before a folder is made."""
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
    mesh = group_mesh(config.devices) if max(config.devices, jax.process_count()) > 1 else None
    made = {
        spec: make_task_and_source(spec) for spec in dict.fromkeys(inner.task for inner in inners)
    }
    tasks = [made[inner.task][0] for inner in inners]
    return MetaTrainer(tasks, learned, inners, outer, mesh), [
        made[inner.task][1] for inner in inners
    ]


def _initial(config: MetaConfig) -> Theta | None:
    """The φ to begin from, if one is named; it must be of the architecture that is to be trained."""
    if config.init is None:
        return None
    found, wanted = load(config.init), config.learned()
    for what in (
        "architecture",
        "workers",
        "hidden",
        "time",
    ):  # the others change nothing about what φ is
        theirs, ours = getattr(found.learned, what), getattr(wanted, what)
        if theirs != ours:
            raise LaconicError(
                f"training cannot begin from {config.init}: its {what} is {theirs}, and this run's "
                f"is {ours}. "
                f"Begin from another one, or change the run to fit it."
            )
    return found.theta


def _train(run: MetaRun, stop: Callable[[], bool]) -> tuple[Path, list[dict[str, Any]]]:
    config, start = run.config, time.monotonic()
    run.observer.begin(config, run.done, run.trainer.rounds_per_step)
    _replay(run)
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
        burst = max(1, min(100, round(LOOK_SECONDS * count / max(now - began, 1e-6))))
        run.seconds, tick = run.seconds + now - tick, now
        if run.done % config.judge_every == 0 or run.done == config.steps:
            _judge(run)
        out_of_time = deadline is not None and time.monotonic() > deadline
        # Processes that left at different steps, or looked at different ones, would wait for each
        # other for ever.
        asked, out_of_time, burst = agreed(stop(), out_of_time, burst)
        if asked or out_of_time or run.done % config.checkpoint_every == 0:
            meta_folder.save(run)
        if (asked or out_of_time) and run.done < config.steps:
            meta_folder.publish(run)
            if deadline is not None and now > deadline and run.done == first and not asked:
                raise _too_short(run, now - start)
            why = "asked to stop" if asked else f"the {config.minutes} minutes are over"
            raise Interrupted(f"{why} after outer step {run.done} of {config.steps}.", run.folder)
    meta_folder.save(run)
    return run.folder, meta_folder.finish(run)


def _replay(run: MetaRun) -> None:
    """Show the observer what a resumed run has shown before."""
    if run.losses:
        run.observer.progress(
            run.done, *(np.stack(x).mean(axis=1) for x in (run.losses, run.norms))
        )
    if run.best.step:
        run.observer.judged(run.best.step, run.best.score, True)


def _too_short(run: MetaRun, seconds: float) -> LaconicError:
    least = math.ceil(seconds / 3) / 10  # minutes, at least twice what the first step took
    command = shlex.join(
        ["laconic", "meta-train", "--resume", str(run.folder), "--minutes", str(least)]
    )
    return LaconicError(
        f"{run.config.minutes:g} minutes are too few for one outer step: the first took "
        f"{seconds:.1f} s, most of it "
        f"compiling. It is saved; go on with: {command}"
    )


def _advance(run: MetaRun, count: int) -> None:
    shown: list[Progress] = []
    try:
        for _ in range(count):
            run.state, progress = run.trainer.advance(run.state)
            shown.append(progress)
        losses, norms = (
            np.stack([np.asarray(getattr(p, what)) for p in shown]) for what in ("loss", "norm")
        )
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        raise LaconicError(
            f"meta-training does not fit in the device's memory with {run.config.pairs} pairs of "
            "runs for each task. "
            "Begin anew with fewer --pairs, a smaller --batch or fewer workers, or spread them "
            "with --devices."
        ) from None
    run.done += count
    run.losses += list(losses)
    run.norms += list(norms)
    run.observer.progress(run.done, losses.mean(axis=1), norms.mean(axis=1))


def _judge(run: MetaRun) -> None:
    """Score φ (and its running average) on held-out seeds; keep the better one if it beats the best
    so far."""
    began = time.monotonic()
    candidates = {"theta": run.state.theta} | (
        {"average": run.state.average} if run.config.average else {}
    )
    for which, theta in candidates.items():
        curves = run.trainer.judge(theta, run.config.judge_seeds)
        value = score(curves, run.trainer.tasks, run.trainer.outer.horizon)
        better = value < run.best.score
        if better:
            run.best = Best(kept(theta), value, run.done)
        finals = [float(c[:, -10:].mean()) for c in curves]
        ends = np.unique(np.geomspace(10, curves[0].shape[1], 13).round().astype(int)).clip(
            max=curves[0].shape[1]
        )
        meta_folder.append(
            run,
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
        meta_folder.publish(run)
