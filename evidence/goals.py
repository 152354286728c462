"""Sentences about test loss, clipped baselines and more workers."""

from collections.abc import Callable, Sequence

import numpy as np

from evidence import measures
from evidence.measures import best, final, rounds
from evidence.records import config, curves, heldout, methods

Claim = tuple[str, Callable[[], Sequence[float]]]

VALID, FRESH = "fmnist-valid", "fmnist-fresh"
META = "reproduce/fig-validation-full/panels/fmnist-mlp2"
CLIPPED = "reproduce/fig-clipped-full/panels"
K16 = "reproduce/fig-workers-full/panels/fmnist-mlp2-k16"
SGD, LOPT, LAGG = "Local SGD", "LOpt-A (tuned)", "LAgg-A (tuned)"
USUAL = "SlowMo (of 487 points at H = 4)"
CLIP1 = "SlowMo (the same with clip = 1)"
STEPS = (4, 8, 16)


# --- test loss ------------------------------------------------------------------------------------


def _looks(folder: str, label: str) -> np.ndarray:
    return np.array(methods(folder)[label]["evaluated_at"], float)


def first_look(folder: str, label: str, loss: float) -> float:
    """The first round at which the mean test loss is at a loss."""
    there = np.flatnonzero(heldout(folder, label, "loss").mean(axis=0) <= loss)
    return float(_looks(folder, label)[there[0]]) if there.size else float("nan")


def _resampled(values: np.ndarray) -> np.ndarray:
    """Means over seeds drawn with replacement [resamples, looks], as `measures` draws them."""
    drawn = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    return np.stack([values[row].mean(axis=0) for row in drawn])


def _middle(values: np.ndarray) -> list[float]:
    ordered = np.sort(values)
    return [float(ordered[int(np.floor(0.025 * 1999))]), float(ordered[int(np.ceil(0.975 * 1999))])]


def ahead() -> list[float]:
    """How many times as soon LOpt-A is at local SGD's best test loss, and the interval: each
    resample has its own best; 0 where LOpt-A never gets there."""
    at = _looks(VALID, SGD)
    theirs, ours = (_resampled(heldout(VALID, label, "loss")) for label in (SGD, LOPT))

    def ratio(reference: np.ndarray, losses: np.ndarray) -> float:
        there = np.flatnonzero(losses <= reference.min())
        return float(at[reference.argmin()] / at[there[0]]) if there.size else 0.0

    own = ratio(*(heldout(VALID, label, "loss").mean(axis=0) for label in (SGD, LOPT)))
    return [own, *_middle(np.array([ratio(*both) for both in zip(theirs, ours, strict=True)]))]


def below(reference: str, label: str) -> list[float]:
    """By how much LOpt-A's best test loss is lower than that of a method of another record, and the
    interval over seeds."""
    theirs, ours = heldout(reference, label, "loss"), heldout(VALID, LOPT, "loss")
    own = theirs.mean(axis=0).min() - ours.mean(axis=0).min()
    each = _resampled(theirs).min(axis=1) - _resampled(ours).min(axis=1)
    return [float(own), *_middle(each)]


def validation() -> list[Claim]:
    """docs/results/validation.md."""
    own = lambda label: best(VALID, label, "loss")
    third = "local-sgd:gamma=0.3"
    at_third = lambda: below(FRESH, third)
    return [
        ("LOpt-A does, {} times as soon\n[{}, {}], and then", ahead),
        (
            "K = {}, H = {}, B = {}, {} rounds, {} seeds ({}-309)",
            lambda: _sizes(VALID, "seeds", "first_seed"),
        ),
        (
            "local SGD's best test loss, {}, after {} rounds, local SGD after {}. Its own best is "
            "lower by {} [{}, {}]",
            lambda: [
                own(SGD)[0],
                first_look(VALID, LOPT, own(SGD)[0]),
                own(SGD)[1],
                *below(VALID, SGD),
            ],
        ),
        (
            "A test loss of\n  {} it has after {} rounds, local SGD after {}",
            lambda: [0.33, *(first_look(VALID, label, 0.33) for label in (LOPT, SGD))],
        ),
        ("LAgg-A comes to {} and does", lambda: [own(LAGG)[0]]),
        (
            "its best test loss is {} in round {}, which LOpt-A does not\n  reach; the difference "
            "to its {} is within the noise: {} [{}, {}]",
            lambda: [
                *best(FRESH, third, "loss"),
                own(LOPT)[0],
                -at_third()[0],
                -at_third()[2],
                -at_third()[1],
            ],
        ),
        (
            "Here LAgg-A's best, {} in round {}, is one that\nlocal SGD has after {} rounds, but "
            "local SGD goes on to {}",
            lambda: [
                *best(META, "LAgg-A", "loss"),
                first_look(META, SGD, best(META, "LAgg-A", "loss")[0]),
                best(META, SGD, "loss")[0],
            ],
        ),
        (
            "take {} more outer steps, every run {} rounds long",
            lambda: [float(config("meta/lopt-a-fmnist-valid")[x]) for x in ("steps", "shortest")],
        ),
    ]


def _sizes(folder: str, *more: str) -> list[float]:
    names = ("workers", "local_steps", "batch", "rounds", *more)
    return [float(config(folder)[name]) for name in names]


# --- clipped baselines ----------------------------------------------------------------------------


def to(H: int, label: str) -> float:
    """Rounds to a train loss of 0.2."""
    return rounds(f"{CLIPPED}/h{H}", label, 0.2)


def least(H: int) -> float:
    """The fewest rounds of all baselines to 0.2."""
    rivals = [x for x in methods(f"{CLIPPED}/h{H}") if x not in ("LOpt-A", "LAgg-A")]
    return min(x for x in (to(H, label) for label in rivals) if not np.isnan(x))


def _end(H: int, label: str) -> float:
    return final(curves(f"{CLIPPED}/h{H}", label))[0]


def _three(measure: Callable[..., float], *more: str) -> list[float]:
    return [measure(H, *more) for H in STEPS]


def clipped() -> list[Claim]:
    """docs/results/clipped.md."""
    times = lambda label: [measures.times(f"{CLIPPED}/h{H}", label) for H in STEPS]
    return [
        (
            "needs {}, {} and {} rounds to a train loss of 0.2 at H = 4, 8 and 16, LAgg-A\n{}, {} "
            "and {}",
            lambda: [*_three(least), *_three(to, "LAgg-A")],
        ),
        (
            "K = {}, B = {}, {} rounds, {} seeds ({}-309)",
            lambda: [
                x for i, x in enumerate(_sizes(f"{CLIPPED}/h4", "seeds", "first_seed")) if i != 1
            ],
        ),
        (
            "clipping at 1 saves SlowMo {}, {} and {} rounds of {}, {} and {}",
            lambda: [
                *(to(H, USUAL) - to(H, CLIP1) for H in STEPS),
                *_three(to, USUAL),
            ],
        ),
        (
            "needs {}, {} and {} times as many rounds as LOpt-A",
            lambda: [least(H) / to(H, "LOpt-A") for H in STEPS],
        ),
        (
            "it is at 0.2 after {} rounds instead of {}. Over",
            lambda: [to(16, SGD), to(16, "Local SGD (the paper's)")],
        ),
        (
            "LOpt-A are then {}×, {}× and {}×, those of SlowMo {}×, {}× and {}×",
            lambda: [*times("LOpt-A"), *times("SlowMo")],
        ),
        (
            "At H = 16 FedAdam ends at {}, LOpt-A at {}; at H = 8 DiLoCo at {}, LAgg-A at {}",
            lambda: [_end(16, "FedAdam"), _end(16, "LOpt-A"), _end(8, "DiLoCo"), _end(8, "LAgg-A")],
        ),
    ]


# --- more workers, and what README and the index say ----------------------------------------------


def workers() -> list[Claim]:
    """docs/results/workers.md."""
    labels = ("LOpt-A (trained at K = 8)", "LOpt-A", "LAgg-A")
    return [
        (
            "K = 8 is {} times as fast as tuned local SGD at K = 16, the one trained on for K = 16 "
            "{} times, LAgg-A for K = 16 {} times",
            lambda: [measures.times(K16, label) for label in labels],
        ),
        (
            "K = {}, H = {}, B = {}, {} rounds, {} seeds ({}-309)",
            lambda: _sizes(K16, "seeds", "first_seed"),
        ),
        (
            "take {} more outer steps; LAgg-A's",
            lambda: [float(config("meta/lagg-a-fmnist-k16")["steps"])],
        ),
    ]


def readme() -> list[Claim]:
    """README.md."""
    target = lambda: best(VALID, SGD, "loss")
    return [
        (
            "half its rounds ({} of {}, [how]",
            lambda: [first_look(VALID, LOPT, target()[0]), target()[1]],
        ),
        (
            "clipping need {}, {} and {} rounds to a train loss of 0.2 at H = 4, 8 and 16, LAgg-A "
            "{}, {} and\n  {};",
            lambda: [*_three(least), *_three(to, "LAgg-A")],
        ),
        ("tuned on ({}–309)", lambda: [float(config(FRESH)["first_seed"])]),
    ]


def results() -> list[Claim]:
    """docs/results.md."""
    return [
        (
            "more rounds at H = 4, 8 and 16 | {}, {}, {}; LAgg-A {}, {}, {} | {} |",
            lambda: [
                *_three(least),
                *_three(to, "LAgg-A"),
                float(config(f"{CLIPPED}/h4")["seeds"]),
            ],
        ),
        (
            "tuned FedAdam ends lower | {}; LOpt-A {} |",
            lambda: [_end(16, "FedAdam"), _end(16, "LOpt-A")],
        ),
        ("test loss in half its rounds | {}×; for", lambda: ahead()[:1]),
        (
            "LOpt-A for 8 serves as it is | {}×; LAgg-A {}× |",
            lambda: [measures.times(K16, x) for x in ("LOpt-A (trained at K = 8)", "LAgg-A")],
        ),
    ]


def claims() -> dict[str, list[Claim]]:
    """The claims of every page by its name."""
    return {
        "README.md": readme(),
        "docs/results.md": results(),
        "docs/results/validation.md": validation(),
        "docs/results/clipped.md": clipped(),
        "docs/results/workers.md": workers(),
    }
