"""The local optimizer by name and numbers, as configurations and cards hold it.

optax is imported only where an optimizer is made: it imports JAX, and reading a card needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from laconic.errors import LaconicError, unknown

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True)
class LocalOptimizer:
    """The workers' optimizer: SGD, AdamW as in DiLoCo, or Muon as in MuLoCo.

    Moments are kept across rounds. Muon (`optax.contrib.muon`) takes the two-dimensional tensors,
    its steps scaled to the size of AdamW's; Adam with Nesterov momentum takes the others.

    For anything else give `local_client` an optax optimizer of your own. Numbers may be traced, and
    are not checked then.

    Args:
        name: "sgd", "adamw" or "muon".
        learning_rate: of each local step.
        weight_decay: decoupled for AdamW and Muon, added to the gradient for SGD (0: off).
        clip: bounds the global norm of each gradient (0: off).
        decay_steps: anneals the rate by a cosine over so many local steps (0: constant).

    Example:
        >>> from laconic import LocalOptimizer
        >>> tx = LocalOptimizer("adamw", learning_rate=1e-3, clip=1.0).optax()
    """

    name: str = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 0.0
    clip: float = 0.0
    decay_steps: int = 0

    def __post_init__(self) -> None:
        if self.name not in LOCAL_OPTIMIZERS:
            raise unknown("local optimizer", self.name, LOCAL_OPTIMIZERS)
        if isinstance(self.learning_rate, Real) and not self.learning_rate > 0:
            raise LaconicError(
                f"the local learning rate must be positive, got {self.learning_rate}."
            )
        for knob in ("weight_decay", "clip", "decay_steps"):
            value = getattr(self, knob)
            if isinstance(value, Real) and value < 0:
                raise LaconicError(f"{knob} must not be negative, got {value}.")

    def optax(self) -> optax.GradientTransformation:
        """The optax optimizer these numbers describe."""
        import optax

        rate = self.learning_rate
        if self.decay_steps:
            rate = optax.cosine_decay_schedule(self.learning_rate, self.decay_steps)
        return chained(self.name, rate, _unless_off(self.weight_decay), _unless_off(self.clip))


def _unless_off(value: float) -> float | None:
    """None for 0; a traced number is always on."""
    return None if isinstance(value, Real) and value == 0 else value


def chained(
    name: str,
    rate: optax.ScalarOrSchedule,
    weight_decay: float | None = None,
    clip: float | None = None,
) -> optax.GradientTransformation:
    """Clipping, then the named optimizer with weight decay; None: off. Numbers may be traced."""
    import optax

    tx = LOCAL_OPTIMIZERS[name](rate, weight_decay)
    return tx if clip is None else optax.chain(optax.clip_by_global_norm(clip), tx)


def _sgd(rate: optax.ScalarOrSchedule, weight_decay: float | None) -> optax.GradientTransformation:
    import optax

    if weight_decay is None:
        return optax.sgd(rate)
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(rate))


def _adamw(
    rate: optax.ScalarOrSchedule, weight_decay: float | None
) -> optax.GradientTransformation:
    import optax

    return optax.adamw(rate, weight_decay=0.0 if weight_decay is None else weight_decay)


CONSISTENT_RMS = 0.2  # of Muon's steps, as those of AdamW have: one rate serves both


def _muon(rate: optax.ScalarOrSchedule, weight_decay: float | None) -> optax.GradientTransformation:
    from optax.contrib import muon

    decay = 0.0 if weight_decay is None else weight_decay
    return muon(rate, weight_decay=decay, adam_weight_decay=decay, consistent_rms=CONSISTENT_RMS)


LOCAL_OPTIMIZERS: dict[
    str, Callable[[optax.ScalarOrSchedule, float | None], optax.GradientTransformation]
] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "muon": _muon,
}
