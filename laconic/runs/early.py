"""Early stopping: a run ends once some looks in a row at held-out data found no lower loss.

A look is at the "valid" split where the task has one, so that the test split stays unseen, else at
the test split. Over several seeds the mean of their losses decides; a loss that is not finite is
never lower. The rule reads nothing but the looks on record, so a resumed run stops where it would
have stopped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from laconic.client import Shared
from laconic.errors import LaconicError
from laconic.runs.measure import heldout_metrics
from laconic.tasks.base import Task


def check_patience(patience: int | None, rounds: int, every: int) -> None:
    """Refuse a patience that is no count, or that no run of so many rounds can exhaust."""
    if patience is None:
        return
    if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
        raise LaconicError(f"patience counts looks at held-out data, at least 1, got {patience}.")
    if every < 1:
        raise LaconicError(f"evaluate_every must be positive, got {every}.")
    looks = -(-rounds // every)
    if patience >= looks:
        raise LaconicError(
            f"a patience of {patience} can never stop a run with {looks} looks at held-out data "
            f"({rounds} rounds, one every {every}): lower patience or evaluate_every."
        )


def watched(task: Task) -> str:
    """The name of the loss that decides; a task without held-out data is refused."""
    if "valid" in task.feed.splits:
        return "valid_loss"
    if "test" in task.feed.splits:
        return "loss"
    raise LaconicError(
        f"{task.name} has no held-out data, so there is nothing to look at: leave out patience and "
        "evaluate_every."
    )


def look(task: Task, shared: Shared) -> dict[str, jax.Array]:
    """The metrics on the test split, and beside them "valid_loss" where there is such a split."""
    found = heldout_metrics(task, shared)
    if "valid" in task.feed.splits:
        found["valid_loss"] = heldout_metrics(task, shared, "valid")["loss"]
    return found


@dataclass(frozen=True)
class Looks:
    """The looks so far: after which rounds, and the losses there."""

    rounds: Sequence[int]
    losses: Sequence[float]
    patience: int

    @property
    def best(self) -> int | None:
        """Which look has the lowest finite loss, the first of equals; None without one."""
        finite = [i for i, loss in enumerate(self.losses) if math.isfinite(loss)]
        return min(finite, key=lambda i: self.losses[i], default=None)

    @property
    def over(self) -> bool:
        """Whether the last `patience` looks found no lower loss."""
        since = -1 if self.best is None else self.best
        return len(self.losses) - 1 - since >= self.patience

    def facts(self, name: str) -> dict[str, Any]:
        """What a record says: the patience, the loss watched, its best, and where it stopped."""
        best = self.best
        return {
            "patience": self.patience,
            "watched": name,
            "best_round": None if best is None else self.rounds[best],
            "best_loss": None if best is None else float(self.losses[best]),
            "stopped": self.rounds[-1] if self.over else None,
        }
