"""What an outer optimizer is: an optax transformation that takes Δ for a gradient, and what it
needs of the round."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import optax

from laconic.errors import LaconicError, unknown

# Optimizers of optax that need more than gradients and a rate (a loss, a random key, no scalars)
# and cannot take an outer step, and one that optax has replaced.
_LEFT_OUT = {
    "lbfgs",
    "polyak_sgd",
    "optimistic_gradient_descent",
    "rprop",
    "noisy_sgd",
    "optimistic_adam",
    "sm3",
}


class OuterOptimizer(NamedTuple):
    """What the server does with the workers' deltas: W ← W − step(Δ).

    Args:
        tx: an optax transformation whose update is called as `tx.update(mean_delta, state, params,
            *, worker_deltas=None, weights=None)`.
        combine: what it needs of the round: the "mean" delta; "norms" for the mean and, where they
            are known, every worker's squared norms (`worker_squares`, leaves [K]); or "gather" for
            `worker_deltas`, leaves [K, …].
        workers: the K it was made for; None for any.
        horizon: the rounds it was meta-trained for; None if it has no such limit.
        step: as `tx.update`, but it returns the new parameters instead of their change, which saves
            a pass over memory. It belongs to this `tx`: leave it out when you wrap `tx`.
        tell: makes the same optimizer for a run of so many `workers`, `local_steps` and `rounds`,
            if it can use that; see `told`.
        part: makes the same optimizer for fragments of the model that it is given, if its steps
            depend on the whole model's shape; see `for_parts`.

    Example:
        >>> import optax
        >>> from laconic import OuterOptimizer
        >>> outer = OuterOptimizer(optax.with_extra_args_support(optax.sgd(0.7, momentum=0.9)))
        >>> outer.combine
        'mean'
    """

    tx: optax.GradientTransformationExtraArgs
    combine: Literal["mean", "norms", "gather"] = "mean"
    workers: int | None = None
    horizon: int | None = None
    step: Callable[..., tuple[Any, Any]] | None = None
    tell: Callable[..., "OuterOptimizer"] | None = None
    part: Callable[[Any], "OuterOptimizer"] | None = None


def told(
    outer: OuterOptimizer, workers: int | None, local_steps: int | None, rounds: int | None
) -> OuterOptimizer:
    """The optimizer for a run of K workers, H local steps and T rounds; None: not known."""
    if outer.tell is None:
        return outer
    made = outer.tell(workers=workers, local_steps=local_steps, rounds=rounds)
    return made._replace(combine=outer.combine)


def for_parts(outer: OuterOptimizer, params: Any) -> OuterOptimizer:
    """The optimizer for fragments of a model with these parameters, each with a state of its own.

    What it takes from a tensor's shape or from the number of matrices stays as in the whole. Norms
    that an optimizer takes over the model (FedExP's) are then over the fragment.
    """
    return outer if outer.part is None else outer.part(params)


def outer_step(
    outer: OuterOptimizer,
    mean_delta: Any,
    state: Any,
    params: Any,
    *,
    worker_deltas: Any = None,
    worker_squares: Any = None,
    weights: Any = None,
) -> tuple[Any, Any]:
    """Parameters and state after one step, by the optimizer's own `step` if any, else by `tx`."""
    seen = {"worker_deltas": worker_deltas, "weights": weights}
    if outer.step is not None:
        return outer.step(mean_delta, state, params, **seen)
    if outer.combine == "norms":  # others need not know this keyword
        seen["worker_squares"] = worker_squares
    updates, state = outer.tx.update(mean_delta, state, params, **seen)
    return optax.apply_updates(params, updates), state


def from_optax(tx: optax.GradientTransformation) -> OuterOptimizer:
    """Any optax optimizer as an outer optimizer on the mean Δ.

    Args:
        tx: an optax optimizer; it sees Δ = W_before − W_after in the place of a gradient.

    Returns:
        An `OuterOptimizer` for any number of workers.

    Example:
        >>> import optax
        >>> from laconic import from_optax
        >>> diloco = from_optax(optax.sgd(0.7, momentum=0.9, nesterov=True))
    """
    return OuterOptimizer(optax.with_extra_args_support(tx))


def optax_names() -> list[str]:
    """The optimizers of the installed optax that need a learning rate and nothing else."""
    found = []
    for name in dir(optax):
        make = getattr(optax, name)
        private = name.startswith(("_", "scale_", "inject_"))
        if private or name in _LEFT_OUT or not inspect.isfunction(make):
            continue
        parameters = inspect.signature(make).parameters
        needed = {
            n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        }
        if "learning_rate" in parameters and needed <= {"learning_rate"}:
            found.append(name)
    return found


def by_name(name: str = "adam", learning_rate: float = 1e-3) -> OuterOptimizer:
    """`optax.<name>(learning_rate)`."""
    if name not in optax_names():
        raise unknown("optax optimizer", name, optax_names())
    if not learning_rate > 0:
        raise LaconicError(f"the learning rate of {name} must be positive, got {learning_rate}.")
    return from_optax(getattr(optax, name)(learning_rate))


class Entry(NamedTuple):
    """A line of the registry of outer optimizers.

    make:    takes hyper-parameters as keywords with defaults
    summary: one line for people
    row:     its options in the paper's tables, as in "gamma=0.1,rate=0.01", where gamma is the
             learning rate of SGD workers; with a row it is also a method by its own name in
             comparisons, sweeps and tables
    grid:    what a sweep of it tries by default, as in ("gamma=0.3,0.1", "rate=0.01,0.001")
    """

    make: Callable[..., OuterOptimizer]
    summary: str
    row: str | None = None
    grid: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Its hyper-parameters that are numbers or words, and their defaults."""
        parameters = inspect.signature(self.make).parameters
        return {
            name: p.default
            for name, p in parameters.items()
            if isinstance(p.default, int | float | str)
        }


def transform(
    init: Callable[[Any], Any], update: Callable[[Any, Any, Any], tuple[Any, Any]]
) -> optax.GradientTransformationExtraArgs:
    """An optax transformation whose `update(delta, state, params)` ignores extra arguments."""

    def wide_update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del extra
        return update(updates, state, params)

    return optax.GradientTransformationExtraArgs(lambda params: init(params), wide_update)
