"""The learned optimizers against the float64 twin, round by round, whatever transforms they run
under."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.outer.learned import LearnedOptimizer
from laconic.workers import weighted_mean
from tests import reference as ref
from tests.outer.cases import LAGG_A, LOPT_A, ROUNDS, Case, assert_accumulators, name_of, step
from tests.outer.trees import QUICK, SMALL, assert_close, float64

SPECS = [
    LOPT_A,
    LearnedOptimizer("lopt-a", time="paper"),
    LAGG_A,
    LearnedOptimizer("lagg-a", 8, time="paper"),
    LearnedOptimizer("lopt"),
    LearnedOptimizer("lopt", time="paper"),
    LearnedOptimizer("lagg", 4),
    LearnedOptimizer("lagg", 8, time="paper"),
]


def many_rounds(spec: LearnedOptimizer, theta: Any, params: Any, mean_T: Any, deltas_T: Any) -> Any:
    """A scan over rounds that keeps what each of them left behind."""

    def body(carry: Any, now: Any) -> Any:
        new, updates, state = step(spec, theta, *carry, *now)
        return (new, state), (new, updates, state)

    return jax.lax.scan(body, (params, spec(theta).tx.init(params)), (mean_T, deltas_T))[1]


def assert_like_the_twin(found: Any, history: list, where: Any) -> None:
    """`found` is (weights, changes, state); `where(x, t)` picks round t."""
    params, updates, state = jax.device_get(found)
    for t, (expected, change, twin) in enumerate(history):
        pick = lambda tree, t=t: {name: where(x, t) for name, x in tree.items()}
        assert_close(pick(params), expected, 1e-5, f"round {t} weights")
        assert_close(pick(updates), change, 1e-5, f"round {t} change")
        assert int(where(state.round, t)) == t + 1
        if isinstance(twin, ref.AdaState):
            for name in expected:
                ada = jax.tree.map(lambda x, t=t: where(x, t), state.ada[name])
                assert_accumulators(ada, twin, name)


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_twenty_rounds_in_a_scan(spec):
    case = Case(spec)
    run = jax.jit(lambda *args: many_rounds(spec, *args), compiler_options=QUICK)
    assert_like_the_twin(
        run(case.theta, case.params, case.mean, case.deltas), case.twin(), lambda x, t: x[t]
    )


@pytest.mark.parametrize("spec", [LOPT_A, LAGG_A], ids=name_of)
def test_three_runs_in_a_vmap(spec):
    cases = [Case(spec, SMALL | {"square": (5, 5)}, seed) for seed in (10, 20, 30)]
    stacked = [
        jax.tree.map(lambda *x: np.stack(x), *[getattr(case, part) for case in cases])
        for part in ("theta", "params", "mean", "deltas")
    ]
    found = jax.jit(jax.vmap(lambda *args: many_rounds(spec, *args)), compiler_options=QUICK)(
        *stacked
    )
    for i, case in enumerate(cases):
        assert_like_the_twin(found, case.twin(), lambda x, t, i=i: x[i, t])


def test_round_by_round_under_jit_fully_optimised():
    case = Case(LAGG_A, {"vector": (7,), "kernel": (2, 33, 34)}, seed=40)
    run = jax.jit(lambda *args: step(LAGG_A, case.theta, *args))
    params, state, seen = case.params, case.init(), []
    for t in range(ROUNDS):
        params, updates, state = run(params, state, *case.at(t))
        seen.append((params, updates, state))
    found = jax.tree.map(lambda *x: np.stack(x), *seen)
    assert_like_the_twin(found, case.twin(), lambda x, t: x[t])


def test_odd_and_empty_shapes():
    shapes = {"one": (1,), "dot": (1, 1), "column": (5, 1), "thin": (1, 5, 1), "row": (1, 4)}
    empty = {"nothing": (0,), "no_rows": (0, 3), "no_layers": (0, 2, 3)}
    case = Case(LAGG_A, shapes, seed=70)
    expected, change, _ = case.twin()[0]
    params = case.params | {name: np.zeros(s, np.float32) for name, s in empty.items()}
    state = jax.jit(LAGG_A(case.theta).tx.init, compiler_options=QUICK)(params)
    mean, deltas = case.at(0)
    mean |= {name: np.zeros(s, np.float32) for name, s in empty.items()}
    deltas |= {name: np.zeros((4, *s), np.float32) for name, s in empty.items()}
    run = jax.jit(lambda *args: step(LAGG_A, case.theta, *args), compiler_options=QUICK)
    new, updates, state = run(params, state, mean, deltas)
    assert {name: new[name].shape for name in empty} == empty
    assert_close({name: new[name] for name in shapes}, expected, 1e-5)
    assert_close({name: updates[name] for name in shapes}, change, 1e-5)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(jax.device_get(state)))


def test_paper_counts():
    specs = [LearnedOptimizer("lagg-a", K) for K in (8, 16, 32)]
    assert LOPT_A.inputs == 39
    assert [spec.inputs for spec in specs] == [46, 54, 70]
    assert [spec.weights for spec in (LOPT_A, *specs)] == [2402, 2626, 2882, 3394]
    for spec in (*specs, *SPECS):
        theta = jax.eval_shape(spec.init, jax.random.key(0))
        assert sum(x.size for name, x in theta.items() if name != "decay") == spec.weights
        kind: Any = spec.architecture.replace("-", "_")
        assert spec.inputs == ref.count_inputs(kind, spec.deltas)
        assert ("decay" in theta) == spec.accumulates


def test_first_weights_are_truncated_normals():
    spec = LearnedOptimizer("lagg-a", 32, output_scale=0.01)
    theta = jax.jit(spec.init, compiler_options=QUICK)(jax.random.key(3))
    for name, fan_in, scale in [("w0", 70, 1.0), ("w1", 32, 1.0), ("w2", 32, 0.01)]:
        draws = np.asarray(theta[name], np.float64) * fan_in**0.5 / scale
        assert np.max(np.abs(draws)) <= 2.0 + 1e-6
        # A normal cut at two standard deviations has variance 1 − 4φ(2)/(2Φ(2) − 1) = 0.7737.
        assert abs(np.mean(draws**2) - 0.7737) < 5 * 0.75 / draws.size**0.5
        assert abs(np.mean(draws)) < 5 * 0.88 / draws.size**0.5
    for name in ("b0", "b1", "b2", "decay"):
        np.testing.assert_array_equal(theta[name], 0.0)


@pytest.mark.parametrize("fill", ["mean", "zero"])
@pytest.mark.parametrize("spec", [LAGG_A, LearnedOptimizer("lagg", 4)], ids=name_of)
def test_an_absent_worker_is_replaced_by_the_mean_of_the_others_or_by_nothing(spec, fill):
    case, weights = Case(spec, SMALL, seed=80), np.array([1.0, 0.0, 2.0, 0.5], np.float32)
    twin: Any = ref.lagg_a_update if spec.accumulates else ref.lagg_update
    twin_params, twin_state = (
        float64(case.params),
        ref.ada_init(float64(case.params)) if spec.accumulates else 0,
    )

    @partial(jax.jit, compiler_options=QUICK)
    def run(params: Any, state: Any, deltas: Any) -> Any:
        mean = weighted_mean(deltas, jnp.asarray(weights))
        tx = spec(case.theta, fill=fill).tx
        return tx.update(mean, state, params, worker_deltas=deltas, weights=weights)

    params, state = case.params, case.init()
    for t in range(3):
        deltas = case.at(t)[1]
        for d in deltas.values():
            d[1] = np.nan
        updates, state = run(params, state, deltas)
        absent = {"weights": list(map(float, weights)), "fill": fill}
        new, twin_state = twin(
            float64(case.theta), twin_params, twin_state, float64(deltas), **absent
        )
        assert_close(updates, {name: new[name] - twin_params[name] for name in new}, 1e-5)
        params, twin_params = optax.apply_updates(params, updates), new


def test_the_twin_fills_an_absent_slot():
    deltas = {"w": np.array([[1.0, 2.0], [np.nan, 7.0], [4.0, 8.0]])}
    np.testing.assert_array_equal(ref.fill_absent(deltas, [1, 0, 2])["w"], [[1, 2], [3, 6], [4, 8]])


def test_bfloat16_weights_keep_their_dtype_and_exact_accumulators():
    case = Case(LAGG_A, SMALL, seed=90)
    bf16 = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), tree)
    params = bf16(case.params)
    state = LAGG_A(case.theta).tx.init(params)
    twin = ref.ada_init(float64(case.params))
    run = jax.jit(lambda *args: step(LAGG_A, case.theta, *args), compiler_options=QUICK)
    for t in range(5):
        mean, deltas = map(bf16, case.at(t))
        before = float64(params)
        params, updates, state = run(params, state, mean, deltas)
        features_n, twin = ref.ada_features(
            before,
            twin,
            float64(mean),
            ref.betas_of(float64(case.theta)),
            t,
            worker_deltas=float64(deltas),
        )
        change = {
            n: x - before[n]
            for n, x in ref.mlp_step(float64(case.theta), before, features_n).items()
        }
        assert {x.dtype for x in jax.tree.leaves((params, updates))} == {jnp.dtype(jnp.bfloat16)}
        assert_close(updates, change, 2.0**-8)  # half a unit in bfloat16's last place
        for name in before:
            assert_accumulators(state.ada[name], twin, name)


def test_scale_and_weight_decay():
    case = Case(LOPT_A, SMALL, seed=100)
    state, args = case.init(), case.at(0)

    def both(params: Any) -> Any:
        plain = step(LOPT_A, case.theta, params, state, *args)[1]
        return plain, step(LOPT_A, case.theta, params, state, *args, scale=0.5, weight_decay=0.01)[
            1
        ]

    plain, tuned = jax.jit(both, compiler_options=QUICK)(case.params)
    expected = {
        name: 0.5 * x - 0.01 * float64(case.params)[name] for name, x in float64(plain).items()
    }
    assert_close(tuned, expected, 1e-6)
    assert not np.allclose(tuned["wide"], plain["wide"])


def test_it_survives_a_chain():
    case, weights = Case(LAGG_A, SMALL, seed=110), jnp.array([1.0, 0.0, 1.0, 1.0])
    plain = LAGG_A(case.theta).tx
    chained = optax.chain(plain, optax.clip(4e-4))
    mean, deltas = jax.tree.map(jnp.asarray, case.at(0))

    @partial(jax.jit, compiler_options=QUICK)
    def both(params: Any) -> Any:
        seen = {"worker_deltas": deltas, "weights": weights}
        alone, _ = plain.update(mean, plain.init(params), params, **seen)
        return alone, chained.update(mean, chained.init(params), params, **seen)[0]

    alone, clipped = both(case.params)
    assert max(float(jnp.max(jnp.abs(x))) for x in alone.values()) > 4e-4
    for name, x in alone.items():
        np.testing.assert_array_equal(
            clipped[name], np.clip(x, np.float32(-4e-4), np.float32(4e-4))
        )


def test_what_cannot_work_says_so(raises_clearly):
    case = Case(LAGG_A, SMALL)
    mean, deltas = case.at(0)
    tx, state = LAGG_A(case.theta).tx, case.init()
    with raises_clearly("lagg-a", "needs the parameters"):
        tx.update(mean, state, worker_deltas=deltas)
    with raises_clearly("lagg-a", "worker_deltas"):
        tx.update(mean, state, case.params)
    with raises_clearly("K = 4", "got 3"):
        tx.update(
            mean, state, case.params, worker_deltas={name: d[:3] for name, d in deltas.items()}
        )
    with raises_clearly("fill", "ones", "mean, zero"):
        LAGG_A(case.theta, fill="ones")
    with raises_clearly("not of lopt-a", "w0 is (42, 32), not (39, 32)"):
        LOPT_A(case.theta)
    with raises_clearly("b2 is missing"):
        LAGG_A({name: x for name, x in case.theta.items() if name != "b2"})
    with raises_clearly("decay is (7,), not known"):
        LearnedOptimizer("lopt")(
            LearnedOptimizer("lopt").init(jax.random.key(0)) | {"decay": jnp.zeros(7)}
        )


def test_architectures_that_do_not_exist_say_so(raises_clearly):
    with raises_clearly("widest counts a tensor's inputs", "-1"):
        LearnedOptimizer("lopt-a", widest=-1)
    with raises_clearly("deepest counts a model's matrices", "-2"):
        LearnedOptimizer("lopt-a", deepest=-2)
    with raises_clearly("unknown architecture 'lopt-b'", "Did you mean 'lopt-a'?"):
        LearnedOptimizer("lopt-b")
    with raises_clearly("unknown time features 'papers'", "'paper'"):
        LearnedOptimizer(time="papers")
    with raises_clearly("lagg-a", "needs workers=K", "None"):
        LearnedOptimizer("lagg-a")
    with raises_clearly("needs workers=K", "0"):
        LearnedOptimizer("lagg", 0)
    with raises_clearly("lopt-a", "leave workers out"):
        LearnedOptimizer("lopt-a", 8)
