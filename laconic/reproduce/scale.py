"""The two scales: `full` is the paper's setting, `smoke` the same panels and methods in numbers that a laptop bears.

What tells panels apart stays apart: K and H are quartered, so 8, 16 and 32 become 2, 4 and 8.
"""

from dataclasses import replace

from laconic.errors import unknown
from laconic.recipes.config import CompareConfig
from laconic.recipes.meta_config import MetaConfig
from laconic.recipes.sweep_config import SweepConfig
from laconic.reproduce.experiment import Experiment, Learned, Panel, SweepPanel, Use
from laconic.tasks.catalog import TASKS

SCALES = ("smoke", "full")
SMOKE_LINE = "smoke scale: shows that it works, not what it reaches"
ROUNDS, SEEDS, BATCH, TARGET = 50, 2, 8, 1.5
STEPS = 5  # outer steps of meta-training
SMOKE_SIZES = (
    f"K and H are a quarter of what panels and labels say; {ROUNDS} rounds of batch {BATCH}, {SEEDS} seeds, narrow "
    f"networks, {STEPS} outer steps of meta-training; with a population its data decides H"
)
WIDTHS = {"cnn": 2, "cnn-bn": 2}  # by what a task's name ends in; 16 for all others
POINTS = {"slowmo": ("gamma=1,0.5,0.3,0.1", "alpha=1/gamma,0.1/gamma", "beta=0.95,0.8")}  # 16 of its 487


def at_scale(experiment: Experiment, scale: str) -> Experiment:
    """The experiment at "full" (as it is) or "smoke"."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if scale == "full":
        return experiment
    panels = tuple(_smoke_panel(panel) for panel in experiment.panels)
    sweeps = tuple(_smoke_sweep_panel(panel) for panel in experiment.sweeps)
    return replace(experiment, panels=panels, sweeps=sweeps)


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
    """A sweep made small: fewer points of a large grid, and runs that were longer than others stay so."""
    return replace(
        config,
        task=small_task(config.task),
        grid=POINTS.get(config.method, config.grid),
        points=(),
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
    """The task at a small width, if it has one and no option of its own."""
    if ":" in spec or "width" not in TASKS[spec].options:
        return spec
    return f"{spec}:width={WIDTHS.get(spec.partition('-')[2], 16)}"


def _smoke_panel(panel: Panel) -> Panel:
    learned = tuple(Use(use.label, _smoke_learned(use.learned)) for use in panel.learned)
    config = smoke(panel.config)
    if not any(kind.startswith("test-") for kind in panel.shown):  # one look at the test set, which costs seconds
        config = replace(config, evaluate_every=ROUNDS)
    return replace(panel, config=config, learned=learned)


def _smoke_learned(learned: Learned) -> Learned:
    return Learned(learned.name, smoke_meta(learned.config))  # no published one was trained at this size


def _smoke_sweep_panel(panel: SweepPanel) -> SweepPanel:
    return replace(panel, config=smoke_sweep(panel.config))
