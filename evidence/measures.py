"""The published metrics once more, in plain NumPy. Curves are [seeds, rounds]."""

import functools
import math

import numpy as np

from evidence.records import config, curves, heldout, methods

WINDOW = 10  # rounds of smoothing
RESAMPLES = 2000
Interval = tuple[float, float]


def smoothed(curve: np.ndarray) -> np.ndarray:
    """Means over full windows; entry 0 is after round 10, or after the last of fewer."""
    window = min(WINDOW, len(curve))
    sums = np.cumsum(np.concatenate([[0.0], curve]))
    if np.isfinite(sums[-1]) and np.abs(curve).max() < 1e3:
        return (sums[window:] - sums[:-window]) / window
    return np.array([curve[i : i + window].mean() for i in range(len(curve) - window + 1)])


def mean_curve(losses: np.ndarray) -> np.ndarray:
    """The smoothed mean over seeds."""
    return smoothed(losses.mean(axis=0))


def lowest(losses: np.ndarray) -> float:
    """The least finite value of the smoothed mean; NaN without any."""
    smooth = mean_curve(losses)
    smooth = smooth[np.isfinite(smooth)]
    return float(smooth.min()) if smooth.size else math.nan


def rounds_to(losses: np.ndarray, target: float) -> float:
    """The first round whose smoothed mean is at the target; NaN for never."""
    return _first(mean_curve(losses), target, losses.shape[1])


def _first(smooth: np.ndarray, target: float, rounds: int) -> float:
    """With a tolerance of 1e-12 for sums in another order."""
    there = np.flatnonzero(smooth <= target * (1 + 1e-12))
    return float(there[0] + min(WINDOW, rounds)) if there.size else math.nan


def final(losses: np.ndarray) -> tuple[float, float]:
    """The mean over seeds of the last smoothed loss, and its standard error."""
    ends = losses[:, -min(WINDOW, losses.shape[1]) :].mean(axis=1)
    return float(ends.mean()), spread(ends)


def spread(values: np.ndarray) -> float:
    """The standard error of a mean over seeds; 0 for one seed."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def speedup(reference: np.ndarray, losses: np.ndarray) -> float:
    """Rounds of the reference to its own lowest loss over ours to the same; NaN for never."""
    target = lowest(reference)
    return rounds_to(reference, target) / rounds_to(losses, target)


# --- intervals ------------------------------------------------------------------------------------


@functools.cache
def _drawn(seeds: int) -> np.ndarray:
    return np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))


def _resampled(losses: np.ndarray) -> np.ndarray:
    """The smoothed mean curves of all resamples, one after the other."""
    each = np.stack([smoothed(curve) for curve in losses])
    return np.stack([each[row].mean(axis=0) for row in _drawn(len(losses))])


def _firsts(smooth: np.ndarray, targets: np.ndarray, rounds: int) -> np.ndarray:
    there = smooth <= targets[:, None] * (1 + 1e-12)
    return np.where(there.any(axis=1), there.argmax(axis=1) + min(WINDOW, rounds), np.inf)


def _middle(values: np.ndarray) -> Interval:
    """Order statistics; NaN for an end that is never reached."""
    ordered = np.sort(values)
    ends = ordered[math.floor(0.025 * (RESAMPLES - 1))], ordered[math.ceil(0.975 * (RESAMPLES - 1))]
    low, high = (math.nan if end == 0 or math.isinf(end) else float(end) for end in ends)
    return low, high


def rounds_interval(losses: np.ndarray, target: float) -> Interval:
    """The middle 95 % of the rounds to a loss over resampled seeds."""
    targets = np.full(RESAMPLES, target)
    return _middle(_firsts(_resampled(losses), targets, losses.shape[1]))


def speedup_interval(reference: np.ndarray, losses: np.ndarray) -> Interval:
    """The middle 95 % of the speedup over resampled seeds, the same for both."""
    theirs, ours = _resampled(reference), _resampled(losses)
    targets = np.where(np.isfinite(theirs), theirs, np.inf).min(axis=1)
    rounds = losses.shape[1]
    return _middle(_firsts(theirs, targets, rounds) / _firsts(ours, targets, rounds))


# --- of a comparison ------------------------------------------------------------------------------


@functools.cache
def reference(folder: str) -> str | None:
    """Local SGD, or FedAvg, with whole messages and no diverged seed; of several the lowest."""
    plain = {
        label: lowest(curves(folder, label))
        for label, method in methods(folder).items()
        if method["method"] in ("local-sgd", "fedavg")
        and method["compressor"] == "dense"
        and not any(method["diverged"])
    }
    return min(plain, key=plain.__getitem__, default=None)


@functools.cache
def target(folder: str) -> float:
    """The loss that rounds are counted to: the given one, or the reference's lowest."""
    given = config(folder)["target_loss"]
    name = reference(folder)
    if given is not None or name is None:
        return math.nan if given is None else given
    return lowest(curves(folder, name))


def times(folder: str, label: str) -> float:
    """A method's speedup over its comparison's reference."""
    name = reference(folder)
    assert name is not None, folder
    return speedup(curves(folder, name), curves(folder, label))


def rounds(folder: str, label: str, loss: float | None = None) -> float:
    """A method's rounds to a loss, or to its comparison's target."""
    return rounds_to(curves(folder, label), target(folder) if loss is None else loss)


def seconds(folder: str, label: str) -> float:
    """Time on the comparison's link to the target."""
    method = methods(folder)[label]
    megabits, milliseconds = config(folder)["link"].removesuffix("ms").split("Mbit/")
    bits = method["traffic"]["sent_bits"] + method["traffic"]["received_bits"]
    wait = 2 * float(milliseconds) / 1e3 + bits / (float(megabits) * 1e6)
    return rounds(folder, label) * (method["local_steps"] * method["step_seconds"] + wait)


def megabytes(folder: str, label: str, way: str = "sent", over: float | None = None) -> float:
    """What a worker sends or receives in so many rounds, or in all."""
    rounds = len(methods(folder)[label]["train"][0]) if over is None else over
    return methods(folder)[label]["traffic"][f"{way}_bits"] * rounds / 8e6


def best(folder: str, label: str, metric: str) -> tuple[float, int]:
    """The best mean over seeds of a held-out metric, and the round it is in."""
    curve = heldout(folder, label, metric).mean(axis=0)
    known = np.where(np.isfinite(curve), curve, np.inf if metric == "loss" else -np.inf)
    look = int(known.argmin() if metric == "loss" else known.argmax())
    return float(curve[look]), methods(folder)[label]["evaluated_at"][look]


def end(folder: str, label: str, metric: str) -> float:
    """The mean over seeds of a held-out metric after the last round; NaN if a seed diverged."""
    if any(methods(folder)[label]["diverged"]):
        return math.nan
    return float(heldout(folder, label, metric)[:, -1].mean())


def span(folder: str, label: str, first: int, until: int) -> tuple[float, float]:
    """Mean test accuracy over looks between two rounds, and its standard error."""
    at = np.array(methods(folder)[label]["evaluated_at"])
    looks = heldout(folder, label, "accuracy")[:, (at >= first) & (at <= until)].mean(axis=1)
    return float(looks.mean()), spread(looks)
