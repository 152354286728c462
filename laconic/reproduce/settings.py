"""What the experiments share: a comparison at the paper's setting, and its learned optimizers by name."""

from dataclasses import replace
from typing import Any

from laconic.recipes.config import CompareConfig
from laconic.recipes.meta_config import MetaConfig
from laconic.reproduce.experiment import Learned, Use
from laconic.reproduce.paper import Tuned

ZOO = {"lopt-a": "lopt-a-fmnist", "lagg-a": "lagg-a-fmnist"}  # meta-trained on fmnist-mlp2, K = 8, H = 4
FULL = CompareConfig(batch=128, rounds=1000, seeds=10, first_seed=100, on_nan="continue")  # seeds nothing was tuned on
STEPS = 5000


def comparison(tuned: Tuned, *more: str, task: str | None = None, **options: Any) -> CompareConfig:
    """The paper's tuned baselines in their setting, and `more` methods; `task` to use them on another one."""
    return replace(
        FULL,
        task=task or tuned.task,
        workers=tuned.workers,
        local_steps=tuned.local_steps,
        optimizers=(*tuned.specs(), *more),
        **options,
    )


def trained(architecture: str, *tasks: str, K: int = 8, H: int = 4, steps: int = STEPS, **options: Any) -> MetaConfig:
    """Meta-training by the measured defaults; the longest horizon grows over the first four fifths of the steps."""
    config = MetaConfig(
        architecture=architecture,  # type: ignore[arg-type]
        tasks=tasks or ("fmnist-mlp2",),
        workers=K,
        local_steps=H,
        steps=steps,
        ramp=steps * 4 // 5,
    )
    return replace(config, **options)


def learned(architecture: str, *tasks: str, K: int = 8, H: int = 4, steps: int = STEPS) -> Learned:
    """A learned optimizer for train loss, named after what tells it apart; the zoo's where it has one."""
    config = trained(architecture, *tasks, K=K, H=H, steps=steps)
    parts = [architecture, *config.tasks, *([f"k{K}"] if K != 8 else []), *([f"h{H}"] if H != 4 else [])]
    ours = (config.tasks, K, H) == (("fmnist-mlp2",), 8, 4)
    return Learned("-".join(parts), config, ZOO.get(architecture) if ours else None)


def both(*tasks: str, K: int = 8, H: int = 4, steps: int = STEPS) -> tuple[Use, Use]:
    """LOpt-A and LAgg-A meta-trained on the same."""
    return (
        Use("LOpt-A", learned("lopt-a", *tasks, K=K, H=H, steps=steps)),
        Use("LAgg-A", learned("lagg-a", *tasks, K=K, H=H, steps=steps)),
    )
