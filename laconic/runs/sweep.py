"""A sweep: every point of a grid of one method's hyper-parameters, ranked, in a run folder.

The folder's records are a "run", a "point" each and a "ranking". Points are run in chunks that fit
in memory, and recorded when their chunk is done. A resumed sweep runs the chunks not on record.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from laconic.compress import parse_compressor
from laconic.errors import LaconicError, require_positive
from laconic.means import name_of, parse_aggregate
from laconic.method import Point, Setting, seeds_from
from laconic.methods import optimizer_sha256, parse_swept
from laconic.runs.configs import SweepConfig
from laconic.runs.estimate import Forecast, Outlook, step_operations
from laconic.runs.folder import Interrupted, Observer, RunFolder, describe, is_another
from laconic.runs.grid import Outcome, Sweep, parse_grid, without_repeats
from laconic.runs.settings import begun_with
from laconic.runs.simulate import in_parts
from laconic.show.sweep import RULES, Record, Rule, point_record, ranked, ranking_text, write_figure
from laconic.store import atomic
from laconic.tasks.base import Task
from laconic.tasks.catalog import OWN_TASK, given_task

SEGMENT = 100  # rounds between two signs of progress, and two chances to stop


def sweep(
    config: SweepConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Train at every point of a grid, and rank the points.

    Args:
        config: the method, the grid and the setting.
        task: a task of your own instead of the one that `config.task` names.
        observer: is told of rounds, of all chunks together.
        stop: is asked within chunks and after each; when it says True, `Interrupted` is raised.
        command: what the header says the run was started with.

    Returns:
        The run's folder and its records: a "run", a "point" each, a "ranking".

    Example::

        config = laconic.SweepConfig(task="digits-mlp", grid=("gamma=1,0.3,0.1",), rounds=50)
        folder, records = laconic.sweep(config)
        print(records[-1]["best"])
    """
    setting, rule, grid, extra = _parsed(config)
    if command is None:
        command = begun_with("sweep", config, own_task=task is not None)
    task, source = given_task(task, config.task)
    config = replace(config, task=config.task if source != OWN_TASK else task.name)
    about = describe(task, source, config.batch)
    engine = _engine(config, task, setting)
    points = [*grid, *extra]
    check_sweep(engine, points, rule)
    if engine.plan is not None:
        # the data of a population decides it
        config = replace(config, local_steps=engine.plan.local_steps)
    name = f"sweep-{Path(config.method.partition(':')[0]).stem}-{config.task}"
    facts = {"task": about, "grid_points": len(grid)}
    facts["optimizer_sha256"] = optimizer_sha256(config.method)
    facts["seeds_for"] = "tuning"
    with RunFolder.create("sweep", config.out, name, config, command, **facts) as folder:
        return _finish(engine, points, folder, rule, config, observer, stop)


def resume_sweep(
    folder: Path,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, list[dict[str, Any]]]:
    """Take up a sweep where it stopped, with the settings it was begun with."""
    observer = observer or Observer()
    with RunFolder.open(folder, "sweep", observer) as opened:
        config = opened.config(SweepConfig)
        setting, rule, grid, extra = _parsed(config)
        task = opened.same_task(task, config.task, config.batch, observer)
        if is_another(opened.header, optimizer_sha256(config.method)):
            raise LaconicError(
                f"{folder} was begun with another {config.method} than there is now; sweep it into "
                "another folder."
            )
        engine = _engine(config, task, setting)
        return _finish(engine, [*grid, *extra], opened, rule, config, observer, stop)


def _engine(config: SweepConfig, task: Task, setting: Setting) -> Sweep:
    compressor, aggregate = parse_compressor(config.compress), parse_aggregate(config.aggregate)
    return Sweep(task, config.method, setting, compressor, aggregate)


def _finish(
    engine: Sweep,
    points: Sequence[Point],
    folder: RunFolder,
    rule: Rule,
    config: SweepConfig,
    observer: Observer | None,
    stop: Callable[[], bool],
) -> tuple[Path, list[dict[str, Any]]]:
    with folder.watched_by(observer := observer or Observer()):
        records = run_sweep(engine, points, folder, rule, config.points_at_once, observer, stop)
    atomic.write_text(folder.path / "ranking.md", ranking_text(records))
    write_figure(records, folder.path / "ranking.png")
    return folder.path, records


def _parsed(config: SweepConfig) -> tuple[Setting, Rule, list[Point], list[Point]]:
    """The setting, the rule, the grid's points and the others; what is wrong is found before any
    data is read."""
    definition = parse_swept(config.method)
    parse_compressor(config.compress)
    parse_aggregate(config.aggregate)
    seeds = seeds_from(config.first_seed, config.seeds)
    # segments of one length where that can be, as each length is compiled by itself
    every = next((n for n in range(SEGMENT, SEGMENT // 2, -1) if config.rounds % n == 0), SEGMENT)
    looks = max(1, min(every, config.rounds))
    sizes = (config.workers, config.local_steps, config.batch, config.rounds)
    setting = Setting(*sizes, seeds, looks, config.federated)
    grid = parse_grid(config.grid)
    extra = [point for text in config.points for point in parse_grid(text.split(","))]
    definition.check_points([*grid, *extra])
    grid = without_repeats(grid)
    extra = [point for point in without_repeats(extra) if point not in grid]
    chunks_of(len(grid) + len(extra), config.points_at_once)
    return setting, Rule(config.rank_by, config.target_loss), grid, extra


def chunks_of(points: int, at_once: int) -> list[range]:
    """As few chunks of at most `at_once` points as possible, all of one size but the last."""
    require_positive(points=points, points_at_once=at_once)
    size = -(-points // -(-points // at_once))
    return [range(start, min(start + size, points)) for start in range(0, points, size)]


def check_sweep(engine: Sweep, points: Sequence[Point], rule: Rule) -> None:
    """Refuse what cannot work before anything is computed."""
    if not points:
        raise LaconicError(f"the grid of {engine.method} has no points.")
    engine.definition.check_points(points)
    if rule.by == "valid" and "valid" not in engine.task.feed.splits:
        raise LaconicError(
            f"{engine.task.name} has no validation split to rank by; rank by {', '.join(RULES)}."
        )


def run_sweep(
    engine: Sweep,
    points: Sequence[Point],
    folder: RunFolder,
    rule: Rule = Rule(),
    points_at_once: int = 44,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Run every chunk that `folder` has not all the points of, then rank them → all records.

    The observer is told of rounds, of all chunks together. Stopped within a chunk, that chunk's
    points are computed anew when the sweep goes on, to the same bits. Chunks that do not fit in
    memory become smaller.
    """
    check_sweep(engine, points, rule)
    observer = observer or Observer()
    at_once = len(chunks_of(len(points), points_at_once)[0])
    in_parts(
        partial(_run_chunks, engine, points, folder, rule, observer, stop),
        at_once,
        lambda fewer: observer.note(
            f"these points do not fit in the device's memory together; {fewer} at a time now."
        ),
        f"{engine.method} does not fit in the device's memory, even one point at a time. Use fewer "
        "seeds, smaller "
        "batches or fewer workers",
    )
    if folder.records()[-1]["kind"] != "ranking":
        folder.append("ranking", **_ranking(folder.of_kind("point"), rule))
    return folder.records()


def _run_chunks(
    engine: Sweep,
    points: Sequence[Point],
    folder: RunFolder,
    rule: Rule,
    observer: Observer,
    stop: Callable[[], bool],
    points_at_once: int,
) -> None:
    """Run every chunk that is not on record."""
    chunks, T = chunks_of(len(points), points_at_once), engine.setting.rounds
    recorded = {record["index"] for record in folder.of_kind("point")}
    todo = [c for c, chunk in enumerate(chunks) if not recorded.issuperset(chunk)]
    passed, total = (len(chunks) - len(todo)) * T, len(chunks) * T
    if todo:
        observer.begin(engine.method, total, passed)
    outlook = _outlook(engine, len(chunks[0]), len(todo), folder, observer)

    def leave_if_asked() -> None:
        if stop():
            raise Interrupted(
                f"stopped with {len(recorded)} of {len(points)} points done.", folder.path
            )

    for c in todo:
        began = ticked = time.monotonic()

        def tick(done: int, loss: float, passed: int = passed) -> None:
            nonlocal ticked
            now = time.monotonic()
            outlook.took(min(done, engine.setting.evaluate_every), now - ticked, last=done == T)
            ticked = now
            observer.progress(engine.method, passed + done, loss)
            observer.numbers(engine.method, passed + done, {"train_loss": loss})
            if done < T:  # the points of a whole chunk are written first
                leave_if_asked()

        outcome = engine.run(
            [points[i] for i in chunks[c]], len(chunks[0]), tick, partial(outlook.ready, 0)
        )
        seconds = round(time.monotonic() - began, 3)
        for p, i in enumerate(chunks[c]):
            if i not in recorded:  # some are, if a run died while it wrote this chunk
                record = _record(engine, points[i], outcome, p, rule)
                folder.append("point", index=i, **record, chunk=c, seconds=seconds)
                ends = {name: record[name] for name in ("minimum", "final")}
                observer.numbers("points", i + 1, {**record["numbers"], **ends})
        recorded.update(chunks[c])
        passed += T
        if passed < total:
            leave_if_asked()


def _outlook(
    engine: Sweep, points: int, chunks: int, folder: RunFolder, observer: Observer
) -> Outlook:
    """What tells how long so many chunks of so many points take."""
    setting = engine.setting
    S, T = len(setting.seeds), setting.rounds
    forecast = Forecast(observer, folder.header.get("command", ""), {"seeds": S, "rounds": T})

    def work() -> float:
        steps = points * S * setting.workers * setting.local_steps * setting.evaluate_every
        return steps * step_operations(engine.task, setting.batch)

    return Outlook(forecast, work, lambda done, per_round, _: chunks * T * per_round)


def _record(engine: Sweep, point: Point, outcome: Outcome, p: int, rule: Rule) -> Record:
    numbers = {name: float(point[name]) for name in engine.definition.named_in(point)}
    valid = {name: value_PS[p] for name, value_PS in outcome.valid.items()}
    kept = point_record(outcome.curves[p], outcome.finite[p], valid, rule)
    label = engine.definition.spec(point, engine.compressor.name, name_of(engine.aggregate))
    return {"label": label, "numbers": numbers, "seeds": engine.setting.seeds, **kept}


def _ranking(points: Sequence[Record], rule: Rule) -> Record:
    order = ranked(points, rule.by)
    return {
        "by": rule.by,
        "target_loss": rule.target_loss,
        "best": order[0]["label"],
        "order": [point["index"] for point in order],
        "diverged": sum(any(point["diverged"]) for point in points),
        "seconds": round(
            sum(seconds for _, seconds in {(point["chunk"], point["seconds"]) for point in points}),
            3,
        ),
    }
