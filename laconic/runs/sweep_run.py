"""Carrying a sweep out: everything checked first, a folder made, and taken up again after a stop."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from laconic.compress import parse_compressor
from laconic.errors import LaconicError
from laconic.federated.population import read_federated
from laconic.method import Setting
from laconic.methods import definition_of, optimizer_sha256
from laconic.recipes.comparisons import command_line
from laconic.recipes.sweeps import SweepConfig
from laconic.runs.compare import RECORDS, Observer, Silent, is_another
from laconic.runs.compare_run import OWN_TASK
from laconic.runs.folder import (
    check_records,
    check_task,
    describe,
    new_folder,
    note_changes,
    read_run,
)
from laconic.runs.grids import Point, parse_grid, without_repeats
from laconic.runs.sweep import Sweep, check_sweep, chunks_of, run_sweep
from laconic.show.sweep import Rule, ranking_text, write_figure
from laconic.store import atomic
from laconic.store.runlog import RunLog, provenance
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task_and_source

SEGMENT = 100  # rounds between two signs of progress, and two chances to stop


# --- carrying one out -----------------------------------------------------------------------------


def sweep(
    config: SweepConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Carry a sweep out → (its folder, its records). `task` may be one of your own instead of a
    named one."""
    setting, rule, grid, extra = _parsed(config)
    source, command = (
        OWN_TASK,
        command or (command_of(config) if task is None else "laconic.sweep, from Python"),
    )
    if task is None:
        task, source = make_task_and_source(config.task)
    else:
        config = replace(config, task=task.name)
    engine = Sweep(task, config.method, setting, parse_compressor(config.compress))
    check_sweep(engine, [*grid, *extra], rule)
    if engine.plan is not None:
        config = replace(
            config, local_steps=engine.plan.local_steps
        )  # the data of a population decides it
    folder = new_folder(config.out, f"sweep-{Path(config.method).stem}-{config.task}")
    RunLog(folder / RECORDS).append(
        "run",
        config={**asdict(config), "out": folder},
        command=command,
        task=describe(task, source),
        grid_points=len(grid),
        optimizer_sha256=optimizer_sha256(config.method),
        provenance=provenance(),
    )
    atomic.write_text(folder / "command.txt", command + "\n")
    return _finish(engine, [*grid, *extra], folder, rule, config, observer or Silent(), stop)


def resume_sweep(
    folder: Path,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, list[dict[str, Any]]]:
    """Take up a sweep where it stopped, with the settings it was begun with; recorded chunks are
    not run again."""
    observer, header = observer or Silent(), _header(folder)
    config = _from_json(header["config"], folder)
    setting, rule, grid, extra = _parsed(config)
    source = OWN_TASK
    if task is None:
        if header["task"].get("source") == OWN_TASK:
            raise LaconicError(
                f"{folder} was begun with a task of its own; resume it from Python with that task."
            )
        task, source = make_task_and_source(config.task)
    check_task(folder, header, task, source)
    if is_another(header, optimizer_sha256(config.method)):
        raise LaconicError(
            f"{folder} was begun with another {config.method} than there is now; sweep it into "
            "another folder."
        )
    note_changes(header, observer.note)
    engine = Sweep(task, config.method, setting, parse_compressor(config.compress))
    return _finish(engine, [*grid, *extra], folder, rule, config, observer, stop)


def _finish(
    engine: Sweep,
    points: Sequence[Point],
    folder: Path,
    rule: Rule,
    config: SweepConfig,
    observer: Observer,
    stop: Callable[[], bool],
) -> tuple[Path, list[dict[str, Any]]]:
    records = run_sweep(engine, points, folder, rule, config.points_at_once, observer, stop)
    atomic.write_text(folder / "ranking.md", ranking_text(records))
    write_figure(records, folder / "ranking.png")
    return folder, records


# --- what a config says ---------------------------------------------------------------------------


def _parsed(config: SweepConfig) -> tuple[Setting, Rule, list[Point], list[Point]]:
    """The setting, the rule, the grid's points and the others; what is wrong is found before any
    data is read."""
    definition = definition_of(config.method, "sweep")
    parse_compressor(config.compress)
    if config.seeds < 1:
        raise LaconicError(f"seeds must be positive, got {config.seeds}.")
    seeds = tuple(range(config.first_seed, config.first_seed + config.seeds))
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


def command_of(config: SweepConfig) -> str:
    """The command line that gives this config."""
    return command_line("sweep", config, SweepConfig())


def _header(folder: Path) -> dict[str, Any]:
    """The run record that a sweep's folder begins with; anything else is refused."""
    path, records = folder / RECORDS, read_run(folder, "sweep")
    kinds = {record.get("kind") for record in records}
    ours = bool(records) and records[0].get("kind") == "run" and "grid_points" in records[0]
    ours = ours and all(
        isinstance(records[0].get(key), dict) for key in ("config", "task", "provenance")
    )
    if not ours or not kinds <= {"run", "point", "ranking"}:
        raise LaconicError(
            f"{path} holds no records of a sweep by this version; it cannot be resumed."
        )
    check_records(path, records)
    return records[0]


def _from_json(values: dict[str, Any], folder: Path) -> SweepConfig:
    values = read_federated(
        {"compress": SweepConfig().compress, **values}, str(folder)
    )  # older ones do not say it
    known = {f.name for f in fields(SweepConfig)}
    if set(values) != known:
        wrong = sorted(set(values) ^ known)
        raise LaconicError(
            f"the settings in {folder} differ from this version's in {', '.join(wrong)}; start "
            "anew."
        )
    lists = {name: tuple(values[name]) for name in ("grid", "points")}
    config = SweepConfig(**{**values, **lists, "out": folder})
    for each in fields(SweepConfig):
        ours, theirs = getattr(SweepConfig(), each.name), getattr(config, each.name)
        if ours is not None and type(ours) is not type(theirs):
            raise LaconicError(
                f"the settings in {folder} have a {each.name} of the wrong type; start anew."
            )
    return config
