"""What an outer optimizer is: an optax transformation that reads Δ as a gradient, and what it needs
of the round."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import optax


class OuterOptimizer(NamedTuple):
    """`tx.update(mean_delta, state, params, *, worker_deltas=None, weights=None)`: optax's own
    convention.

    combine: "gather" if it needs `worker_deltas` (leaves [K, …]) beside the mean
    workers: the K it was made for; None for any
    horizon: the rounds it was meta-trained for; None if it has no such limit
    step:    as `tx.update`, but gives the new parameters instead of their change, which saves a pass over memory; it
             belongs to this very `tx`, so who wraps `tx` leaves it out
    """

    tx: optax.GradientTransformationExtraArgs
    combine: Literal["mean", "gather"] = "mean"
    workers: int | None = None
    horizon: int | None = None
    step: Callable[..., tuple[Any, Any]] | None = None


def outer_step(
    outer: OuterOptimizer,
    mean_delta: Any,
    state: Any,
    params: Any,
    *,
    worker_deltas: Any = None,
    weights: Any = None,
) -> tuple[Any, Any]:
    """The parameters and the state after one step: by the optimizer's own `step` if it has one,
    else by `tx`."""
    if outer.step is not None:
        return outer.step(mean_delta, state, params, worker_deltas=worker_deltas, weights=weights)
    updates, state = outer.tx.update(
        mean_delta, state, params, worker_deltas=worker_deltas, weights=weights
    )
    return optax.apply_updates(params, updates), state


def from_optax(tx: optax.GradientTransformation) -> OuterOptimizer:
    """Any optax optimizer as an outer optimizer on the mean Δ."""
    return OuterOptimizer(optax.with_extra_args_support(tx))


class Entry(NamedTuple):
    """A registry line: how to make it (keyword hyper-parameters with defaults) and one line for
    people.

    row:  its options as a row of the tables, as in "gamma=0.1,rate=0.01", gamma being the rate of
          SGD workers under it; with one it is a method by its own name, in comparisons, in sweeps
          and in every table of the experiments grid: what a sweep of it tries unless told
          otherwise, as in ("gamma=0.3,0.1", "rate=0.01,0.001")
    """

    make: Callable[..., OuterOptimizer]
    summary: str
    row: str | None = None
    grid: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Its hyper-parameters that can be written down, numbers and words, and their defaults."""
        parameters = inspect.signature(self.make).parameters
        return {
            name: p.default
            for name, p in parameters.items()
            if isinstance(p.default, int | float | str)
        }


def transform(
    init: Callable[[Any], Any], update: Callable[[Any, Any, Any], tuple[Any, Any]]
) -> optax.GradientTransformationExtraArgs:
    """An optax transformation from `init` and `update(delta, state, params)`, deaf to what else a
    round says."""

    def heard(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del extra
        return update(updates, state, params)

    return optax.GradientTransformationExtraArgs(lambda params: init(params), heard)
