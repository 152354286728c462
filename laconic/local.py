"""The local optimizer by name and numbers, as configurations and cards hold it.

optax is imported only where an optimizer is made: it brings JAX with it, and whoever reads a card needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laconic.errors import LaconicError, unknown

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True)
class LocalOptimizer:
    """SGD, or AdamW with moments kept across rounds (as DiLoCo does).

    `clip` bounds the global norm of each gradient (0: off). `decay_steps` > 0 anneals the rate by a cosine over that
    many local steps. For anything else give `local_client` an optax optimizer of your own.
    """

    name: str = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 0.0
    clip: float = 0.0
    decay_steps: int = 0

    def __post_init__(self) -> None:
        if self.name not in LOCAL_OPTIMIZERS:
            raise unknown("local optimizer", self.name, LOCAL_OPTIMIZERS)
        if not self.learning_rate > 0:
            raise LaconicError(f"the local learning rate must be positive, got {self.learning_rate}.")
        for knob in ("weight_decay", "clip", "decay_steps"):
            if getattr(self, knob) < 0:
                raise LaconicError(f"{knob} must not be negative, got {getattr(self, knob)}.")

    def optax(self) -> optax.GradientTransformation:
        """The optax optimizer these numbers describe."""
        import optax

        rate = self.learning_rate
        if self.decay_steps:
            rate = optax.cosine_decay_schedule(self.learning_rate, self.decay_steps)
        tx = LOCAL_OPTIMIZERS[self.name](rate, self.weight_decay)
        return optax.chain(optax.clip_by_global_norm(self.clip), tx) if self.clip else tx


def _sgd(rate: optax.ScalarOrSchedule, weight_decay: float) -> optax.GradientTransformation:
    import optax

    sgd = optax.sgd(rate)
    return optax.chain(optax.add_decayed_weights(weight_decay), sgd) if weight_decay else sgd


def _adamw(rate: optax.ScalarOrSchedule, weight_decay: float) -> optax.GradientTransformation:
    import optax

    return optax.adamw(rate, weight_decay=weight_decay)


LOCAL_OPTIMIZERS: dict[str, Callable[[optax.ScalarOrSchedule, float], optax.GradientTransformation]] = {
    "sgd": _sgd,
    "adamw": _adamw,
}
