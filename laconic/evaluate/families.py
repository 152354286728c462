"""Families of a sweep: a client and an outer optimizer from traced numbers.

An outer optimizer whose registry line gives it a row is one by itself; others are a function and a line here.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optax

from laconic.client import LOCAL_OPTIMIZERS, Client, gradient_client, local_client
from laconic.errors import LaconicError, unknown
from laconic.federated.clients import proximal_client, scaffold_client
from laconic.outer import OUTER, OuterOptimizer, from_optax
from laconic.tasks.base import Task

Number = Any  # a traced float32
Numbers = Mapping[str, float]  # a grid point: hyper-parameter → value
Parts = tuple[Client, OuterOptimizer]

DECAYS = {"beta", "momentum"}  # in [0, 1); every other hyper-parameter is a rate, above 0


def local_sgd(task: Task, gamma: Number) -> Parts:
    """Stich (2019)."""
    return local_client(task, optax.sgd(gamma)), OUTER["average"].make()


def slowmo(task: Task, gamma: Number, alpha: Number, beta: Number) -> Parts:
    """Wang et al. (2019)."""
    return local_client(task, optax.sgd(gamma)), OUTER["slowmo"].make(gamma=gamma, alpha=alpha, beta=beta)


def diloco(task: Task, gamma: Number, lr: Number, momentum: Number) -> Parts:
    """Douillard et al. (2024)."""
    client = local_client(task, LOCAL_OPTIMIZERS["adamw"](gamma, 0.0))
    return client, OUTER["nesterov"].make(learning_rate=lr, momentum=momentum)


def synchronous_sgd(task: Task, alpha: Number) -> Parts:
    """One gradient at batch K·H·B a round."""
    return gradient_client(task), from_optax(optax.sgd(alpha))


def synchronous_adam(task: Task, alpha: Number) -> Parts:
    """One gradient at batch K·H·B a round."""
    return gradient_client(task), from_optax(optax.adam(alpha))


def fedavgm(task: Task, gamma: Number, eta: Number, beta: Number) -> Parts:
    """Hsu et al. (2019)."""
    return local_client(task, optax.sgd(gamma)), OUTER["fedavgm"].make(eta=eta, beta=beta)


def fedprox(task: Task, gamma: Number, mu: Number) -> Parts:
    """Li et al. (2020)."""
    return proximal_client(task, optax.sgd(gamma), mu), OUTER["average"].make()


def scaffold(task: Task, gamma: Number) -> Parts:
    """Karimireddy et al. (2020), with the server's rate at 1."""
    return scaffold_client(task, optax.sgd(gamma), gamma), OUTER["average"].make()


def _adaptive(name: str) -> Callable[..., Parts]:
    """Reddi et al. (2020), with their own constants but for the two rates."""

    def make(task: Task, gamma: Number, eta: Number) -> Parts:
        return local_client(task, optax.sgd(gamma)), OUTER[name].make(eta=eta)

    return make


FAMILIES: dict[str, Callable[..., Parts]] = {
    "local-sgd": local_sgd,
    "slowmo": slowmo,
    "diloco": diloco,
    "fedavg": local_sgd,
    "fedavgm": fedavgm,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedadam": _adaptive("fedadam"),
    "fedyogi": _adaptive("fedyogi"),
    "fedadagrad": _adaptive("fedadagrad"),
    "sgd": synchronous_sgd,
    "adam": synchronous_adam,
}


def own_names() -> list[str]:
    """The outer optimizers that are methods by their own names: SGD workers under each."""
    return [name for name, entry in OUTER.items() if entry.row is not None]


def parts_of(method: str, task: Task, numbers: Mapping[str, Number]) -> Parts:
    """The client and the outer optimizer at a point."""
    if method in FAMILIES:
        return FAMILIES[method](task, **numbers)
    own = {name: value for name, value in numbers.items() if name != "gamma"}
    return local_client(task, optax.sgd(numbers["gamma"])), OUTER[method].make(**own)


def names_of(method: str) -> tuple[str, ...]:
    """The hyper-parameters of a family, in the order of its function."""
    if method in FAMILIES:
        return tuple(name for name in inspect.signature(FAMILIES[method]).parameters if name != "task")
    if method in own_names():
        return ("gamma", *(name for name, default in OUTER[method].options.items() if isinstance(default, float)))
    raise unknown("method of a sweep", method, [*FAMILIES, *own_names()])


def check_point(method: str, point: Numbers) -> None:
    """Raise unless the point has every hyper-parameter of the family, no other, and each in its range."""
    names = names_of(method)
    for name, value in point.items():
        if name not in names:
            raise unknown(f"hyper-parameter of {method}", name, names)
        with np.errstate(over="ignore", under="ignore"):
            kept = float(np.float32(value))  # what the program will see
        if name in DECAYS and not 0 <= kept < 1:
            raise LaconicError(f"{method}: {name} must be at least 0 and below 1, got {value}.")
        if name not in DECAYS and not 0 < kept < math.inf:
            raise LaconicError(f"{method}: {name} must be positive and finite, got {value}.")
    missing = [name for name in names if name not in point]
    if missing:
        raise LaconicError(f"{method} has the hyper-parameters {', '.join(names)}: give {', '.join(missing)} too.")


def spec_of(method: str, point: Numbers) -> str:
    """The point as `laconic compare` would be told it, in full precision."""
    return f"{method}:{','.join(f'{name}={float(point[name])!r}' for name in names_of(method))}"
