"""What a sweep's points come to: what is kept of each, and which is best.

Legend: S seeds, T rounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laconic.errors import LaconicError, unknown
from laconic.show import metrics

Record = dict[str, Any]

CURVE_VALUES = 100  # of a point's curve in its record

# What a point's record is ranked by, smallest first: None is worse than any number.
RULES: dict[str, Callable[[Record], float | None]] = {
    "minimum": lambda point: point["minimum"],
    "final": lambda point: point["final"],
    "rounds": lambda point: point["rounds_to_target"],
    "valid": lambda point: point["valid"].get("loss"),
}


@dataclass(frozen=True)
class Rule:
    """What the best point is best at: a key of `RULES`; "rounds" are those to `target_loss`."""

    by: str = "minimum"
    target_loss: float | None = None

    def __post_init__(self) -> None:
        if self.by not in RULES:
            raise unknown("rule to rank by", self.by, RULES)
        if self.target_loss is not None and not math.isfinite(self.target_loss):
            raise LaconicError(f"the target loss must be finite, got {self.target_loss}.")
        if self.by == "rounds" and self.target_loss is None:
            raise LaconicError(
                "ranking by rounds needs a target loss: the train loss to count the rounds to."
            )


def ranked(points: Sequence[Record], by: str) -> list[Record]:
    """The records of points, best first. A diverged one comes after all others, however low it once
    was."""

    def key(point: Record) -> tuple[Any, ...]:
        value, minimum = RULES[by](point), point["minimum"]
        lowest = math.inf if minimum is None else minimum
        return any(point["diverged"]), value is None, value or 0.0, lowest, point["index"]

    return sorted(points, key=key)


def kept_rounds(rounds: int) -> np.ndarray:
    """The rounds, from 1, whose smoothed mean loss a record keeps: every 10th, at most 100 of them,
    and the last."""
    every = max(metrics.WINDOW, -(-rounds // CURVE_VALUES))
    return np.unique([*range(every, rounds + 1, every), rounds])


def point_record(
    curves_ST: np.ndarray, finite_S: np.ndarray, valid: Mapping[str, np.ndarray], rule: Rule
) -> Record:
    """What is kept of a point: its thinned curve, what it may be ranked by, and which seeds
    diverged."""
    target, diverged_S = rule.target_loss, metrics.diverged(curves_ST) | ~finite_S
    smooth_T = metrics.smoothed(metrics.mean_curve(curves_ST))
    return {
        "minimum": metrics.minimum_loss(curves_ST),
        "final": metrics.final_loss(curves_ST),
        "rounds_to_target": None if target is None else metrics.rounds_to_loss(curves_ST, target),
        "valid": {
            name: float(np.mean(value_S, dtype=np.float64)) for name, value_S in valid.items()
        },
        "diverged": diverged_S.tolist(),
        "curve": smooth_T[kept_rounds(smooth_T.size) - 1],
    }
