"""DES-LOC and NoLoCo in float64 NumPy, one worker after the other.

Nothing is shared with the package. A tree is a dict of name → float64 array; workers' AdamW are
those of `reference_compress`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.reference_compress import AdamW

Tree = dict[str, np.ndarray]
Gradient = Callable[[Tree, Any], Tree]
Batches = Sequence[Sequence[Sequence[Any]]]  # [t][k][h]


def mean(trees: Sequence[Tree]) -> Tree:
    return {name: sum(tree[name] for tree in trees) / len(trees) for name in trees[0]}


def desloc(
    params: Tree,
    grad: Gradient,
    batches: Batches,
    workers: Sequence[AdamW],
    first: int,
    second: int,
    here: Sequence[Sequence[int]],
) -> list[Tree]:
    """The weights after each round; `here[t]` are the workers that take part in it."""
    shared, history = {n: np.asarray(x, np.float64) for n, x in params.items()}, []
    for t, batches_KH in enumerate(batches):
        ends = []
        for k in here[t]:
            own = dict(shared)
            for rows in batches_KH[k]:
                own = workers[k].step(own, grad(own, rows))
            ends.append(own)
        shared = mean(ends)
        present = [workers[k] for k in here[t]]
        if (t + 1) % first == 0:
            m = mean([worker.m for worker in present])
            for worker in present:
                worker.m = dict(m)
        if (t + 1) % second == 0:
            v = mean([worker.v for worker in present])
            for worker in present:
                worker.v = dict(v)
        history.append(shared)
    return history


def noloco(
    params: Tree,
    grad: Gradient,
    batches: Batches,
    workers: Sequence[AdamW],
    meetings: Sequence[Sequence[Sequence[int]]],
    alpha: float,
    beta: float,
    pull: float,
) -> list[list[Tree]]:
    """Every worker's weights after each round; `meetings[t]` are groups of workers."""
    own = [{n: np.asarray(x, np.float64) for n, x in params.items()} for _ in workers]
    momentum = [{n: np.zeros_like(x) for n, x in tree.items()} for tree in own]
    history = []
    for t, batches_KH in enumerate(batches):
        moved = []
        for k, worker in enumerate(workers):
            walked = dict(own[k])
            for rows in batches_KH[k]:
                walked = worker.step(walked, grad(walked, rows))
            moved.append({n: walked[n] - own[k][n] for n in walked})
        for group in meetings[t]:
            step, middle = mean([moved[k] for k in group]), mean([own[k] for k in group])
            for k in group:
                for n in step:
                    apart = own[k][n] - middle[n]
                    momentum[k][n] = alpha * momentum[k][n] + beta * step[n] - pull * apart
                own[k] = {n: own[k][n] + momentum[k][n] for n in step}
        history.append([dict(tree) for tree in own])
    return history
