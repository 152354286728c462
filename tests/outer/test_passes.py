"""The three kernels over a whole model, run by Pallas's interpreter on the CPU, against the twin in
float64."""

import logging
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.outer import learned, passes, perceptron, stacks
from laconic.outer.kernels import Tuning
from laconic.outer.layout import Cut, Geometry
from laconic.outer.learned import LearnedOptimizer
from tests import reference as ref
from tests.outer.cases import CUT, LOPT_A, Case, assert_accumulators, step
from tests.outer.trees import QUICK, assert_close, float64, text_for_cuda

# Tall and wide, twice the same shape, kept axes before and between the factored ones and after
# them, single ones.
SHAPES = {
    str(shape): shape
    for shape in [(20, 37), (37, 20), (2, 3, 4, 6), (24, 3, 8), (9, 5, 2), (7,), ()]
}
SHAPES |= {"again": (20, 37), "even": (8, 32), "longer": (5,)}
FEW: dict[str, tuple[int, ...]] = {"wide": (7, 40), "kernel": (2, 5, 4), "vector": (6,)}
LAGG_A = {
    K: LearnedOptimizer("lagg-a", K, time="paper" if K == 3 else "shifted") for K in (1, 3, 8)
}


def run_of(spec: LearnedOptimizer, **knobs: Any) -> Any:
    knobs = {"path": "passes", "tuning": CUT, **knobs}
    return jax.jit(lambda *args: step(spec, *args, **knobs), compiler_options=QUICK)


def assert_rounds(case: Case, rounds: int, rtol: float, **knobs: Any) -> None:
    run, params, state = run_of(case.spec, **knobs), case.params, case.init()
    for t, (_, change, twin) in enumerate(case.twin()[:rounds]):
        params, updates, state = run(case.theta, params, state, *case.at(t))
        assert_close(updates, change, rtol, f"round {t}")
        for name in case.params:
            assert_accumulators(state.ada[name], twin, name)


@pytest.mark.slow
def test_the_passes_step_like_the_twin_on_every_kind_of_tensor():
    assert_rounds(Case(LOPT_A, SHAPES, seed=300), 3, 2e-6, tuning=CUT._replace(precision="float32"))


def test_the_passes_step_like_the_twin():
    case = Case(LAGG_A[3], {"wide": (7, 40), "even": (8, 32), "vector": (6,)}, seed=300)
    assert_rounds(case, 2, 2e-6, tuning=CUT._replace(precision="float32"))


@pytest.mark.parametrize("K", [1, 8])
def test_any_number_of_workers_and_large_tensors_where_they_are(K, monkeypatch):
    monkeypatch.setattr(
        stacks, "SMALL", 16
    )  # so that all but the vectors have launches of their own
    shapes = {"wide": (7, 40), "again": (7, 40), "long": (45,)}
    assert_rounds(Case(LAGG_A[K], shapes, seed=310), 2, 2e-5)


@pytest.mark.slow
def test_tensors_that_share_launches_step_as_they_do_alone(monkeypatch):
    monkeypatch.setattr(stacks, "SMALL", 16)
    case = Case(LOPT_A, {name: (5, 33) for name in "abc"}, seed=315)
    ran = [
        run_of(LOPT_A, tuning=CUT._replace(together=n)) for n in (1, 2)
    ]  # three launches; one of one, one of two
    alone, shared = (
        jax.device_get(run(case.theta, case.params, case.init(), *case.at(0))) for run in ran
    )
    jax.tree.map(np.testing.assert_array_equal, shared, alone)
    assert_close(alone[1], case.twin()[0][1], 2e-5)


# Errors of one product of two hidden layers, and as much again for the layer before it: bfloat16 in
# three parts keeps 16 bits of each factor and stays within the 2e-5 of a float32 step; TF32 has 11
# bits, bfloat16 8. Without the error being there the test could not tell that the imitation of the
# units rounds at all, hence the lower bounds.
@pytest.mark.parametrize(
    ("precision", "first", "least", "most"),
    [
        ("tf32x3", "dot", 0.0, 2e-6),
        ("bf16x3", "dot", 3e-7, 2e-5),
        ("tf32", "fma", 1e-5, 1e-3),
        ("fp16", "dot", 1e-5, 1e-3),
        ("half", "dot", 1e-5, 1e-3),
        ("bf16", "dot", 1e-4, 8e-3),
    ],
)
def test_every_precision_has_its_own_error(precision, first, least, most):
    case = Case(LOPT_A, {"wide": (7, 40)}, seed=320)
    tuning = CUT._replace(precision=precision, first=first, ahead=0)
    updates = run_of(LOPT_A, tuning=tuning)(case.theta, case.params, case.init(), *case.at(0))[1]
    expected = case.twin()[0][1]["wide"]
    error = np.linalg.norm(np.asarray(updates["wide"], float) - expected) / np.linalg.norm(expected)
    assert least <= error <= most


@pytest.mark.parametrize(("spec", "shape"), [(LAGG_A[8], (7, 40)), (LOPT_A, (20, 5))])
def test_half_is_as_close_for_more_inputs_and_lanes_over_several_rows(spec, shape):
    case = Case(spec, {"one": shape}, seed=322)
    run = run_of(spec, tuning=CUT._replace(precision="half"))
    updates = run(case.theta, case.params, case.init(), *case.at(0))[1]
    expected = case.twin()[0][1]["one"]
    assert np.linalg.norm(np.asarray(updates["one"], float) - expected) <= 1e-3 * np.linalg.norm(
        expected
    )


@pytest.mark.parametrize("precision", ["bf16x3", "half"])
def test_a_tensor_with_a_number_lost_is_lost_also_where_relus_make_0_of_it(precision, monkeypatch):
    monkeypatch.setattr(perceptron, "relu", lambda x: jnp.fmax(x, jnp.zeros_like(x)))
    case = Case(LOPT_A, {"well": (7, 40), "ill": (7, 40), "vector": (6,)}, seed=323)
    mean, deltas = case.at(0)
    mean["ill"] = np.asarray(mean["ill"]).copy()
    mean["ill"][3, 5] = np.nan
    run = run_of(LOPT_A, tuning=CUT._replace(precision=precision))
    params, _, _ = run(case.theta, case.params, case.init(), mean, deltas)
    assert {name: np.isnan(x).mean() for name, x in params.items()} == {
        "well": 0,
        "ill": 1,
        "vector": 0,
    }


@pytest.mark.parametrize("precision", ["fp16", "half"])
def test_float16_holds_weights_of_any_size(precision):
    """ReLUs let factors through, so that φ with other factors in each layer is the same function:
    the same bits here.

    With them the first layer's sums are about 10⁷ and the second's weights 10⁶, both beyond
    float16.
    """
    case = Case(LOPT_A, {"wide": (7, 40), "vector": (6,)}, seed=325)
    run = run_of(LOPT_A, tuning=CUT._replace(precision=precision))
    powers = {"w0": 24, "b0": 24, "w1": 20, "b1": 44, "w2": -44}
    scaled = {name: x * np.float32(2.0 ** powers.get(name, 0)) for name, x in case.theta.items()}
    one, other = (
        run(theta, case.params, case.init(), *case.at(0))[1] for theta in (case.theta, scaled)
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert_close(other, case.twin()[0][1], 1e-3)


@pytest.mark.slow
def test_the_same_bits_twice_and_in_place_the_same_step():
    case = Case(LAGG_A[3], FEW, seed=330)
    outer = LAGG_A[3](case.theta, path="passes", tuning=CUT)

    def both(params: Any, state: Any, mean: Any, deltas: Any) -> Any:
        updates, by_update = outer.tx.update(mean, state, params, worker_deltas=deltas)
        assert outer.step is not None
        return outer.step(mean, state, params, worker_deltas=deltas), (
            optax.apply_updates(params, updates),
            by_update,
        )

    run = jax.jit(both, compiler_options=QUICK)
    args = (case.params, case.init(), *case.at(0))
    (new, state), (by_update, same_state) = first = jax.device_get(run(*args))
    jax.tree.map(np.testing.assert_array_equal, first, jax.device_get(run(*args)))
    jax.tree.map(np.testing.assert_array_equal, state, same_state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), new, by_update)


@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_absent_workers_decay_and_scale(fill):
    spec, case = LAGG_A[3], Case(LAGG_A[3], {"wide": (7, 40), "vector": (6,)}, seed=340)
    weights, (_, deltas) = np.array([1.0, 0.0, 3.0], np.float32), case.at(0)
    mean = {
        n: np.asarray(ref.weighted_mean(float64(deltas), list(weights))[n], np.float32)
        for n in deltas
    }
    knobs = {"path": "passes", "tuning": CUT, "fill": fill, "scale": 0.5, "weight_decay": 0.01}
    run = lambda *args: spec(case.theta, **knobs).tx.update(
        mean, *args, worker_deltas=deltas, weights=weights
    )
    updates, _ = jax.jit(run, compiler_options=QUICK)(case.init(), case.params)
    params = float64(case.params)
    new, _ = ref.lagg_a_update(
        float64(case.theta),
        params,
        ref.ada_init(params),
        float64(deltas),
        "paper",
        list(weights),
        fill,
    )
    expected = {n: 0.5 * (new[n] - params[n]) - 0.01 * params[n] for n in params}
    assert_close(updates, expected, 2e-5)


@pytest.mark.parametrize("path", ["passes", "xla"])
def test_accumulators_in_bfloat16(path):
    """m and v are rounded to 8 bits once a round: their errors, and the step's, are of that size
    and no larger."""
    case = Case(LOPT_A, FEW, seed=350)
    knobs = {"path": path, "tuning": CUT, "accumulators": "bfloat16"}
    state = jax.jit(LOPT_A(case.theta, **knobs).tx.init)(case.params)
    run, params = run_of(LOPT_A, **knobs), case.params
    for t, (_, change, twin) in enumerate(case.twin()[:3]):
        params, updates, state = run(case.theta, params, state, *case.at(t))
        assert_close(
            updates, change, 2e-5 if t == 0 else 4e-3, f"round {t}"
        )  # the first round starts from exact zeros
        ada = state.ada["wide"]
        assert (ada.m.dtype, ada.v.dtype, ada.row.dtype) == (
            jnp.bfloat16,
            jnp.bfloat16,
            jnp.float32,
        )
        assert_close(ada.v, twin.v["wide"], 2.0**-8 * (t + 1))
        assert_close(ada.row[0], twin.row["wide"][0], 1e-5)


OTHER = Tuning(precision="tf32", first="fma", ahead=0, lanes=64, warps=8, hold=1, together=1)


@pytest.mark.parametrize(
    ("spec", "tuning", "launches"),
    [  # two large ones, the kernel; both vectors together
        (LOPT_A, OTHER, [3, 4, 4]),
        (LOPT_A, Tuning(precision="half", rows=32, together=4), [2, 3, 3]),
        (LAGG_A[8], Tuning(together=4), [2, 3, 3]),
    ],
    ids=["lopt-a", "half", "lagg-a"],
)
def test_they_lower_for_cuda_where_there_is_no_gpu(spec, tuning, launches):
    shapes = {
        "large": (300, 520),
        "again": (300, 520),
        "kernel": (3, 3, 64, 32),
        "vector": (768,),
        "bias": (700,),
    }
    outer = spec(spec.init(jax.random.key(0)), path="passes", tuning=tuning)
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    state = jax.eval_shape(outer.tx.init, params)
    deltas = {
        name: jax.ShapeDtypeStruct((spec.deltas, *shape), jnp.float32)
        for name, shape in shapes.items()
    }
    weights = jax.ShapeDtypeStruct((spec.deltas,), jnp.float32)
    assert outer.step is not None
    run = lambda p, s, d, w: outer.step(p, s, p, worker_deltas=d, weights=w)
    text = text_for_cuda(run, params, state, deltas, weights)
    counts = [text.count(f'name = "learned_{name}"') for name in ("squares", "moments", "apply")]
    assert counts == launches


def test_two_models_in_a_vmap():
    """Runs over several seeds are one vmap, with φ shared."""
    cases = [Case(LOPT_A, {"wide": (7, 40), "vector": (6,)}, seed) for seed in (360, 370)]
    args = [(case.params, case.init(), *case.at(0)) for case in cases]
    stacked = jax.tree.map(lambda *x: np.stack(x), *args)
    theta = cases[0].theta
    update = lambda *args: step(LOPT_A, theta, *args, path="passes", tuning=CUT)[1]
    found = jax.jit(jax.vmap(update), compiler_options=QUICK)(*stacked)
    for i, case in enumerate(cases):
        case.theta = theta
        assert_close({name: x[i] for name, x in found.items()}, case.twin()[0][1], 2e-5)
    large = {"large": jnp.zeros((2, 300, 520)), "vector": jnp.zeros((2, 700))}
    outer = LOPT_A(theta, path="passes")
    state = jax.vmap(outer.tx.init)(large)
    assert outer.step is not None
    text = text_for_cuda(jax.vmap(outer.step), large, state, large)
    assert text.count('name = "learned_apply"') == 2


def test_which_path_is_taken_is_said_once(monkeypatch, caplog, raises_clearly):
    choose = lambda path, spec, *sizes: learned.choose(path, spec, sizes)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(learned, "has_tensor_cores", lambda: True)
    learned._say.cache_clear()
    with caplog.at_level(logging.INFO, "laconic"):
        assert [choose("passes", LOPT_A, 1000, 1) for _ in range(2)] == ["passes", "passes"]
    assert len(caplog.messages) == 1
    assert "'passes' on gpu" in caplog.messages[0]
    assert choose("auto", LOPT_A, learned.LARGE - 1, 1) == "passes"
    assert choose("auto", LOPT_A, learned.LARGE - 1) == "tensorwise"
    assert choose("auto", LearnedOptimizer("lopt"), 1 << 30) == "tensorwise"
    assert choose("xla", LOPT_A, 1000) == "xla"
    for spec in (LearnedOptimizer("lopt"), LearnedOptimizer("lopt-a", hidden=24)):
        with raises_clearly("accumulators", "power of two", "path='auto'"):
            choose("passes", spec, 1000)
    assert choose("passes", LAGG_A[8], passes.OFFSETS // 8 - 1) == "passes"
    with raises_clearly("are below", "path='auto'"):
        choose("passes", LAGG_A[8], passes.OFFSETS // 8)
    vectors = [
        stacks.SMALL - 1
    ] * 6_000  # padded and in one array each, three momenta are nearly 1.2 · 10⁹ numbers
    assert choose("passes", LOPT_A, *vectors) == "passes"
    with raises_clearly("are below", "path='auto'"):
        choose("passes", LOPT_A, *vectors, *vectors)
    monkeypatch.setattr(learned, "has_tensor_cores", lambda: False)
    assert choose("auto", LOPT_A, 1 << 30) == "tensorwise"
    monkeypatch.setattr(learned, "has_tensor_cores", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert choose("auto", LOPT_A, 1 << 30) == "tensorwise"


@pytest.mark.parametrize(
    ("capability", "has"), [("9.0", True), ("10.3", True), ("7.5", False), ("gfx90a", False)]
)
def test_which_gpus_have_the_units(capability, has, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)])
    assert learned.has_tensor_cores() is has


def test_a_cpu_has_no_such_units():
    assert not learned.has_tensor_cores()


def test_half_has_no_first_layer_on_ordinary_units(raises_clearly):
    with raises_clearly("half", "leave first"):
        Tuning(precision="half", first="fma").check()


def test_blocks_that_cover_a_tensor_to_the_last_lane_are_known():
    for shape, even in {(8, 32): True, (9, 32): False, (8, 33): False, (2, 64): True}.items():
        geometry = Geometry(1, shape[0], 1, shape[1])
        assert Cut.of(geometry, CUT.lanes, CUT.rows).even(geometry) == even


def test_rows_are_cut_until_there_are_enough_programs():
    square = Geometry(1, 768, 1, 768)
    assert Cut.of(square, 128, 32) == Cut(lanes=128, width=128, rows=32, down=24, across=6)
    assert Cut.of(square, 128, 32, programs=1000) == Cut(128, 128, rows=4, down=192, across=6)
    assert Cut.of(square, 128, 32, layers=12, programs=1000) == Cut(
        128, 128, rows=32, down=24, across=6
    )
    assert Cut.of(square, 128, 32, programs=10**6).rows == 2
    assert Cut.of(square, 128, 1, programs=10**6).rows == 1
    assert Cut.of(Geometry(1, 1, 1, 5, diagonal=True), 128, 32) == Cut(
        128, width=16, rows=1, down=1, across=1
    )


def test_bad_tunings_are_refused(raises_clearly):
    with raises_clearly("'fp8'", "tf32"):
        Tuning(precision="fp8").check()
    with raises_clearly("'both'", "fma"):
        Tuning(first="both").check()
    with raises_clearly("lanes", "48"):
        Tuning(lanes=48).check()
    with raises_clearly("together", "0"):
        Tuning(together=0).check()
    with raises_clearly("programs", "0"):
        Tuning(programs=0).check()
    with raises_clearly("ahead", "2"):
        Tuning(ahead=2).check()
