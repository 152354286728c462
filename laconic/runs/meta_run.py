"""A meta-training under way: what it carries from outer step to outer step, and who watches it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from laconic.meta.train import MetaState, MetaTrainer
from laconic.outer.learned import Theta
from laconic.runs.meta_config import MetaConfig


class MetaObserver(Protocol):
    """Whoever watches: a live display, a test, or nobody."""

    def begin(self, config: MetaConfig, done: int, rounds_per_step: int) -> None:
        """Training starts, or goes on after `done` outer steps."""

    def progress(self, done: int, losses: np.ndarray, norms: np.ndarray) -> None:
        """Some outer steps are done: mean meta-loss and gradient norm of each [steps]."""

    def judged(self, done: int, value: float, best: bool) -> None:
        """φ was judged on held-out seeds."""

    def note(self, text: str) -> None:
        """Something a person should know."""


class Unwatched:
    """An observer that says nothing."""

    def begin(self, config: MetaConfig, done: int, rounds_per_step: int) -> None:
        """Nothing."""

    def progress(self, done: int, losses: np.ndarray, norms: np.ndarray) -> None:
        """Nothing."""

    def judged(self, done: int, value: float, best: bool) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


@dataclass
class Best:
    """The best φ so far, its score on held-out seeds and the step it is of."""

    theta: Theta
    score: float = float("inf")
    step: int = 0


@dataclass
class MetaRun:
    """All about a run: where it writes, how far it is, what it showed so far and how much of that
    is on disk."""

    config: MetaConfig
    folder: Path
    trainer: MetaTrainer
    state: MetaState
    best: Best
    observer: MetaObserver
    done: int = 0
    seconds: float = 0.0
    losses: list[np.ndarray] = field(default_factory=list)
    norms: list[np.ndarray] = field(default_factory=list)
    recorded: int = 0


def kept(theta: Theta) -> Theta:
    """A copy that outlives the state it is part of, which the next outer step uses up."""
    return {name: jnp.array(np.asarray(value)) for name, value in theta.items()}
