"""Sweeps as data, and carrying them out: a frozen config, the paper's grids by name, a folder, and going on again."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from laconic.errors import LaconicError
from laconic.evaluate.compare import RECORDS, Observer, Silent
from laconic.evaluate.families import check_point, names_of, own_names
from laconic.evaluate.ranking import Rule
from laconic.evaluate.run import Setting
from laconic.evaluate.sweep import Sweep, check_sweep, chunks_of, run_sweep
from laconic.evaluate.sweep_report import heat_map, ranking_table
from laconic.outer import OUTER
from laconic.recipes.compare import OWN_TASK
from laconic.recipes.config import command_line
from laconic.recipes.folder import check_task, describe, new_folder, note_changes, read_run
from laconic.recipes.grids import Point, parse_grid, without_repeats
from laconic.store import atomic
from laconic.store.runlog import RunLog, provenance
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task_and_source

SEGMENT = 100  # rounds between two signs of progress, and two chances to stop


@dataclass(frozen=True)
class SweepConfig:
    """A grid of one method's hyper-parameters on one task with K workers."""

    task: str = "fmnist-mlp2"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value."""
    method: str = "local-sgd"
    """Whose hyper-parameters: local-sgd, slowmo, diloco, fedadam, fedyogi, fedadagrad, sgd, adam or one of your own."""
    grid: tuple[str, ...] = ("gamma=1,0.5,0.3,0.1",)
    """All values of each hyper-parameter, as name=value,value; a value may be divided by an earlier one: 0.5/gamma."""
    points: tuple[str, ...] = ()
    """Single points off the grid, as name=value,name=value."""
    workers: int = 8
    """K, how many workers there are."""
    local_steps: int = 4
    """H, the local steps each takes in a round."""
    batch: int = 128
    """B, the examples of a local step."""
    rounds: int = 1000
    """T, the communication rounds."""
    seeds: int = 1
    """How many seeds each point is run with; one, by default: run the winners of a sweep with more."""
    first_seed: int = 0
    """The first seed; the others follow it."""
    rank_by: Literal["minimum", "final", "rounds", "valid"] = "minimum"
    """What is best: the lowest train loss ever or at the end, fewest rounds to the target, lowest validation loss."""
    target_loss: float | None = None
    """The train loss that rounds are counted to."""
    points_at_once: int = 44
    """Grid points that are trained side by side; fewer take less memory."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/sweep-METHOD-TASK-TIME."""


# --- the grids of the paper -------------------------------------------------------------------------------------------

_RATES = ("1", "0.5", "0.1", "0.05", "0.01", "0.005", "0.001", "0.0005", "0.0001", "0.00005", "0.00001")
_ALPHA = f"alpha={','.join(_RATES)}"
_GAMMA = "gamma=1,0.5,0.3,0.1"
_SERVER = f"eta={','.join(_RATES[1:8])}"


def _over_gamma(rates: Sequence[str]) -> str:
    return f"alpha={','.join(f'{rate}/gamma' for rate in rates)}"


SWEEPS: dict[str, tuple[str, SweepConfig]] = {
    "local-sgd": ("the paper's grid for local SGD: 4 points", SweepConfig()),
    "sgd": ("the paper's grid for synchronous SGD: 11 points", SweepConfig(method="sgd", grid=(_ALPHA,))),
    "adam": ("the paper's grid for synchronous Adam: 11 points", SweepConfig(method="adam", grid=(_ALPHA,))),
    "slowmo": (
        "the paper's grid for SlowMo, and the best values it reports from off that grid: 484 + 3 points",
        SweepConfig(
            method="slowmo",
            grid=(_GAMMA, _over_gamma(_RATES), "beta=0.99,0.95,0.9,0.85,0.8,0.75,0.7,0.65,0.6,0.55,0.5"),
            points=("gamma=0.3,alpha=0.01,beta=0.8", "gamma=0.1,alpha=5,beta=0.3", "gamma=0.3,alpha=1.66,beta=0.9"),
        ),
    ),
    "slowmo-coarse": (
        "the better part of SlowMo's grid, for tasks that take long: 80 points",
        SweepConfig(method="slowmo", grid=(_GAMMA, _over_gamma(_RATES[:4]), "beta=0.99,0.95,0.9,0.8,0.5")),
    ),
    **{
        name: (
            f"local and server rates of {title}, our own grid: 28 points",
            SweepConfig(method=name, grid=(_GAMMA, _SERVER)),
        )
        for name, title in (("fedadam", "FedAdam"), ("fedyogi", "FedYogi"), ("fedadagrad", "FedAdagrad"))
    },
    "diloco": (
        "AdamW's rate and both numbers of the server in DiLoCo, our own grid: 48 points",
        SweepConfig(
            method="diloco", grid=("gamma=0.01,0.003,0.001,0.0003", "lr=1,0.7,0.4,0.1", "momentum=0.95,0.9,0.8")
        ),
    ),
}


def sweeps() -> dict[str, tuple[str, SweepConfig]]:
    """The recipes by name, and the grids that outer optimizers of one's own bring along."""
    found = dict(SWEEPS)
    for name in own_names():
        if OUTER[name].grid and name not in found:
            config = SweepConfig(method=name, grid=OUTER[name].grid)
            found[name] = (f"the grid of {name}: {len(parse_grid(config.grid))} points", config)
    return found


# --- carrying one out -------------------------------------------------------------------------------------------------


def sweep(
    config: SweepConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Carry a sweep out → (its folder, its records). `task` may be one of your own instead of a named one."""
    setting, rule, grid, extra = _parsed(config)
    source, command = OWN_TASK, command or (command_of(config) if task is None else "laconic.sweep, from Python")
    if task is None:
        task, source = make_task_and_source(config.task)
    else:
        config = replace(config, task=task.name)
    engine = Sweep(task, config.method, setting)
    check_sweep(engine, [*grid, *extra], rule)
    folder = new_folder(config.out, f"sweep-{config.method}-{config.task}")
    RunLog(folder / RECORDS).append(
        "run",
        config={**asdict(config), "out": folder},
        command=command,
        task=describe(task, source),
        grid_points=len(grid),
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
    """Take up a sweep where it stopped, with the settings it was begun with; recorded chunks are not run again."""
    observer, header = observer or Silent(), _header(folder)
    config = _from_json(header["config"], folder)
    setting, rule, grid, extra = _parsed(config)
    source = OWN_TASK
    if task is None:
        if header["task"].get("source") == OWN_TASK:
            raise LaconicError(f"{folder} was begun with a task of its own; resume it from Python with that task.")
        task, source = make_task_and_source(config.task)
    check_task(folder, header, task, source)
    note_changes(header, observer.note)
    engine = Sweep(task, config.method, setting)
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
    atomic.write_text(folder / "ranking.md", ranking_table(records))
    heat_map(records, folder / "ranking.png")
    return folder, records


# --- what a config says -----------------------------------------------------------------------------------------------


def _parsed(config: SweepConfig) -> tuple[Setting, Rule, list[Point], list[Point]]:
    """The setting, the rule, the grid's points and the others; what is wrong is found before any data is read."""
    names_of(config.method)
    if config.seeds < 1:
        raise LaconicError(f"seeds must be positive, got {config.seeds}.")
    seeds = tuple(range(config.first_seed, config.first_seed + config.seeds))
    # segments of one length where that can be, as each length is compiled by itself
    every = next((n for n in range(SEGMENT, SEGMENT // 2, -1) if config.rounds % n == 0), SEGMENT)
    setting = Setting(
        config.workers, config.local_steps, config.batch, config.rounds, seeds, max(1, min(every, config.rounds))
    )
    grid = parse_grid(config.grid)
    extra = [point for text in config.points for point in parse_grid(text.split(","))]
    for point in [*grid, *extra]:
        check_point(config.method, point)
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
    ours = ours and all(isinstance(records[0].get(key), dict) for key in ("config", "task", "provenance"))
    if not ours or not kinds <= {"run", "point", "ranking"}:
        raise LaconicError(f"{path} holds no records of a sweep by this version; it cannot be resumed.")
    return records[0]


def _from_json(values: dict[str, Any], folder: Path) -> SweepConfig:
    known = {f.name for f in fields(SweepConfig)}
    if set(values) != known:
        wrong = sorted(set(values) ^ known)
        raise LaconicError(f"the settings in {folder} differ from this version's in {', '.join(wrong)}; start anew.")
    lists = {name: tuple(values[name]) for name in ("grid", "points")}
    config = SweepConfig(**{**values, **lists, "out": folder})
    for field in fields(SweepConfig):
        ours, theirs = getattr(SweepConfig(), field.name), getattr(config, field.name)
        if ours is not None and type(ours) is not type(theirs):
            raise LaconicError(f"the settings in {folder} have a {field.name} of the wrong type; start anew.")
    return config
