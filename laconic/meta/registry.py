"""The estimators by name. Adding one is one file and one line here; the contract tests cover it at
once."""

from collections.abc import Callable
from typing import NamedTuple

from laconic.meta.backprop import backprop
from laconic.meta.estimator import GradientEstimator
from laconic.meta.pes import es, pes


class Entry(NamedTuple):
    """`make(problem, pairs=, truncation=, sigma=, horizon=, reset_diverged=)`, and one line for
    people."""

    make: Callable[..., GradientEstimator]
    summary: str


ESTIMATORS: dict[str, Entry] = {
    "pes": Entry(pes, "persistent evolution strategies: unbiased over truncations"),
    "es": Entry(es, "evolution strategies on each truncation alone: less variance, short-sighted"),
    "backprop": Entry(
        backprop, "backpropagation through each truncation: exact within it, much memory"
    ),
}
