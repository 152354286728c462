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
    """The source of a partition's numbers; partitions of different uses differ in the first of
    them."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([SEED, *seed])))


def client_sizes(samples: int, clients: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """How many of the samples each client gets [clients]: all the same, or log-normal with
    deviation `spread`.

    What does not divide evenly is left over. Everyone has at least one sample.
    """
    if clients > samples:
        raise LaconicError(
            f"{clients} clients cannot each have data of their own among {samples} samples; ask "
            "for fewer clients."
        )
    if not spread:
        return np.full(clients, samples // clients)
    noise = rng.standard_normal(clients)
    with np.errstate(
        over="ignore"
    ):  # relative to the largest, so that even a wide spread leaves finite shares
        shares = np.exp(spread * (noise - noise.max()))
    sizes = np.maximum(1, np.floor(samples * shares / shares.sum())).astype(int)
    while sizes.sum() > samples:  # those who were given their one sample take it from the largest
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
            f"the Dirichlet α must be positive and finite, got {alpha}: 0.1 differs much, 100 "
            "hardly."
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
    """How many samples of each class come of `size` draws, one by one, from `mix` with `left` in
    stock.

    Draws up to the one that finds its class empty are made together; then that class is zeroed. A
    mix whose classes have all run out is replaced by what is left.
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
        counts += np.bincount(drawn[: over[0] if over.size else todo], minlength=len(mix))[
            : len(mix)
        ]
    return counts


def class_counts(labels: np.ndarray, rows: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client has [clients, classes]."""
    return np.stack([np.bincount(labels[own], minlength=classes) for own in rows])
