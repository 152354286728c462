"""Every published metric, defined once, in words (`DEFINITIONS`) and in float64 NumPy.

Legend: S seeds, T rounds, E evaluations. A *curve* [T] holds the train loss of rounds 1 … T;
*curves* [S, T] hold one curve a seed.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from laconic.errors import LaconicError

WINDOW = 10
DEFINITIONS = (
    ("train loss", "The mean of the K·H minibatch losses of a round, taken before the outer step."),
    ("mean curve", "The mean over seeds at each round; not finite where any seed is not."),
    (
        "smoothed",
        "The trailing mean over the last 10 rounds, given to the window's last round; undefined "
        "before. A shorter curve has one window: all of it.",
    ),
    ("rounds to a loss", "The first round whose smoothed mean curve is at most that loss, or –."),
    ("minimum loss", "The least finite value of the smoothed mean curve."),
    (
        "speedup",
        "Rounds the reference (local SGD) needs to reach its own minimum loss ÷ rounds the method "
        "needs to reach that same loss; – if it never does.",
    ),
    (
        "[low, high]",
        "A 95 % interval over seeds: the middle 95 % of 2,000 recomputations, each from as many "
        "seeds drawn with replacement, the same for both sides; – is never. With two or three "
        "seeds it is too narrow.",
    ),
    (
        "final train loss",
        "The mean over seeds of each seed's last smoothed loss, ± the standard error over seeds.",
    ),
    ("test loss, accuracy", "Means over seeds on the whole test set after the last round."),
    (
        "sent, received",
        "Megabytes (10⁶ bytes) each worker moves in the whole run, from the bits of the messages.",
    ),
    (
        "time on a link",
        "Rounds × (local steps × step time + 2 × latency + bits sent ÷ bandwidth + bits received ÷ "
        "bandwidth); the server's own time is left out.",
    ),
)


def smoothed(curve_T: ArrayLike, window: int = WINDOW) -> np.ndarray:
    """The trailing mean [T] over `window` rounds (all T if fewer); NaN before the first window."""
    values_T = _numbers(curve_T)
    if values_T.ndim != 1 or values_T.size == 0:
        shape = values_T.shape
        raise LaconicError(f"a loss curve must be a non-empty vector of rounds, got shape {shape}.")
    if window < 1:
        raise LaconicError(f"the smoothing window must be at least 1 round, got {window}.")
    window = min(window, values_T.size)
    result_T = np.full(values_T.size, np.nan)
    with np.errstate(invalid="ignore", over="ignore"):  # diverged runs: inf − inf is NaN, as wanted
        windows = np.lib.stride_tricks.sliding_window_view(values_T, window)
        result_T[window - 1 :] = windows.mean(axis=1)
    return result_T


def mean_curve(curves_ST: ArrayLike) -> np.ndarray:
    """The mean over seeds [T]; non-finite wherever any seed is."""
    with np.errstate(invalid="ignore", over="ignore"):
        return checked_curves(curves_ST).mean(axis=0)


def standard_error(curves_ST: ArrayLike) -> np.ndarray:
    """The standard error [T] of the mean curve (sample deviation ÷ √S); zeros for a single seed."""
    curves_ST = checked_curves(curves_ST)
    S, T = curves_ST.shape
    if S == 1:
        return np.zeros(T)
    with np.errstate(invalid="ignore", over="ignore"):
        return curves_ST.std(axis=0, ddof=1) / math.sqrt(S)


def rounds_to_loss(curves_ST: ArrayLike, target: float) -> int | None:
    """The first round, from 1, at which the smoothed mean curve is at most `target`, or None."""
    smooth_T = smoothed(mean_curve(curves_ST))
    reached_T = np.isfinite(smooth_T) & (smooth_T <= target)
    return int(np.argmax(reached_T)) + 1 if reached_T.any() else None


def minimum_loss(curves_ST: ArrayLike) -> float:
    """The least finite value of the smoothed mean curve; NaN if it has none."""
    smooth_T = smoothed(mean_curve(curves_ST))
    finite = smooth_T[np.isfinite(smooth_T)]
    return float(finite.min()) if finite.size else math.nan


def speedup(reference_ST: ArrayLike, curves_ST: ArrayLike) -> float | None:
    """Rounds the reference needs to reach its minimum loss ÷ rounds `curves_ST` needs to."""
    target = minimum_loss(reference_ST)
    ours, theirs = rounds_to_loss(curves_ST, target), rounds_to_loss(reference_ST, target)
    return None if ours is None or theirs is None else theirs / ours


def bits_to_loss(curves_ST: ArrayLike, target: float, bits_per_round: int) -> int | None:
    """Bits moved until the target is reached, at `bits_per_round`; None if it never is."""
    if bits_per_round < 0:
        raise LaconicError(f"bits_per_round must not be negative, got {bits_per_round}.")
    rounds = rounds_to_loss(curves_ST, target)
    return None if rounds is None else rounds * bits_per_round


def final_loss(curves_ST: ArrayLike) -> float:
    """The mean over seeds of each seed's last smoothed value; non-finite if any of those is."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(final_losses(curves_ST)))


def final_losses(curves_ST: ArrayLike) -> np.ndarray:
    """Each seed's last smoothed value [S]."""
    return np.array([smoothed(curve_T)[-1] for curve_T in checked_curves(curves_ST)])


def mean_over_rounds(
    values_SE: ArrayLike, evaluated_at: ArrayLike, first: int, last: int
) -> tuple[float, float] | tuple[None, None]:
    """A held-out metric over rounds `first` to `last` → (mean, error); None without any."""
    values_SE, at_E = checked_curves(values_SE), np.asarray(evaluated_at)
    inside_E = (at_E >= first) & (at_E <= last)
    if not inside_E.any():
        return None, None
    means_S = values_SE[:, inside_E].mean(axis=1)
    return float(means_S.mean()), float(standard_error(means_S[:, None])[0])


def diverged(curves_ST: ArrayLike) -> np.ndarray:
    """One flag a seed [S]: did its loss ever leave the finite numbers."""
    return np.array([not np.isfinite(curve_T).all() for curve_T in checked_curves(curves_ST)])


def checked_curves(curves_ST: ArrayLike) -> np.ndarray:
    """Curves as float64 [S, T], or an error that says which shape was given."""
    values_ST = _numbers(curves_ST)
    if values_ST.ndim != 2 or values_ST.size == 0:
        shape = f"got shape {values_ST.shape}; give a single run as curve[None, :]."
        raise LaconicError(
            f"loss curves must be [seeds, rounds] with at least one of each, {shape}"
        )
    return values_ST


def _numbers(values: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        why = f"loss curves must be numbers, with one length for all seeds: {error}."
        raise LaconicError(why) from error


WATCHED = {"valid_loss": "validation loss", "loss": "test loss"}


def stopped_early(early: Mapping[str, Any]) -> str:
    """Where a run stopped and why, in words."""
    name = WATCHED[early["watched"]]
    best = f"{name} was never finite"
    if early["best_round"] is not None:
        best = f"{name} was lowest after round {early['best_round']} ({early['best_loss']:.4g})"
    since = f"no lower one in {early['patience']} looks"
    return f"stopped after round {early['stopped']}: {best}, {since}"
