"""The learned optimizers against the float64 twin, round by round, whatever transforms they run under."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.outer import features
from laconic.outer.learned import LearnedOptimizer
from laconic.workers import weighted_mean
from tests import reference as ref
from tests.outer.trees import QUICK, SHAPES, SMALL, assert_close, float64, random_deltas, random_theta, random_tree

ROUNDS = 20
LOPT_A, LAGG_A = LearnedOptimizer("lopt-a"), LearnedOptimizer("lagg-a", 4)
SPECS = [
    LOPT_A,
    LearnedOptimizer("lopt-a", time="paper"),
    LAGG_A,
    LearnedOptimizer("lagg-a", 8),
    LearnedOptimizer("lagg-a", 8, time="paper"),
    LearnedOptimizer("lopt"),
    LearnedOptimizer("lopt", time="paper"),
    LearnedOptimizer("lagg", 4),
    LearnedOptimizer("lagg", 8, time="paper"),
]


def name_of(spec: Any) -> str:
    return f"{spec.architecture}-{spec.deltas}-{spec.time}"


class Case:
    """One random problem for an architecture: φ, first weights, and the deltas of every round."""

    def __init__(self, spec: LearnedOptimizer, shapes: dict[str, tuple[int, ...]] = SHAPES, seed: int = 0):
        self.spec = spec
        self.theta = random_theta(spec.inputs, seed, spec.accumulates)
        self.params = random_tree(shapes, seed + 1)
        self.deltas = random_deltas(shapes, ROUNDS, spec.workers or 4, seed + 2)
        self.mean = {name: np.asarray(d.mean(axis=1, dtype=np.float64), np.float32) for name, d in self.deltas.items()}

    def at(self, t: int) -> tuple[dict, dict]:
        return {n: d[t] for n, d in self.mean.items()}, {n: d[t] for n, d in self.deltas.items()}

    def init(self) -> Any:
        return self.spec(jax.tree.map(jnp.asarray, self.theta)).tx.init(jax.tree.map(jnp.asarray, self.params))

    def twin(self) -> list[tuple[dict, dict, Any]]:
        """(weights, their change, state) after each round."""
        params = float64(self.params)
        kind: Any = self.spec.architecture.replace("-", "_")
        time: Any = self.spec.time
        outer = ref.Learned(kind, float64(self.theta), ref.ada_init(params) if self.spec.accumulates else 0, time)
        history = []
        for t in range(ROUNDS):
            mean, deltas = self.at(t)
            new = outer.step(params, float64(mean), float64(deltas))
            history.append((new, {name: new[name] - params[name] for name in new}, outer.state))
            params = new
        return history


def step(spec: LearnedOptimizer, theta: Any, params: Any, state: Any, mean: Any, deltas: Any, **knobs: Any) -> Any:
    updates, state = spec(theta, **knobs).tx.update(mean, state, params, worker_deltas=deltas)
    return optax.apply_updates(params, updates), updates, state


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


def assert_accumulators(ada: features.Ada, twin: ref.AdaState, name: str) -> None:
    col = ada.row if ada.col is None else ada.col
    shape = np.shape(ada.v)
    assert_close(ada.v, twin.v[name].reshape(shape), 1e-5, f"v of {name}")
    for i in range(3):
        assert_close(ada.m[i], twin.m[name][i].reshape(shape), 1e-5, f"m{i} of {name}")
        assert_close(ada.row[i], twin.row[name][i], 1e-5, f"row{i} of {name}")
        assert_close(col[i], twin.col[name][i], 1e-5, f"col{i} of {name}")


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_twenty_rounds_in_a_scan(spec):
    case = Case(spec)
    run = jax.jit(lambda *args: many_rounds(spec, *args), compiler_options=QUICK)
    assert_like_the_twin(run(case.theta, case.params, case.mean, case.deltas), case.twin(), lambda x, t: x[t])


@pytest.mark.parametrize("spec", [LOPT_A, LAGG_A], ids=name_of)
def test_three_runs_in_a_vmap(spec):
    cases = [Case(spec, SMALL | {"square": (5, 5)}, seed) for seed in (10, 20, 30)]
    stacked = [
        jax.tree.map(lambda *x: np.stack(x), *[getattr(case, part) for case in cases])
        for part in ("theta", "params", "mean", "deltas")
    ]
    found = jax.jit(jax.vmap(lambda *args: many_rounds(spec, *args)), compiler_options=QUICK)(*stacked)
    for i, case in enumerate(cases):
        assert_like_the_twin(found, case.twin(), lambda x, t, i=i: x[i, t])


@pytest.mark.parametrize("spec", [LOPT_A, LAGG_A], ids=name_of)
def test_round_by_round_under_jit_fully_optimised(spec):
    case = Case(spec, SMALL | {"kernel": (3, 3, 4, 6)}, seed=40)
    run = jax.jit(lambda *args: step(spec, case.theta, *args))
    params, state, seen = case.params, case.init(), []
    for t in range(ROUNDS):
        params, updates, state = run(params, state, *case.at(t))
        seen.append((params, updates, state))
    found = jax.tree.map(lambda *x: np.stack(x), *seen)
    assert_like_the_twin(found, case.twin(), lambda x, t: x[t])


def inputs_of(spec: LearnedOptimizer, param: Any, ada: features.Ada, mean: Any, deltas: Any, t: Any) -> jax.Array:
    """The whole [n, F] matrix: `split_inputs` of an identity says where each feature belongs."""
    view, fields = features.fields_of(param, ada, mean, deltas)
    w_param, w_row, w_col, w_time = features.split_inputs(jnp.eye(spec.inputs), deltas.shape[0])

    def place(x: jax.Array, w: jax.Array) -> jax.Array:
        x = jnp.broadcast_to(x, (x.shape[0], *fields.param.shape[1:]))
        x = x * features.normaliser(jnp.mean(jnp.square(x), axis=(1, 2, 3), keepdims=True))
        in_order = [features.from_view(view, row[None], param.shape).reshape(-1) for row in x]
        return jnp.stack(in_order, axis=1) @ w

    time = features.time_features(t, 1.0 if spec.time == "shifted" else 0.0)
    varying = place(features.parameter_features(fields), w_param)
    axes = place(features.axis_features(fields.row), w_row) + place(features.axis_features(fields.col), w_col)
    return varying + axes + (time @ w_time)[None, :]


@pytest.mark.parametrize("spec", [LOPT_A, LearnedOptimizer("lagg-a", 4, time="paper")], ids=name_of)
def test_every_feature_of_every_tensor(spec):
    case, state = Case(spec, seed=50), ref.ada_init(float64(random_tree(SHAPES, 51)))
    betas = ref.betas_of(float64(case.theta))

    def make(params: Any, state: Any, mean: Any, deltas: Any) -> tuple[Any, Any]:
        rates = features.decays(case.theta["decay"])
        ada = {name: features.accumulate(a, mean[name], rates) for name, a in state.ada.items()}
        seen = deltas if spec.gathers else {name: d[None] for name, d in mean.items()}
        args = lambda name: (params[name], ada[name], mean[name], seen[name], state.round)
        return {name: inputs_of(spec, *args(name)) for name in params}, state._replace(round=state.round + 1, ada=ada)

    run, found = jax.jit(make, compiler_options=QUICK), case.init()
    for t in range(ROUNDS):
        mean, deltas = case.at(t)
        matrices, found = run(case.params, found, mean, deltas)
        worker_deltas = float64(deltas) if spec.gathers else None
        time: Any = spec.time
        expected, state = ref.ada_features(
            float64(case.params), state, float64(mean), betas, t, time, worker_deltas=worker_deltas
        )
        matrices = jax.device_get(matrices)
        for name, x in expected.items():
            assert x.shape == (max(1, np.size(case.params[name])), spec.inputs)
            for column in range(spec.inputs):
                what = f"round {t}, column {column} of {name}"
                assert_close(matrices[name][:, column], x[:, column], 1e-5, what)


@pytest.mark.parametrize("spec", [LOPT_A, LAGG_A, LearnedOptimizer("lagg", 4)], ids=name_of)
def test_tiles_change_nothing(spec):
    shapes = {"vector": (20,), "tall": (16, 5), "wide": (4, 30), "kernel": (2, 3, 4, 6)}
    case, knobs = Case(spec, shapes, seed=60), {"untiled": 1 << 30, "tile 7": 7, "tile 64": 64}
    state = case.init()
    if spec.accumulates:
        history = case.twin()[-1][2]
        make = lambda name, ada: features.Ada(
            jnp.asarray(history.m[name], jnp.float32),
            jnp.asarray(history.v[name], jnp.float32),
            jnp.asarray(history.row[name], jnp.float32),
            None if ada.col is None else jnp.asarray(history.col[name], jnp.float32),
        )
        state = state._replace(round=jnp.int32(ROUNDS), ada={name: make(name, ada) for name, ada in state.ada.items()})

    def all_of_them(*args: Any) -> dict[str, Any]:
        return {name: step(spec, case.theta, *args, tile=tile)[1] for name, tile in knobs.items()}

    found = jax.jit(all_of_them, compiler_options=QUICK)(case.params, state, *case.at(0))
    assert_close(found["tile 7"], jax.device_get(found["untiled"]), 1e-6, "tile 7")
    assert_close(found["tile 64"], jax.device_get(found["untiled"]), 1e-6, "tile 64")


def test_odd_and_empty_shapes():
    shapes = {"one": (1,), "dot": (1, 1), "column": (5, 1), "thin": (1, 5, 1), "row": (1, 4)}
    empty = {"nothing": (0,), "no_rows": (0, 3), "no_layers": (0, 2, 3)}
    case = Case(LAGG_A, shapes, seed=70)
    expected, change, _ = case.twin()[0]
    params = case.params | {name: np.zeros(s, np.float32) for name, s in empty.items()}
    state = LAGG_A(case.theta).tx.init(jax.tree.map(jnp.asarray, params))
    mean, deltas = case.at(0)
    mean |= {name: np.zeros(s, np.float32) for name, s in empty.items()}
    deltas |= {name: np.zeros((4, *s), np.float32) for name, s in empty.items()}
    run = jax.jit(lambda *args: step(LAGG_A, case.theta, *args), compiler_options=QUICK)
    new, updates, state = run(params, state, mean, deltas)
    assert {name: new[name].shape for name in empty} == empty
    assert_close({name: new[name] for name in shapes}, expected, 1e-5)
    assert_close({name: updates[name] for name in shapes}, change, 1e-5)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(state))


def test_decay_offsets_are_exact_and_capped():
    offsets = np.array([0.0, 0.1, -0.2, 0.0, 0.5, 0.03, -0.01], np.float32)
    expected = 1 - ref.betas_of({"decay": offsets.astype(np.float64)})
    np.testing.assert_allclose(np.asarray(features.decays(jnp.asarray(offsets)), np.float64), expected, rtol=3e-7)
    assert features.decays(jnp.asarray(offsets))[4] == 1.0  # 0.1·e⁵ would be past 1, and β negative


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
    theta = LearnedOptimizer("lagg-a", 32, output_scale=0.01).init(jax.random.key(3))
    for name, fan_in, scale in [("w0", 70, 1.0), ("w1", 32, 1.0), ("w2", 32, 0.01)]:
        draws = np.asarray(theta[name], np.float64) * fan_in**0.5 / scale
        assert np.max(np.abs(draws)) <= 2.0 + 1e-6
        # A normal cut at two standard deviations has variance 1 − 4φ(2)/(2Φ(2) − 1) = 0.7737.
        assert abs(np.mean(draws**2) - 0.7737) < 5 * 0.75 / draws.size**0.5
        assert abs(np.mean(draws)) < 5 * 0.88 / draws.size**0.5
    for name in ("b0", "b1", "b2", "decay"):
        np.testing.assert_array_equal(theta[name], 0.0)


@pytest.mark.parametrize("spec", [LAGG_A, LearnedOptimizer("lagg", 4)], ids=name_of)
def test_an_absent_worker_is_replaced_by_the_mean_of_the_others(spec):
    case, weights = Case(spec, SMALL, seed=80), np.array([1.0, 0.0, 2.0, 0.5], np.float32)
    twin: Any = ref.lagg_a_update if spec.accumulates else ref.lagg_update
    twin_params, twin_state = float64(case.params), ref.ada_init(float64(case.params)) if spec.accumulates else 0

    @jax.jit
    def run(params: Any, state: Any, deltas: Any) -> Any:
        mean = weighted_mean(deltas, jnp.asarray(weights))
        updates, state = spec(case.theta).tx.update(mean, state, params, worker_deltas=deltas, weights=weights)
        return updates, state

    params, state = case.params, case.init()
    for t in range(3):
        deltas = case.at(t)[1]
        for d in deltas.values():
            d[1] = np.nan
        updates, state = run(params, state, deltas)
        new, twin_state = twin(
            float64(case.theta), twin_params, twin_state, float64(deltas), weights=list(map(float, weights))
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
            before, twin, float64(mean), ref.betas_of(float64(case.theta)), t, worker_deltas=float64(deltas)
        )
        change = {n: x - before[n] for n, x in ref.mlp_step(float64(case.theta), before, features_n).items()}
        assert {x.dtype for x in jax.tree.leaves((params, updates))} == {jnp.dtype(jnp.bfloat16)}
        assert_close(updates, change, 2.0**-8)  # half a unit in bfloat16's last place
        for name in before:
            assert_accumulators(state.ada[name], twin, name)


def test_scale_and_weight_decay():
    case = Case(LOPT_A, SMALL, seed=100)
    state, args = case.init(), case.at(0)

    def both(params: Any) -> Any:
        plain = step(LOPT_A, case.theta, params, state, *args)[1]
        return plain, step(LOPT_A, case.theta, params, state, *args, scale=0.5, weight_decay=0.01)[1]

    plain, tuned = jax.jit(both, compiler_options=QUICK)(case.params)
    expected = {name: 0.5 * x - 0.01 * float64(case.params)[name] for name, x in float64(plain).items()}
    assert_close(tuned, expected, 1e-6)
    assert not np.allclose(tuned["wide"], plain["wide"])


def test_it_survives_a_chain():
    case, weights = Case(LAGG_A, SMALL, seed=110), jnp.array([1.0, 0.0, 1.0, 1.0])
    plain = LAGG_A(case.theta).tx
    chained = optax.chain(plain, optax.clip(4e-4))
    mean, deltas = jax.tree.map(jnp.asarray, case.at(0))

    @jax.jit
    def both(params: Any) -> Any:
        seen = {"worker_deltas": deltas, "weights": weights}
        alone, _ = plain.update(mean, plain.init(params), params, **seen)
        return alone, chained.update(mean, chained.init(params), params, **seen)[0]

    alone, clipped = both(case.params)
    assert max(float(jnp.max(jnp.abs(x))) for x in alone.values()) > 4e-4
    for name, x in alone.items():
        np.testing.assert_array_equal(clipped[name], np.clip(x, np.float32(-4e-4), np.float32(4e-4)))


def test_what_cannot_work_says_so(raises_clearly):
    case = Case(LAGG_A, SMALL)
    mean, deltas = case.at(0)
    tx, state = LAGG_A(case.theta).tx, case.init()
    with raises_clearly("lagg-a", "needs the parameters"):
        tx.update(mean, state, worker_deltas=deltas)
    with raises_clearly("lagg-a", "worker_deltas"):
        tx.update(mean, state, case.params)
    with raises_clearly("K = 4", "got 3"):
        tx.update(mean, state, case.params, worker_deltas={name: d[:3] for name, d in deltas.items()})
    with raises_clearly("not of lopt-a", "w0 is (42, 32), not (39, 32)"):
        LOPT_A(case.theta)
    with raises_clearly("b2 is missing"):
        LAGG_A({name: x for name, x in case.theta.items() if name != "b2"})
    with raises_clearly("decay is (7,), not known"):
        LearnedOptimizer("lopt")(LearnedOptimizer("lopt").init(jax.random.key(0)) | {"decay": jnp.zeros(7)})


def test_architectures_that_do_not_exist_say_so(raises_clearly):
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
