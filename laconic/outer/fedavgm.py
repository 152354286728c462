"""FedAvgM (Hsu et al., 2019): momentum on the server.

u ← βu + Δ;  W ← W − ηu. At a constant local rate γ it is SlowMo with α = η.
"""

import optax

from laconic.outer.base import OuterOptimizer, from_optax


def fedavgm(eta: float = 1.0, beta: float = 0.9) -> OuterOptimizer:
    """Server momentum; β = 0 and η = 1 are FedAvg."""
    return from_optax(optax.sgd(eta, momentum=beta))
