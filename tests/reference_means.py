"""Robust means once more, in plain NumPy and float64: one function each, written from its
definition.

Each takes a list of workers' trees {name: array}, and gives one tree.
"""

import math
from collections.abc import Callable

import numpy as np

Tree = dict[str, np.ndarray]


def vector(tree: Tree) -> np.ndarray:
    return np.concatenate([np.asarray(tree[name], np.float64).ravel() for name in sorted(tree)])


def each(trees: list[Tree], rule: Callable[[np.ndarray], np.ndarray]) -> Tree:
    return {n: rule(np.stack([np.asarray(t[n], np.float64) for t in trees])) for n in trees[0]}


def mean(trees: list[Tree]) -> Tree:
    return each(trees, lambda x: np.mean(x, axis=0))


def median(trees: list[Tree]) -> Tree:
    return each(trees, lambda x: np.median(x, axis=0))


def trimmed(trees: list[Tree], percent: int) -> Tree:
    """Of n numbers the largest and smallest ⌈n·percent/100⌉ are left out, but not all."""
    n = len(trees)
    cut = min(-(-n * percent // 100), (n - 1) // 2)
    return each(trees, lambda x: np.mean(np.sort(x, axis=0)[cut : n - cut], axis=0))


def krum_scores(trees: list[Tree], f: int) -> list[float]:
    """The sum of squared distances to the n − f − 2 nearest others, at least one."""
    rows = [vector(t) for t in trees]
    scores = []
    for i, own in enumerate(rows):
        apart = sorted(float(np.sum((own - x) ** 2)) for j, x in enumerate(rows) if j != i)
        scores.append(math.fsum(apart[: max(len(rows) - f - 2, 1)]))
    return scores


def krum(trees: list[Tree], f: int, several: bool = False) -> Tree:
    """The tree of the lowest score, or the mean of the n − f lowest. Of trees that tie for the last
    places each has the same part: two that are each other's only neighbour always do."""
    scores, many = krum_scores(trees, f), max(len(trees) - f, 1) if several else 1
    last = sorted(scores)[many - 1]
    tied = [i for i, score in enumerate(scores) if math.isclose(score, last, rel_tol=1e-12)]
    sure = [i for i, score in enumerate(scores) if score < last and i not in tied]
    parts = {i: 1.0 for i in sure} | {i: (many - len(sure)) / len(tied) for i in tied}
    return {
        n: np.sum([part * np.asarray(trees[i][n], float) for i, part in parts.items()], axis=0)
        / many
        for n in trees[0]
    }


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def clip(trees: list[Tree], limit: float) -> Tree:
    norms = [float(np.linalg.norm(vector(t))) for t in trees]
    radius = limit * lower_median(norms)
    factors = [min(1.0, radius / n) if n > 0 else 1.0 for n in norms]
    scaled = [
        {n: f * np.asarray(x, float) for n, x in t.items()}
        for f, t in zip(factors, trees, strict=True)
    ]
    return mean(scaled)


def centred_clip(trees: list[Tree], limit: float) -> Tree:
    middle = median(trees)
    apart = clip([{n: t[n] - middle[n] for n in t} for t in trees], limit)
    return {n: middle[n] + apart[n] for n in middle}


TWINS: dict[str, Callable[[list[Tree]], Tree]] = {
    "median": median,
    "trimmed:0": mean,
    "trimmed:0.2": lambda trees: trimmed(trees, 20),
    "trimmed:0.4": lambda trees: trimmed(trees, 40),
    "krum:f=0": lambda trees: krum(trees, 0),
    "krum:f=1": lambda trees: krum(trees, 1),
    "multi-krum:f=0": mean,
    "multi-krum:f=2": lambda trees: krum(trees, 2, several=True),
    "clip:1": lambda trees: clip(trees, 1.0),
    "clip:100": lambda trees: clip(trees, 100.0),
    "centred-clip:1": lambda trees: centred_clip(trees, 1.0),
    "centred-clip:100": lambda trees: centred_clip(trees, 100.0),
}
