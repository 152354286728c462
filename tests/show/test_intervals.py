"""Intervals over seeds: against plain loops, and on curves whose answer is known."""

import math

import numpy as np
import pytest

from laconic.show import intervals, metrics

NAN, INF = math.nan, math.inf
DRAWS = 2000


def lines(offsets, slope=0.01, T=400, start=2.0):
    """A straight line a seed: start + its offset, down by `slope` a round."""
    return start + np.asarray(offsets)[:, None] - slope * np.arange(1, T + 1)


# --- plain loops ----------------------------------------------------------------------------------


def loop_first(curve, target):
    """Rounds of one mean curve to a loss; infinite for never."""
    window = min(10, len(curve))
    for end in range(window, len(curve) + 1):
        mean = sum(curve[end - window : end]) / window
        if math.isfinite(mean) and mean <= target:
            return float(end)
    return INF


def loop_lowest(curve):
    window = min(10, len(curve))
    means = [sum(curve[e - window : e]) / window for e in range(window, len(curve) + 1)]
    return min((mean for mean in means if math.isfinite(mean)), default=NAN)


def loop_interval(statistic, *sides):
    """The middle 95 % of a statistic of mean curves, by sorting."""
    drawn = np.random.default_rng(0).integers(len(sides[0]), size=(DRAWS, len(sides[0])))
    found = sorted(statistic(*(side[row].mean(axis=0) for side in sides)) for row in drawn)
    return found[math.floor(0.025 * (DRAWS - 1))], found[math.ceil(0.975 * (DRAWS - 1))]


def loop_speedup(reference, ours):
    target = loop_lowest(reference)
    return loop_first(reference, target) / loop_first(ours, target)


@pytest.mark.parametrize(("S", "T"), [(2, 40), (3, 7), (10, 60)])
def test_against_plain_loops(S, T):
    rng = np.random.default_rng(S)
    reference, ours = (
        2 * np.exp(-rate * np.arange(T)) + 0.2 * rng.normal(size=(S, T)) for rate in (0.03, 0.06)
    )
    target = metrics.minimum_loss(reference) + 0.1
    found = intervals.rounds_interval(ours, target)
    assert found == loop_interval(lambda curve: loop_first(curve, target), ours)
    found = intervals.speedup_interval(reference, ours)
    assert found == pytest.approx(loop_interval(loop_speedup, reference, ours), rel=1e-14)
    ratio = lambda theirs, mine: loop_first(theirs, target) / loop_first(mine, target)
    with np.errstate(invalid="ignore"):
        want = loop_interval(lambda a, b: 1.0 if (r := ratio(a, b)) != r else r, reference, ours)
    assert intervals.ratio_interval(reference, ours, target) == pytest.approx(want, rel=1e-14)
    finals = [metrics.final_losses(curves) for curves in (ours, reference)]
    want = loop_interval(lambda a, b: float(a[0] - b[0]), *(f[:, None] for f in finals))
    assert intervals.difference_interval(*finals) == pytest.approx(want, rel=1e-12)


# --- known answers --------------------------------------------------------------------------------


def test_two_seeds_reach_from_one_seed_to_the_other():
    # a quarter of the resamples are the one seed twice, a quarter the other
    curves = lines([0.0, 0.5])
    alone = [metrics.rounds_to_loss(curves[i : i + 1], 0.995) for i in (0, 1)]
    assert alone == [105, 155]
    assert intervals.rounds_interval(curves, 0.995) == (105, 155)
    assert intervals.difference_interval([1.0, 4.0], [0.0, 1.0]) == (1.0, 3.0)


def test_many_seeds_give_the_normal_interval():
    offsets = 0.2 * np.random.default_rng(1).normal(size=400)
    # where the mean line crosses 0.5, and 1.96 standard errors of that, in rounds; whole rounds
    # are counted, so that an end may be one off
    crossing = (2 + offsets.mean() - 0.5) / 0.01 + 4.5
    reach = 1.96 * offsets.std() / math.sqrt(400) / 0.01
    low, high = intervals.rounds_interval(lines(offsets), 0.5)
    assert math.ceil(crossing) == metrics.rounds_to_loss(lines(offsets), 0.5)
    assert abs(low - math.ceil(crossing - reach)) <= 1
    assert abs(high - math.ceil(crossing + reach)) <= 1


def test_intervals_hold_what_they_should_as_often_as_ten_seeds_allow():
    # lines around a known mean: the true round is 154.5 → 155; the percentile interval of ten
    # seeds is known to hold the truth in about nine of ten experiments
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        low, high = intervals.rounds_interval(lines(0.3 * rng.normal(size=10)), 0.5)
        held += low <= 155 <= high
    assert 0.85 <= held / 200 <= 0.97


def test_an_interval_does_not_shrink_to_nothing_where_leaving_one_out_changes_nothing():
    # Three of ten seeds come down in two steps. Leaving out any one seed the mean is at the goal in
    # round 50, so a jackknife gives an error of 0; resamples with four of the three are not.
    t = np.arange(1, 201)
    early, late = np.where(t > 40, 0.0, 1.0), np.where(t > 100, 0.0, np.where(t > 40, 0.35, 1.0))
    curves = np.stack([early] * 7 + [late] * 3)
    left_out = [metrics.rounds_to_loss(np.delete(curves, i, axis=0), 0.12) for i in range(10)]
    assert set(left_out) == {50}
    low, high = intervals.rounds_interval(curves, 0.12)
    assert low <= 50
    assert high > 100


def test_the_same_seeds_are_drawn_for_both_sides():
    # seed 1 of both is lower by a whole unit: the ratio is the same in every resample
    reference = np.stack([np.full(40, 3.0), np.full(40, 2.0)]) - 0.01 * np.arange(40)
    assert intervals.speedup_interval(reference, reference) == (1.0, 1.0)
    assert intervals.difference_interval([3.0, 2.0], [2.5, 1.5]) == (0.5, 0.5)


# --- what is never reached, and what is not known -------------------------------------------------


def test_an_end_that_is_never_reached():
    curves = lines([0.0, 3.9], T=300)  # the second seed is never below 2.9
    low, high = intervals.rounds_interval(curves, 0.995)
    assert (low, high) == (105, INF)
    reference = lines([0.0, 0.0], slope=0.005, T=300)
    low, high = intervals.speedup_interval(reference, curves)
    assert low == 0
    assert high == pytest.approx(300 / 155, rel=0.02)
    assert intervals.ratio_interval(curves, reference, -5.0) == (1.0, 1.0)  # neither gets there


def test_a_diverged_seed_spoils_only_the_resamples_that_have_it():
    curves = lines([0.0, 0.5, 0.7])
    curves[2, 20:] = NAN
    low, high = intervals.rounds_interval(curves, 0.995)
    assert 105 <= low <= 155
    assert high == INF


def test_one_seed_has_no_interval(raises_clearly):
    one = lines([0.0])
    assert intervals.rounds_interval(one, 1.0) is None
    assert intervals.speedup_interval(one, one) is None
    assert intervals.ratio_interval(one, one, 1.0) is None
    assert intervals.difference_interval([1.0], [2.0]) is None
    with raises_clearly("2 seeds", "1", "same seeds"):
        intervals.speedup_interval(one, lines([0.0, 1.0]))
    with raises_clearly("[seeds, rounds]", "curve[None, :]"):
        intervals.rounds_interval([1.0, 2.0], 1.0)


@pytest.mark.parametrize(
    ("interval", "apart"),
    [
        ((0.9, 1.1), False),
        ((1.0, 2.0), False),
        ((1.1, 2.0), True),
        ((0.0, 0.9), True),
        ((1.2, INF), True),
        ((NAN, NAN), False),
        (None, False),
    ],
)
def test_apart_is_what_leaves_one_out(interval, apart):
    assert intervals.is_apart(interval, 1.0) is apart
