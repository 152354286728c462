"""Local SGD (Stich, 2019): W ← W − Δ, the average of the workers' weights."""

import optax

from laconic.outer.base import OuterOptimizer, from_optax


def average() -> OuterOptimizer:
    """Plain averaging; it has nothing to tune."""
    return from_optax(optax.sgd(1.0))
