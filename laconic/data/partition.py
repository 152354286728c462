"""Dividing a data set among clients: at random, or by Dirichlet class mixes (Hsu et al., 2019).

Plain NumPy on the host: a partition is drawn once for a run and then lies on the device as row
numbers. With Dirichlet(α) every client draws a class mix q ~ Dir(α, …, α) and then its samples one
by one, the class from q and the sample from what is left of that class. A class that has run out is
zeroed in q and the rest renormalised, so clients keep their size and no sample is used twice.
"""

from collections.abc import Sequence

import numpy as np

from laconic.errors import LaconicError

SEED = 20240605  # changing it changes every federated number


def generator(*seed: int) -> np.random.Generator:
    """The random numbers of a partition; the first seed tells its uses apart."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([SEED, *seed])))


def client_sizes(samples: int, clients: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """How many samples each client gets [clients]: all the same, or log-normal by `spread`.

    Every client has at least one sample; a remainder of the division is left unused.
    """
    if clients > samples:
        raise LaconicError(
            f"{samples} samples are too few to give each of {clients} clients data of its own; "
            "ask for fewer clients."
        )
    if not spread:
        return np.full(clients, samples // clients)
    noise = rng.standard_normal(clients)
    with np.errstate(over="ignore"):
        shares = np.exp(spread * (noise - noise.max()))  # relative to the largest: always finite
    sizes = np.maximum(1, np.floor(samples * shares / shares.sum())).astype(int)
    while sizes.sum() > samples:  # samples added to empty clients are taken from the largest
        sizes[np.argmax(sizes)] -= 1
    return sizes


def deal(samples: int, sizes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client, dealt out at random."""
    ends = np.cumsum(sizes)
    return np.split(rng.permutation(samples)[: ends[-1]], ends[:-1])


def deal_by_class(
    labels: np.ndarray, sizes: np.ndarray, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """The rows of each client under Dirichlet(α) class mixes."""
    if not alpha > 0 or not np.isfinite(alpha):
        raise LaconicError(
            f"the Dirichlet α must be positive and finite, got {alpha}: clients differ much at "
            "0.1, hardly at 100."
        )
    classes = np.unique(labels)
    stock = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    left = np.array([len(rows) for rows in stock])
    rows = []
    for size in sizes:
        counts = draw_counts(rng.dirichlet(np.full(len(classes), alpha)), left, int(size), rng)
        rows.append(np.concatenate([stock[c][left[c] - n : left[c]] for c, n in enumerate(counts)]))
        left = left - counts
    return rows


def draw_counts(
    mix: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Samples of each class in `size` draws, one by one, from `mix` with `left` in stock.

    Draws up to the first that finds its class empty are made together; then that class is zeroed.
    If all classes of the mix have run out, the rest is drawn from what is left.
    """
    counts = np.zeros(len(mix), int)
    while (todo := size - counts.sum()) > 0:
        free = left - counts
        weights = np.where(free > 0, mix, 0.0)
        weights = weights if weights.sum() > 0 else free.astype(float)
        ends = np.cumsum(weights)
        drawn = np.searchsorted(ends, rng.random(todo) * ends[-1], side="right")
        seen = np.cumsum(drawn[:, None] == np.arange(len(mix)), axis=0)
        over = np.flatnonzero((seen > free).any(axis=1))
        drawn = drawn[: over[0] if over.size else todo]
        counts += np.bincount(drawn, minlength=len(mix))[: len(mix)]
    return counts


def class_counts(labels: np.ndarray, rows: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client has [clients, classes]."""
    return np.stack([np.bincount(labels[own], minlength=classes) for own in rows])
