"""The inner problem: a training run whose rounds depend on φ, as gradient estimators see it.

A problem knows nothing of perturbations or truncations. It begins a run, draws the data of its next
rounds, and unrolls them with some φ into one loss a round (the meta-loss of the paper's section
4.1). Everything random about a run hangs on the run's own key and round, so two runs begun with the
same key see the same weights and data whatever their φ is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from laconic.client import LocalOptimizer, local_client
from laconic.compress import parse_compressor
from laconic.data.feed import Resident
from laconic.errors import LaconicError, require_examples, require_positive
from laconic.federated.options import Federated
from laconic.federated.population import Bank, bank_for, draw_population
from laconic.outer.base import OuterOptimizer
from laconic.outer.learned import LearnedOptimizer, Theta
from laconic.outer.relative import RelativeOptimizer
from laconic.round import (
    Items,
    RoundState,
    Server,
    communication_round,
    draw_items,
    init_round,
    mean_loss,
    presence,
)
from laconic.tasks.base import Task
from laconic.workers import Simulated

Learned = LearnedOptimizer | RelativeOptimizer
VALIDATION = 1 << 20  # a round's stream beside the workers' own, whose ids are smaller


class InnerProblem(NamedTuple):
    """begin: (φ, key) → run · draw: (run, rounds) → items [rounds, …] · unroll: (φ, run, items) →
    (run, losses).

    `ceiling` is where a loss is cut off, and what a NaN counts as; ∞ if nothing is cut. `lasting`
    tells a run that has just begun how many rounds it will last: (run, rounds) → run.
    """

    begin: Callable[[Theta, jax.Array], Any]
    draw: Callable[[Any, int], Any]
    unroll: Callable[[Theta, Any, Any], tuple[Any, jax.Array]]
    ceiling: float = math.inf
    lasting: Callable[[Any, jax.Array], Any] = lambda run, rounds: run


@dataclass(frozen=True)
class Inner:
    """One task of meta-training, in numbers.

    Args:
        task: its name in `TASKS`, with options.
        workers: K.
        local_steps: H.
        batch: B, the examples of a local step.
        local: the workers' optimizer.
        compress: how messages are compressed, as `parse_compressor` takes it.
        dropout: the probability that a worker is missing from a round.
        objective: "train" is the mean of the K·H local losses of a round, before the server's step;
            "valid" is the loss after it on a batch of the validation split, of B examples or, with
            a population, K·B.
        federated: the population that the K workers of a round are sampled from; its epochs decide
            H, and every run has its own partition of the data.
        spread: 0: every run has this setting. From 1 on it is the largest of a family: every run
            draws its K, H, share of the examples and a local learning rate up to so many times
            smaller or larger, and the objective is that of `laconic.meta.varied`.

    Example:
        >>> from laconic import Inner
        >>> Inner("digits-mlp", workers=4, local_steps=2, batch=16).objective
        'train'
    """

    task: str = "fmnist-mlp2"
    workers: int = 8
    local_steps: int = 4
    batch: int = 128
    local: LocalOptimizer = field(default_factory=LocalOptimizer)
    compress: str = "dense"
    dropout: float = 0.0
    objective: Literal["train", "valid"] = "train"
    federated: Federated = field(default_factory=Federated)
    spread: float = 0.0

    def __post_init__(self) -> None:
        require_positive(workers=self.workers, local_steps=self.local_steps, batch=self.batch)
        require_examples(self.workers, self.local_steps, self.batch)
        if not 0 <= self.dropout < 1:
            raise LaconicError(
                f"dropout is the probability that a worker is missing, below 1; got {self.dropout}."
            )
        if self.objective not in ("train", "valid"):
            raise LaconicError(f"the objective is 'train' or 'valid', got {self.objective!r}.")
        if self.dropout and self.federated.dropout:
            raise LaconicError(
                "dropout is given twice, of the task and of its population; leave one out."
            )
        if self.spread and not 1 <= self.spread < math.inf:
            raise LaconicError(
                f"spread is how many times a run's rate may be smaller or larger, at least 1, or 0 "
                f"for one setting; got {self.spread}."
            )
        if self.spread and (self.dropout or self.federated.active):
            raise LaconicError(
                "a spread draws the workers of every run: leave dropout and populations out."
            )
        parse_compressor(self.compress)

    def bank(self, task: Task) -> Bank | None:
        """Partitions of the task's data that runs may begin with; None without a population."""
        if not self.federated.active:
            return None
        options = replace(self.federated, dropout=self.dropout or self.federated.dropout)
        return bank_for(options, task, self.workers, self.batch)


def training_problem(
    task: Task, learned: Learned, inner: Inner, bank: Bank | None = None
) -> InnerProblem:
    """Communication rounds on `task` with the outer optimizer `learned(φ)`.

    `bank` is `inner.bank(task)`, which cannot be made inside a compiled function.
    """
    check_fits(task, learned, inner)
    feed, K = task.feed, inner.workers
    assert isinstance(feed, Resident)
    bank = bank or inner.bank(task)
    workers = Simulated(local_client(task, inner.local.optax()), parse_compressor(inner.compress))

    def server_of(theta: Theta) -> Server:
        return Server(outer_of(learned, theta, K, inner.local_steps))

    def begin(theta: Theta, key: jax.Array) -> RoundState:
        return init_round(
            task, workers, server_of(theta), K if bank is None else bank.plan.clients, key
        )

    def draw_round(state: RoundState, population: Any) -> tuple[Items, jax.Array | None]:
        if bank is not None:
            items = draw_population(bank.plan, population, state)
        else:
            items = draw_items(feed, state, K, inner.local_steps, inner.batch)
            if inner.dropout:
                items = items._replace(present=presence(state, K, inner.dropout))
        valid_key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), VALIDATION)
        held_out = (inner.batch if bank is None else K * inner.batch,)
        return items, feed.sample(
            valid_key, held_out, "valid"
        ) if inner.objective == "valid" else None

    def draw(state: RoundState, rounds: int) -> tuple[Items, jax.Array | None]:
        population = None if bank is None else bank.pick(state.key)
        return jax.vmap(lambda r: draw_round(state._replace(round=r), population))(
            state.round + jnp.arange(rounds)
        )

    def unroll(theta: Theta, state: RoundState, items: Any) -> tuple[RoundState, jax.Array]:
        server = server_of(theta)

        def one_round(
            state: RoundState, item: tuple[Items, jax.Array | None]
        ) -> tuple[RoundState, jax.Array]:
            state, losses_KH = communication_round(workers, server, state, item[0])
            if item[1] is None:
                return state, mean_loss(losses_KH, item[0].present)
            batch = feed.take(item[1], "valid")
            return state, task.evaluate(state.shared.params, state.shared.model_state, batch)[
                "loss"
            ]

        return jax.lax.scan(one_round, state, items)

    ceiling = math.inf if task.classes is None else 1.5 * math.log(task.classes)
    return InnerProblem(begin, draw, unroll, ceiling)


def outer_of(
    learned: Learned, theta: Theta, workers: Any, local_steps: Any, rounds: Any = None
) -> OuterOptimizer:
    """The outer optimizer with weights φ, told what it can make use of; a traced 0 is unknown."""
    if isinstance(learned, RelativeOptimizer):
        return learned(theta, workers=workers, local_steps=local_steps, rounds=rounds)
    return learned(theta, path="tensorwise")  # passes over a whole model pay for larger ones


def capped(losses: jax.Array, ceiling: float) -> jax.Array:
    """Losses within [0, ceiling]; NaN counts as the ceiling."""
    return jnp.clip(jnp.where(jnp.isnan(losses), ceiling, losses), 0, ceiling)


def check_fits(task: Task, learned: Learned, inner: Inner) -> None:
    """Refuse what cannot be unrolled before anything is compiled."""
    if not isinstance(task.feed, Resident):
        raise LaconicError(
            f"meta-training re-reads its data all the time, and {task.name!r} streams it: use a "
            "subset."
        )
    if learned.workers is not None and learned.workers != inner.workers:
        raise LaconicError(
            f"{learned.architecture} sees each worker's delta and is made for K = "
            f"{learned.workers} workers, but "
            f"{task.name!r} is set for {inner.workers}: give all tasks of one "
            f"{learned.architecture} the same K."
        )
    if inner.objective == "valid" and "valid" not in task.feed.splits:
        raise LaconicError(
            f"{task.name!r} has no validation split, so its validation loss cannot be the "
            "objective."
        )
