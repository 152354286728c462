"""Methods by name: `parse_method("slowmo:gamma=0.3,alpha=1.66,beta=0.9", K)`.

A method is a local optimizer, an outer optimizer and a compressor. An outer optimizer whose
registry line gives it a row is one by itself, with SGD workers; any other is a function and a line
below, and its keyword arguments are its options on the command line.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import optax

from laconic.client import Client, LocalOptimizer, gradient_client, local_client
from laconic.compress import DENSE, Compressor, parse_compressor
from laconic.errors import LaconicError, require_seed, unknown
from laconic.families import FAMILIES, check_number, is_learned, own_names
from laconic.federated.clients import proximal_client, scaffold_client
from laconic.method import Method
from laconic.outer import OUTER, OuterOptimizer, from_optax
from laconic.tasks.base import Task
from laconic.zoo import Published, cards, load, published

FLOAT32_MAX = 3.4028234e38
HAND_DESIGNED = {
    *FAMILIES,
    "optax",
    "small-batch-sgd",
}  # whose numbers have ranges; others see to their own
COMMON = {"compress": "", "clip": 0.0, "decay": 0.0, "label": ""}


class Entry(NamedTuple):
    """`make(K, **options)` gives a local optimizer (None: no local steps), an outer one, and how K
    and H are used."""

    make: Callable[..., "Parts"]
    summary: str
    published: Published | None = None


def plain_client(task: Task, local: LocalOptimizer) -> Client:
    """Steps of the local optimizer and nothing else."""
    return local_client(task, local.optax())


class Parts(NamedTuple):
    """What a method is made of; `client` makes a worker of the local optimizer."""

    local: LocalOptimizer | None
    outer: OuterOptimizer
    budget: Callable[[int, int], tuple[int, int]] = lambda K, H: (K, H)
    client: Callable[[Task, LocalOptimizer], Client] = plain_client


def local_sgd(K: int, gamma: float = 0.5) -> Parts:
    """Stich (2019)."""
    return Parts(LocalOptimizer("sgd", gamma), OUTER["average"].make())


def slowmo(K: int, gamma: float = 0.1, alpha: float = 1.0, beta: float = 0.95) -> Parts:
    """Wang et al. (2019)."""
    return Parts(
        LocalOptimizer("sgd", gamma), OUTER["slowmo"].make(gamma=gamma, alpha=alpha, beta=beta)
    )


def diloco(
    K: int, gamma: float = 1e-3, lr: float = 0.7, momentum: float = 0.9, local: str = "adamw"
) -> Parts:
    """Douillard et al. (2024)."""
    return Parts(
        LocalOptimizer(local, gamma), OUTER["nesterov"].make(learning_rate=lr, momentum=momentum)
    )


def fedavg(K: int, gamma: float = 0.1) -> Parts:
    """McMahan et al. (2017): local SGD, by the name it has in federated learning."""
    return local_sgd(K, gamma)


def fedavgm(K: int, gamma: float = 0.1, eta: float = 1.0, beta: float = 0.9) -> Parts:
    """Hsu et al. (2019)."""
    return Parts(LocalOptimizer("sgd", gamma), OUTER["fedavgm"].make(eta=eta, beta=beta))


def fedprox(K: int, gamma: float = 0.1, mu: float = 0.01) -> Parts:
    """Li et al. (2020)."""
    client = lambda task, local: proximal_client(task, local.optax(), mu)
    return Parts(LocalOptimizer("sgd", gamma), OUTER["average"].make(), client=client)


def scaffold(K: int, gamma: float = 0.05, eta: float = 1.0) -> Parts:
    """Karimireddy et al. (2020), option II."""
    client = lambda task, local: scaffold_client(task, local.optax(), local.learning_rate)
    return Parts(LocalOptimizer("sgd", gamma), from_optax(optax.sgd(eta)), client=client)


def fedadam(
    K: int,
    gamma: float = 0.1,
    eta: float = 0.01,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
) -> Parts:
    """Reddi et al. (2020)."""
    return Parts(
        LocalOptimizer("sgd", gamma),
        OUTER["fedadam"].make(eta=eta, tau=tau, beta1=beta1, beta2=beta2),
    )


def fedyogi(
    K: int,
    gamma: float = 0.1,
    eta: float = 0.01,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
) -> Parts:
    """Reddi et al. (2020)."""
    return Parts(
        LocalOptimizer("sgd", gamma),
        OUTER["fedyogi"].make(eta=eta, tau=tau, beta1=beta1, beta2=beta2),
    )


def fedadagrad(
    K: int, gamma: float = 0.1, eta: float = 0.1, tau: float = 1e-3, beta1: float = 0.9
) -> Parts:
    """Reddi et al. (2020)."""
    return Parts(
        LocalOptimizer("sgd", gamma), OUTER["fedadagrad"].make(eta=eta, tau=tau, beta1=beta1)
    )


def named_optax(
    K: int, name: str = "adam", lr: float = 1e-3, gamma: float = 0.1, local: str = "sgd"
) -> Parts:
    """Any optax optimizer on the mean delta."""
    return Parts(LocalOptimizer(local, gamma), OUTER["optax"].make(name=name, learning_rate=lr))


def synchronous_sgd(K: int, alpha: float = 0.1) -> Parts:
    """One gradient at batch K·H·B a round."""
    return Parts(None, from_optax(optax.sgd(alpha)))


def synchronous_adam(K: int, alpha: float = 0.01) -> Parts:
    """One gradient at batch K·H·B a round."""
    return Parts(None, from_optax(optax.adam(alpha)))


def small_batch_sgd(K: int, alpha: float = 0.05) -> Parts:
    """K·H sequential steps of batch B a round: what the samples could buy if communication were
    free."""
    return Parts(LocalOptimizer("sgd", alpha), OUTER["average"].make(), lambda K, H: (1, K * H))


def _untrained(architecture: str) -> Entry:
    def mean_only(
        K: int, gamma: float = 0.1, seed: int = 0, scale: float = 1.0, weight_decay: float = 0.0
    ) -> Parts:
        require_seed(seed)
        outer = OUTER[architecture].make(seed=seed, scale=scale, weight_decay=weight_decay)
        return Parts(LocalOptimizer("sgd", gamma), outer)

    def worker_aware(
        K: int,
        gamma: float = 0.1,
        seed: int = 0,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        fill: str = "mean",
    ) -> Parts:
        require_seed(seed)
        outer = OUTER[architecture].make(
            workers=K, seed=seed, scale=scale, weight_decay=weight_decay, fill=fill
        )
        return Parts(LocalOptimizer("sgd", gamma), outer)

    make = worker_aware if architecture.startswith("lagg") else mean_only
    return Entry(make, f"learned ({architecture}), random weights: not trained, expect it to fail")


METHODS: dict[str, Entry] = {
    "local-sgd": Entry(local_sgd, "average the workers' weights after H local SGD steps"),
    "slowmo": Entry(slowmo, "local SGD with slow momentum on the server"),
    "diloco": Entry(diloco, "AdamW locally, Nesterov momentum on the server"),
    "fedavg": Entry(fedavg, "federated averaging: local SGD by its other name"),
    "fedavgm": Entry(fedavgm, "federated averaging with momentum on the server"),
    "fedprox": Entry(
        fedprox,
        "federated averaging with a proximal term that holds clients near the shared weights",
    ),
    "scaffold": Entry(
        scaffold, "federated averaging with control variates against client drift (option II)"
    ),
    "fedadam": Entry(fedadam, "local SGD with an Adam-like server"),
    "fedyogi": Entry(fedyogi, "local SGD with a Yogi-like server"),
    "fedadagrad": Entry(fedadagrad, "local SGD with an Adagrad-like server"),
    "optax": Entry(named_optax, "local steps with any optax optimizer on the server, by name"),
    "sgd": Entry(synchronous_sgd, "synchronous SGD: one gradient at batch K·H·B a round"),
    "adam": Entry(synchronous_adam, "synchronous Adam: one gradient at batch K·H·B a round"),
    "small-batch-sgd": Entry(
        small_batch_sgd, "K·H sequential SGD steps a round on one machine: a bound, not a rival"
    ),
    "lopt-a": _untrained("lopt-a"),
    "lagg-a": _untrained("lagg-a"),
    "lopt": _untrained("lopt"),
    "lagg": _untrained("lagg"),
}


def own_methods() -> dict[str, Entry]:
    """The outer optimizers that are methods by their own names."""
    return {name: _own(name) for name in own_names() if name not in METHODS}


def _own(name: str) -> Entry:
    def make(K: int, gamma: float = 0.1, **options: Any) -> Parts:
        return Parts(LocalOptimizer("sgd", gamma), OUTER[name].make(**options))

    return Entry(make, OUTER[name].summary)


def published_methods() -> dict[str, Entry]:
    """The learned optimizers that come with the package, by name; without damaged ones."""
    return {name: _published(name) for name in cards()}


def entry_of(name: str) -> Entry:
    """A method of `METHODS`, an outer optimizer with a row, a published optimizer, or one from a
    .safetensors file."""
    if name in METHODS:
        return METHODS[name]
    if name in own_names():
        return _own(name)
    if is_learned(name):
        return _published(name)
    raise unknown("optimizer", name, [*METHODS, *own_methods(), *published()])


def _published(name: str) -> Entry:
    found = load(name)
    local = found.recommended_local

    rate = float(local.learning_rate)

    def mean_only(
        K: int, gamma: float = rate, scale: float = 1.0, weight_decay: float = 0.0
    ) -> Parts:
        found.check_workers(K)
        return Parts(replace(local, learning_rate=gamma), found.outer(scale, weight_decay))

    def worker_aware(
        K: int,
        gamma: float = rate,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        fill: str = "mean",
    ) -> Parts:
        found.check_workers(K)
        return Parts(replace(local, learning_rate=gamma), found.outer(scale, weight_decay, fill))

    return Entry(worker_aware if found.learned.gathers else mean_only, found.card.summary, found)


def options_of(name: str) -> dict[str, Any]:
    """A method's options and their defaults."""
    parameters = inspect.signature(entry_of(name).make).parameters
    found = {
        n: p.default for n, p in parameters.items() if n != "K" and p.kind is not p.VAR_KEYWORD
    }
    return found | (OUTER[name].options if name in own_methods() else {})


def parse_method(spec: str, K: int, compressor: Compressor | None = None) -> Method:
    """The method `name` or `name:option=value,…`; `compressor` is the default if the spec names
    none."""
    name, colon, tail = spec.partition(":")
    own, common, given = options_of(name), dict(COMMON), set()
    for item in tail.split(",") if colon else []:
        key, equals, text = item.partition("=")
        if not equals:
            raise LaconicError(
                f"optimizer {spec!r}: {item!r} is not option=value; write {name}:option=value,…."
            )
        if key not in own and key not in common:
            raise unknown(f"option of {name}", key, {**own, **common})
        if key in given:
            raise LaconicError(f"optimizer {spec!r}: {key} is given twice.")
        given.add(key)
        table = own if key in own else common
        table[key] = _number_like(table[key], text, spec, key)
    for key, value in own.items():
        if name in HAND_DESIGNED and isinstance(value, float):
            check_number(name, key, value)
    entry = entry_of(name)
    parts = entry.make(K, **own)
    how = parse_compressor(common["compress"]) if common["compress"] else compressor or DENSE
    label = common["label"] or spec
    if parts.local is None:
        if common["clip"] or common["decay"]:
            raise LaconicError(
                f"optimizer {spec!r}: {name} takes no local steps, so it has no clip or decay."
            )
        return Method(label, gradient_client, parts.outer, how, name, parts.budget)
    said = {
        field: common[key]
        for key, field in {"clip": "clip", "decay": "weight_decay"}.items()
        if key in given
    }
    local = replace(parts.local, **said)
    sha256 = None if entry.published is None else entry.published.sha256
    return Method(
        label, lambda task: parts.client(task, local), parts.outer, how, name, parts.budget, sha256
    )


def _number_like(default: Any, text: str, spec: str, key: str) -> Any:
    """`text` as the type of the option's default."""
    try:
        value = type(default)(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise LaconicError(f"optimizer {spec!r}: {key} must be {kind}, got {text!r}.") from None
    if isinstance(value, float) and not abs(value) <= FLOAT32_MAX:
        raise LaconicError(f"optimizer {spec!r}: {key} must be finite, got {text!r}.")
    return value
