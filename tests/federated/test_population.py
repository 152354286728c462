"""Who is sampled and what they train on; and everything that cannot be a population."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import Work
from laconic.data.feed import Resident, Streamed
from laconic.federated.population import (
    RUNS,
    Federated,
    Population,
    draw_population,
    labels_of,
    plan_for,
    population_of,
    settle,
)
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.round import RoundState, worker_keys
from laconic.runs.grid import Sweep
from laconic.runs.simulate import Simulation
from laconic.tasks.catalog import make_task
from tests import tiny

N, K, B = 20, 4, 8
ROUNDS = 300


@pytest.fixture(scope="module")
def digits():
    return make_task("digits-mlp:width=4")  # 1200 train samples: 60 a client


def state_at(round: Any, seed: int = 0) -> RoundState:
    rest: Any = ()
    return RoundState(rest, rest, rest, jnp.asarray(round, jnp.int32), jax.random.key(seed))


def drawn(options: Federated, task: Any, rounds: int = ROUNDS) -> tuple[Any, Any, Any]:
    plan, population = settle(options, task, K, B, RUNS, (0,))
    one = jax.tree.map(lambda x: x[0], population)
    draw = jax.vmap(lambda t: draw_population(plan, one, state_at(t)))
    return plan, one, jax.device_get(jax.jit(draw)(jnp.arange(rounds)))


def test_clients_are_sampled_without_replacement_and_all_alike(digits):
    plan, _, items = drawn(Federated(N), digits)
    assert plan.share == K / N
    assert all(len(set(ids)) == K for ids in items.ids.tolist())
    met = np.bincount(items.ids.reshape(-1), minlength=N)
    assert np.sum((met - 60) ** 2 / (60 * (1 - K / N))) < 36.2  # χ² with 19 degrees at 1 %
    # In random order.
    assert (items.ids[:, 0] > items.ids[:, 1]).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_epoch_is_all_of_a_clients_own_samples_in_a_fresh_order(digits, epochs):
    options = Federated(N, alpha=0.5, epochs=epochs)
    # 40 samples: 5 batches of 8.
    plan, population, items = drawn(replace(options, clients=30), digits, 40)
    assert items.batches.shape == (40, K, 5 * epochs, B)
    orders = {}
    for ids, batches in zip(items.ids, items.batches, strict=True):
        for i, rows in zip(ids, batches, strict=True):
            for epoch in rows.reshape(epochs, -1):
                assert sorted(epoch) == sorted(np.asarray(population.rows[i]))
                orders.setdefault(int(i), set()).add(tuple(epoch))
    assert sum(map(len, orders.values())) == 40 * K * epochs  # never the same order twice
    assert plan.local_steps == 5 * epochs


def test_what_does_not_fill_a_minibatch_is_left_for_another_time(digits):
    plan, population, items = drawn(Federated(N), digits, 20)  # 60 samples: 7 batches of 8, 4 left
    assert plan.local_steps == 7
    left_out = set()
    for ids, batches in zip(items.ids, items.batches, strict=True):
        for i, rows in zip(ids, batches, strict=True):
            assert len(set(rows.reshape(-1))) == 56
            left_out |= set(np.asarray(population.rows[i]).tolist()) - set(
                rows.reshape(-1).tolist()
            )
    assert len(left_out) > 50


def test_a_clients_stream_is_its_own(digits):
    """Keys are those of (seed, round, client id), whoever else was sampled."""
    _, _, items = drawn(Federated(N), digits, 3)
    for t in range(3):
        expected = jax.vmap(jax.random.split)(worker_keys(state_at(t), jnp.asarray(items.ids[t])))[
            :, 1
        ]
        np.testing.assert_array_equal(
            jax.random.key_data(items.keys[t]), jax.random.key_data(expected)
        )


def test_unequal_clients_see_only_their_own_and_as_often_as_they_should(digits):
    plan, population, items = drawn(Federated(N, epochs=2, spread=1.5), digits, 60)
    sizes = np.asarray(population.sizes)
    assert isinstance(items.batches, Work)
    assert sizes.min() < B < sizes.max() == plan.samples
    np.testing.assert_array_equal(items.weights, sizes[items.ids])
    np.testing.assert_array_equal(items.batches.steps, np.maximum(1, 2 * sizes[items.ids] // B))
    for ids, batches, steps in zip(
        items.ids, items.batches.batches, items.batches.steps, strict=True
    ):
        for i, rows, count in zip(ids, batches, steps, strict=True):
            own, seen = np.asarray(population.rows[i])[: sizes[i]], rows[:count].reshape(-1)
            assert set(seen.tolist()) <= set(own.tolist())
            if 2 * sizes[i] >= B:  # no sample a third time before all came twice
                assert np.bincount(seen, minlength=digits.feed.size())[own].max() <= 2
                assert len(set(seen[: sizes[i]].tolist())) == min(sizes[i], len(seen))


def test_shares_of_work_are_uniform_and_absences_rare(digits):
    plan, _, items = drawn(Federated(N, epochs=4, least_work=0.5, dropout=0.25), digits)
    assert plan.local_steps == 30
    steps = items.batches.steps.reshape(-1)
    assert (steps.min(), steps.max()) == (15, 30)
    assert steps.mean() == pytest.approx(22.5, abs=0.6)
    assert items.present.mean() == pytest.approx(0.75, abs=0.04)
    assert (items.present.sum(axis=1) > 0).all()
    assert (items.batches.scale == 1).all()


def test_every_seed_has_a_partition_of_its_own(digits):
    _, population = settle(Federated(N, alpha=0.3), digits, K, B, RUNS, (0, 1, 0))
    rows = np.asarray(population.rows)
    np.testing.assert_array_equal(rows[0], rows[2])
    assert (rows[0] != rows[1]).any()


def test_labels_are_those_of_the_train_split(digits):
    np.testing.assert_array_equal(labels_of(digits), np.asarray(digits.feed.splits["train"]["y"]))


def test_a_population_of_ones_own(digits):
    rows = [np.arange(16), np.arange(16, 24), np.arange(24, 48)]
    population = population_of(rows)
    method, setting = parse_method("fedavg", 2), Setting(2, 1, 8, 4, (0,), 4)
    simulation = Simulation(digits, method, setting, population=population)
    assert (simulation.H, simulation.plan and simulation.plan.uneven) == (3, True)
    (chunk,) = simulation.run(simulation.start())
    assert np.isfinite(chunk.losses).all()


# --- bad input ------------------------------------------------------------------------------------

SETTING = Setting(K, 1, B, 2, (0,), 2, Federated(N))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"alpha": 0.0}, ["federated.alpha must be positive", "0.0"]),
        ({"alpha": -1.0}, ["federated.alpha must be positive", "-1.0"]),
        ({"alpha": float("nan")}, ["federated.alpha", "nan"]),
        ({"clients": -1}, ["positive number of clients"]),
        ({"epochs": 0}, ["epochs"]),
        ({"spread": -1.0}, ["federated.spread"]),
        ({"dropout": 1.0}, ["federated.dropout", "below 1"]),
        ({"least_work": 0.0}, ["federated.least_work", "above 0"]),
        ({"weighting": "size"}, ["samples, uniform or fednova", "'size'"]),
        ({"partition": "own"}, ["drawn or natural", "'own'"]),
        ({"partition": "natural", "clients": 9}, ["leave federated.clients", "out"]),
    ],
)
def test_impossible_numbers_are_refused(options, parts, raises_clearly):
    with raises_clearly(*parts):
        Federated(**options)


@pytest.mark.parametrize(
    ("options", "workers", "batch", "parts"),
    [
        (Federated(5000), K, B, ["5000 clients", "1200 samples"]),
        (Federated(N), N + 1, B, ["21 of 20 clients", "lower workers"]),
        (Federated(N), K, 61, ["60 samples", "minibatch of 61"]),
    ],
    ids=["clients", "sampled", "batch"],
)
def test_impossible_populations_are_refused(digits, options, workers, batch, parts, raises_clearly):
    setting = Setting(workers, 1, batch, 2, (0,), 2, options)
    with raises_clearly(*parts):
        Simulation(digits, parse_method("fedavg", workers), setting)
    with raises_clearly(*parts):
        Sweep(digits, "fedavg", setting)


def test_tasks_that_cannot_be_divided_are_refused(raises_clearly):
    with raises_clearly("no class labels", "leave federated.alpha out"):
        settle(Federated(4, alpha=0.1), tiny.task(), 2, 4, RUNS, (0,))
    streamed = replace(tiny.task(), feed=Streamed({}, lambda: iter(())))
    with raises_clearly("streams its data"):
        settle(Federated(4), streamed, 2, 4, RUNS, (0,))


def test_natural_clients_keep_the_rows_that_the_data_gives_them(digits, raises_clearly):
    owners = np.repeat([2, 0, 1, 2], [5, 9, 4, 2]).astype(np.int32)
    feed = Resident({"train": {"x": jnp.zeros((20, 2)), "client": jnp.asarray(owners)}})
    options = Federated(partition="natural")
    assert options.words() == "partition=natural"
    plan, population = settle(options, replace(tiny.task(), feed=feed), 2, 3, RUNS, (0, 1))
    assert (plan.clients, plan.local_steps, plan.uneven) == (3, 3, True)
    assert population.sizes.tolist() == [[9, 4, 7]] * 2
    own = [rows[:n].tolist() for rows, n in zip(population.rows[0], [9, 4, 7], strict=True)]
    assert own == [list(range(5, 14)), list(range(14, 18)), [0, 1, 2, 3, 4, 18, 19]]
    with raises_clearly("has no clients of its own", "lm-speakers"):
        settle(options, digits, 2, 3, RUNS, (0,))
    with raises_clearly("4 of 3 clients", "lower workers"):
        settle(options, replace(tiny.task(), feed=feed), 4, 3, RUNS, (0,))


def test_speakers_of_shakespeare_train_as_clients(real_data):
    real_data("text")
    task = make_task("lm-speakers:hidden=8,heads=1,layers=1,context=80")
    setting = Setting(
        workers=4, batch=30, rounds=2, evaluate_every=2, federated=Federated(partition="natural")
    )
    simulation = Simulation(task, parse_method("fedavg:gamma=0.5", 4), setting)
    assert simulation.plan is not None
    assert (simulation.plan.clients, simulation.plan.uneven) == (105, True)
    (chunk,) = simulation.run(simulation.start())
    assert chunk.losses.shape == (1, 2, 4)
    assert np.isfinite(chunk.losses).all()
    assert float(chunk.heldout["loss"][0]) < 5.7  # of 256 bytes, all alike: 5.55, as it begins


def test_labels_must_be_classes(raises_clearly):
    feed = Resident({"train": {"x": jnp.zeros((8, 2)), "y": jnp.zeros(8)}})
    with raises_clearly("no class labels"):
        labels_of(replace(tiny.task(), feed=feed))


def test_a_client_with_no_data_is_refused(raises_clearly):
    with raises_clearly("client 1 has no data"):
        population_of([np.arange(3), np.arange(0)])
    with raises_clearly("there are no clients"):
        population_of([])
    with raises_clearly("4 of 2 clients"):
        plan_for(Federated(), population_of([np.arange(3), np.arange(3)]), 4, 1)


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(9) % 2 == 0,
        np.arange(4) / 2,
        np.arange(4).reshape(2, 2),
        np.arange(-3, 3),
        [2**31],
        ["a"],
    ],
    ids=["mask", "fractions", "table", "negative", "large", "words"],
)
def test_what_is_no_list_of_row_numbers_is_refused(rows, raises_clearly):
    with raises_clearly("client 1 has no list of row numbers"):
        population_of([np.arange(3), rows])


def test_rows_that_the_data_does_not_have_are_refused(digits, raises_clearly):
    """Indexing on the device would quietly take the last row instead."""
    method, setting = parse_method("fedavg", 2), Setting(2, 1, 4, 1, (0,), 1)
    Simulation(digits, method, setting, population=population_of([np.arange(1192, 1200)] * 2))
    with raises_clearly("row 1200", "rows 0 to 1199"):
        Simulation(
            digits, method, setting, population=population_of([np.arange(8), np.arange(1193, 1201)])
        )
    with raises_clearly("row -1", "rows 0 to 1199"):
        by_hand = Population(jnp.arange(-1, 7).reshape(1, 2, 4), jnp.full((1, 2), 4))
        Simulation(digits, method, setting, population=by_hand)
    with raises_clearly("streams its data"):
        streamed = replace(tiny.task(), feed=Streamed({}, lambda: iter(())))
        Simulation(streamed, method, setting, population=population_of([np.arange(8)] * 2))


def test_methods_that_have_no_place_in_a_population_are_refused(digits, raises_clearly):
    with raises_clearly("small-batch-sgd", "all data in one place"):
        Simulation(digits, parse_method("small-batch-sgd", K), SETTING)
    uneven = replace(SETTING, federated=Federated(N, least_work=0.5))
    with raises_clearly("takes no local steps"):
        Simulation(digits, parse_method("sgd", K), uneven)
    with raises_clearly("made for K = 8 workers, not 4"):
        Simulation(digits, replace(parse_method("lagg-a", 8), label="FedLAgg"), SETTING)
    with raises_clearly("1 partitions for 2 seeds"):
        twice = replace(SETTING, seeds=(0, 1))
        Simulation(
            digits, parse_method("fedavg", K), twice, population=population_of([np.arange(9)] * 5)
        )


def test_missing_workers_are_not_for_a_population(digits, raises_clearly):
    with raises_clearly("--federated.dropout", "--missing"):
        Simulation(digits, parse_method("fedavg", K), replace(SETTING, missing=1))
