"""Outer optimizers: what the server does with the workers' deltas. `OUTER` names them all."""

import jax

from laconic.outer.base import Entry, OuterOptimizer, by_name, from_optax
from laconic.outer.fedexp import fedexp
from laconic.outer.fedopt import fedadagrad, fedadam, fedyogi
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.momentum import average, fedavgm, nesterov, slowmo
from laconic.outer.relative import RelativeOptimizer


def _untrained(architecture: str) -> Entry:
    def mean_only(seed: int = 0, scale: float = 1.0, weight_decay: float = 0.0) -> OuterOptimizer:
        learned = LearnedOptimizer(architecture)
        return learned(learned.init(jax.random.key(seed)), scale=scale, weight_decay=weight_decay)

    def worker_aware(
        workers: int = 8,
        seed: int = 0,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        fill: str = "mean",
    ) -> OuterOptimizer:
        learned = LearnedOptimizer(architecture, workers)
        return learned(
            learned.init(jax.random.key(seed)), scale=scale, weight_decay=weight_decay, fill=fill
        )

    make = worker_aware if architecture.startswith("lagg") else mean_only
    return Entry(make, f"learned, {architecture} architecture with random weights: not trained yet")


def _nesterov_to_begin_with(
    rate: float = 0.8, momentum: float = 0.9, scale: float = 1.0, weight_decay: float = 0.0
) -> OuterOptimizer:
    learned = RelativeOptimizer(rate, momentum)
    return learned(learned.init(jax.random.key(0)), scale=scale, weight_decay=weight_decay)


OUTER: dict[str, Entry] = {
    "average": Entry(average, "local SGD: the mean of the workers' weights"),
    "slowmo": Entry(slowmo, "SlowMo: slow momentum over rounds"),
    "nesterov": Entry(nesterov, "DiLoCo's outer step: Nesterov momentum"),
    "fedavgm": Entry(fedavgm, "FedAvgM: FedAvg with momentum on the server"),
    "fedexp": Entry(fedexp, "FedExP: a step length from the workers' disagreement"),
    "fedadam": Entry(fedadam, "FedAdam: adaptive server of Reddi et al."),
    "fedyogi": Entry(fedyogi, "FedYogi: adaptive server whose second moment moves slowly"),
    "fedadagrad": Entry(fedadagrad, "FedAdagrad: adaptive server whose squares add up"),
    "optax": Entry(by_name, "any optax optimizer by its name"),
    "lopt-a": _untrained("lopt-a"),
    "lagg-a": _untrained("lagg-a"),
    "lopt": _untrained("lopt"),
    "lagg": _untrained("lagg"),
    "lopt-r": Entry(_nesterov_to_begin_with, "learned, lopt-r architecture: untrained, Nesterov"),
}

__all__ = [
    "OUTER",
    "Entry",
    "LearnedOptimizer",
    "OuterOptimizer",
    "RelativeOptimizer",
    "from_optax",
]
