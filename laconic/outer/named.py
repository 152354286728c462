"""Any optimizer of optax by its name, as an outer optimizer."""

import inspect

import optax

from laconic.errors import LaconicError, unknown
from laconic.outer.base import OuterOptimizer, from_optax

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


def optax_names() -> list[str]:
    """The optimizers of the installed optax that take a learning rate and nothing else they can't
    default."""
    found = []
    for name in dir(optax):
        make = getattr(optax, name)
        if (
            name.startswith(("_", "scale_", "inject_"))
            or name in _LEFT_OUT
            or not inspect.isfunction(make)
        ):
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
