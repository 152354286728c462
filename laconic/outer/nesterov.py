"""DiLoCo's outer step (Douillard et al., 2024): Nesterov momentum on Δ.

u ← βu + Δ;  W ← W − α(Δ + βu). With AdamW as the local optimizer this is DiLoCo.
"""

import optax

from laconic.outer.base import OuterOptimizer, from_optax


def nesterov(learning_rate: float = 0.7, momentum: float = 0.9) -> OuterOptimizer:
    """Nesterov momentum with DiLoCo's own constants as defaults."""
    return from_optax(optax.sgd(learning_rate, momentum=momentum, nesterov=True))
