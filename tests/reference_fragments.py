"""Streaming DiLoCo step by step in float64 NumPy: one clock, one worker after the other.

Nothing is shared with the package. A tree is a dict of name → float64 array; a fragment is a list
of names.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

Tree = dict[str, np.ndarray]


def streaming(
    params: Tree,
    grad: Callable[[Tree, Any], Tree],
    batches: Sequence[Sequence[Sequence[Any]]],
    gamma: float,
    fragments: Sequence[Sequence[str]],
    delay: int,
    mix: float,
    outers: Sequence[Callable[[Tree, Tree], Tree]],
    locals_K: Sequence[Any] | None = None,
    send_FK: Sequence[Sequence[Callable[[Tree], Tree]]] | None = None,
) -> tuple[list[Tree], list[Tree]]:
    """The global weights after each round over `batches[t][k][h]`, and the workers' at the end.

    `outers[f]` takes the fragment and the workers' deltas, leaves [K, …], to the new fragment.
    """
    K, H = len(batches[0]), len(batches[0][0])
    F = len(fragments)
    whole = {n: np.asarray(x, np.float64) for n, x in params.items()}
    own = [dict(whole) for _ in range(K)]
    due: list[tuple[int, int]] = []  # (clock, fragment)
    sends = {ceil(Fraction((f + 1) * H, F)): f for f in range(F)}
    history = []

    def take_in(now: int) -> None:
        for f in [f for clock, f in due if clock == now]:
            for k in range(K):
                for n in fragments[f]:
                    own[k][n] = mix * own[k][n] + (1 - mix) * whole[n]

    for clock in range(1, len(batches) * H + 1):
        t, h = divmod(clock - 1, H)
        for k in range(K):
            g = grad(own[k], batches[t][k][h])
            if locals_K is None:
                own[k] = {n: own[k][n] - gamma * g[n] for n in own[k]}
            else:
                own[k] = dict(locals_K[k].step(own[k], g))
        take_in(clock)
        if h + 1 in sends:
            f = sends[h + 1]
            deltas = []
            for k in range(K):
                delta = {n: whole[n] - own[k][n] for n in fragments[f]}
                deltas.append(delta if send_FK is None else send_FK[f][k](delta))
            stacked = {n: np.stack([d[n] for d in deltas]) for n in fragments[f]}
            whole.update(outers[f]({n: whole[n] for n in fragments[f]}, stacked))
            due.append((clock + delay, f))
            if delay == 0:
                take_in(clock)
        if h + 1 == H:
            history.append(dict(whole))
    return history, own
