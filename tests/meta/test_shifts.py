"""Evolution strategies on what a head decides: shifts are what they say, and estimates are the
gradient where the loss depends on decisions alone."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer
from laconic.errors import LaconicError
from laconic.meta.estimator import Horizon
from laconic.meta.problem import Inner, InnerProblem
from laconic.meta.rows import Rows, packed_relative
from laconic.meta.shifts import DONE, SHIFTS, VECTOR, Watchable, shifted, shifts
from laconic.meta.train import MetaTrainer, Outer
from laconic.outer import relative
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.relative import RelativeOptimizer
from laconic.relative import INPUTS
from laconic.tasks.catalog import make_task
from tests.outer.trees import QUICK

SPEC = RelativeOptimizer(hidden=3)
TENSORS, PAIRS, CHUNKS = 64, 250, 30
SHORT = Horizon(4, 10)
WEIGHTS = np.array([1.0, -0.5])  # of the head's first two outputs in the loss
FAMILY = Inner(
    "digits-mlp:width=8", 4, 2, 8, LocalOptimizer("sgd", 0.2), spread=2.0, objective="train"
)


def drawn(spec: RelativeOptimizer) -> Any:
    rng = np.random.default_rng(7)
    return {n: (0.5 * rng.normal(size=x)).astype(np.float32) for n, x in spec.shapes.items()}


THETA = drawn(SPEC)


def inputs_of(key: jax.Array, tensors: int = TENSORS) -> jax.Array:
    """Random inputs, of which two are a share and a yes or no."""
    found = 0.5 * jax.random.normal(key, (tensors, len(INPUTS)))
    share = jax.random.uniform(jax.random.fold_in(key, 1), (tensors,))
    found = found.at[:, INPUTS.index(DONE)].set(share)
    return found.at[:, INPUTS.index(VECTOR)].set((jnp.arange(tensors) % 2).astype(jnp.float32))


def decisions(theta: Any, x: Any) -> np.ndarray:
    """What the head decides before its last tanh, in float64."""
    w0, b0, w1, b1 = (np.asarray(theta[name], np.float64) for name in ("w0", "b0", "w1", "b1"))
    return np.tanh(np.asarray(x, np.float64) @ w0 + b0) @ w1 + b1


# A run is its inputs, and its loss a weighted mean of what the head decides of them, and luck.
def begin(theta: Any, key: jax.Array) -> dict[str, jax.Array]:
    return {"x": inputs_of(key), "key": jax.random.fold_in(key, 2)}


def unroll(theta: Any, run: Any, items: jax.Array) -> tuple[Any, jax.Array]:
    z = jnp.tanh(run["x"] @ theta["w0"] + theta["b0"][None]) @ theta["w1"] + theta["b1"][None]
    return run, 10 + jnp.mean(z[:, :2] @ jnp.asarray(WEIGHTS, jnp.float32)) + items


def draw(run: Any, rounds: int) -> jax.Array:
    return jax.random.normal(run["key"], (rounds,))


TOY = Watchable(SPEC, InnerProblem(begin, draw, unroll), lambda run: run["x"])


def test_a_shift_moves_what_the_head_decides_and_nothing_else():
    x = inputs_of(jax.random.key(0))
    shift = np.array([s.far for s in SHIFTS]) * np.random.default_rng(0).normal(size=len(SHIFTS))
    share, vector = (np.asarray(x[:, INPUTS.index(name)], float) for name in (DONE, VECTOR))
    basis = (np.ones(TENSORS), share - 0.5, vector - 0.5)
    expected = np.zeros((TENSORS, 5))
    for (output, along, _), by in zip(SHIFTS, shift, strict=True):
        expected[:, output] += by * basis[along]
    wider = shifted(SPEC, THETA, jnp.asarray(shift, jnp.float32))
    replace(SPEC, hidden=SPEC.hidden + 2).check(wider)
    moved = decisions(wider, x) - decisions(THETA, x)
    np.testing.assert_allclose(moved, expected, atol=0.01)
    unmoved = shifted(SPEC, THETA, jnp.zeros(len(SHIFTS)))
    same, plain = (relative.head(each, x)[0] for each in (unmoved, THETA))
    np.testing.assert_allclose(same, plain, atol=1e-6)


def test_the_mean_estimate_is_the_gradient_where_the_loss_is_of_decisions():
    settings: dict[str, Any] = {"pairs": PAIRS, "truncation": 2, "horizon": SHORT}
    estimator = shifts(TOY, **settings)

    def chunk(key: jax.Array) -> Any:
        state = estimator.init(THETA, key)
        gradient, _, _ = estimator.estimate(THETA, state, jax.random.fold_in(key, 1))
        return gradient, state.runs["x"][:, 0]

    keys = jax.random.split(jax.random.key(3), CHUNKS)
    gradients, x = jax.jit(lambda keys: jax.lax.map(chunk, keys), compiler_options=QUICK)(keys)
    rng = np.random.default_rng(1)
    for _ in range(6):
        way = {name: rng.normal(size=v.shape) for name, v in THETA.items()}
        found = sum((np.asarray(gradients[n]) * way[n]).reshape(CHUNKS, -1).sum(1) for n in way)
        ends = [
            decisions({n: np.asarray(v, float) + h * way[n] for n, v in THETA.items()}, x)
            for h in (1e-5, -1e-5)
        ]
        true = ((ends[0] - ends[1])[..., :2] @ WEIGHTS).mean() / 2e-5
        error = np.std(found, ddof=1) / CHUNKS**0.5
        size = np.sqrt(sum(np.sum(np.square(v)) for v in way.values()))
        assert error < 0.02 * size  # so that the next line means something
        assert abs(np.mean(found) - true) < 4 * error + 0.02 * abs(true)


def test_groups_hang_on_their_own_keys_and_shifts_last_for_a_run():
    many, few = (shifts(TOY, pairs=n, truncation=3, horizon=SHORT) for n in (6, 4))
    key = jax.random.key(5)
    states = [each.init(THETA, key) for each in (many, few)]
    np.testing.assert_array_equal(states[0].shift[:4], states[1].shift)
    state, resets = states[0], 0
    step = jax.jit(many.estimate, compiler_options=QUICK)
    for t in range(8):
        gradient, new, metrics = step(THETA, state, jax.random.fold_in(key, t))
        again = step(THETA, state, jax.random.fold_in(key, t))[0]
        jax.tree.map(np.testing.assert_array_equal, gradient, again)
        over = np.asarray(metrics.reset)
        same = np.all(np.asarray(new.shift) == np.asarray(state.shift), axis=1)
        np.testing.assert_array_equal(same, ~over)
        np.testing.assert_array_equal(new.looks, np.where(over, 0, np.asarray(state.looks) + 1))
        state, resets = new, resets + over.sum()
    assert resets >= 6


def test_what_is_watched_is_what_the_head_sees(monkeypatch):
    params = {"b": jnp.arange(5.0), "w": jax.random.normal(jax.random.key(0), (9, 13))}
    draws = {n: jax.random.normal(jax.random.key(1), (4, 3, *v.shape)) for n, v in params.items()}
    leaves, tree = jax.tree.flatten(params)
    layout = Rows(tree, tuple(leaf.shape for leaf in leaves))
    told = (jnp.float32(3), jnp.float32(2), jnp.float32(9))
    packed = packed_relative(SPEC, THETA, layout, told, jnp.float32(1), watched=True).tx
    plain = SPEC(THETA, workers=3, local_steps=2, rounds=9).tx
    seen: list[Any] = []
    decide = relative.head
    monkeypatch.setattr(relative, "head", lambda t, x: seen.append(x) or decide(t, x))
    rows: Any = layout.pack(params)
    state, own = packed.init(rows), plain.init(params)
    for t in range(4):
        deltas = {name: draw[t] for name, draw in draws.items()}
        mean = {name: delta.mean(0) for name, delta in deltas.items()}
        each = jnp.stack([layout.pack({n: d[k] for n, d in deltas.items()}) for k in range(3)])
        more = {"worker_deltas": each, "weights": jnp.ones(3)}
        found: tuple[Any, Any] = packed.update(layout.pack(mean), state, rows, **more)
        step, state = found
        expected: Any
        expected, own = plain.update(mean, own, params, worker_deltas=deltas)
        np.testing.assert_allclose(state.inputs, seen[-1], rtol=1e-4, atol=1e-5)
        for name, x in layout.unpack(step).items():
            np.testing.assert_allclose(x, expected[name], rtol=1e-4, atol=1e-5)


def test_a_family_is_trained_with_it():
    outer = Outer(steps=4, estimator="shifts", pairs=4, truncation=2, sigma=1.0, horizon=SHORT)
    trainer = MetaTrainer([make_task(FAMILY.task)], SPEC, [FAMILY], outer)
    with jax.numpy_dtype_promotion("standard"):  # optax raises β to an integer power
        state = trainer.start(0)
        first = jax.device_get(state.theta)
        for _ in range(3):
            state, progress = trainer.advance(state)
            assert np.all(np.isfinite(progress.loss))
            assert np.all(np.asarray(progress.norm) > 0)
    moved = {name: np.abs(np.asarray(state.theta[name]) - first[name]).max() for name in first}
    assert 0 < moved["w1"] < 0.1
    assert 0 < moved["b1"] < 0.1


@pytest.mark.parametrize(
    ("learned", "inner", "words"),
    [
        (LearnedOptimizer("lopt-a"), FAMILY, "lopt-r without gates"),
        (RelativeOptimizer(gates=4), FAMILY, "lopt-r without gates"),
        (
            RelativeOptimizer(inputs=tuple(x for x in INPUTS if x != DONE)),
            FAMILY,
            "needs lopt-r's input 'share of training done'",
        ),
        (SPEC, replace(FAMILY, compress="topk:0.1"), "compress 'topk:0.1'"),
        (SPEC, replace(FAMILY, spread=0.0), "has spread 0"),
    ],
)
def test_what_has_no_head_to_shift_is_refused(learned, inner, words):
    outer = Outer(steps=2, estimator="shifts", pairs=2, truncation=2, sigma=1.0, horizon=SHORT)
    with pytest.raises(LaconicError, match=words):
        MetaTrainer([make_task(inner.task)], learned, [inner], outer)


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"trained": ("w1",)}, "leave trained out"), ({"sigma": 0.03}, "1 or so")],
)
def test_what_shifts_have_no_use_for_is_refused(changed, words):
    with pytest.raises(LaconicError, match=words):
        Outer(**{"estimator": "shifts", "sigma": 1.0, **changed})
