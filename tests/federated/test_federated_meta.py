"""Meta-training with a population: each run has a partition of its own, and its rounds are those of
any run."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer, local_client
from laconic.compress import DENSE
from laconic.federated.population import Federated, draw_population
from laconic.meta.problem import Inner, training_problem
from laconic.meta.train import MetaTrainer, Outer
from laconic.outer.learned import LearnedOptimizer
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.round import Server, communication_round
from laconic.runs.meta_config import MetaConfig, described, parse_inner
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task
from laconic.workers import Simulated

K, B, ROUNDS = 3, 8, 4
LOCAL = LocalOptimizer("sgd", 0.5)
LEARNED = LearnedOptimizer("lopt", hidden=4)
INNER = Inner("digits-mlp", K, 99, B, LOCAL, federated=Federated(30, 0.2))  # 40 samples each: H = 5


@cache
def digits() -> Task:
    return make_task("digits-mlp:width=8")


def theta() -> Any:
    found = LEARNED.init(jax.random.key(0))
    return found | {"w2": 1000 * found["w2"]}


@pytest.fixture(scope="module")
def problem():
    return training_problem(digits(), LEARNED, INNER)


def test_every_run_has_a_partition_of_its_own_for_all_its_rounds(problem):
    bank = INNER.bank(digits())
    assert bank is not None
    rows = np.asarray(bank.populations.rows)
    assert rows.shape == (64, 30, 40)
    assert len({partition.tobytes() for partition in rows}) == 64
    for partition in rows[:3]:
        assert len(np.unique(partition)) == 1200
    picked = [np.asarray(bank.pick(jax.random.key(seed)).rows).tobytes() for seed in range(6)]
    assert len(set(picked)) > 3
    begin = jax.jit(problem.begin)
    draw = jax.jit(lambda s: problem.draw(s, ROUNDS))
    for seed in range(2):
        state = begin(theta(), jax.random.key(seed))
        own = np.asarray(bank.pick(state.key).rows)
        for after in (0, 100):
            items, _ = draw(state._replace(round=jnp.int32(after)))
            for ids, batches in zip(np.asarray(items.ids), np.asarray(items.batches), strict=True):
                for i, seen in zip(ids, batches, strict=True):
                    assert sorted(seen.reshape(-1)) == sorted(own[i])


@pytest.mark.slow
def test_the_losses_are_those_of_rounds_by_hand(problem):
    state = problem.begin(theta(), jax.random.key(7))
    items = problem.draw(state, ROUNDS)
    run = jax.jit(problem.unroll)
    last, losses = run(theta(), state, items)
    workers, server = (
        Simulated(local_client(digits(), LOCAL.optax()), DENSE),
        Server(LEARNED(theta())),
    )
    step = jax.jit(partial(communication_round, workers, server))
    bank = INNER.bank(digits())
    assert bank is not None
    for t in range(ROUNDS):
        drawn = draw_population(bank.plan, bank.pick(state.key), state)
        state, losses_KH = step(state, drawn)
        assert losses_KH.shape == (K, 5)
        np.testing.assert_allclose(losses[t], np.asarray(losses_KH, np.float64).mean(), rtol=1e-5)
    for a, b in zip(jax.tree.leaves(last.shared), jax.tree.leaves(state.shared), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_validation_batch_is_as_large_as_a_rounds_minibatches():
    valid = training_problem(digits(), LEARNED, replace(INNER, objective="valid"))
    draw = jax.jit(lambda key: valid.draw(valid.begin(theta(), key), 2))
    _, rows = draw(jax.random.key(0))
    assert rows is not None
    assert rows.shape == (2, K * B)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")  # optax's Adam
def test_the_trainer_knows_the_h_that_the_data_gives_and_steps():
    outer = Outer(steps=2, pairs=2, truncation=2, warmup=1, estimator="pes")
    learned = LearnedOptimizer("lagg", K, hidden=4)
    trainer = MetaTrainer([digits()], learned, [replace(INNER, dropout=0.3)], outer)
    assert trainer.inners[0].local_steps == 5
    state = trainer.start(0)
    before = np.asarray(state.theta["w2"])
    for _ in range(2):
        state, progress = trainer.advance(state)
    assert np.isfinite(progress.loss).all()
    assert np.any(np.asarray(state.theta["w2"]) != before)


def test_a_task_says_its_own_population():
    config = MetaConfig(
        tasks=("digits-mlp@clients=30,alpha=0.2,epochs=2,workers=3", "digits-mlp@dropout=0.5")
    )
    first, second = config.inners()
    assert first.federated == Federated(30, 0.2, 2)
    assert (first.workers, first.dropout) == (3, 0.0)
    assert not second.federated.active
    assert described(first) == "digits-mlp@clients=30,alpha=0.2,epochs=2"
    assert described(second) == "digits-mlp"
    everywhere = parse_inner("digits-mlp@alpha=5", MetaConfig(federated=Federated(10, 0.1)))
    assert everywhere.federated == Federated(10, 5.0)


def test_recipes_are_in_the_papers_setting():
    for name, alpha in (
        ("fedlopt-fmnist", 0.1),
        ("fedlopt-fmnist-homogeneous", 100.0),
        ("fedlopt-cifar10-cnn", 0.1),
    ):
        inner = META_RECIPES[name][1].inners()[0]
        assert (inner.workers, inner.batch, inner.federated) == (10, 20, Federated(400, alpha))
    assert META_RECIPES["fedlagg-fmnist"][1].learned().workers == 10


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("digits-mlp@alpha=0", ["federated.alpha must be positive"]),
        ("digits-mlp@clients=few", ["clients must be a number"]),
        ("digits-mlp@client=4", ["option of task", "Did you mean 'clients'?"]),
    ],
)
def test_bad_populations_of_tasks_are_refused(spec, parts, raises_clearly):
    with raises_clearly(*parts):
        parse_inner(spec, MetaConfig())


def test_dropout_is_said_once(raises_clearly):
    with raises_clearly("dropout is given twice"):
        parse_inner("digits-mlp@dropout=0.5", MetaConfig(federated=Federated(9, dropout=0.1)))


def test_lagg_needs_one_number_of_clients(raises_clearly):
    with raises_clearly("K = 4", "set for 3"):
        MetaTrainer([digits()], LearnedOptimizer("lagg-a", 4), [INNER], Outer(steps=1))
