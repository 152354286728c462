"""The inner problem: its losses are those of rounds run by hand, and it refuses what cannot be
unrolled."""

import math
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer, local_client
from laconic.compress import parse_compressor
from laconic.data.feed import Streamed
from laconic.meta.estimator import Horizon
from laconic.meta.problem import Inner, InnerProblem, capped, training_problem
from laconic.outer.learned import LearnedOptimizer
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
from laconic.tasks.base import Task, plain_task
from laconic.tasks.catalog import make_task
from laconic.workers import Simulated
from tests import tiny
from tests.outer.trees import QUICK

K, H, B, ROUNDS = 3, 2, 8, 4
LOCAL = LocalOptimizer("sgd", 0.5)
LEARNED = LearnedOptimizer("lopt", hidden=4)
VARIANTS = {
    "train": Inner("digits-mlp", K, H, B, LOCAL),
    "valid": Inner("digits-mlp", K, H, B, LOCAL, objective="valid"),
    "sparse and absent": Inner("digits-mlp", K, H, B, LOCAL, "topk:0.05+ef", dropout=0.5),
}


@cache
def digits() -> Task:
    return make_task("digits-mlp:width=8")


@cache
def theta() -> Any:
    """Steps a thousand times the usual ones, so that a few rounds show what they do."""
    theta = LEARNED.init(jax.random.key(0))
    return theta | {"w2": 1000 * theta["w2"]}


class Unrolled(NamedTuple):
    """A run from its begin, the items of its first rounds, its state after them and the loss of
    each."""

    problem: InnerProblem
    first: RoundState
    items: Any
    last: RoundState
    losses: jax.Array


@cache
def unrolled(variant: str) -> Unrolled:
    problem = training_problem(digits(), LEARNED, VARIANTS[variant])

    def run(theta: Any, key: jax.Array) -> Any:
        first = problem.begin(theta, key)
        items = problem.draw(first, ROUNDS)
        return first, items, *problem.unroll(theta, first, items)

    return Unrolled(problem, *jax.jit(run, compiler_options=QUICK)(theta(), jax.random.key(7)))


@cache
def round_by_hand(compress: str) -> Any:
    """One communication round with the local losses [K, H], compiled."""
    workers = Simulated(local_client(digits(), LOCAL.optax()), parse_compressor(compress))
    server = Server(LEARNED(theta()))
    step = jax.jit(partial(communication_round, workers, server), compiler_options=QUICK)
    return step, init_round(digits(), workers, server, K, jax.random.key(7))


def rounds_by_hand(items: Items, compress: str) -> tuple[list[RoundState], list[np.ndarray]]:
    step, state = round_by_hand(compress)
    states, losses = [state], []
    for t in range(ROUNDS):
        state, losses_KH = step(state, jax.tree.map(lambda x, t=t: x[t], items))
        states.append(state)
        losses.append(np.asarray(losses_KH, np.float64))
    return states, losses


def assert_same_run(found: Any, expected: Any) -> None:
    """To float32's rounding, tensor by tensor: one of them was compiled as a scan."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = (np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in (a, b))
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * float(np.max(np.abs(b), initial=0)))


def test_a_run_begins_as_any_run_and_draws_the_data_of_its_rounds():
    _, first, (items, valid), _, _ = unrolled("train")
    assert_same_run(first, round_by_hand("dense")[1])
    assert valid is None
    assert items.present is None
    draw = jax.jit(lambda state: draw_items(digits().feed, state, K, H, B))  # pyright: ignore[reportArgumentType]
    for t in range(ROUNDS):
        expected = draw(first._replace(round=jnp.int32(t)))
        np.testing.assert_array_equal(items.batches[t], expected.batches)
        np.testing.assert_array_equal(
            jax.random.key_data(items.keys[t]), jax.random.key_data(expected.keys)
        )


def test_a_later_truncation_goes_on_where_the_one_before_stopped():
    problem, first, items, _, _ = unrolled("sparse and absent")
    draw = jax.jit(lambda run: problem.draw(run, 2), compiler_options=QUICK)
    later = draw(first._replace(round=jnp.int32(2)))
    assert_same_run(later, jax.tree.map(lambda x: x[2:], items))


def test_the_train_objective_is_the_mean_of_all_local_losses_before_the_step():
    _, _, (items, _), last, losses_T = unrolled("train")
    states, losses = rounds_by_hand(items, "dense")
    assert losses_T.shape == (ROUNDS,)
    assert losses[0].shape == (K, H)
    np.testing.assert_allclose(losses_T, [x.mean() for x in losses], rtol=1e-5)
    assert_same_run(last, states[-1])


def test_the_valid_objective_is_the_loss_after_the_step_on_a_validation_batch():
    task = digits()
    _, _, (items, rows), _, losses_T = unrolled("valid")
    assert rows.shape == (ROUNDS, B)
    assert len({row.tobytes() for row in np.asarray(rows)}) == ROUNDS
    assert np.all((np.asarray(rows) >= 0) & (np.asarray(rows) < task.feed.size("valid")))
    states, _ = rounds_by_hand(items, "dense")
    before_and_after = []
    for t in range(ROUNDS):
        batch = {name: x[rows[t]] for name, x in task.feed.splits["valid"].items()}
        score = [
            task.evaluate(s.shared.params, s.shared.model_state, batch)["loss"]
            for s in states[t : t + 2]
        ]
        before_and_after.append([float(x) for x in score])
    expected = np.array(before_and_after)
    np.testing.assert_allclose(losses_T, expected[:, 1], rtol=1e-5)
    assert np.all(np.abs(expected[:, 1] - expected[:, 0]) > 1e-4)  # the step can be told


def test_absent_workers_do_not_count_and_what_is_sent_is_compressed():
    _, _, (items, _), last, losses_T = unrolled("sparse and absent")
    present_TK = np.asarray(items.present)
    assert 0 < present_TK.mean() < 1
    states, losses = rounds_by_hand(items, "topk:0.05+ef")
    expected = [
        np.average(x.mean(axis=1), weights=here) for x, here in zip(losses, present_TK, strict=True)
    ]
    np.testing.assert_allclose(losses_T, expected, rtol=1e-5)
    assert_same_run(last, states[-1])
    dense, _ = rounds_by_hand(items, "dense")
    gap = [np.max(np.abs(a - b)) for a, b in zip(*map(leaves, (last, dense[-1])), strict=True)]
    assert max(gap) > 1e-3
    residual = jax.tree.leaves(last.clients.residual)
    assert any(np.any(leaf) for leaf in residual)


def leaves(state: RoundState) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(state.shared.params)]


def test_presence_has_the_right_frequency_and_never_nobody():
    """Each is missing with the dropout's probability; if all were, one of them, any, comes after
    all."""
    rounds, workers, dropout = 20_000, 4, 0.6
    run: Any = RoundState((), (), (), jnp.int32(0), jax.random.key(3))  # pyright: ignore[reportArgumentType]
    draw = jax.jit(jax.vmap(lambda t: presence(run._replace(round=t), workers, dropout)))
    present = np.asarray(draw(jnp.arange(rounds)))
    assert present.dtype == np.float32
    assert set(np.unique(present)) == {0.0, 1.0}
    count = present.sum(axis=1)
    assert count.min() == 1
    error = 4 / math.sqrt(rounds)  # of a frequency p: times √(p(1 − p))
    share = 1 - dropout + dropout**workers / workers
    assert np.max(np.abs(present.mean(axis=0) - share)) < error * math.sqrt(share * (1 - share))
    for some in range(1, workers + 1):
        chance = math.comb(workers, some) * (1 - dropout) ** some * dropout ** (workers - some)
        chance += dropout**workers if some == 1 else 0
        assert abs(np.mean(count == some) - chance) < error * math.sqrt(chance * (1 - chance)), some


def test_presence_of_a_round_depends_on_the_run():
    runs: Any = [RoundState((), (), (), jnp.int32(5), jax.random.key(seed)) for seed in range(2)]  # pyright: ignore[reportArgumentType]
    mine, other = (np.asarray(presence(run, 64, 0.5)) for run in runs)
    assert np.any(mine != other)
    np.testing.assert_array_equal(mine, presence(runs[0], 64, 0.5))


def test_the_mean_loss_is_over_those_who_were_there():
    losses = jnp.array([[1.0, 2.0], [jnp.nan, 7.0], [4.0, 8.0]])
    assert float(mean_loss(losses, jnp.array([1.0, 0.0, 1.0]))) == 3.75
    assert float(mean_loss(losses[::2], None)) == 3.75
    assert math.isnan(mean_loss(losses, jnp.array([1.0, 1.0, 0.0])))
    assert math.isnan(mean_loss(losses, None))


def test_capped_losses():
    losses = jnp.array([-1.0, 0.0, 1.5, 2.0, 2.5, jnp.inf, -jnp.inf, jnp.nan])
    np.testing.assert_array_equal(capped(losses, 2.0), np.array([0, 0, 1.5, 2, 2, 2, 0, 2]))
    np.testing.assert_array_equal(
        capped(losses, math.inf), np.array([0, 0, 1.5, 2, 2.5, np.inf, 0, np.inf])
    )


def test_the_ceiling_is_half_again_the_loss_of_knowing_nothing():
    assert unrolled("train").problem.ceiling == pytest.approx(1.5 * math.log(10), rel=1e-12)
    inner = Inner("tiny", K, H, B, LOCAL)
    # A regression has no such loss.
    assert training_problem(tiny.task(), LEARNED, inner).ceiling == math.inf


# --- refusals -------------------------------------------------------------------------------------


def test_the_number_of_workers_must_be_the_optimizers(raises_clearly):
    learned = LearnedOptimizer("lagg-a", workers=K + 1)
    with raises_clearly("lagg-a", f"K = {K + 1}", f"for {K}", "digits-mlp"):
        training_problem(digits(), learned, VARIANTS["train"])
    fitting = LearnedOptimizer("lagg-a", workers=K)
    assert isinstance(training_problem(digits(), fitting, VARIANTS["train"]), InnerProblem)


def test_streamed_data_cannot_be_meta_trained_on(raises_clearly):
    task = plain_task("river", tiny.init, tiny.loss, Streamed({}, list))
    with raises_clearly("river", "stream"):
        training_problem(task, LEARNED, VARIANTS["train"])


def test_the_valid_objective_needs_a_valid_split(raises_clearly):
    with raises_clearly("tiny", "validation"):
        training_problem(tiny.task(), LEARNED, VARIANTS["valid"])
    with raises_clearly("objective", "test"):
        Inner(objective="test")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0, math.nan])
def test_dropout_is_a_probability_below_one(raises_clearly, dropout):
    with raises_clearly("dropout", str(dropout)):
        Inner(dropout=dropout)


def test_an_unknown_compressor_is_named_at_once(raises_clearly):
    with raises_clearly("compressor", "topq"):
        Inner(compress="topq:0.1")


@pytest.mark.parametrize("count", ["workers", "local_steps", "batch"])
def test_counts_are_positive(raises_clearly, count):
    with raises_clearly(count, "0"):
        Inner(**{count: 0})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("shortest", "longest"), [(0, 5), (-3, 5), (10, 5)])
def test_horizons_need_an_order(raises_clearly, shortest, longest):
    with raises_clearly(str(shortest), str(longest)):
        Horizon(shortest, longest)


def test_a_ramp_cannot_run_backwards(raises_clearly):
    with raises_clearly("ramp", "-1"):
        Horizon(10, 20, ramp=-1)
