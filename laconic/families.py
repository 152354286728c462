"""Families of a sweep: a client and an outer optimizer from traced numbers.

An outer optimizer whose registry line gives it a row is one by itself, and so is a learned one,
published or from a file; others are a function and a line here.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optax

from laconic.client import Client, gradient_client, local_client
from laconic.compress import DENSE
from laconic.errors import LaconicError, unknown
from laconic.federated.clients import proximal_client, scaffold_client
from laconic.local import chained
from laconic.outer import OUTER, OuterOptimizer, from_optax
from laconic.tasks.base import Task
from laconic.zoo import load, published

Number = Any  # a traced float32
Numbers = Mapping[str, float]  # a grid point: hyper-parameter → value
Parts = tuple[Client, OuterOptimizer]

# What numbers may be: these in [0, 1), those from 0 on, and every other one is a rate, above 0.
DECAYS = {"beta", "beta1", "beta2", "momentum", "weight_decay"}
FROM_ZERO = {"mu"}
WORKERS = ("clip", "decay")  # of every method with local steps, where a grid names them
LEARNED = ("gamma", "scale", "weight_decay")  # of a learned optimizer


def worker(gamma: Number, clip: Number, decay: Number) -> optax.GradientTransformation:
    """SGD, the local optimizer of all families but DiLoCo."""
    return chained("sgd", gamma, weight_decay=decay, clip=clip)


def local_sgd(task: Task, gamma: Number, clip: Number = None, decay: Number = None) -> Parts:
    """Stich (2019)."""
    return local_client(task, worker(gamma, clip, decay)), OUTER["average"].make()


def slowmo(
    task: Task,
    gamma: Number,
    alpha: Number,
    beta: Number,
    clip: Number = None,
    decay: Number = None,
) -> Parts:
    """Wang et al. (2019)."""
    return local_client(task, worker(gamma, clip, decay)), OUTER["slowmo"].make(
        gamma=gamma, alpha=alpha, beta=beta
    )


def diloco(
    task: Task,
    gamma: Number,
    lr: Number,
    momentum: Number,
    clip: Number = None,
    decay: Number = None,
) -> Parts:
    """Douillard et al. (2024)."""
    adamw = chained("adamw", gamma, weight_decay=decay, clip=clip)
    return local_client(task, adamw), OUTER["nesterov"].make(learning_rate=lr, momentum=momentum)


def synchronous_sgd(task: Task, alpha: Number) -> Parts:
    """One gradient at batch K·H·B a round."""
    return gradient_client(task), from_optax(optax.sgd(alpha))


def synchronous_adam(task: Task, alpha: Number) -> Parts:
    """One gradient at batch K·H·B a round."""
    return gradient_client(task), from_optax(optax.adam(alpha))


def fedavgm(
    task: Task, gamma: Number, eta: Number, beta: Number, clip: Number = None, decay: Number = None
) -> Parts:
    """Hsu et al. (2019)."""
    return local_client(task, worker(gamma, clip, decay)), OUTER["fedavgm"].make(eta=eta, beta=beta)


def fedprox(
    task: Task, gamma: Number, mu: Number, clip: Number = None, decay: Number = None
) -> Parts:
    """Li et al. (2020)."""
    return proximal_client(task, worker(gamma, clip, decay), mu), OUTER["average"].make()


def scaffold(task: Task, gamma: Number, clip: Number = None, decay: Number = None) -> Parts:
    """Karimireddy et al. (2020), with the server's rate at 1."""
    return scaffold_client(task, worker(gamma, clip, decay), gamma), OUTER["average"].make()


def _adaptive(name: str) -> Callable[..., Parts]:
    """Reddi et al. (2020), with their own constants but for the two rates."""

    def make(
        task: Task, gamma: Number, eta: Number, clip: Number = None, decay: Number = None
    ) -> Parts:
        return local_client(task, worker(gamma, clip, decay)), OUTER[name].make(eta=eta)

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


def is_learned(method: str) -> bool:
    """Whether that is a published optimizer, or one from a file."""
    return method in published() or method.endswith(".safetensors")


def optimizer_sha256(method: str) -> str | None:
    """What tells a learned optimizer from another of its name; None for all other methods."""
    return load(method).sha256 if is_learned(method) else None


def _learned(method: str, task: Task, numbers: Mapping[str, Number]) -> Parts:
    """Its workers are those it was meta-trained with, but for what a point names."""
    found = load(method)
    local = found.recommended_local
    rate = (
        optax.cosine_decay_schedule(numbers["gamma"], local.decay_steps)
        if local.decay_steps
        else numbers["gamma"]
    )
    clip, decay = (
        numbers.get("clip", local.clip or None),
        numbers.get("decay", local.weight_decay or None),
    )
    client = local_client(task, chained(local.name, rate, weight_decay=decay, clip=clip))
    return client, found.outer(numbers["scale"], numbers["weight_decay"])


def parts_of(method: str, task: Task, numbers: Mapping[str, Number]) -> Parts:
    """The client and the outer optimizer at a point."""
    if method in FAMILIES:
        return FAMILIES[method](task, **numbers)
    if is_learned(method):
        return _learned(method, task, numbers)
    own = {name: value for name, value in numbers.items() if name not in ("gamma", *WORKERS)}
    tx = worker(numbers["gamma"], *(numbers.get(name) for name in WORKERS))
    return local_client(task, tx), OUTER[method].make(**own)


def names_of(method: str) -> tuple[str, ...]:
    """The hyper-parameters that every point of a family has, in the order of its function."""
    if method in FAMILIES:
        return tuple(
            name
            for name in inspect.signature(FAMILIES[method]).parameters
            if name not in ("task", *WORKERS)
        )
    if method in own_names():
        return (
            "gamma",
            *(
                name
                for name, default in OUTER[method].options.items()
                if isinstance(default, float)
            ),
        )
    if is_learned(method):
        return LEARNED
    raise unknown("method of a sweep", method, [*FAMILIES, *own_names(), *published()])


def named_in(method: str, point: Numbers) -> tuple[str, ...]:
    """The hyper-parameters of a point: its family's, then those of its workers that it names."""
    return (*names_of(method), *(name for name in WORKERS if name in point))


def check_number(method: str, name: str, value: float) -> None:
    """Raise unless a hyper-parameter is in its range."""
    with np.errstate(over="ignore", under="ignore"):
        kept = float(np.float32(value))  # what the program will see
    if name in DECAYS and not 0 <= kept < 1:
        raise LaconicError(f"{method}: {name} must be at least 0 and below 1, got {value}.")
    if name in FROM_ZERO and not 0 <= kept < math.inf:
        raise LaconicError(f"{method}: {name} must be finite and not negative, got {value}.")
    if name not in DECAYS | FROM_ZERO and not 0 < kept < math.inf:
        raise LaconicError(f"{method}: {name} must be positive and finite, got {value}.")


def check_point(method: str, point: Numbers) -> None:
    """Raise unless the point has every hyper-parameter of the family, no other, and each in its
    range."""
    names = names_of(method)
    known = (*names, *WORKERS) if "gamma" in names else names
    for name, value in point.items():
        if name not in known:
            raise unknown(f"hyper-parameter of {method}", name, known)
        check_number(method, name, value)
    missing = [name for name in names if name not in point]
    if missing:
        raise LaconicError(
            f"{method} has the hyper-parameters {', '.join(names)}: give {', '.join(missing)} too."
        )


def check_points(method: str, points: Sequence[Numbers]) -> None:
    """Raise unless every point is sound and all name the same hyper-parameters, as one program
    serves them all."""
    for point in points:
        check_point(method, point)
    kinds = {named_in(method, point) for point in points}
    if len(kinds) > 1:
        told = " and ".join(sorted(", ".join(kind) for kind in kinds))
        raise LaconicError(
            f"{method}: some points give {told}; give all of them the same hyper-parameters."
        )


def spec_of(method: str, point: Numbers, compress: str = DENSE.name) -> str:
    """The point as `laconic compare` would be told it, in full precision; that messages are dense
    is not said."""
    numbers = [f"{name}={float(point[name])!r}" for name in named_in(method, point)]
    return f"{method}:{','.join([*numbers, *([f'compress={compress}'] if compress != DENSE.name else [])])}"
