"""The two scales: `full` is the paper's setting, `smoke` the same panels and methods in numbers
that a laptop bears.

What tells panels apart stays apart: K and H are quartered, so 8, 16 and 32 become 2, 4 and 8.
"""

from dataclasses import replace

from laconic.bench.overhead import OverheadConfig
from laconic.errors import unknown
from laconic.reproduce.experiment import Experiment, Learned, Panel, SweepPanel, TimingPanel, Tuning
from laconic.runs.compare import CompareConfig
from laconic.runs.grid import parse_grid
from laconic.runs.meta_config import MetaConfig
from laconic.runs.sweep import SweepConfig
from laconic.tasks.catalog import TASKS

SCALES = ("smoke", "full")
SMOKE_LINE = "smoke scale: shows that it works, not what it reaches"
ROUNDS, SEEDS, BATCH, TARGET = 50, 2, 8, 1.5
STEPS = 5  # outer steps of meta-training
SMOKE_SIZES = (
    f"K and H are a quarter of what panels and labels say; {ROUNDS} rounds of batch {BATCH}, "
    f"{SEEDS} seeds, narrow "
    f"networks, {STEPS} outer steps of meta-training; with a population its data decides H"
)
SMOKE_TIMES = (
    f"models are tiny, the sides of images an eighth, B = {BATCH} and K = 2; H is as it says"
)
_RESNET = {"width": "2", "blocks": "1-1", "stem": "large"}
_VIT = {"patch": "8", "hidden": "16", "heads": "2", "layers": "1"}
SIZES: dict[str, dict[str, str]] = {  # by what a task's name ends in; a width of 16 for all others
    "cnn": {"width": "2"},
    "cnn-bn": {"width": "2"},
    "resnet50": _RESNET,
    "resnet152": _RESNET,
    "deit-tiny": _VIT,
    "vit-b": _VIT | {"patch": "4"},
    "decoder": {"context": "16", "hidden": "16", "heads": "2", "layers": "1", "tokenizer": "bytes"},
}
EIGHTHS = {
    "width": 8,
    "side": 16,
}  # sizes that tell tasks apart, where a task gives them itself, and the least
FEW = 16  # points of a grid that are not too many
POINTS = {
    "slowmo": ("gamma=1,0.5,0.3,0.1", "alpha=1/gamma,0.1/gamma", "beta=0.95,0.8")
}  # 16 of its 487


def at_scale(experiment: Experiment, scale: str) -> Experiment:
    """The experiment at "full" (as it is) or "smoke"."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if scale == "full":
        return experiment
    panels = tuple(_smoke_panel(panel) for panel in experiment.panels)
    sweeps = tuple(_smoke_sweep_panel(panel) for panel in experiment.sweeps)
    timings = tuple(_smoke_timing_panel(panel) for panel in experiment.timings)
    return replace(experiment, panels=panels, sweeps=sweeps, timings=timings)


def smoke(config: CompareConfig) -> CompareConfig:
    """A comparison made small; a target loss becomes one that is in reach."""
    return replace(
        config,
        task=small_task(config.task),
        workers=quarter(config.workers),
        local_steps=quarter(config.local_steps),
        batch=BATCH,
        rounds=ROUNDS,
        seeds=SEEDS,
        evaluate_every=ROUNDS // 5,
        target_loss=None if config.target_loss is None else TARGET,
    )


def smoke_meta(config: MetaConfig) -> MetaConfig:
    """A meta-training made small; runs of one fixed length keep one."""
    return replace(
        config,
        tasks=tuple(small_task(task) for task in config.tasks),
        workers=quarter(config.workers),
        local_steps=quarter(config.local_steps),
        batch=BATCH,
        steps=STEPS,
        pairs=2,
        truncation=5,
        shortest=20 if config.shortest == config.longest else 10,
        longest=20,
        ramp=0,
        warmup=1,
        average=0.0,
        judge_every=STEPS,
        judge_seeds=1,
        checkpoint_every=STEPS,
        init=None,  # what it would begin from has other sizes
    )


def smoke_sweep(config: SweepConfig) -> SweepConfig:
    """A sweep made small: fewer points of a large grid, all at once, and runs that were longer than
    others stay so."""
    many = len(parse_grid(config.grid)) > FEW
    return replace(
        config,
        task=small_task(config.task),
        grid=POINTS.get(config.method, config.grid) if many else config.grid,
        points=(),
        points_at_once=SweepConfig().points_at_once,
        workers=quarter(config.workers),
        local_steps=quarter(config.local_steps),
        batch=BATCH,
        rounds=max(ROUNDS, config.rounds // 640),
        seeds=SEEDS,
    )


def quarter(count: int) -> int:
    """A fourth of K or H, at least 1."""
    return max(1, count // 4)


def small_task(spec: str) -> str:
    """The task at a small size; a width of its own becomes an eighth, so that tasks stay apart,
    other options stay."""
    name, _, given = spec.partition(":")
    small = SIZES.get(
        name.partition("-")[2], {"width": "16"} if "width" in TASKS[name].options else {}
    )
    own = {item.partition("=")[0]: item.partition("=")[2] for item in given.split(",") if given}
    own |= {
        key: str(max(least, int(own[key]) // 8)) for key, least in EIGHTHS.items() if key in own
    }
    for key in (
        "compute",
        "stem",
    ):  # CPUs have no use for bfloat16, nor time for images at their full size
        own.pop(key, None)
    options = small | own
    return ":".join(
        [name, *([",".join(f"{key}={value}" for key, value in options.items())] if options else [])]
    )


def smoke_times(config: OverheadConfig) -> OverheadConfig:
    """Timings of a tiny model; steps and restarts stay, as they cost little then."""
    return replace(
        config, task=small_task(config.task), batch=BATCH, workers=quarter(config.workers)
    )


def _smoke_panel(panel: Panel) -> Panel:
    learned = tuple(replace(use, learned=_smoke_learned(use.learned)) for use in panel.learned)
    config = smoke(panel.config)
    if not any(
        kind.startswith("test-") for kind in panel.shown
    ):  # one look at the test set, which costs seconds
        config = replace(config, evaluate_every=ROUNDS)
    elif config.seeds_at_once:  # a large model takes long to look
        config = replace(config, evaluate_every=ROUNDS // 2)
    tuned = tuple(
        Tuning(tuning.label, replace(smoke_sweep(tuning.config), seeds=1)) for tuning in panel.tuned
    )
    return replace(panel, config=config, learned=learned, tuned=tuned)


def _smoke_learned(learned: Learned) -> Learned:
    return Learned(
        learned.name, smoke_meta(learned.config)
    )  # no published one was trained at this size


def _smoke_sweep_panel(panel: SweepPanel) -> SweepPanel:
    return replace(panel, config=smoke_sweep(panel.config))


def _smoke_timing_panel(panel: TimingPanel) -> TimingPanel:
    return replace(panel, config=smoke_times(panel.config))
