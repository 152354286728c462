"""What every outer optimizer of the registry promises, whatever it does."""

import contextlib
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import Client, Message
from laconic.compress import parse_compressor
from laconic.outer import OUTER, OuterOptimizer
from laconic.workers import Simulated
from tests.outer.trees import QUICK, SMALL, assert_close, random_tree

K, ROUNDS, COPIES = 8, 150, 3
LEARNED = {"lopt-a", "lagg-a", "lopt", "lagg"}
IDLE: Any = Client(lambda shared: (), lambda *seen: None)  # pyright: ignore[reportArgumentType]
SERVER = Simulated(IDLE, parse_compressor("dense"))


@pytest.fixture(params=list(OUTER))
def name(request):
    # optax's Adam raises β to an integer power, which strict promotion forbids.
    strict = (
        contextlib.nullcontext()
        if request.param != "optax"
        else jax.numpy_dtype_promotion("standard")
    )
    with strict:
        yield request.param


class Subject:
    """An outer optimizer with its compiled functions, and how often they were traced."""

    def __init__(self, outer: OuterOptimizer):
        self.outer, self.traces = outer, 0
        self.step = jax.jit(self._step, compiler_options=QUICK)
        self.run = jax.jit(jax.vmap(self._run), compiler_options=QUICK)

    def update(self, tx: Any, params: Any, state: Any, deltas_K: Any, weights_K: Any) -> Any:
        seen = SERVER.combine(Message(deltas_K, (), weights_K), self.outer.combine, params)
        extra = {"worker_deltas": seen.worker_deltas, "weights": seen.weights_K}
        if self.outer.combine == "norms":
            extra["worker_squares"] = seen.worker_squares
        return tx.update(seen.mean_delta, state, params, **extra)

    def _step(self, params: Any, state: Any, deltas_K: Any, weights_K: Any) -> Any:
        self.traces += 1
        return self.update(self.outer.tx, params, state, deltas_K, weights_K)

    def _run(self, params: Any, targets_K: Any) -> Any:
        """Rounds on ½|w − target|² of each worker → weights and states of every round."""

        def body(carry: Any, _: None) -> Any:
            params, state = carry
            updates, state = self.update(
                self.outer.tx, params, state, pull(params, targets_K), jnp.ones(K)
            )
            params = optax.apply_updates(params, updates)
            return (params, state), (params, state)

        return jax.lax.scan(body, (params, self.outer.tx.init(params)), length=ROUNDS)[1]


@cache
def subject(name: str) -> Subject:
    return Subject(OUTER[name].make())


def pull(params: Any, targets_K: Any) -> Any:
    """A worker's Δ: a tenth of the way to its own target."""
    return jax.tree.map(lambda p, t: 0.1 * (p[None] - t), params, targets_K)


def problem(seed: int) -> tuple[Any, Any]:
    around = random_tree(SMALL, seed)
    noise = random_tree({name: (K, *s) for name, s in SMALL.items()}, seed + 1, 0.1)
    return random_tree(SMALL, seed + 2), {name: around[name][None] + noise[name] for name in SMALL}


def problems() -> tuple[Any, Any]:
    return jax.tree.map(lambda *x: np.stack(x), *[problem(10 * i) for i in range(COPIES)])


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def test_rounds_inside_a_scan(name):
    start, targets = problems()
    params, states = jax.device_get(subject(name).run(start, targets))
    for leaf in jax.tree.leaves((params, states)):
        assert np.all(np.isfinite(leaf))
    if name in LEARNED:  # with random weights nothing more is promised
        return

    def loss(tree: Any, i: int) -> float:
        return sum(float(np.mean((tree[n] - targets[n][i]) ** 2)) for n in SMALL)

    for i in range(COPIES):
        end = {n: x[i, -1][None] for n, x in params.items()}
        assert loss(end, i) < 0.9 * loss({n: x[i][None] for n, x in start.items()}, i)


def test_copies_in_a_vmap_are_the_runs_alone(name):
    start, targets = problems()
    params, _ = jax.device_get(subject(name).run(start, targets))
    for i in range(COPIES):
        now, goal = jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), (start, targets))
        state = subject(name).outer.tx.init(now)
        for t in range(3):
            updates, state = subject(name).step(now, state, pull(now, goal), jnp.ones(K))
            now = optax.apply_updates(now, updates)
            assert_close(now, {n: x[i, t] for n, x in params.items()}, 1e-6, f"copy {i}, round {t}")


def test_no_second_trace_and_the_same_bits_again(name):
    member = Subject(OUTER[name].make())
    params, targets = jax.tree.map(jnp.asarray, problem(100))
    state = member.outer.tx.init(params)
    first = member.step(params, state, pull(params, targets), jnp.ones(K))
    again = member.step(params, state, pull(params, targets), jnp.ones(K))
    member.step(
        optax.apply_updates(params, first[0]), first[1], pull(params, targets), 2.0 * jnp.ones(K)
    )
    assert member.traces == 1
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_structure_shape_and_dtype_never_change(name, dtype):
    tx, (params, targets) = subject(name).outer.tx, problem(0)
    params, targets = jax.tree.map(lambda x: jnp.asarray(x, dtype), (params, targets))
    deltas = pull(params, targets)
    state = jax.eval_shape(tx.init, params)
    updates, after = jax.eval_shape(
        lambda p, s, d: subject(name).update(tx, p, s, d, jnp.ones(K)), params, state, deltas
    )
    assert shapes(updates) == shapes(params)
    assert shapes(after) == shapes(state)
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_a_chain_passes_everything_on(name):
    params, targets = jax.tree.map(jnp.asarray, problem(0))
    member, weights = subject(name), jnp.array([1.0, 0, 1, 1, 2, 1, 1, 1])
    chained = optax.chain(member.outer.tx, optax.scale(0.5))
    run = jax.jit(
        lambda p, d: member.update(chained, p, chained.init(p), d, weights)[0],
        compiler_options=QUICK,
    )
    alone, _ = member.step(params, member.outer.tx.init(params), pull(params, targets), weights)
    assert_close(
        run(params, pull(params, targets)), {n: 0.5 * np.asarray(x) for n, x in alone.items()}, 1e-6
    )


def test_an_absent_worker_changes_nothing(name):
    params, targets = jax.tree.map(jnp.asarray, problem(0))
    member, weights, absent = (
        subject(name),
        jnp.array([1.0, 0, 1, 1, 2, 1, 0, 1]),
        jnp.array([1, 6]),
    )
    state, deltas = member.outer.tx.init(params), pull(params, targets)
    expected = member.step(params, state, deltas, weights)
    for garbage in (jnp.nan, jnp.inf, 1e30):
        spoilt = jax.tree.map(lambda d, garbage=garbage: d.at[absent].set(garbage), deltas)
        found = member.step(params, state, spoilt, weights)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)
    # And the weights do count: dropping another worker gives other parameters, or at least another
    # state where a step has only a sign.
    other = member.step(params, state, deltas, weights.at[0].set(0.0))
    assert any(
        np.any(a != b)
        for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(expected), strict=True)
    )


def test_state_is_arrays_and_nothing_else(name):
    params, targets = jax.tree.map(jnp.asarray, problem(0))
    member = subject(name)
    state = member.outer.tx.init(params)
    _, after = member.step(params, state, pull(params, targets), jnp.ones(K))
    for leaf in jax.tree.leaves((state, after)):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype in (jnp.float32, jnp.int32)


def test_the_registry_says_what_it_holds(name):
    entry = OUTER[name]
    outer = entry.make()
    assert isinstance(outer, OuterOptimizer)
    assert entry.summary.strip()
    assert "\n" not in entry.summary
    assert (outer.combine == "gather") == name.startswith("lagg")
    assert outer.workers == (8 if name.startswith("lagg") else None)
