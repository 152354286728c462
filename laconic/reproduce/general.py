"""Beyond the paper: `lopt-r`, tuned nowhere, against rivals that are tuned on each task itself.

The tasks are those of `docs/suite.md`; none of their pairs of data and model is in meta-training.
Panels whose names begin with `small` are made for a CPU, all others for a GPU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from laconic.reproduce.experiment import Experiment
from laconic.reproduce.panel import Panel, Tuning, Use
from laconic.reproduce.paper import by_recipe
from laconic.reproduce.part import Record, Runs
from laconic.runs.configs import CompareConfig, SweepConfig
from laconic.show.curves import of_kind
from laconic.show.metrics import final_loss, mean_curve, rounds_to_loss
from laconic.show.sweep import RULES
from laconic.show.table import Table, number

OURS = "lopt-r"
NOMINAL = "Nesterov 0.7/0.9 untuned"
LEAST = 1e-3  # losses below it count as equal
NEVER = 0.5  # the score where ours does not get there
SCORE = "score"
RANK_BY = "final"
MEAN = "geometric mean"
RATES = {"sgd": "gamma=1,0.3,0.1", "adamw": "gamma=0.01,0.003,0.001"}
GRIDS = {  # label → method, and what is tuned beside the workers' rate; 12 points each
    "Nesterov": ("diloco", ("lr=1,0.7", "momentum=0.9,0.5")),
    "SlowMo": ("slowmo", ("alpha=1,0.5", "beta=0.95,0.8")),
    "FedAdam": ("fedadam", ("eta=0.1,0.03,0.01,0.003",)),
    "FedExP": ("fedexp", ("eps=0.1,0.01,0.001,0",)),
}
Local = Literal["sgd", "adamw"]


@dataclass(frozen=True)
class Contest(Panel):
    """A panel whose learned optimizer runs at the local rate of the rival that tuned best."""

    local: Local = "sgd"

    def smoke(self) -> "Contest":
        """The same in a small setting; ours is trained on one small family."""
        small = cast("Contest", super().smoke())
        return replace(small, learned=tuple(map(_one_family, small.learned)))

    def sweep_path(self, tuning: Tuning) -> str:
        """The folder of a rival's sweep, by its method without options."""
        return f"sweeps/{self.name}-{tuning.config.method.partition(':')[0]}"

    def comparison(self, files: Mapping[str, str], sweeps: Runs) -> CompareConfig:
        """The tuned rivals, Nesterov's untuned step and ours, both at the best rival's rate."""
        best = [tuning.best(sweeps[self.sweep_path(tuning)]) for tuning in self.tuned]
        sound = [point for point in best if not any(point["diverged"])]
        losses = [(RULES[RANK_BY](point), point["numbers"]["gamma"]) for point in sound]
        known = [(loss, gamma) for loss, gamma in losses if loss is not None]
        rate = min(known)[1] if known else None
        own = [f"local={self.local}", *([] if rate is None else [f"gamma={rate:g}"])]
        nominal = f"diloco:{','.join([*own, 'lr=0.7', 'momentum=0.9'])},label={NOMINAL}"
        uses = tuple(replace(use, options=",".join(own)) for use in self.learned)
        config = replace(self.config, optimizers=(*self.config.optimizers, nominal))
        return super(Contest, replace(self, learned=uses, config=config)).comparison(files, sweeps)

    @classmethod
    def rows(cls, experiment: Experiment, runs: Mapping[str, Runs]) -> list[Record]:
        """A panel's rows, then the score of ours on each, then their geometric mean."""
        panels = experiment.of(cls)
        scores = [score_row(panel.name, runs[panel.name][panel.path]) for panel in panels]
        total = {
            "panel": MEAN,
            "label": OURS,
            "metric": SCORE,
            "rival": None,
            "panels": len(scores),
        }
        for which in ("train", "test"):
            known = [row[which] for row in scores if row[which] is not None]
            total[which] = math.exp(np.mean(np.log(known))) if known else None
        return [*super().rows(experiment, runs), *scores, total]

    @classmethod
    def tables(cls, experiment: Experiment, rows: Sequence[Record]) -> list[Table]:
        """A panel's tables, then the scores."""
        titles = {panel.name: panel.title for panel in experiment.of(cls)}
        lines = [
            [
                titles.get(row["panel"], f"{MEAN} of {row.get('panels')}"),
                row["rival"] or "",
                number(row["train"]),
                number(row["test"]),
            ]
            for row in rows
            if row["metric"] == SCORE
        ]
        headers = ["task", "best rival", "train", "test"]
        scores = Table(f"Scores of {OURS}: rounds of the best rival ÷ its own", headers, lines)
        return [scores, *super().tables(experiment, rows)]


def _one_family(use: Use) -> Use:
    config = use.learned.config
    config = replace(config, tasks=config.tasks[:1], judge_tasks=config.judge_tasks[:1])
    return replace(use, learned=replace(use.learned, config=config))


# --- the score ------------------------------------------------------------------------------------


def score_row(name: str, records: Sequence[Record]) -> Record:
    """How ours does on one panel, on train and on test loss."""
    methods = of_kind(records, "method")
    ours = next(method for method in methods if method["label"] == OURS)
    rival = best_rival([x for x in methods if x["label"] not in (OURS, NOMINAL)])
    return {
        "panel": name,
        "label": OURS,
        "metric": SCORE,
        "rival": rival["label"],
        "train": train_score(rival, ours),
        "test": heldout_score(rival, ours),
    }


def best_rival(methods: Sequence[Record]) -> Record:
    """The lowest final train loss; among those below `LEAST` whoever got there first."""

    def key(method: Record) -> tuple[float, float]:
        loss = final_loss(_losses(method["train"]))
        if not math.isfinite(loss):
            return math.inf, math.inf
        target = max(loss, LEAST)
        return target, rounds_to_loss(_losses(method["train"]), target) or math.inf

    return min(methods, key=key)


def train_score(rival: Record, ours: Record) -> float:
    """Rounds the rival needs to its own final train loss ÷ rounds ours needs to it."""
    target = max(final_loss(_losses(rival["train"])), LEAST)
    theirs = rounds_to_loss(_losses(rival["train"]), target)
    return _ratio(theirs, rounds_to_loss(_losses(ours["train"]), target))


def heldout_score(rival: Record, ours: Record) -> float | None:
    """The same for the rival's best test loss, at the rounds where both are tested."""
    if "loss" not in rival["heldout"] or "loss" not in ours["heldout"]:
        return None
    curves = [mean_curve(_losses(method["heldout"]["loss"])) for method in (rival, ours)]
    target = float(np.nanmin(curves[0]))
    reached = [
        next((t for t, x in zip(m["evaluated_at"], curve, strict=True) if x <= target), None)
        for m, curve in zip((rival, ours), curves, strict=True)
    ]
    return _ratio(*reached)


def _ratio(theirs: int | None, ours: int | None) -> float:
    return NEVER if theirs is None or ours is None else theirs / ours


def _losses(values: Any) -> np.ndarray:
    return np.array(values, dtype=float)  # None, where a record has no number, becomes NaN


# --- the suite ------------------------------------------------------------------------------------


def contest(
    name: str, task: str, K: int, H: int, B: int, rounds: int, local: Local = "sgd", **more: Any
) -> Contest:
    """One task of the suite: rivals tuned for a third of its length on one seed, finals on 3."""
    setting = {"task": task, "workers": K, "local_steps": H, "batch": B}
    third = max(1, rounds // 3)
    sought = SweepConfig(rounds=third, rank_by=RANK_BY, **setting, points_at_once=12)
    tuned = tuple(
        Tuning(label, replace(sought, method=f"{method}:local={local}", grid=(RATES[local], *grid)))
        for label, (method, grid) in GRIDS.items()
    )
    return Contest(
        name,
        f"{task}, K = {K}, H = {H}, {'AdamW' if local == 'adamw' else 'SGD'}",
        CompareConfig(
            **setting,
            optimizers=(),
            rounds=rounds,
            seeds=3,
            first_seed=100,
            evaluate_every=max(1, rounds // 20),
            on_nan="continue",
            **more,
        ),
        (Use(OURS, by_recipe(OURS)),),
        metrics=("final_train", "test_loss", "diverged"),
        shown=("train", "test-loss"),
        tuned=tuned,
        local=local,
    )


_TINY = "imagenet32-{}:half=second"
_PLAYS = "lm-bytes:file=text/tinyshakespeare.txt,context=32,hidden=32,heads=2,layers=2"
_DECODER = "lm-decoder:compute=bf16"
SMALL = (
    contest("small-digits", "digits-mlp", 8, 4, 16, 200),
    contest("small-digits-adamw", "digits-mlp", 3, 32, 8, 60, "adamw"),
    contest("small-mlp3", _TINY.format("mlp2") + ",pool=4,width=32", 5, 3, 16, 300),
    contest("small-mlp3-adamw", _TINY.format("mlp2") + ",pool=4,width=32", 16, 1, 8, 300, "adamw"),
    contest("small-mlp5", "cifar10-mlp4:pool=4,width=32", 3, 3, 16, 300),
    contest("small-mlp5-adamw", "cifar10-mlp4:pool=4,width=32", 5, 3, 16, 200, "adamw"),
    contest("small-wide", "cifar10-mlp2:pool=4,width=320", 3, 3, 16, 200),
    contest("small-cnn", "cifar10-cnn:pool=4,width=8", 3, 3, 16, 200),
    contest("small-cnn-bn", "cifar10-cnn-bn:pool=4,width=8", 5, 3, 16, 200),
    contest("small-tiny-cnn", _TINY.format("cnn") + ",pool=4,width=8", 16, 1, 8, 200),
    contest("small-decoder", _PLAYS, 4, 8, 8, 100, "adamw"),
    contest("small-decoder-h32", _PLAYS, 3, 32, 4, 40, "adamw"),
)
LARGE = (
    contest("digits", "digits-mlp", 16, 1, 16, 500),
    contest("cnn", "cifar10-cnn", 8, 4, 128, 1000),
    contest("cnn-bn", "cifar10-cnn-bn", 16, 1, 64, 1000),
    contest("tiny-cnn", _TINY.format("cnn"), 16, 3, 64, 1000),
    contest("mlp3", _TINY.format("mlp2"), 5, 3, 128, 1000),
    contest("mlp5", "cifar10-mlp4", 3, 3, 128, 1000),
    contest("mlp5-adamw", "cifar10-mlp4", 32, 3, 64, 1000, "adamw"),
    contest("wide", "cifar10-mlp2:width=1280", 5, 32, 64, 500),
    contest("vit", "cifar10-deit-tiny:compute=bf16", 8, 4, 128, 500, "adamw", seeds_at_once=1),
    contest("resnet50", "imagenet32-resnet50:compute=bf16,stem=large", 8, 4, 64, 500),
    contest("decoder", _DECODER, 4, 30, 32, 300, "adamw", seeds_at_once=1),
    contest("decoder-k16", _DECODER, 16, 100, 8, 100, "adamw", seeds_at_once=1),
)

FIG_GENERAL = Experiment(
    "fig-general",
    "One optimizer, tuned nowhere, on tasks it never saw",
    "`lopt-r` against rivals tuned on each task itself, by the rounds that both need",
    (*SMALL, *LARGE),
    leaves_out=(
        "This is not in the paper. The score of a task is the rounds that the best rival needs to "
        f"its own final train loss (losses below {LEAST:g} count as {LEAST:g}), or to its best "
        f"test loss, divided by the rounds that {OURS} needs; {NEVER:g} where it never gets there.",
        f"{OURS} has the local rate of the rival that tuned best, and is told K, H and how long "
        "the run is.",
    ),
)
