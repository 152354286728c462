"""A distribution of settings: what each run draws, and that a masked run is the plain one."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import LocalOptimizer, local_client
from laconic.compress import parse_compressor
from laconic.meta.problem import Inner
from laconic.meta.varied import FEWEST_EXAMPLES, agreement_told, drawn, varied_problem
from laconic.outer.base import from_optax
from laconic.outer.relative import RelativeOptimizer
from laconic.round import Items, Server, communication_round, init_round
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task
from laconic.workers import Simulated
from tests.outer.trees import QUICK

RATE, SPREAD, ROUNDS = 0.2, 5.0, 5
FAMILY = Inner(
    "digits-mlp:width=8", 6, 4, 8, LocalOptimizer("sgd", RATE), spread=SPREAD, objective="train"
)


@cache
def digits() -> Task:
    return make_task(FAMILY.task)


def test_each_run_draws_its_own_setting():
    size = digits().feed.size()
    draw = partial(drawn, FAMILY, size)
    keys = jax.random.split(jax.random.key(0), 4000)
    found = jax.device_get(jax.jit(jax.vmap(draw))(keys))
    logs = np.log(found.rate.astype(float) / RATE) / np.log(SPREAD)
    assert -1 <= logs.min() < -0.99
    assert 0.99 < logs.max() <= 1
    assert abs(logs.mean()) < 4 * np.sqrt(1 / 3 / 4000)  # uniform in [−1, 1]
    assert set(np.unique(found.workers)) == {2, 3, 4, 5, 6}
    steps = np.bincount(found.local_steps)
    assert steps[0] == 0
    expected = 4000 * np.log1p(1 / np.arange(1, 5)) / np.log(5)  # log-uniform, rounded down
    np.testing.assert_allclose(steps[1:], expected, atol=4 * np.sqrt(1000))
    assert FEWEST_EXAMPLES <= np.min(found.examples) < FEWEST_EXAMPLES * 1.02
    assert abs(np.mean(found.examples == size) - 0.5) < 4 * np.sqrt(0.25 / 4000) + 0.01
    assert size * 0.98 < np.max(found.examples) <= size
    assert 0 <= np.min(found.first) <= np.max(found.first) < size
    np.testing.assert_allclose(np.mean(found.tells, axis=0), 0.75, atol=0.03)


def plain_losses(setting: Any, items: Any, key: jax.Array) -> np.ndarray:
    """The same rounds without masks: as many workers and local steps as drawn, plain Nesterov."""
    K, H = int(setting.workers), int(setting.local_steps)
    local = LocalOptimizer("sgd", float(setting.rate)).optax()
    workers = Simulated(local_client(digits(), local), parse_compressor("dense"))
    server = Server(from_optax(optax.sgd(0.7, momentum=0.9, nesterov=True)))
    state = init_round(digits(), workers, server, K, key)
    step = jax.jit(partial(communication_round, workers, server), compiler_options=QUICK)
    found = []
    for t in range(ROUNDS):
        round_items, held_out = jax.tree.map(lambda x, t=t: x[t], items)
        rows = round_items.batches.batches[:K, :H]
        inside = (np.asarray(rows) - int(setting.first)) % digits().feed.size()
        assert np.all(inside < int(setting.examples))
        state, losses = step(state, Items(rows, round_items.keys[:K]))
        batch = digits().feed.take(held_out, "valid")
        valid = digits().evaluate(state.shared.params, (), batch)["loss"]
        both = np.array([np.mean(np.asarray(losses, np.float64)), float(valid)])
        weight = 3.0 if t >= 0.8 * ROUNDS else 0.5
        found.append(weight * np.dot([0.95, 0.05], np.log1p(both / 1e-3)))
    return np.array(found)


def test_a_masked_run_is_the_plain_run_of_its_setting():
    learned = RelativeOptimizer(0.7, 0.9)
    problem = varied_problem(digits(), learned, FAMILY)
    theta = learned.init(jax.random.key(1))

    def run(key: jax.Array) -> Any:
        first = problem.lasting(problem.begin(theta, key), jnp.int32(ROUNDS))
        items = problem.draw(first, ROUNDS)
        setting = drawn(FAMILY, digits().feed.size(), first.state.key)
        return setting, items, problem.unroll(theta, first, items)[1]

    compiled, seen = jax.jit(run, compiler_options=QUICK), set()
    for seed in (0, 3):
        setting, items, losses = compiled(jax.random.key(seed))
        seen.add((int(setting.workers), int(setting.local_steps)))
        np.testing.assert_allclose(
            losses, plain_losses(setting, items, jax.random.key(seed)), rtol=2e-4
        )
    assert len(seen) == 2


def test_a_run_that_is_not_told_does_without():
    learned = RelativeOptimizer()
    key = jax.random.key(2)
    theta = {n: 0.3 * jax.random.normal(key, x.shape) for n, x in learned.init(key).items()}
    params = {"w": jax.random.normal(key, (3, 2))}
    deltas = {"w": jax.random.normal(jax.random.key(3), (4, 3, 2))}
    mean, weights = {"w": jnp.mean(deltas["w"], 0)}, jnp.ones(4)
    outer = learned(theta, workers=4)

    def step(tx: Any, **extra: Any) -> np.ndarray:
        return np.asarray(tx.update(mean, tx.init(params), params, **extra)[0]["w"])

    told, not_told = (
        step(agreement_told(outer, jnp.float32(known)).tx, worker_deltas=deltas, weights=weights)
        for known in (1, 0)
    )
    np.testing.assert_allclose(told, step(outer.tx, worker_deltas=deltas, weights=weights))
    np.testing.assert_allclose(not_told, step(outer.tx))
    assert not np.allclose(told, not_told, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"spread": 0.5}, "at least 1"),
        ({"spread": float("nan")}, "at least 1"),
        ({"spread": float("inf")}, "at least 1"),
        ({"dropout": 0.1}, "leave dropout"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(change, part, raises_clearly):
    with raises_clearly(part):
        replace(FAMILY, **change)
