"""Every named method, once: `parse_method("slowmo:gamma=0.3,alpha=1.66,beta=0.9", K)`.

A method is a local optimizer, an outer optimizer and a compressor. Its definition names its options
and builds it from numbers, which may be traced: `laconic compare` and `laconic train` build one
method from plain numbers, `laconic sweep` a grid of them from arrays. An outer optimizer whose
registry line gives it a row is a method by its own name, with SGD workers, and so is a learned
optimizer, published or from a file.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optax

from laconic.architecture import RELATIVE
from laconic.compress import DENSE, Compressor, parse_compressor
from laconic.errors import LaconicError, unknown
from laconic.federated.clients import proximal_client, scaffold_client
from laconic.local import LocalOptimizer
from laconic.means import RobustMean, parse_aggregate
from laconic.method import (
    FINITE,
    FRACTION,
    NOT_NEGATIVE,
    REFUSALS,
    SEED,
    WORKERS,
    Definition,
    Method,
    Number,
    Option,
    Parts,
    Use,
)
from laconic.outer import OUTER, from_optax
from laconic.peers import desloc_client, noloco_client
from laconic.workers import How
from laconic.zoo import cards, file, load, published

# --- how methods are made -------------------------------------------------------------------------


def _under(outer: str) -> Callable[..., Parts]:
    """Workers under an outer optimizer, which takes the method's other options, and gamma if it is
    one of its own."""

    def make(K: int, gamma: Number, **options: Any) -> Parts:
        if "gamma" in OUTER[outer].options:
            options["gamma"] = gamma
        return Parts(gamma, OUTER[outer].make(**options))

    return make


def _nesterov(K: int, gamma: Number, lr: Number, momentum: Number) -> Parts:
    return Parts(gamma, OUTER["nesterov"].make(learning_rate=lr, momentum=momentum))


def _snoo(K: int, gamma: Number, lr: Number, momentum: Number) -> Parts:
    if K != 1:
        raise LaconicError(
            f"snoo is for one worker, and there are {K}: set workers to 1, or take diloco."
        )
    return _nesterov(K, gamma, lr, momentum)


def _averaged(K: int, gamma: Number, lr: Number) -> Parts:
    return Parts(gamma, from_optax(optax.sgd(lr)))


def _fedprox(K: int, gamma: Number, mu: Number) -> Parts:
    client = lambda task, local: proximal_client(task, local.optax(), mu)
    return Parts(gamma, OUTER["average"].make(), client)


def _scaffold(K: int, gamma: Number, eta: Number) -> Parts:
    client = lambda task, local: scaffold_client(task, local.optax(), local.learning_rate)
    return Parts(gamma, from_optax(optax.sgd(eta)), client)


def _desloc(K: int, gamma: Number, first: int, second: int, outer: str) -> Parts:
    client = lambda task, local: desloc_client(task, local.optax(), first, second)
    if outer in SERVERS:
        return Parts(gamma, SERVERS[outer](), client)
    if not is_learned(outer):
        raise unknown("server of desloc", outer, [*SERVERS, *published()])
    found = load(outer)
    found.check_workers(K)
    return Parts(gamma, found.outer(), client)


def _noloco(K: int, gamma: Number, alpha: Number, beta: Number, pull: Number) -> Parts:
    client = lambda task, local: noloco_client(task, local.optax(), alpha, beta, pull)
    return Parts(gamma, OUTER["average"].make(), client)


def _optax(K: int, name: str, lr: Number, gamma: Number) -> Parts:
    return Parts(gamma, OUTER["optax"].make(name=name, learning_rate=lr))


def _gamma(default: float) -> Option:
    return Option(default, "learning rate of the workers")


def _eta(default: float) -> Option:
    return Option(default, "learning rate of the server")


def _adaptive(eta: float, *betas: float) -> dict[str, Option]:
    """The options of Reddi et al.'s servers, of which a sweep varies the two rates."""
    found = {"gamma": _gamma(0.1), "eta": _eta(eta)}
    found["tau"] = Option(1e-3, "added to the root of the second moment", swept=False)
    for i, beta in enumerate(betas, start=1):
        found[f"beta{i}"] = Option(beta, f"decay rate of moment {i}", FRACTION, swept=False)
    return found


_MOMENTUM = "momentum of the server"
_ADAMW = LocalOptimizer("adamw")
_MUON = LocalOptimizer("muon")
_ELSEWHERE = "what its workers exchange with each other is only simulated: take diloco"
# Over DES-LOC's workers, beside learned ones.
SERVERS = {
    "average": lambda: OUTER["average"].make(),
    "nesterov": lambda: OUTER["nesterov"].make(learning_rate=0.7, momentum=0.9),
}


def _outer_nesterov(gamma: float, lr: float, momentum: float) -> dict[str, Option]:
    """The options of Nesterov momentum on the server."""
    momenta = Option(momentum, _MOMENTUM, FRACTION)
    return {"gamma": _gamma(gamma), "lr": _eta(lr), "momentum": momenta}


def _learned(rate: float, gathers: bool) -> dict[str, Option]:
    """The options of a learned optimizer; `gathers`: it sees every worker's delta."""
    found = {
        "gamma": _gamma(rate),
        "scale": Option(1.0, "factor on every step"),
        "weight_decay": Option(0.0, "share of each weight taken off a round", FRACTION),
    }
    if gathers:
        fill = "what stands for an absent worker: mean (of the others) or zero"
        found["fill"] = Option("mean", fill, swept=False)
    return found


def _untrained(architecture: str) -> Definition:
    gathers = architecture.startswith("lagg")
    gamma, *others = _learned(0.1, gathers).items()
    seed = Option(0, "seed of the random weights", SEED, swept=False)

    def make(K: int, gamma: Number, **options: Any) -> Parts:
        workers = {"workers": K} if gathers else {}
        return Parts(gamma, OUTER[architecture].make(**workers, **options))

    return Definition(
        architecture,
        f"learned ({architecture}), random weights: not trained, expect it to fail",
        make,
        dict([gamma, ("seed", seed), *others]),
        {"sweep": "its weights are random: take a published optimizer"},
    )


# What lopt-r may see of the workers beside their mean.
AGREEMENT: dict[str, How] = {"seen": "norms", "unseen": "mean"}


def _published(name: str) -> Definition:
    found = load(name)
    local = found.recommended_local

    def make(K: int, gamma: Number, **options: Any) -> Parts:
        found.check_workers(K)
        return Parts(gamma, found.outer(**options))

    def make_relative(K: int, gamma: Number, agreement: str, **options: Any) -> Parts:
        if agreement not in AGREEMENT:
            raise unknown("agreement", agreement, AGREEMENT)
        return Parts(gamma, found.outer(**options)._replace(combine=AGREEMENT[agreement]))

    options = _learned(float(local.learning_rate), found.learned.gathers)
    if found.learned.architecture == RELATIVE:
        make = make_relative
        options["agreement"] = Option(
            "seen", "seen, or unseen: as where only the mean delta is known", swept=False
        )
    return Definition(name, found.card.summary, make, options, local=local, published=found)


# By all methods; an outer optimizer's option cannot be one.
RESERVED = ("compress", "aggregate", "label", "K")


def _own(name: str) -> Definition:
    options = {"gamma": _gamma(0.1)}
    for option, default in OUTER[name].options.items():
        if option in RESERVED:
            raise LaconicError(
                f"the outer optimizer {name!r} has an option {option!r}, which every method uses "
                "for itself: give that argument another name."
            )
        swept = isinstance(default, float)
        options[option] = Option(default, f"option of {name}", FINITE, swept)
    if "gamma" in OUTER[name].options:
        options["gamma"] = _gamma(OUTER[name].options["gamma"])
    return Definition(name, OUTER[name].summary, _under(name), options)


# --- the methods ----------------------------------------------------------------------------------

_DEFINITIONS = (
    Definition(
        "local-sgd",
        "average the workers' weights after H local SGD steps",  # Stich (2019)
        _under("average"),
        {"gamma": _gamma(0.5)},
    ),
    Definition(
        "slowmo",
        "local SGD with slow momentum on the server",  # Wang et al. (2019)
        _under("slowmo"),
        {
            "gamma": _gamma(0.1),
            "alpha": Option(1.0, "slow learning rate, in units of gamma"),
            "beta": Option(0.95, "slow momentum", FRACTION),
        },
    ),
    Definition(
        "diloco",
        # Douillard et al. (2024), whose workers decay weights by 0.1
        "AdamW locally, Nesterov momentum on the server; weight decay 0 unless decay= is given",
        _nesterov,
        _outer_nesterov(1e-3, 0.7, 0.9),
        local=_ADAMW,
    ),
    Definition(
        "muloco",  # Thérien et al. (2025), who find 1.0 and 0.9 best for 16 workers
        "Muon locally, Nesterov momentum on the server; with one worker take lr=0.7,momentum=0.6",
        _nesterov,
        _outer_nesterov(1e-3, 1.0, 0.9),
        local=_MUON,
    ),
    Definition(
        "sparseloco",  # Sarfi et al. (2025)
        "AdamW locally, averaging of 2-bit top-k messages; their decayed residual is the momentum",
        _averaged,
        {"gamma": _gamma(1e-3), "lr": _eta(1.0)},
        {
            "sweep": "it has a compressor of its own: sweep diloco:momentum=0, which averages too, "
            "with --compress sparseloco",
            "flower": "Flower's clients send whole arrays: take diloco",
        },
        local=_ADAMW,
        compress="sparseloco",
    ),
    Definition(
        "desloc",  # Iacob et al. (2025)
        "averaging of AdamW workers; their moments are averaged too, at longer periods",
        _desloc,
        {
            "gamma": _gamma(1e-3),
            "first": Option(3, "rounds between means of the first moments", swept=False),
            "second": Option(6, "rounds between means of the second moments", swept=False),
            "outer": Option(
                "average", "the server: average, nesterov or a learned optimizer", swept=False
            ),
        },
        {"train": _ELSEWHERE, "flower": _ELSEWHERE},
        local=_ADAMW,
        only_local=True,
    ),
    Definition(
        "noloco",  # Kolehmainen et al. (2025)
        "AdamW workers that differ: no server, in each round random pairs meet; only simulated",
        _noloco,
        {
            "gamma": _gamma(1e-3),
            "alpha": Option(0.5, "momentum of each worker", FRACTION),
            "beta": Option(0.7, "share of the local steps that is taken"),
            "pull": Option(1.0, "how strongly two workers that meet are drawn together"),
        },
        {
            "sweep": "a sweep may leave workers out, and its workers must stay: compare some "
            "numbers instead",
            "train": _ELSEWHERE,
            "flower": _ELSEWHERE,
        },
        local=_ADAMW,
    ),
    Definition(
        "snoo",  # Kallusky et al. (2025); the numbers are MuLoCo's for one worker
        "Nesterov momentum on the H steps of a single worker, AdamW by default",
        _snoo,
        _outer_nesterov(1e-3, 0.7, 0.6),
        {"flower": "it is for one worker: take diloco"},
        local=_ADAMW,
    ),
    Definition(
        "fedavg",
        "federated averaging: local SGD by its other name",  # McMahan et al. (2017)
        _under("average"),
        {"gamma": _gamma(0.1)},
    ),
    Definition(
        "fedexp",  # Jhunjhunwala et al. (2023)
        "federated averaging with a step length from the workers' disagreement",
        _under("fedexp"),
        {
            "gamma": _gamma(0.1),
            "eps": Option(1e-3, "added to the square of the mean delta's norm", NOT_NEGATIVE),
        },
    ),
    Definition(
        "fedavgm",
        "federated averaging with momentum on the server",  # Hsu et al. (2019)
        _under("fedavgm"),
        {"gamma": _gamma(0.1), "eta": _eta(1.0), "beta": Option(0.9, _MOMENTUM, FRACTION)},
    ),
    Definition(
        "fedprox",  # Li et al. (2020)
        "federated averaging with a proximal term that holds clients near the shared weights",
        _fedprox,
        {"gamma": _gamma(0.1), "mu": Option(0.01, "weight of the proximal term", NOT_NEGATIVE)},
        {
            "flower": "its clients hold back and its server averages: take fedavg, and add the "
            "proximal term in your clients"
        },
    ),
    Definition(
        "scaffold",  # Karimireddy et al. (2020), option II
        "federated averaging with control variates against client drift (option II)",
        _scaffold,
        {"gamma": _gamma(0.05), "eta": _eta(1.0)._replace(swept=False)},
        {
            "train": "its control variates are not in the messages between processes: simulate it "
            "by laconic compare, or take fedavgm",
            "flower": "its clients and its server exchange control variates, which replies here do "
            "not carry: take fedavgm",
        },
        only_local=True,
    ),
    Definition(
        "fedadam",
        "local SGD with an Adam-like server",  # Reddi et al. (2020), and the next two
        _under("fedadam"),
        _adaptive(0.01, 0.9, 0.99),
    ),
    Definition(
        "fedyogi",
        "local SGD with a Yogi-like server",
        _under("fedyogi"),
        _adaptive(0.01, 0.9, 0.99),
    ),
    Definition(
        "fedadagrad",
        "local SGD with an Adagrad-like server",
        _under("fedadagrad"),
        _adaptive(0.1, 0.9),
    ),
    Definition(
        "optax",
        "local steps with any optax optimizer on the server, by name",
        _optax,
        {
            "name": Option("adam", "the optax optimizer", swept=False),
            "lr": _eta(1e-3),
            "gamma": _gamma(0.1),
        },
        {"sweep": "not every optax optimizer takes traced numbers: compare some rates instead"},
    ),
    Definition(
        "sgd",
        "synchronous SGD: one gradient at batch K·H·B a round",
        lambda K, alpha: Parts(None, from_optax(optax.sgd(alpha))),
        {"alpha": Option(0.1, "learning rate")},
        {"flower": "it takes no local steps: take fedavg, or optax:name=sgd"},
        local=None,
    ),
    Definition(
        "adam",
        "synchronous Adam: one gradient at batch K·H·B a round",
        lambda K, alpha: Parts(None, from_optax(optax.adam(alpha))),
        {"alpha": Option(0.01, "learning rate")},
        {"flower": "it takes no local steps: take optax:name=adam, or fedadam"},
        local=None,
    ),
    Definition(
        "small-batch-sgd",  # what the samples could buy if communication were free
        "K·H sequential SGD steps a round on one machine: a bound, not a rival",
        lambda K, alpha: Parts(alpha, OUTER["average"].make()),
        {"alpha": Option(0.05, "learning rate")},
        {
            "sweep": "it is one machine with all data: sweep local-sgd with one worker",
            "flower": "it is one machine with all data: take fedavg",
        },
        budget=lambda K, H: (1, K * H),
    ),
    *(_untrained(architecture) for architecture in ("lopt-a", "lagg-a", "lopt", "lagg")),
)
METHODS: dict[str, Definition] = {definition.name: definition for definition in _DEFINITIONS}
"""Methods by name, in the order `laconic optimizers` lists them.

Outer optimizers with a row (`own_methods`) and published learned optimizers (`published_methods`)
are methods too; `definition_of` finds all of them.

>>> METHODS["slowmo"].defaults
{'gamma': 0.1, 'alpha': 1.0, 'beta': 0.95}
"""


def own_names() -> list[str]:
    """The outer optimizers that are methods by their own names."""
    return [name for name, entry in OUTER.items() if entry.row is not None]


def own_methods() -> dict[str, Definition]:
    """The outer optimizers that are methods by their own names, with SGD workers under each."""
    return {name: _own(name) for name in own_names() if name not in METHODS}


def published_methods() -> dict[str, Definition]:
    """The learned optimizers that come with the package, by name; without damaged ones."""
    return {name: _published(name) for name in cards()}


def is_learned(name: str) -> bool:
    """Whether a method is a published optimizer, or one from a file, a folder or the Hub."""
    return name in published() or name.endswith(".safetensors") or "/" in name


def optimizer_sha256(spec: str) -> str | None:
    """Tells a learned optimizer from another of its name; None for all other methods.

    No JAX array is made, so that a process may still join others.
    """
    name = spec.partition(":")[0]
    if not is_learned(name):
        return None
    opened = file.read(file.locate(name))
    return file.digest_of(opened.architecture, opened.theta)


def definition_of(name: str, use: Use | None = None) -> Definition:
    """The method of that name; raises if there is none, or if it cannot do what it is for."""
    if name in METHODS:
        found = METHODS[name]
    elif name in own_names():
        found = _own(name)
    elif is_learned(name):
        found = _published(name)
    else:
        kind = "method of a sweep" if use == "sweep" else "optimizer"
        able = [known for known, found in METHODS.items() if use not in found.cannot]
        raise unknown(kind, name, [*able, *own_names(), *published()])
    if use is not None and use in found.cannot:
        raise LaconicError(f"{name} {REFUSALS[use]}: {found.cannot[use]}.")
    return found


# --- methods as text ------------------------------------------------------------------------------

COMMON = {"compress": "", "aggregate": "", "label": ""}


def parse_method(
    spec: str,
    K: int,
    compressor: Compressor | None = None,
    use: Use | None = None,
    aggregate: RobustMean | None = None,
) -> Method:
    """The method that a text names.

    Args:
        spec: a name from `METHODS`, a published learned optimizer, the path of a .safetensors
            file, or a folder or user/repo as `load` takes them; its options follow a colon, as in
            "slowmo:gamma=0.3,beta=0.9". Every method also takes compress=, aggregate= and label=;
            those with local steps also local= (the workers' optimizer: sgd, adamw or muon), clip=
            (gradient norm) and decay= (weight decay), where 0 is off.
        K: how many workers there will be.
        compressor: how messages are compressed if neither the text nor the method says; dense if
            left out.
        use: "train" or "flower", to refuse a method that cannot be used for that.
        aggregate: how messages become one if the text does not say; the weighted mean if left out.

    Returns:
        The method, whose label is the text itself unless label= gives another.

    >>> from laconic import parse_method
    >>> parse_method("slowmo:gamma=0.3,compress=topk:0.01+ef,label=SlowMo", K=8).label
    'SlowMo'
    """
    if not isinstance(spec, str):
        raise LaconicError(
            f"a method is given as text, as in 'slowmo:gamma=0.3', got a {type(spec).__name__}: "
            "objects are for laconic.compare; an optimizer of your own in OUTER has a name too."
        )
    definition = definition_of(spec.partition(":")[0], use)
    given = _given(spec, definition, COMMON)
    client, outer = definition.build(K, given)
    named = given.get("compress") or definition.compress
    how = parse_compressor(named) if named else compressor or DENSE
    sha256 = definition.published.sha256 if definition.published else None
    label = given.get("label") or spec
    if given.get("aggregate"):
        aggregate = parse_aggregate(given["aggregate"])
    budget = definition.budget
    return Method(label, client, outer, how, definition.name, budget, sha256, aggregate)


def parse_swept(spec: str) -> Definition:
    """The method of a sweep that a text names; its options are the same at every point.

    >>> parse_swept("slowmo:local=adamw,beta=0.5").swept
    ('gamma', 'alpha')
    """
    definition = definition_of(spec.partition(":")[0], "sweep")
    return replace(definition, given=_given(spec, definition, {}))


def _given(spec: str, definition: Definition, common: dict[str, Any]) -> dict[str, Any]:
    """The options that a text gives, each of the right type and in its range."""
    name, colon, tail = spec.partition(":")
    options = {**definition.workers, **definition.options}
    known = {**common, **{key: option.default for key, option in options.items()}}
    given: dict[str, Any] = {}
    for item in tail.split(",") if colon else []:
        key, equals, text = item.partition("=")
        if not equals:
            raise LaconicError(
                f"optimizer {spec!r}: {item!r} is not option=value; write {name}:option=value,…."
            )
        if definition.local is None and key in WORKERS:
            raise LaconicError(
                f"optimizer {spec!r}: {name} takes no local steps, so it has no {key}."
            )
        if key not in known:
            raise unknown(f"option of {name}", key, known)
        if key in given:
            raise LaconicError(f"optimizer {spec!r}: {key} is given twice.")
        given[key] = _as_kind(type(known[key]), text, spec, key)
        if key in options:
            definition.check(key, given[key], options[key].range)
    return given


def _as_kind(kind: type, text: str, spec: str, key: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise LaconicError(f"optimizer {spec!r}: {key} must be true or false, got {text!r}.")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise LaconicError(f"optimizer {spec!r}: {key} must be {what}, got {text!r}.") from None
