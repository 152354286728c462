import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.show import metrics

NAN, INF = math.nan, math.inf


def loop_smoothed(curve, window):
    window = min(window, len(curve))
    return [
        NAN if t + 1 < window else sum(curve[t + 1 - window : t + 1]) / window
        for t in range(len(curve))
    ]


def loop_mean(curves):
    return [sum(row[t] for row in curves) / len(curves) for t in range(len(curves[0]))]


def loop_rounds(curves, target):
    for t, value in enumerate(loop_smoothed(loop_mean(curves), 10)):
        if math.isfinite(value) and value <= target:
            return t + 1
    return None


def falling(start, rate, T, S=1):
    """Losses that fall by `rate` a round (dyadic, so that means are exact), one apart by seed."""
    return np.array([[start + seed - rate * t for t in range(T)] for seed in range(S)])


def test_smoothed_by_hand():
    curve = [4.0, 2.0, 6.0, 0.0]
    np.testing.assert_array_equal(metrics.smoothed(curve, window=2), [NAN, 3.0, 4.0, 3.0])
    np.testing.assert_array_equal(metrics.smoothed(curve, window=1), curve)
    # shorter than the window
    np.testing.assert_array_equal(metrics.smoothed([1.0, 2.0, 6.0]), [NAN, NAN, 3.0])


def test_ten_rounds_are_the_window():
    smooth = metrics.smoothed(np.arange(12.0))
    np.testing.assert_array_equal(smooth, [NAN] * 9 + [4.5, 5.5, 6.5])


def test_a_non_finite_round_spoils_its_windows_only():
    curve = [1.0, INF, 1.0, 1.0, NAN, 1.0, 1.0, -INF, INF, 2.0, 2.0]
    want = [NAN, INF, INF, 1, NAN, NAN, 1, -INF, NAN, INF, 2]
    np.testing.assert_array_equal(metrics.smoothed(curve, 2), want)


def test_mean_and_standard_error_by_hand():
    curves = [[1.0, 2.0], [3.0, 2.0], [5.0, 8.0]]
    np.testing.assert_array_equal(metrics.mean_curve(curves), [3.0, 4.0])
    # deviations (−2, 0, 2) and (−2, −2, 4): sample variances 4 and 12
    np.testing.assert_allclose(metrics.standard_error(curves), [2 / math.sqrt(3), 2.0], rtol=1e-15)
    np.testing.assert_array_equal(metrics.standard_error([[1.0, 2.0]]), [0.0, 0.0])


def test_float32_curves_are_averaged_in_float64():
    curves = jnp.full((3, 20), 0.1, jnp.float32)
    assert metrics.minimum_loss(curves) == pytest.approx(float(np.float32(0.1)), rel=1e-15)


def test_rounds_to_loss_by_hand():
    curves = falling(10.0, 0.5, 30)  # smoothed at round t (from 1): 10 − 0.5·(t − 5.5)
    # the first full window ends at round 10: 10 − 0.5·4.5
    assert metrics.rounds_to_loss(curves, 7.75) == 10
    assert metrics.rounds_to_loss(curves, 100.0) == 10
    assert metrics.rounds_to_loss(curves, 7.74) == 11
    assert metrics.rounds_to_loss(curves, -2.25) == 30
    assert metrics.rounds_to_loss(curves, -2.26) is None
    assert metrics.rounds_to_loss(curves, NAN) is None
    assert metrics.minimum_loss(curves) == -2.25


def test_rounds_are_counted_on_the_mean_over_seeds():
    curves = falling(10.0, 0.5, 30, S=3)  # seeds at +0, +1, +2: the mean is one higher
    assert metrics.rounds_to_loss(curves, 8.75) == 10
    assert metrics.rounds_to_loss(curves, 8.25) == 11


def test_short_runs_have_one_window():
    assert metrics.rounds_to_loss([[3.0, 2.0, 1.0]], 2.0) == 3
    assert metrics.minimum_loss([[3.0, 2.0, 1.0]]) == 2.0


def test_one_diverged_seed_never_reaches_a_loss_after_it():
    for bad in (NAN, INF, -INF):
        curves = falling(10.0, 0.5, 30, S=2)
        curves[1, 14:] = bad
        # 10.5 − 0.5·8.5: the last window before round 15
        assert metrics.rounds_to_loss(curves, 6.25) == 14
        assert metrics.rounds_to_loss(curves, 6.24) is None
        assert metrics.minimum_loss(curves) == 6.25
        assert not math.isfinite(metrics.final_loss(curves))
        np.testing.assert_array_equal(metrics.diverged(curves), [False, True])
    assert math.isnan(metrics.minimum_loss(np.full((2, 12), NAN)))


def test_final_loss_by_hand():
    curves = np.stack([np.arange(12.0), np.arange(12.0) + 3])
    assert metrics.final_loss(curves) == 8.0  # means of rounds 3 … 12: 6.5 and 9.5
    assert metrics.final_loss([[1.0, 3.0], [2.0, 4.0]]) == 2.5


def test_speedup_by_hand():
    reference = falling(10.0, 0.25, 41)  # minimum at round 41: 10 − 0.25·35.5 = 1.125
    twice = falling(10.0, 0.5, 41)  # 10 − 0.5·(t − 5.5) ≤ 1.125 first at t = 23.25
    assert metrics.speedup(reference, twice) == 41 / 24
    assert metrics.speedup(reference, reference) == 1.0
    assert metrics.speedup(twice, reference) is None
    assert metrics.speedup(np.full((1, 20), NAN), twice) is None


def test_speedup_counts_to_the_minimum_not_to_the_end():
    reference = np.concatenate([falling(10.0, 0.25, 41), np.full((1, 20), 50.0)], axis=1)
    assert metrics.speedup(reference, falling(10.0, 0.5, 41)) == 41 / 24


def test_bits_to_loss(raises_clearly):
    curves = falling(10.0, 0.5, 30)
    assert metrics.bits_to_loss(curves, 7.25, 10**20 + 1) == 11 * (10**20 + 1)
    assert metrics.bits_to_loss(curves, -3.0, 8) is None
    with raises_clearly("bits_per_round", "-1"):
        metrics.bits_to_loss(curves, 1.0, -1)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_against_plain_loops(data):
    S, T = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    # sixteenths, so that every sum below is exact and the order of addition cannot matter
    numbers = st.integers(-64, 640).map(lambda n: n / 16)
    rows = data.draw(st.lists(st.lists(numbers, min_size=T, max_size=T), min_size=S, max_size=S))
    window = data.draw(st.integers(1, 12))
    smoothed = metrics.smoothed(rows[0], window)
    np.testing.assert_allclose(smoothed, loop_smoothed(rows[0], window), rtol=1e-14)
    np.testing.assert_allclose(metrics.mean_curve(rows), loop_mean(rows), rtol=1e-14)
    smooth = loop_smoothed(loop_mean(rows), 10)
    assert metrics.minimum_loss(rows) == pytest.approx(min(v for v in smooth if v == v), rel=1e-14)
    # targets half a step away from any value a smoothed mean can take
    target = data.draw(st.integers(-64, 640)) / 16 + 1 / (16 * S * math.lcm(*range(1, 11)) * 2)
    assert metrics.rounds_to_loss(rows, target) == loop_rounds(rows, target)
    assert metrics.rounds_to_loss(rows, metrics.minimum_loss(rows)) is not None
    assert metrics.final_loss(rows) == pytest.approx(smooth[-1], rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("bad", [[1.0, 2.0], [[]], np.zeros((0, 4)), np.zeros((2, 2, 2)), 3.0])
@pytest.mark.parametrize(
    "metric",
    [
        metrics.mean_curve,
        metrics.standard_error,
        metrics.minimum_loss,
        metrics.final_loss,
        metrics.diverged,
        lambda c: metrics.rounds_to_loss(c, 1.0),
        lambda c: metrics.speedup([[1.0]], c),
        metrics.final_losses,
        lambda c: metrics.bits_to_loss(c, 1.0, 1),
    ],
)
def test_curves_must_be_seeds_by_rounds(raises_clearly, metric, bad):
    with raises_clearly("[seeds, rounds]", str(np.shape(bad)), "curve[None, :]"):
        metric(bad)


def test_other_bad_input(raises_clearly):
    with raises_clearly("one length for all seeds"):
        metrics.mean_curve([[1.0, 2.0], [1.0]])
    with raises_clearly("non-empty vector", "(1, 2)"):
        metrics.smoothed([[1.0, 2.0]])
    with raises_clearly("window", "0"):
        metrics.smoothed([1.0], window=0)
