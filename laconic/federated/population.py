"""Populations: which client has which data, which clients a round samples, and their minibatches.

A population is row numbers [N, n] of the train split on the device. A round samples K of the N
clients without replacement; each goes through its own n samples in a fresh random order, E times,
in minibatches of B, which gives H = ⌊E·n/B⌋ steps. Everything random depends only on (seed, round,
client id). `communication_round` knows populations only by the ids that select client states.

Legend: N clients, n samples of the largest, K sampled, E epochs, H steps, B examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.client import Work
from laconic.data.feed import Resident
from laconic.data.partition import client_sizes, deal, deal_by_class, generator
from laconic.errors import LaconicError
from laconic.federated.options import Federated
from laconic.means import positive
from laconic.round import Items, RoundState, presence, worker_keys
from laconic.tasks.base import Task

# Random streams beside the clients', whose ids are smaller.
SAMPLING = (1 << 20) + 2
LABOUR = (1 << 20) + 3
PARTITION = (1 << 20) + 4
# Kinds of partitions: those of runs, and those of meta-training.
RUNS = 0
BANK = 1
PARTITIONS = 64  # of a bank


# --- which client has what ------------------------------------------------------------------------


@partial(jax.tree_util.register_dataclass, data_fields=["rows", "sizes"], meta_fields=[])
@dataclass(frozen=True)
class Population:
    """Which rows of the train split belong to which client; `population_of` makes one from lists.

    Args:
        rows: row numbers for each client [N, n], padded to one length.
        sizes: how many of them are its own [N].

    Example::

        population_of([np.arange(0, 100), np.arange(100, 150)]).sizes
    """

    rows: jax.Array
    sizes: jax.Array


@dataclass(frozen=True)
class Plan:
    """A population on some data, in numbers: N clients of at most n samples, K of them a round, H
    steps of B.

    uneven: whether clients may take different numbers of steps
    """

    options: Federated
    clients: int
    samples: int
    workers: int
    local_steps: int
    batch: int
    uneven: bool

    @property
    def share(self) -> float:
        """K over the population."""
        return self.workers / self.clients


@partial(jax.tree_util.register_dataclass, data_fields=["populations"], meta_fields=["plan"])
@dataclass(frozen=True)
class Bank:
    """Partitions drawn beforehand [M, …], of which every run of meta-training takes one.

    Drawing one on the device would take a loop over clients, as long as many rounds.
    """

    populations: Population
    plan: Plan

    def pick(self, key: jax.Array) -> Population:
        """The partition of the run with this key."""
        count = self.populations.rows.shape[0]
        index = jax.random.randint(jax.random.fold_in(key, PARTITION), (), 0, count)
        return jax.tree.map(lambda x: x[index], self.populations)


def settle(
    options: Federated, task: Task, workers: int, batch: int, kind: int, seeds: Sequence[int]
) -> tuple[Plan, Population]:
    """The plan of a population, and a partition of the task's data for each seed, leaves [S, …]."""
    samples = rows_of(task)
    if options.partition == "drawn":
        client_sizes(samples, options.population, 0.0, generator())  # are there too many of them?
        _check_sampled(workers, options.population)
    population = draw_populations(options, task, kind, seeds)
    return plan_for(options, population, workers, batch), population


def rows_of(task: Task) -> int:
    """How many rows the train split has; streams are refused."""
    if not isinstance(task.feed, Resident):
        raise LaconicError(
            f"{task.name} streams its data, so it cannot be divided among clients; use a subset."
        )
    return task.feed.size()


def bank_for(options: Federated, task: Task, workers: int, batch: int) -> Bank:
    """`PARTITIONS` partitions that no run outside meta-training has."""
    plan, populations = settle(options, task, workers, batch, BANK, range(PARTITIONS))
    return Bank(populations, plan)


def plan_for(options: Federated, population: Population, workers: int, batch: int) -> Plan:
    """The plan for partitions [S, N, n], which decide H."""
    N, samples = population.rows.shape[-2:]
    _check_sampled(workers, N)
    H = options.epochs * samples // batch
    if H < 1:
        raise LaconicError(
            f"{options.epochs} epochs of a client's {samples} samples make no minibatch of "
            f"{batch}; lower the batch, or ask for fewer than {N} clients."
        )
    differ = bool(np.any(np.asarray(population.sizes) != samples))
    return Plan(options, N, samples, workers, H, batch, differ or options.least_work < 1)


def _check_sampled(workers: int, clients: int) -> None:
    if workers > clients:
        raise LaconicError(
            f"{workers} of {clients} clients cannot be sampled for a round; lower workers, or ask "
            "for more clients."
        )


def population_of(rows: Sequence[np.ndarray]) -> Population:
    """A population from lists of rows, for a `Simulation` with one seed.

    Args:
        rows: for each client the numbers of its rows in the train split, at least one.

    Returns:
        The population, with leaves [1, …].

    Example::

        population_of([np.arange(0, 100), np.arange(100, 150)])
    """
    empty = [i for i, own in enumerate(rows) if len(own) == 0]
    if empty or not len(rows):
        who = f"client {empty[0]} has no data" if empty else "there are no clients"
        raise LaconicError(
            f"{who}: every client of a population needs at least one sample; leave such clients "
            "out."
        )
    for i, own in enumerate(map(np.asarray, rows)):
        if (
            own.ndim != 1
            or own.dtype.kind not in "iu"
            or own.min() < 0
            or own.max() > np.iinfo(np.int32).max
        ):
            raise LaconicError(
                f"client {i} has no list of row numbers: give each the rows of the train split "
                "that are its own, as whole numbers counted from 0; of a mask take np.flatnonzero."
            )
    return _stacked([rows])


def check_rows(population: Population, task: Task) -> None:
    """Refuse a population of other data: a missing row would be read as the nearest one."""
    samples = rows_of(task)
    first = int(jnp.min(population.rows))
    last = int(jnp.max(population.rows))
    if first < 0 or last >= samples:
        wrong = first if first < 0 else last
        raise LaconicError(
            f"a client has row {wrong}, and the train split of {task.name} has rows 0 to "
            f"{samples - 1}: give rows of that split."
        )


def _stacked(partitions: Sequence[Sequence[np.ndarray]]) -> Population:
    """Partitions as arrays [S, N, n], n being the largest client; shorter ones repeat rows."""
    sizes_SN = np.array([[len(own) for own in rows] for rows in partitions], np.int32)
    rows_SNn = np.array(
        [[np.resize(own, sizes_SN.max()) for own in rows] for rows in partitions], np.int32
    )
    return Population(jnp.asarray(rows_SNn), jnp.asarray(sizes_SN))


def draw_rows(options: Federated, task: Task, *seed: int) -> list[np.ndarray]:
    """Each client's row numbers in one partition of the task's train split."""
    if options.partition == "natural":
        return natural_rows(task)
    feed = task.feed
    assert isinstance(feed, Resident)
    rng = generator(*seed)
    sizes = client_sizes(feed.size(), options.population, options.spread, rng)
    if options.alpha is None:
        return deal(feed.size(), sizes, rng)
    return deal_by_class(labels_of(task), sizes, options.alpha, rng)


def natural_rows(task: Task) -> list[np.ndarray]:
    """The rows of each client that the data has."""
    train: Any = task.feed.splits.get("train")
    if not isinstance(train, dict) or "client" not in train:
        raise LaconicError(
            f"{task.name} has no clients of its own (whole numbers 'client' in its train split, "
            "from 0); leave federated.partition out, or take lm-speakers."
        )
    owners = np.asarray(train["client"])
    return [np.flatnonzero(owners == client) for client in range(int(owners.max()) + 1)]


def labels_of(task: Task) -> np.ndarray:
    """The class of every row of the train split."""
    train: Any = task.feed.splits.get("train")
    if not isinstance(train, dict) or not jnp.issubdtype(
        getattr(train.get("y"), "dtype", float), jnp.integer
    ):
        raise LaconicError(
            f"{task.name} has no class labels to mix (whole numbers 'y' in its train split); leave "
            "federated.alpha out."
        )
    return np.asarray(train["y"]).reshape(len(train["y"]), -1)[:, 0]


def draw_populations(options: Federated, task: Task, kind: int, seeds: Sequence[int]) -> Population:
    """A partition for each seed, leaves [S, …]."""
    return _stacked([draw_rows(options, task, kind, seed) for seed in seeds])


# --- a round --------------------------------------------------------------------------------------


def draw_population(plan: Plan, population: Population, state: RoundState) -> Items:
    """This round's clients and their minibatches."""
    options = plan.options
    K = plan.workers
    round_key = jax.random.fold_in(state.key, state.round)
    ids_K = sample(jax.random.fold_in(round_key, SAMPLING), plan.clients, K)
    keys_K2 = jax.vmap(jax.random.split)(worker_keys(state, ids_K))
    rows_Kn = population.rows[ids_K]
    sizes_K = population.sizes[ids_K]
    orders_KEn = jax.vmap(partial(shuffles, plan))(keys_K2[:, 0], sizes_K)
    present = presence(state, K, options.dropout) if options.dropout else None
    if not plan.uneven:
        rows = plan.local_steps * plan.batch
        stream = jax.vmap(lambda own, orders: own[orders].reshape(-1)[:rows])(rows_Kn, orders_KEn)
        batches = stream.reshape(K, plan.local_steps, plan.batch)
        return Items(batches, keys_K2[:, 1], ids_K, present)
    batches = jax.vmap(partial(cut, plan))(rows_Kn, orders_KEn, sizes_K)
    steps_K = steps_of(plan, sizes_K, jax.random.fold_in(round_key, LABOUR))
    weights_K = jnp.ones(K) if options.weighting == "uniform" else sizes_K.astype(jnp.float32)
    scale_K = jnp.ones(K)
    if options.weighting == "fednova":
        here_K = weights_K if present is None else weights_K * present
        effective = jnp.sum(here_K * steps_K.astype(jnp.float32)) / positive(jnp.sum(here_K))
        scale_K = effective / steps_K.astype(jnp.float32)
    return Items(Work(batches, steps_K, scale_K), keys_K2[:, 1], ids_K, present, weights_K)


def sample(key: jax.Array, clients: int, K: int) -> jax.Array:
    """K of the clients, without replacement."""
    return jnp.argsort(jax.random.bits(key, (clients,)))[:K].astype(jnp.int32)


def shuffles(plan: Plan, key: jax.Array, size: jax.Array) -> jax.Array:
    """E fresh orders of a client's own samples [E, n]; what is not its own comes last."""
    noise_En = jax.random.uniform(key, (plan.options.epochs, plan.samples))
    if plan.uneven:
        noise_En = jnp.where((jnp.arange(plan.samples) < size)[None, :], noise_En, 2.0)
    return jnp.argsort(noise_En, axis=1)


def cut(plan: Plan, own_n: jax.Array, orders_En: jax.Array, size: jax.Array) -> jax.Array:
    """E epochs of a client's samples in minibatches [H, B]; repeated if too short."""
    at = jnp.arange(plan.local_steps * plan.batch) % (plan.options.epochs * size)
    return own_n[orders_En[at // size, at % size]].reshape(plan.local_steps, plan.batch)


def steps_of(plan: Plan, sizes_K: jax.Array, key: jax.Array) -> jax.Array:
    """Steps of each sampled client [K]: those its data allows or a share of them, at least one."""
    full_K = jnp.clip(plan.options.epochs * sizes_K // plan.batch, 1, plan.local_steps)
    most_K = full_K.astype(jnp.float32)
    least = plan.options.least_work
    share_K = jnp.ones(len(sizes_K))
    if least < 1:
        share_K = jax.random.uniform(key, sizes_K.shape, minval=least, maxval=1.0)
    return jnp.clip(jnp.round(share_K * most_K), 1, most_K).astype(jnp.int32)
