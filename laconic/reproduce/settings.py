"""What the experiments share: a comparison at the paper's setting, and its learned optimizers by
name."""

from dataclasses import replace
from typing import Any

from laconic.recipes.meta_trainings import META_RECIPES
from laconic.reproduce.experiment import Learned, Use
from laconic.reproduce.paper import Tuned
from laconic.runs.compare import CompareConfig
from laconic.runs.meta_config import MetaConfig
from laconic.zoo import published

SHORT = {"fmnist-mlp2": "fmnist"}  # a task's name in an optimizer's, where it is not its own
SHARES = {
    "0.1": "tenth",
    "0.01": "hundredth",
}  # of the entries that messages keep; names of optimizers have no dots
FULL = CompareConfig(
    batch=128, rounds=1000, seeds=10, first_seed=100, on_nan="continue"
)  # seeds nothing was tuned on
STEPS = 5000


def comparison(tuned: Tuned, *more: str, task: str | None = None, **options: Any) -> CompareConfig:
    """The paper's tuned baselines in their setting, and `more` methods; `task` to use them on
    another one."""
    return replace(
        FULL,
        task=task or tuned.task,
        workers=tuned.workers,
        local_steps=tuned.local_steps,
        optimizers=(*tuned.specs(), *more),
        **options,
    )


def trained(
    architecture: str, *tasks: str, K: int = 8, H: int = 4, steps: int = STEPS, **options: Any
) -> MetaConfig:
    """Meta-training by the measured defaults; the longest horizon grows over the first four fifths
    of the steps."""
    config = MetaConfig(
        architecture=architecture,  # type: ignore[arg-type]
        tasks=tasks or ("fmnist-mlp2",),
        workers=K,
        local_steps=H,
        steps=steps,
        ramp=steps * 4 // 5,
    )
    return replace(config, **options)


def learned(architecture: str, *tasks: str, K: int = 8, H: int = 4, share: str = "1") -> Learned:
    """A learned optimizer for train loss, by the recipe, and from the zoo, that have its name; else
    by defaults.

    `share` is what messages keep: the largest of all entries by top-k with error feedback, "1" all
    of them.
    """
    tasks = tasks or ("fmnist-mlp2",)
    parts = [
        architecture,
        *(SHORT.get(task, task) for task in tasks),
        *([f"k{K}"] if K != 8 else []),
    ]
    name = "-".join(
        [*parts, *([f"h{H}"] if H != 4 else []), *([SHARES[share]] if share != "1" else [])]
    )
    if name in META_RECIPES:
        return by_recipe(name)
    return Learned(name, trained(architecture, *tasks, K=K, H=H, compress=top_k(share)))


def by_recipe(name: str) -> Learned:
    """The learned optimizer of a recipe, from the zoo where it is published under the same name."""
    return Learned(name, META_RECIPES[name][1], zoo=name if name in published() else None)


def both(*tasks: str, K: int = 8, H: int = 4, share: str = "1") -> tuple[Use, Use]:
    """LOpt-A and LAgg-A meta-trained on the same."""
    return (
        Use("LOpt-A", learned("lopt-a", *tasks, K=K, H=H, share=share)),
        Use("LAgg-A", learned("lagg-a", *tasks, K=K, H=H, share=share)),
    )


def top_k(share: str) -> str:
    """How messages are compressed that keep that share of their entries."""
    return "dense" if share == "1" else f"topk:{share}+ef"
