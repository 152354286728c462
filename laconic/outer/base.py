"""What an outer optimizer is: an optax transformation that reads Δ as a gradient, and what it needs of the round."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import optax


class OuterOptimizer(NamedTuple):
    """`tx.update(mean_delta, state, params, *, worker_deltas=None, weights=None)`: optax's own convention.

    combine: "gather" if it needs `worker_deltas` (leaves [K, …]) beside the mean
    workers: the K it was made for; None for any
    horizon: the rounds it was meta-trained for; None if it has no such limit
    """

    tx: optax.GradientTransformationExtraArgs
    combine: Literal["mean", "gather"] = "mean"
    workers: int | None = None
    horizon: int | None = None


def from_optax(tx: optax.GradientTransformation) -> OuterOptimizer:
    """Any optax optimizer as an outer optimizer on the mean Δ."""
    return OuterOptimizer(optax.with_extra_args_support(tx))


class Entry(NamedTuple):
    """A registry line: how to make it (keyword hyper-parameters with defaults) and one line for people."""

    make: Callable[..., OuterOptimizer]
    summary: str


def transform(
    init: Callable[[Any], Any], update: Callable[[Any, Any, Any], tuple[Any, Any]]
) -> optax.GradientTransformationExtraArgs:
    """An optax transformation from `init` and `update(delta, state, params)`, deaf to what else a round says."""

    def heard(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del extra
        return update(updates, state, params)

    return optax.GradientTransformationExtraArgs(lambda params: init(params), heard)
