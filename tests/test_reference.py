"""The twin is pinned to numbers worked out by hand, so that the package is not tested against a
mistake."""

import math

import numpy as np
import pytest

from tests import reference as ref
from tests import reference_compress as comp

BETAS = ref.INITIAL_BETAS
M, V, M_RSQRT, RSQRT_V, DELTA_FAC, ROW, COL, RSQRT_ROW, RSQRT_COL, M_FAC, TIME = (
    2,
    5,
    6,
    9,
    10,
    13,
    16,
    19,
    22,
    25,
    28,
)


def one(values):
    return {"w": np.array(values, dtype=np.float64)}


def ada(params, delta, rounds=1, **how):
    state = ref.ada_init(params)
    features = {}
    for t in range(rounds):
        features, state = ref.ada_features(params, state, delta, BETAS, t, **how)
    return features["w"], state


def normalised(raw):
    """The definition again, in scalars."""
    scale = math.sqrt(1e-5 + sum(x * x for x in raw) / len(raw))
    return [x / scale for x in raw]


def silent(kind, K=1, d=0.0, m=0.0):
    """A theta whose MLP says (d, m) whatever it sees."""
    F = ref.count_inputs(kind, K)
    weights = {"w0": np.zeros((F, 32)), "w1": np.zeros((32, 32)), "w2": np.zeros((32, 2))}
    return weights | {
        "b0": np.zeros(32),
        "b1": np.zeros(32),
        "b2": np.array([d, m]),
        "decay": np.zeros(7),
    }


def echo(kind, column, K=1, sign=1.0):
    """A theta whose d is relu(sign · one input) and whose m is 0."""
    theta = silent(kind, K)
    theta["w0"][column, 0], theta["w1"][0, 0], theta["w2"][0, 0] = sign, 1.0, 1.0
    return theta


def test_paper_counts():
    assert ref.count_inputs("lopt_a", 8) == 39
    assert [ref.count_inputs("lagg_a", K) for K in (8, 16, 32)] == [46, 54, 70]
    assert [ref.count_inputs(kind, 8) for kind in ("lopt", "lagg")] == [13, 20]
    assert ref.count_weights("lopt_a", 8) == ref.count_weights("lopt_a", 32) == 2402
    assert [ref.count_weights("lagg_a", K) for K in (8, 16, 32)] == [2626, 2882, 3394]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 4), (3, 3, 2, 5)])
def test_every_shape_gives_as_many_inputs_as_the_counts_say(shape):
    rng = np.random.default_rng(0)
    params, deltas = one(rng.normal(size=shape)), one(rng.normal(size=(5, *shape)))
    mean = ref.weighted_mean(deltas)
    n = max(1, math.prod(shape))
    assert ada(params, mean)[0].shape == (n, ref.count_inputs("lopt_a", 5))
    assert ada(params, mean, worker_deltas=deltas)[0].shape == (n, ref.count_inputs("lagg_a", 5))
    for kind, state in [
        ("lopt_a", ref.ada_init(params)),
        ("lagg_a", ref.ada_init(params)),
        ("lopt", 0),
        ("lagg", 0),
    ]:
        outer = ref.Learned(kind, silent(kind, 5, d=1.0), state)
        np.testing.assert_array_equal(outer.step(params, mean, deltas)["w"], params["w"] - 0.001)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3), (1, 0)),
        ((3, 2), (0, 1)),
        ((4, 4), (1, 0)),
        ((5, 5, 7), (2, 1)),
        ((7, 5, 5), (0, 2)),
        ((6, 6, 6), (2, 1)),
        ((3, 3, 16, 8), (2, 3)),
    ],
)
def test_the_two_largest_axes_are_factored_and_ties_go_to_the_later(shape, axes):
    assert ref.factored_axes(shape) == axes
    state = ref.ada_init(one(np.zeros(shape)))
    row, col = list(shape), list(shape)
    row[axes[0]], col[axes[1]] = 1, 1
    assert state.row["w"][0].shape == tuple(row)
    assert state.col["w"][0].shape == tuple(col)


def test_a_matrix_after_one_round():
    # Δ² = [[1, 4, 4], [9, 36, 36]]: rows mean 3 and 27, columns 5, 20, 20, and mean(row) = 15. Axis
    # 1 is the larger.
    params, delta = one([[1, 2, 3], [4, 5, 6]]), one([[1, -2, 2], [3, 6, -6]])
    x, state = ada(params, delta)
    np.testing.assert_allclose(state.row["w"][0].ravel(), [0.3, 2.7], rtol=1e-14)
    np.testing.assert_allclose(state.row["w"][2].ravel(), [0.003, 0.027], rtol=1e-12)
    np.testing.assert_allclose(state.col["w"][1].ravel(), [0.05, 0.2, 0.2], rtol=1e-13)
    d, w = [1, -2, 2, 3, 6, -6], [1, 2, 3, 4, 5, 6]
    v = [0.001 * z * z for z in d]
    expected = {
        0: d,
        1: w,
        M: [0.1 * z for z in d],
        M + 2: [0.001 * z for z in d],
        V: v,
        M_RSQRT + 1: [0.01 * z / math.sqrt(y + 1e-6) for z, y in zip(d, v, strict=True)],
        RSQRT_V: [1 / math.sqrt(y + 1e-6) for y in v],
        ROW: [0.3, 0.3, 0.3, 2.7, 2.7, 2.7],
        ROW + 1: [0.03, 0.03, 0.03, 0.27, 0.27, 0.27],
        COL: [0.5, 2, 2, 0.5, 2, 2],
        COL + 2: [0.005, 0.02, 0.02, 0.005, 0.02, 0.02],
        RSQRT_ROW: [1 / math.sqrt(y + 1e-8) for y in (0.3, 0.3, 0.3, 2.7, 2.7, 2.7)],
        RSQRT_COL: [1 / math.sqrt(y + 1e-8) for y in (0.5, 2, 2, 0.5, 2, 2)],
        # mean(row) = 1.5: row factors √(1.5/0.3), √(1.5/2.7), column factors 1/√0.5, 1/√2
        DELTA_FAC: [
            z / math.sqrt(r / (1.5 + 1e-9) * c)
            for z, r, c in zip(
                d, (0.3, 0.3, 0.3, 2.7, 2.7, 2.7), (0.5, 2, 2, 0.5, 2, 2), strict=True
            )
        ],
        M_FAC + 1: [
            0.01 * z / math.sqrt(r / (0.15 + 1e-9) * c)
            for z, r, c in zip(
                d, (0.03,) * 3 + (0.27,) * 3, (0.05, 0.2, 0.2, 0.05, 0.2, 0.2), strict=True
            )
        ],
    }
    for column, raw in expected.items():
        np.testing.assert_allclose(
            x[:, column], normalised(raw), rtol=1e-11, err_msg=f"column {column}"
        )
    # Δ² has rank one, so the factored scale is |Δ| itself and item 7 is its sign.
    np.testing.assert_allclose(x[:, DELTA_FAC], np.sign(d) / math.sqrt(1 + 1e-6), rtol=1e-9)


def test_accumulators_remember():
    x, state = ada(one([[0.0, 0.0]]), one([[1.0, 3.0]]), rounds=2)
    np.testing.assert_allclose(state.m["w"][0], [[0.19, 0.57]], rtol=1e-14)  # 0.9·0.1 + 0.1 = 0.19
    np.testing.assert_allclose(state.v["w"], [[0.001999, 0.017991]], rtol=1e-12)
    np.testing.assert_allclose(state.row["w"][1], [[0.0199 * 5]], rtol=1e-13)
    np.testing.assert_allclose(state.col["w"][1], [[0.0199, 0.1791]], rtol=1e-13)
    assert state.t == 2
    assert x[0, TIME] == math.tanh(0.0)  # t = 1 at the second update


def test_a_tall_matrix_swaps_row_and_column():
    delta = np.array([[1.0, -2.0, 2.0], [3.0, 6.0, -5.0]])
    wide, _ = ada(one(np.zeros((2, 3))), one(delta))
    tall, _ = ada(one(np.zeros((3, 2))), one(delta.T))
    in_wide_order = tall.reshape(3, 2, 39).transpose(1, 0, 2).reshape(6, 39)
    np.testing.assert_allclose(in_wide_order, wide, rtol=1e-14)
    # A square one takes rows over axis 1, so that its transpose is another thing.
    square, _ = ada(one(np.zeros((2, 2))), one([[1.0, 1.0], [2.0, 3.0]]))
    np.testing.assert_allclose(square[:, ROW], normalised([0.1, 0.1, 0.65, 0.65]), rtol=1e-12)
    np.testing.assert_allclose(square[:, COL], normalised([0.25, 0.5, 0.25, 0.5]), rtol=1e-12)


def test_axes_that_are_not_factored_are_kept():
    # The two leading indices never mix.
    delta = np.array(
        [[[1.0, 2.0, 3.0, 4.0]] * 3, [[5.0, 6.0, 7.0, 9.0]] * 3]
    )  # [2, 3, 4]: axes 2 and 1
    x, state = ada(one(np.zeros((2, 3, 4))), one(delta))
    np.testing.assert_allclose(
        state.row["w"][0], [[[0.75]] * 3, [[4.775]] * 3], rtol=1e-13
    )  # 0.1·30/4, 0.1·191/4
    np.testing.assert_allclose(
        state.col["w"][0][:, 0, :], [[0.1, 0.4, 0.9, 1.6], [2.5, 3.6, 4.9, 8.1]], rtol=1e-13
    )
    # The rows of one leading index are equal, so its row factor is √((mean + 1e-9)/mean) and item 7
    # is ±√10.
    flat = delta.ravel()
    raw = [
        math.sqrt(10) * math.sqrt(1 + 1e-9 / (0.75 if i < 12 else 4.775)) for i in range(flat.size)
    ]
    np.testing.assert_allclose(x[:, DELTA_FAC], normalised(raw), rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scalar_is_a_vector_of_one(shape):
    x, state = ada(one(np.full(shape, 7.0)), one(np.full(shape, 2.0)))
    assert state.row["w"][0].shape == (1,)
    acc, v = 0.4 + 1e-31, 0.004
    for column, raw in [
        (0, 2.0),
        (1, 7.0),
        (V, v),
        (ROW, acc),
        (COL, acc),
        (DELTA_FAC, 2 / math.sqrt(acc + 1e-9)),
        (RSQRT_COL, 1 / math.sqrt(acc + 1e-8)),
        (M_FAC, 0.2 / math.sqrt(acc + 1e-6)),
    ]:
        np.testing.assert_allclose(x[0, column], normalised([raw]), rtol=1e-13)


def test_a_vector_is_not_factored():
    x, state = ada(one([0.0, 0.0]), one([1.0, 3.0]))
    np.testing.assert_allclose(state.row["w"][0], [0.1, 0.9], rtol=1e-14)
    np.testing.assert_array_equal(state.row["w"], state.col["w"])
    items = [1 / math.sqrt(0.1 + 1e-9), 3 / math.sqrt(0.9 + 1e-9)]
    np.testing.assert_allclose(x[:, DELTA_FAC], normalised(items), rtol=1e-13)
    momenta = [0.1 / math.sqrt(0.1 + 1e-6), 0.3 / math.sqrt(0.9 + 1e-6)]
    np.testing.assert_allclose(x[:, M_FAC], normalised(momenta), rtol=1e-13)


def test_nothing_moved_gives_finite_features():
    x, state = ada(one([[1.0, 2.0]]), one([[0.0, 0.0]]))
    assert np.all(np.isfinite(x))
    np.testing.assert_allclose(state.row["w"][0], [[1e-31]], rtol=1e-13)
    np.testing.assert_array_equal(state.v["w"], [[0.0, 0.0]])
    np.testing.assert_array_equal(x[:, DELTA_FAC], [0.0, 0.0])


def test_tiny_deltas_meet_the_floor_of_the_safe_root():
    x, _ = ada(
        one([[1.0, 2.0]]), one([[1e-10, -1e-10]])
    )  # col and row ÷ (its mean + 1e-9) are 1e-21 and 1e-12
    np.testing.assert_allclose(
        x[:, DELTA_FAC], normalised([0.1, -0.1]), rtol=1e-12
    )  # 1e-10 · (1e-9)^−½ · (1e-9)^−½


def test_time_features():
    np.testing.assert_array_equal(ref.time_features(0, "paper"), np.zeros(11))
    np.testing.assert_allclose(
        ref.time_features(0, "shifted"), np.full(11, -0.7615941559557649), rtol=1e-15
    )
    np.testing.assert_allclose(
        ref.time_features(30, "shifted")[[2, 3]], [0.9640275800758169, 0.0], atol=1e-15
    )
    np.testing.assert_allclose(
        ref.time_features(100_000, "paper")[-1], 0.7615941559557649, rtol=1e-15
    )
    x, _ = ada(one([[1.0, 2.0]]), one([[1.0, 1.0]]), time="paper")
    np.testing.assert_array_equal(x[:, TIME:], np.zeros((2, 11)))


def test_worker_deltas_come_first_in_order_each_normalised_alone():
    deltas = one([[3.0, 4.0], [-30.0, 40.0], [0.0, 0.0]])
    x, _ = ada(one([1.0, 1.0]), ref.weighted_mean(deltas), worker_deltas=deltas)
    np.testing.assert_allclose(x[:, 0], normalised([3, 4]), rtol=1e-14)
    np.testing.assert_allclose(x[:, 1], normalised([-30, 40]), rtol=1e-14)
    np.testing.assert_array_equal(x[:, 2], [0, 0])
    np.testing.assert_allclose(
        x[:, 3], normalised([1, 1]), rtol=1e-14
    )  # the parameter; no mean delta
    np.testing.assert_allclose(
        x[:, 4], normalised([-0.9, 44 / 30]), rtol=1e-12
    )  # m1 of the mean (−9, 44/3)


def test_the_step_is_a_scaled_direction():
    params = one([[1.0, 2.0]])
    after, state = ref.lopt_a_update(
        silent("lopt_a", d=3.0, m=5.0), params, ref.ada_init(params), one([[1.0, 1.0]])
    )
    np.testing.assert_allclose(
        after["w"], [[0.9969849624374218, 1.9969849624374218]], rtol=1e-14
    )  # 0.003·e^0.005
    assert state.t == 1


def test_the_mlp_by_hand():
    theta = silent("lopt", d=0.5, m=0.0)
    theta["b0"][:2], theta["b1"][1:3] = [-1.0, 2.0], [-1.0, 1.0]  # first layer: 0 and 2
    theta["w1"][0, 1], theta["w1"][1, 1], theta["w1"][1, 2] = (
        100.0,
        3.0,
        -1.0,
    )  # second: 0 + 6 − 1, relu(−2 + 1)
    theta["w2"][1], theta["w2"][2] = [2.0, 1.0], [100.0, 100.0]  # d = 10 + 0.5, m = 5
    after, t = ref.lopt_update(theta, one([1.0]), 0, one([1.0]))
    np.testing.assert_allclose(after["w"], [1 - 0.0105 * math.exp(0.005)], rtol=1e-15)
    assert t == 1


@pytest.mark.parametrize(("column", "raw"), [(0, [3.0, -4.0]), (1, [-1.0, 2.0])])
def test_the_mlp_sees_its_inputs_through_relus(column, raw):
    params, delta = one([-1.0, 2.0]), one([3.0, -4.0])
    for kind, state in [("lopt_a", ref.ada_init(params)), ("lopt", 0)]:
        for sign in (1.0, -1.0):
            outer = ref.Learned(kind, echo(kind, column, sign=sign), state)
            step = [0.001 * max(0.0, sign * x) for x in normalised(raw)]
            np.testing.assert_allclose(
                outer.step(params, delta, delta)["w"], params["w"] - step, rtol=1e-15
            )


def test_lagg_sees_worker_two_and_its_time():
    params, deltas = one([1.0, 2.0]), one([[1.0, 0.0], [0.0, 5.0]])
    for kind, state, time_column in [("lagg_a", ref.ada_init(params), 29), ("lagg", 0, 3)]:
        by_delta = ref.Learned(kind, echo(kind, 1, K=2), state).step(params, {}, deltas)
        np.testing.assert_allclose(
            by_delta["w"], params["w"] - 0.001 * np.array(normalised([0, 5])), rtol=1e-15
        )
        by_time = ref.Learned(kind, echo(kind, time_column, K=2, sign=-1.0), state)
        second = by_time.step(by_time.step(params, {}, deltas), {}, deltas)
        np.testing.assert_allclose(
            second["w"], params["w"] - 0.0007615941559557649, rtol=1e-14
        )  # tanh(0) at t = 1


def test_decay_offsets():
    theta = {"decay": np.array([math.log(2) / 10, 0, 0, -math.log(4) / 10, 1.0, 0, 0])}
    np.testing.assert_allclose(
        ref.betas_of(theta), [0.8, 0.99, 0.999, 0.99975, 0.0, 0.99, 0.999], rtol=1e-14
    )


def pull(params, target):
    """The gradient of ½(w − target)²."""
    return {"w": params["w"] - target}


def test_algorithm_1_averages_the_workers():
    # From 1 with γ = ½: towards 0 twice gives ¼, towards 4 twice gives 3¼; their mean is 1¾. Then
    # 7/16 and 55/16.
    batches = [[[0.0, 0.0], [4.0, 4.0]]] * 2
    start, first, second = ref.algorithm_1(one([1.0]), pull, batches, 0.5, ref.Average())
    assert (start["w"][0], first["w"][0], second["w"][0]) == (1.0, 1.75, 1.9375)


@pytest.mark.parametrize(
    ("outer", "expected"),
    [  # one weight from 0, Δ = 2 and then Δ = −1
        (ref.Average(), [-2, -1]),
        (ref.SlowMo(alpha=0.5, beta=0.5, gamma=0.1), [-1, -1]),  # u = 20, then 10 − 10 = 0
        (
            ref.Nesterov(lr=0.5, beta=0.5),
            [-1.5, -1.0 + 0.0],
        ),  # u = 2, then 0: 0.5·(2+1), 0.5·(−1+0)
        # m = 1, ½; v = 2 + 1 = 3 then 2; τ = 1
        (
            ref.FedAdam(eta=1, beta1=0.5, beta2=0.5, tau=1, v0=2),
            [-1 / (1 + 3**0.5), -1 / (1 + 3**0.5)],
        ),
        # v = 2 + 2 = 4 (v < Δ²), then 4 − ½ = 3½ (v > Δ²)
        (ref.FedYogi(eta=1, beta1=0.5, beta2=0.5, tau=1, v0=2), [-1 / 3, -1 / 3]),
        (ref.FedAdagrad(eta=1, beta1=0.5, beta2=0.5, tau=1, v0=2), [-1 / (1 + 6**0.5)] * 2),
    ],
    ids=lambda x: type(x).__name__,
)
def test_two_rounds_of_each_outer_optimizer(outer, expected):
    w = outer.step(one([0.0]), one([2.0]))
    np.testing.assert_allclose(w["w"], [expected[0]], rtol=1e-14)
    w = outer.step(w, one([-1.0]))  # m = ½·1 − ½ = 0 for the adaptive ones: they stand still
    np.testing.assert_allclose(w["w"], [expected[1]], rtol=1e-14, atol=1e-15)


def test_second_moments_of_the_adaptive_servers():
    found = {}
    for kind in (ref.FedAdam, ref.FedYogi, ref.FedAdagrad):
        outer = kind(eta=0.1, v0=4.0)
        outer.step(one([0.0, 0.0, 0.0]), one([1.0, 3.0, 2.0]))
        found[kind.__name__] = outer.v["w"]
    np.testing.assert_allclose(found["FedAdam"], [3.97, 4.05, 4.0], rtol=1e-14)
    np.testing.assert_allclose(
        found["FedYogi"], [3.99, 4.09, 4.0], rtol=1e-14
    )  # down, up, sign(0) = 0
    np.testing.assert_allclose(found["FedAdagrad"], [5.0, 13.0, 8.0], rtol=1e-14)
    outer = ref.FedAdam(eta=0.1, tau=0.01)
    outer.step(one([0.0]), one([0.0]))
    np.testing.assert_allclose(outer.v["w"], [0.99e-4], rtol=1e-13)  # v starts at τ²


def test_weighted_mean_leaves_the_absent_out():
    deltas = one([[1.0, 2.0], [np.nan, np.inf], [4.0, 8.0]])
    np.testing.assert_array_equal(ref.weighted_mean(deltas, [1, 0, 2])["w"], [3.0, 6.0])
    with pytest.raises(ValueError, match="positive sum"):
        ref.weighted_mean(deltas, [0, 0, 0])


def test_adamw_two_steps():
    local = comp.AdamW(lr=0.1, beta1=0.5, beta2=0.75, eps=1.0, weight_decay=0.01)
    w = local.step(one([10.0]), one([2.0]))  # m̂ = 2, v̂ = 4: 10 − 0.1·(2/3 + 0.1)
    np.testing.assert_allclose(w["w"], [9.923333333333334], rtol=1e-15)
    w = local.step(w, one([-1.0]))  # m = 0, so only the decay: w·(1 − 0.001)
    np.testing.assert_allclose(w["w"], [9.91341], rtol=1e-15)
    np.testing.assert_allclose(local.v["w"], [1.0], rtol=1e-15)  # ¾·1 + ¼·1


def test_adamw_lives_on_across_rounds():
    workers = [comp.AdamW(lr=0.1), comp.AdamW(lr=0.2)]
    ref.algorithm_1(
        one([1.0]), pull, [[[0.0, 0.0], [4.0, 4.0]]] * 3, 0.5, ref.Average(), locals_K=workers
    )
    assert [worker.steps for worker in workers] == [6, 6]


def test_clipping_is_global():
    grads = {"a": np.array([3.0]), "b": np.array([0.0, 4.0])}
    clipped = comp.clip_by_global_norm(grads, 2.5)
    np.testing.assert_allclose(comp.flatten(clipped), [1.5, 0.0, 2.0], rtol=1e-15)
    np.testing.assert_array_equal(
        comp.flatten(comp.clip_by_global_norm(grads, 5.0)), [3.0, 0.0, 4.0]
    )


def test_topk_ties_go_to_the_lower_index_in_name_order():
    tree = {"b": np.array([[1.0, -3.0]]), "a": np.array([3.0, -1.0, 1.0])}  # flat: 3 −1 1 1 −3
    assert comp.topk_indices(comp.flatten(tree), 4) == [0, 4, 1, 2]
    np.testing.assert_array_equal(comp.flatten(comp.topk_global(tree, 0.6)), [3, -1, 0, 0, -3])
    np.testing.assert_array_equal(comp.flatten(comp.topk_global(tree, 0.01)), [3, 0, 0, 0, 0])
    np.testing.assert_array_equal(
        comp.flatten(comp.topk_per_tensor(tree, 0.5)), [3, -1, 0, 0, -3]
    )  # k = 2 and 1
    np.testing.assert_array_equal(comp.flatten(comp.topk_global(tree, 1.0)), comp.flatten(tree))


def test_quantisation_rounds_by_the_given_noise():
    x = np.array([1.0, -0.5, 0.25, 0.0, 0.0, 0.0, -2.0])
    u = np.array([0.9, 0.4, 0.3, 0.99, 0.5, 0.5, 0.5])
    codes, scales = comp.quantise_codes(x, 4, u, bucket=3)  # x·7/scale: 7 −3.5 1.75 | 0 0 0 | −7
    assert codes == [7, -4, 2, 0, 0, 0, -7]  # floors of 7.9 −3.1 2.05 | … | −6.5
    assert scales == [1.0, 0.0, 2.0]
    np.testing.assert_allclose(
        comp.quantise(x, 4, u, 3), [1, -4 / 7, 2 / 7, 0, 0, 0, -2], rtol=1e-15
    )
    # One bucket of scale 2: 63.5 + 0.9, −31.75 + 0.4 and 15.875 + 0.3 floor to 64, −32, 16.
    np.testing.assert_allclose(
        comp.quantise(x, 8, u)[:3], [128 / 127, -64 / 127, 32 / 127], rtol=1e-14
    )


def test_topk_then_quantise():
    tree = {"a": np.array([1.0, 8.0, -4.0, 2.0])}
    u = np.array([0.0, 0.5])
    by_size = comp.topk_quantised(tree, 0.5, 4, u, order="magnitude", bucket=1)
    np.testing.assert_array_equal(by_size["a"], [0, 8, -4, 0])
    in_one = comp.topk_quantised(
        {"a": np.array([1.0, 4.0, -8.0, 2.0])}, 0.5, 4, u, order="magnitude"
    )
    np.testing.assert_allclose(in_one["a"], [0, 4 * 8 / 7, -8, 0], rtol=1e-15)  # floor(3.5 + 0.5)
    in_order = comp.topk_quantised({"a": np.array([1.0, 4.0, -8.0, 2.0])}, 0.5, 4, u, order="index")
    np.testing.assert_allclose(in_order["a"], [0, 3 * 8 / 7, -8, 0], rtol=1e-15)  # floor(3.5 + 0)


def test_error_feedback_sends_what_was_left():
    send = comp.ErrorFeedback(lambda tree: comp.topk_global(tree, 0.5))
    np.testing.assert_array_equal(send(one([3.0, 2.0]))["w"], [3, 0])
    np.testing.assert_array_equal(send(one([3.0, 2.0]))["w"], [0, 4])  # corrected (3, 4)
    np.testing.assert_array_equal(send.e["w"], [3, 0])


def test_algorithm_1_with_compressed_messages():
    send = [comp.ErrorFeedback(lambda tree: comp.topk_global(tree, 0.5)) for _ in range(2)]
    # Both workers pull (2, 1) to 0 with γ = ½ and send only the larger entry: first (1, ½) → (1, 0)
    # is sent.
    history = ref.algorithm_1(
        one([2.0, 1.0]), pull, [[[0.0], [0.0]]] * 2, 0.5, ref.Average(), send_K=send
    )
    np.testing.assert_array_equal(history[1]["w"], [1, 1])
    np.testing.assert_array_equal(
        history[2]["w"], [1, 0]
    )  # (½, ½) + (0, ½): the second entry is due


def test_bits_on_the_wire():
    assert comp.dense_bits(1000) == 32_000
    assert comp.topk_bits(1000, 0.01) == 10 * 32 + 104  # 10 indices of 10 bits are 13 bytes
    assert comp.topk_bits(1024, 0.008) == 9 * 32 + 96  # ceil(8.192) = 9, of 10 bits
    assert comp.topk_bits(1025, 0.008) == 9 * 32 + 104  # of 11 bits
    assert comp.topk_bits(1, 0.1) == 32 + 8
    assert comp.topk_per_tensor_bits([1000, 1], 0.01) == 424 + 40
    assert comp.quantised_bits(256, 8) == 2048 + 32
    assert comp.quantised_bits(257, 8) == 2056 + 64
    assert comp.quantised_bits(257, 4) == 129 * 8 + 64
    assert comp.topk_quantised_bits(1000, 0.01, 4) == 104 + 5 * 8 + 32


def test_metrics():
    curve = [1.0] * 10 + [0.0] * 10
    assert comp.trailing_mean(curve) == pytest.approx([1 - i / 10 for i in range(11)], abs=1e-15)
    assert comp.trailing_mean(curve[:9]) == []
    assert comp.rounds_to_loss(curve, 1.0) == 10
    assert comp.rounds_to_loss(curve, 0.5) == 15
    assert comp.rounds_to_loss(curve, -0.1) is None
    # Local SGD ends at 0.5 in round 15 (and rises); twice the speed is round 15 ÷ round 12, and its
    # own is 1.
    local = [1.0] * 10 + [0.0] * 5 + [9.0] * 5
    assert comp.speedup(local, local) == 1.0
    assert comp.speedup(local, [1.0] * 7 + [0.0] * 13) == 15 / 12
    assert comp.speedup([math.nan, *local], local) == 16 / 15
    assert comp.speedup(local, [1.0] * 20) is None
    assert comp.speedup(local, [math.nan] * 20) is None
