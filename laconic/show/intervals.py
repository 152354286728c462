"""How far another draw of seeds might lead: 95 % intervals by the bootstrap over seeds.

Every interval is the middle 95 % of `RESAMPLES` recomputations, each from as many seeds drawn with
replacement; methods that are compared get the same seeds. The draws are fixed, so that the same
records always give the same interval. No interval is known of a single seed.

A loss that a resample never reaches takes infinitely many rounds, and its speedup is 0. Tables show
such an end of an interval as –.

Legend: B resamples, S seeds, T rounds, X anything that is averaged over seeds.
"""

import functools

import numpy as np
from numpy.typing import ArrayLike

from laconic.errors import LaconicError
from laconic.show import metrics

RESAMPLES = 2000
SHARE = 0.95
KEY = 0  # of NumPy's default generator

Interval = tuple[float, float]


def rounds_interval(curves_ST: ArrayLike, target: float) -> Interval | None:
    """The interval of `metrics.rounds_to_loss`."""
    (curves,) = _resampled(curves_ST)
    return None if curves is None else _middle(_rounds(curves, target))


def speedup_interval(reference_ST: ArrayLike, curves_ST: ArrayLike) -> Interval | None:
    """The interval of `metrics.speedup`: each resample has its own reference's minimum as goal."""
    reference_BT, curves_BT = _resampled(reference_ST, curves_ST)
    if reference_BT is None or curves_BT is None:
        return None
    target_B = np.where(np.isfinite(reference_BT), reference_BT, np.inf).min(axis=1)
    theirs_B, ours_B = _rounds(reference_BT, target_B), _rounds(curves_BT, target_B)
    has_goal_B = np.isfinite(theirs_B)
    return _middle(np.where(has_goal_B, theirs_B, 0.0) / ours_B)


def ratio_interval(reference_ST: ArrayLike, curves_ST: ArrayLike, target: float) -> Interval | None:
    """The interval of how many times as many rounds the reference needs to one fixed loss.

    Where neither gets there the ratio is 1.
    """
    reference_BT, curves_BT = _resampled(reference_ST, curves_ST)
    if reference_BT is None or curves_BT is None:
        return None
    theirs_B, ours_B = _rounds(reference_BT, target), _rounds(curves_BT, target)
    neither_B = np.isinf(theirs_B) & np.isinf(ours_B)
    theirs_B[neither_B] = ours_B[neither_B] = 1.0
    return _middle(theirs_B / ours_B)


def difference_interval(ours_S: ArrayLike, theirs_S: ArrayLike) -> Interval | None:
    """The interval of the difference of two means over the same seeds."""
    ours, theirs = (np.asarray(x, dtype=np.float64)[:, None] for x in (ours_S, theirs_S))
    _check_same(ours, theirs)
    if len(ours) < 2:
        return None
    return _middle(_means(ours - theirs)[:, 0])


def is_apart(interval: Interval | None, from_: float) -> bool:
    """Whether an interval is known and leaves out the value that means "no difference"."""
    return interval is not None and (interval[0] > from_ or interval[1] < from_)


def _check_same(*values: np.ndarray) -> None:
    seeds = [len(value) for value in values]
    if len(set(seeds)) > 1:
        why = "the same seeds are drawn for both, so run both with the same seeds."
        raise LaconicError(f"an interval of {seeds[-1]} seeds over {seeds[0]} seeds: {why}")


def _resampled(*all_curves: ArrayLike) -> list[np.ndarray | None]:
    """The smoothed mean curves [B, T] of all resamples; NaN before the first full window."""
    checked = [metrics.checked_curves(curves_ST) for curves_ST in all_curves]
    _check_same(*checked)
    if len(checked[0]) < 2:
        return [None] * len(checked)
    return [_means(np.stack([metrics.smoothed(row_T) for row_T in rows_ST])) for rows_ST in checked]


def _means(values_SX: np.ndarray) -> np.ndarray:
    """The mean of every resample [B, X]; NaN wherever one of its seeds is not finite."""
    counts_BS = _counts(len(values_SX))
    bad_SX = ~np.isfinite(values_SX)
    means_BX = counts_BS @ np.where(bad_SX, 0.0, values_SX) / len(values_SX)
    for X in np.flatnonzero(bad_SX.any(axis=0)):
        means_BX[counts_BS @ bad_SX[:, X] > 0, X] = np.nan
    return means_BX


@functools.cache
def _counts(S: int) -> np.ndarray:
    """How often each seed is in each resample [B, S]."""
    drawn_BS = np.random.default_rng(KEY).integers(S, size=(RESAMPLES, S))
    return (drawn_BS[:, :, None] == np.arange(S)).sum(axis=1).astype(float)


def _rounds(smooth_BT: np.ndarray, target: float | np.ndarray) -> np.ndarray:
    """The first round at the target [B]; infinite where there is none."""
    goal = np.broadcast_to(target, len(smooth_BT))[:, None]
    reached_BT = np.isfinite(smooth_BT) & (smooth_BT <= goal)
    return np.where(reached_BT.any(axis=1), reached_BT.argmax(axis=1) + 1.0, np.inf)


def _middle(values_B: np.ndarray) -> Interval:
    """The ends of the middle share, each one of the values: the outer one where it falls between
    two."""
    low = np.quantile(values_B, (1 - SHARE) / 2, method="lower")
    high = np.quantile(values_B, (1 + SHARE) / 2, method="higher")
    return float(low), float(high)
