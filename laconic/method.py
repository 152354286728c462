"""What is trained and how, in numbers: a method, the setting it runs in, and what defines a named
one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from laconic.client import Client, LocalOptimizer, gradient_client, local_client
from laconic.compress import DENSE, Compressor
from laconic.errors import (
    LaconicError,
    require_counts,
    require_examples,
    require_positive,
    require_seed,
    unknown,
)
from laconic.federated.options import Federated
from laconic.fragments import Fragments
from laconic.local import LOCAL_OPTIMIZERS
from laconic.means import MEAN, RobustMean
from laconic.outer import OuterOptimizer
from laconic.outer.base import told
from laconic.tasks.base import Task
from laconic.workers import check_robust
from laconic.zoo import Published

MOST_SEEDS = 10_000


def seeds_from(first: int, count: int) -> tuple[int, ...]:
    """So many seeds, one after the other."""
    require_positive(seeds=count)
    if count > MOST_SEEDS:
        raise LaconicError(f"seeds can be at most {MOST_SEEDS:,}, got {count:,}.")
    return tuple(range(first, first + count))


@dataclass(frozen=True)
class Setting:
    """How large a run is.

    Args:
        workers: K, the workers of a round.
        local_steps: H, the local steps of a worker in a round.
        batch: B, the examples of a local step.
        rounds: T, the communication rounds.
        seeds: each is a run of its own, with its own initial weights and minibatches.
        evaluate_every: the rounds between two looks at held-out data.
        federated: a population of clients; a round samples K of them, whose local epochs decide H.
        missing: workers that are absent from each round, drawn anew; what they computed is lost.
        seeds_at_once: seeds trained side by side, 0 for all; fewer take less memory.
        patience: looks without a lower held-out loss after which a run stops; None: never.
        fragments: the model in parts that are exchanged while local steps go on; by default whole.
        fresh_statistics: training minibatches by which the model's statistics are estimated anew
            before each look; 0: as the workers left them.

    Example::

        Setting(workers=4, local_steps=8, batch=32, rounds=200, seeds=(0, 1, 2))
    """

    workers: int = 8
    local_steps: int = 4
    batch: int = 128
    rounds: int = 1000
    seeds: tuple[int, ...] = (0,)
    evaluate_every: int = 20
    federated: Federated = field(default_factory=Federated)
    missing: int = 0
    seeds_at_once: int = 0
    patience: int | None = None
    fragments: Fragments = field(default_factory=Fragments)
    fresh_statistics: int = 0

    def __post_init__(self) -> None:
        require_positive(
            workers=self.workers,
            local_steps=self.local_steps,
            batch=self.batch,
            rounds=self.rounds,
            seeds=len(self.seeds),
            evaluate_every=self.evaluate_every,
        )
        require_counts(rounds=self.rounds)
        require_examples(self.workers, self.local_steps, self.batch)
        for seed in self.seeds:
            require_seed(seed)
        if not 0 <= self.missing < self.workers:
            raise LaconicError(
                f"of {self.workers} workers 0 to {self.workers - 1} can be missing from a round, "
                f"got {self.missing}."
            )
        if self.seeds_at_once < 0:
            raise LaconicError(
                f"seeds_at_once counts seeds, or is 0 for all of them, got {self.seeds_at_once}."
            )

        if self.fresh_statistics < 0:
            raise LaconicError(
                "fresh_statistics counts minibatches, or is 0 for none, got "
                f"{self.fresh_statistics}."
            )
        if self.fragments.active and (self.missing or self.federated.active):
            raise LaconicError(
                "in fragments every worker keeps weights of its own, so all of them must stay: "
                "leave out missing workers and the population, or fragments, delay and mix."
            )
        if self.fragments.active:
            self.fragments.sends(self.local_steps)

    @property
    def together(self) -> int:
        """How many seeds are trained side by side."""
        return min(self.seeds_at_once or len(self.seeds), len(self.seeds))

    @property
    def chunks(self) -> list[int]:
        """The lengths of the chunks that make up the rounds."""
        full, rest = divmod(self.rounds, self.evaluate_every)
        return [self.evaluate_every] * full + ([rest] if rest else [])


@dataclass(frozen=True)
class Method:
    """A whole way to train: what a worker does, how it compresses, and the outer optimizer.

    `parse_method` makes one from text, `local_method` from a local and an outer optimizer.

    Args:
        label: its name in tables and figures.
        client: the worker for a task.
        outer: the outer optimizer.
        compressor: how workers compress their messages.
        name: its name in `METHODS`.
        budget: maps (K, H) to the workers and steps really used: small-batch SGD is one worker
            with K·H steps.
        optimizer_sha256: of a learned optimizer, as names are reused.
        aggregate: a robust mean of the messages instead of the weighted one.

    Example::

        Method("mine", lambda task: local_client(task, optax.sgd(0.1)), from_optax(optax.sgd(1.0)))
    """

    label: str
    client: Callable[[Task], Client]
    outer: OuterOptimizer
    compressor: Compressor = DENSE
    name: str = "own"
    budget: Callable[[int, int], tuple[int, int]] = lambda K, H: (K, H)
    optimizer_sha256: str | None = None
    aggregate: RobustMean | None = None

    @property
    def every_message(self) -> bool:
        """Whether each worker's own message is needed, so that nothing can be summed on the way."""
        return self.aggregate is not None or self.outer.combine == "gather"

    def told(self, K: int, H: int, T: int) -> "Method":
        """The method for a run of K workers, H local steps and T rounds, where that matters."""
        return replace(self, outer=told(self.outer, K, H, T)) if self.outer.tell else self


def plain_client(task: Task, local: LocalOptimizer) -> Client:
    """Steps of the local optimizer and nothing else."""
    return local_client(task, local.optax())


def local_method(
    label: str,
    local: LocalOptimizer,
    outer: OuterOptimizer,
    compressor: Compressor = DENSE,
    aggregate: RobustMean | None = None,
) -> Method:
    """H steps of a local optimizer on each worker, then a step of an outer optimizer.

    Args:
        label: its name in tables and figures.
        local: the local optimizer.
        outer: the outer optimizer, from `OUTER`, `from_optax` or a `LearnedOptimizer`.
        compressor: how workers compress their messages.
        aggregate: a robust mean of the messages, from `parse_aggregate`.

    Returns:
        The method, for `Simulation`.

    Example::

        local_method("AdamW, then SGD", LocalOptimizer("adamw", 1e-3), from_optax(optax.sgd(0.7)))
    """
    client = lambda task: plain_client(task, local)
    return Method(label, client, outer, compressor, aggregate=aggregate)


def check_workers(method: Method, K: int) -> None:
    """Refuse a worker-aware optimizer made for another K, and a robust mean that cannot keep its
    promise, before anything is compiled."""
    check_robust(method.aggregate, method.outer.combine)
    if method.aggregate is not None and K < method.aggregate.least:
        raise LaconicError(
            f"{method.label}: {method.aggregate.name} needs {method.aggregate.least} workers at "
            f"least to tell attackers from the others, got {K}: take more workers, or median."
        )
    made_for = method.outer.workers
    if made_for is not None and made_for != K:
        raise LaconicError(
            f"{method.label} sees each worker's delta and was made for K = {made_for} workers, not "
            f"{K}. Use {made_for} workers, or an optimizer of the mean delta such as lopt-a."
        )


# --- named methods --------------------------------------------------------------------------------

Number = Any  # a float, or a traced float32
Point = Mapping[str, float]  # of a grid: hyper-parameter → value
Use = Literal["sweep", "train", "flower"]
REFUSALS: dict[Use, str] = {
    "sweep": "cannot be swept",
    "train": "cannot train in separate processes",
    "flower": "cannot be a Flower strategy",
}


class Range(NamedTuple):
    """The numbers that an option may be: in words, and as a test."""

    words: str
    holds: Callable[[float], bool]


POSITIVE = Range("positive and finite", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = Range("finite and not negative", lambda x: 0 <= x < math.inf)
FRACTION = Range("at least 0 and below 1", lambda x: 0 <= x < 1)
FINITE = Range("finite", math.isfinite)
SEED = Range(f"between 0 and {2**32 - 1}", lambda x: 0 <= x < 2**32)


class Option(NamedTuple):
    """One option of a method; a point of a sweep gives all that are `swept` and no others."""

    default: float | int | str
    help: str
    range: Range = POSITIVE
    swept: bool = True


# Options of every method with local steps, and the fields of its local optimizer. They count only
# where they are given.
WORKERS = {"local": "name", "clip": "clip", "decay": "weight_decay"}
SGD = LocalOptimizer()


class Parts(NamedTuple):
    """What a method is made of: the workers' learning rate, the outer optimizer, and what makes a
    worker of the local optimizer."""

    rate: Number
    outer: OuterOptimizer
    client: Callable[[Task, LocalOptimizer], Client] = plain_client


@dataclass(frozen=True)
class Definition:
    """A named method; `make(K, **options)` gives its parts.

    local:  the workers' optimizer, apart from its rate; None: they send gradients
    cannot: uses that the method is not for, each with the reason and what to do instead
    budget: maps (K, H) to the workers and steps really used
    given:  options that a sweep keeps the same at every point
    compress: how its messages are compressed unless its text says otherwise; "": as in the run
    """

    name: str
    summary: str
    make: Callable[..., Parts]
    options: Mapping[str, Option] = field(default_factory=dict)
    cannot: Mapping[Use, str] = field(default_factory=dict)
    local: LocalOptimizer | None = SGD
    only_local: bool = False  # it is not defined for another optimizer than its own
    budget: Callable[[int, int], tuple[int, int]] = lambda K, H: (K, H)
    published: Published | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    compress: str = ""

    @property
    def defaults(self) -> dict[str, Any]:
        """The options and their defaults."""
        return {name: option.default for name, option in self.options.items()}

    @property
    def swept(self) -> tuple[str, ...]:
        """The hyper-parameters that every point of a sweep gives."""
        swept = (name for name, option in self.options.items() if option.swept)
        return tuple(name for name in swept if name not in self.given)

    @property
    def workers(self) -> dict[str, Option]:
        """Options of the local steps beside the method's own; a sweep may vary those swept."""
        if self.local is None:
            return {}
        kind = f"the workers' optimizer: {', '.join(LOCAL_OPTIMIZERS)}"
        found = {} if self.only_local else {"local": Option(self.local.name, kind, swept=False)}
        for name, words in (
            ("clip", "bound on the norm of the workers' gradients, 0: none"),
            ("decay", "weight decay of the workers, 0: none"),
        ):
            default = float(getattr(self.local, WORKERS[name]))
            found[name] = Option(default, words, NOT_NEGATIVE, name not in self.given)
        return {name: option for name, option in found.items() if name not in self.options}

    def build(
        self, K: int, numbers: Mapping[str, Number]
    ) -> tuple[Callable[[Task], Client], OuterOptimizer]:
        """The client of a task and the outer optimizer, from numbers or traced numbers.

        `numbers` are options, those of the workers included; what is left out keeps its default.
        """
        numbers = {**self.given, **numbers}
        own = {name: numbers.get(name, default) for name, default in self.defaults.items()}
        rate, outer, client = self.make(K, **own)
        if self.local is None:
            return gradient_client, outer
        given = {WORKERS[name]: numbers[name] for name in self.workers if name in numbers}
        worker = replace(self.local, learning_rate=rate, **given)
        return (lambda task: client(task, worker)), outer

    def check(self, name: str, value: Any, allowed: Range) -> None:
        """Raise unless a number is in its range, as float32 if it is one of these."""
        with np.errstate(over="ignore", under="ignore"):
            kept = float(np.float32(value)) if isinstance(value, float) else value
        if not isinstance(value, str) and not allowed.holds(kept):
            raise LaconicError(f"{self.name}: {name} must be {allowed.words}, got {value}.")

    def named_in(self, point: Point) -> tuple[str, ...]:
        """The hyper-parameters of a point in order: those of the method, then of its workers."""
        varied = (name for name, option in self.workers.items() if option.swept)
        return (*self.swept, *(name for name in varied if name in point))

    def check_points(self, points: Sequence[Point]) -> None:
        """Raise unless every point gives all hyper-parameters, each in its range, and all points
        give the same: one program serves them all."""
        known = {name: self.options[name].range for name in self.swept}
        known |= {name: POSITIVE for name, option in self.workers.items() if option.swept}
        for point in points:
            for name, value in point.items():
                if name not in known:
                    raise unknown(f"hyper-parameter of {self.name}", name, known)
                self.check(name, float(value), known[name])
            missing = [name for name in self.swept if name not in point]
            if missing:
                raise LaconicError(
                    f"{self.name} has the hyper-parameters {', '.join(self.swept)}: give "
                    f"{', '.join(missing)} too."
                )
        kinds = {self.named_in(point) for point in points}
        if len(kinds) > 1:
            both = " and ".join(sorted(", ".join(kind) for kind in kinds))
            raise LaconicError(
                f"{self.name}: some points give {both}; give all of them the same hyper-parameters."
            )

    def spec(self, point: Point, compress: str = DENSE.name, aggregate: str = MEAN) -> str:
        """The point as `laconic compare` reads it, in full precision."""
        said = [f"{name}={value}" for name, value in self.given.items()]
        said += [f"{name}={float(point[name])!r}" for name in self.named_in(point)]
        if compress != DENSE.name:
            said.append(f"compress={compress}")
        if aggregate != MEAN:
            said.append(f"aggregate={aggregate}")
        return f"{self.name}:{','.join(said)}"
