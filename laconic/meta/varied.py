"""The inner problem of a distribution: every run draws its own setting, and losses are relative.

A family fixes what decides shapes: the task, the workers' optimizer, and the most workers, local
steps and examples. What else matters to an outer optimizer is drawn for each run from the run's own
key: see `Drawn`. So a family compiles once, and the two signs of a pair share a setting.

The loss of a round is 0.95·log(train) + 0.05·log(valid): the workers' train loss before the outer
step and the loss after it on a held-out batch. In an antithetic pair only the difference of
logarithms counts, so every task has the same voice however large its loss is, and the same run with
a nominal step, subtracted from both, would change nothing: the objective is relative to it. Half
the weight lies on the last fifth of a run, or nothing would count a late stall.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.client import Work, local_client
from laconic.compress import parse_compressor
from laconic.data.feed import Resident
from laconic.meta.problem import (
    VALIDATION,
    Inner,
    InnerProblem,
    Learned,
    capped,
    check_fits,
    outer_of,
)
from laconic.meta.rows import packed_client, packed_init, packed_relative, rows_of
from laconic.outer.base import OuterOptimizer
from laconic.outer.learned import Theta
from laconic.outer.relative import RelativeOptimizer, squared_norms
from laconic.round import (
    Items,
    RoundState,
    Server,
    communication_round,
    draw_items,
    init_round,
    mean_loss,
)
from laconic.tasks.base import Task
from laconic.workers import Simulated

SETTING = (1 << 20) + 2  # of a run's key: the stream of its setting
TRAIN = 0.95  # the share of the train loss in the meta-loss
LEAST_LOSS = 1e-3  # losses far below it count as equal
WHOLE = 0.5  # the probability that a run trains on all examples of its task
FEWEST_EXAMPLES = 256  # so few are learned by heart, as a small task's data are
LEAST_WORKERS = 2
TOLD = 0.75  # the probability that K, or H, or the run's length, or agreement is told
LATE = 0.8  # the share of a run after which its rounds count more
HELD_OUT = 64  # examples of a held-out batch


class Drawn(NamedTuple):
    """A run's setting: its local learning rate, K, H, the examples it trains on, and what it tells.

    `first` is where its examples begin in the train split. `tells` holds 0 or 1 for each of K, H,
    the length of the run and how far the workers agree.
    """

    rate: jax.Array
    workers: jax.Array
    local_steps: jax.Array
    examples: jax.Array
    first: jax.Array
    tells: jax.Array


class Lasting(NamedTuple):
    """A run and how many rounds it will last."""

    state: RoundState
    rounds: jax.Array


def drawn(inner: Inner, size: int, key: jax.Array) -> Drawn:
    """The setting of the run with this key: sizes log-uniform, the rate within its spread; half of
    the runs train on all examples, or those that a few are learned by heart from would be all that
    the logarithm of the loss tells of."""
    keys = jax.random.split(jax.random.fold_in(key, SETTING), 6)

    def between(key: jax.Array, least: float, most: float) -> jax.Array:
        return least * (most / least) ** jax.random.uniform(key)

    def whole(key: jax.Array, least: int, most: int) -> jax.Array:
        least = min(least, most)
        found = jnp.floor(between(key, least, most + 1)).astype(jnp.int32)
        return jnp.clip(found, least, most)

    rate = inner.local.learning_rate
    some = whole(keys[3], FEWEST_EXAMPLES, size)
    every = jax.random.bernoulli(jax.random.fold_in(keys[3], 1), WHOLE)
    return Drawn(
        between(keys[0], rate / inner.spread, rate * inner.spread),
        whole(keys[1], LEAST_WORKERS, inner.workers),
        whole(keys[2], 1, inner.local_steps),
        jnp.where(every, size, some),
        jax.random.randint(keys[4], (), 0, size),
        jax.random.bernoulli(keys[5], TOLD, (4,)).astype(jnp.float32),
    )


def agreement_told(outer: OuterOptimizer, known: jax.Array) -> OuterOptimizer:
    """`lopt-r` that sees how far the workers agree where `known` is 1, not where it is 0."""

    def update(updates: Any, state: Any, params: Any = None, **seen: Any) -> tuple[Any, Any]:
        squares = jax.tree.map(lambda x: x * known, squared_norms(seen["worker_deltas"]))
        told = {"worker_squares": squares, "weights": seen["weights"]}
        return outer.tx.update(updates, state, params, **told)

    return OuterOptimizer(optax.GradientTransformationExtraArgs(outer.tx.init, update), "gather")


def in_rows(learned: Learned, inner: Inner) -> bool:
    """Whether models may lie in rows: gates see single parameters, compressors whole tensors."""
    if not isinstance(learned, RelativeOptimizer):
        return False
    return not learned.gates and inner.compress == "dense"


def each_its_own(items: tuple[Items, jax.Array], run: Lasting) -> tuple[Items, jax.Array]:
    """The same rows, as numbers that depend on the run.

    The signs of a pair share their rows. Left so, a product of a batch with both signs' weights
    is one wide matrix, which XLA lays out anew in every local step.
    """
    nothing = jnp.minimum(run.rounds, 0)  # XLA cannot know that it is 0
    (round_items, held_out), work = items, items[0].batches
    rows = jax.tree.map(lambda x: x + nothing, work.batches)
    return round_items._replace(batches=work._replace(batches=rows)), held_out + nothing


def varied_problem(
    task: Task, learned: Learned, inner: Inner, watched: bool = False
) -> InnerProblem:
    """Runs of a family with the outer optimizer `learned(φ)`, whose runs are `Lasting`; `watched`
    ones have models in rows, and keep what the head saw last in the outer optimizer's state."""
    check_fits(task, learned, inner)
    feed = task.feed
    assert isinstance(feed, Resident)
    size = feed.size()
    compressor = parse_compressor(inner.compress)
    layout = rows_of(task) if in_rows(learned, inner) else None
    begun = task if layout is None else packed_init(task, layout)
    worst = 1.5 * math.log(task.classes or math.e)

    def parts(theta: Theta, run_key: jax.Array, rounds: Any) -> tuple[Drawn, Simulated, Server]:
        setting = drawn(inner, size, run_key)
        local = replace(inner.local, learning_rate=setting.rate).optax()
        counts = jnp.stack([setting.workers, setting.local_steps, rounds])
        told = counts.astype(jnp.float32) * setting.tells[:3]
        if layout is not None and isinstance(learned, RelativeOptimizer):
            client = packed_client(task, local, layout)
            outer = packed_relative(learned, theta, layout, (*told,), setting.tells[3], watched)
        else:
            client = local_client(task, local)
            outer = outer_of(learned, theta, *told)
            if isinstance(learned, RelativeOptimizer):
                outer = agreement_told(outer, setting.tells[3])
        return setting, Simulated(client, compressor), Server(outer)

    def begin(theta: Theta, key: jax.Array) -> Lasting:
        unknown = jnp.int32(0)
        _, workers, server = parts(theta, key, unknown)
        return Lasting(init_round(begun, workers, server, inner.workers, key), unknown)

    def draw_round(state: RoundState, setting: Drawn) -> tuple[Items, jax.Array]:
        K, H = inner.workers, inner.local_steps
        items = draw_items(feed, state, K, H, inner.batch)
        rows = (setting.first + items.batches % setting.examples) % size
        here = jnp.arange(K) < setting.workers
        work = Work(rows, jnp.where(here, setting.local_steps, 0))
        valid_key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), VALIDATION)
        held_out = feed.sample(valid_key, (HELD_OUT,), "valid")
        return items._replace(batches=work, weights=here.astype(jnp.float32)), held_out

    def draw(run: Lasting, rounds: int) -> Any:
        setting = drawn(inner, size, run.state.key)
        return jax.vmap(lambda r: draw_round(run.state._replace(round=r), setting))(
            run.state.round + jnp.arange(rounds)
        )

    def unroll(theta: Theta, run: Lasting, items: Any) -> tuple[Lasting, jax.Array]:
        _, workers, server = parts(theta, run.state.key, run.rounds)
        items = each_its_own(items, run)

        def one_round(state: RoundState, item: Any) -> tuple[RoundState, jax.Array]:
            late = state.round.astype(jnp.float32) >= LATE * run.rounds.astype(jnp.float32)
            state, losses_KH = communication_round(workers, server, state, item[0])
            train = mean_loss(losses_KH, item[0].weights)
            shared, batch = state.shared, feed.take(item[1], "valid")
            params = shared.params if layout is None else layout.unpack(shared.params)
            valid = task.evaluate(params, shared.model_state, batch)["loss"]
            both = jnp.log1p(capped(jnp.stack([train, valid]), worst) / LEAST_LOSS)
            weight = jnp.where(late, 0.5 + 0.5 / (1 - LATE), 0.5)
            return state, weight * (TRAIN * both[0] + (1 - TRAIN) * both[1])

        state, losses_T = jax.lax.scan(one_round, run.state, items)
        return Lasting(state, run.rounds), losses_T

    return InnerProblem(begin, draw, unroll, lasting=lambda run, rounds: Lasting(run[0], rounds))
