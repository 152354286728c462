"""Federated learning by hand, in float64 NumPy: sampled clients, drift correction, partial work,
drop-outs.

Nothing here is shared with the package but who was sampled and which rows they saw.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests import reference as ref
from tests import tiny

Tree = dict[str, np.ndarray]


def zeros(tree: Tree) -> Tree:
    return {name: np.zeros_like(x) for name, x in tree.items()}


def combine(a: float, x: Tree, b: float, y: Tree) -> Tree:
    return {name: a * x[name] + b * y[name] for name in x}


@dataclass
class Round:
    """What a round hands out: client ids [K], rows [K][H][B], and, where they differ, steps,
    presence and weights."""

    ids: np.ndarray
    rows: np.ndarray
    steps: np.ndarray
    present: np.ndarray
    weights: np.ndarray


@dataclass
class Twin:
    """FedAvg with SGD clients, and every change to it: μ of FedProx, control variates, normalised
    deltas (FedNova)."""

    outer: Any
    gamma: float
    clients: int
    mu: float = 0.0
    scaffold: bool = False
    nova: bool = False
    send: Any = None  # one function a client: Δ → what arrives
    locals: Any = None  # one optimizer a client
    c: Tree = field(default_factory=dict)
    c_i: list[Tree] = field(default_factory=list)

    def round(self, start: Tree, now: Round) -> Tree:
        if not self.c:
            self.c, self.c_i = zeros(start), [zeros(start) for _ in range(self.clients)]
        weights = now.weights * now.present
        tau_effective = float(np.sum(weights * now.steps) / np.sum(weights))
        deltas, changes = [], {}
        for k, i in enumerate(now.ids):
            tau = int(now.steps[k])
            w = self._local(start, now.rows[k][:tau], int(i))
            delta = combine(1.0, start, -1.0, w)
            if self.scaffold and now.present[k]:
                option_2 = {
                    n: self.c_i[i][n] - self.c[n] + delta[n] / (tau * self.gamma) for n in start
                }
                changes[int(i)] = combine(1.0, option_2, -1.0, self.c_i[i])
                self.c_i[i] = option_2
            scale = tau_effective / tau if self.nova else 1.0
            sent = combine(scale, delta, 0.0, delta)
            deltas.append(self.send[i](sent) if self.send else sent)
        for change in changes.values():
            self.c = combine(1.0, self.c, 1.0 / self.clients, change)
        stacked = {n: np.stack([d[n] for d in deltas]) for n in start}
        mean = ref.weighted_mean(stacked, weights.tolist())
        gathers = isinstance(self.outer, ref.Learned)
        return self.outer.step(start, mean, stacked) if gathers else self.outer.step(start, mean)

    def _local(self, start: Tree, rows: np.ndarray, i: int) -> Tree:
        w = start
        for batch in rows:
            g = tiny.gradient(w, batch)
            g = {n: g[n] + self.mu * (w[n] - start[n]) for n in g}
            if self.scaffold:
                g = {n: g[n] - self.c_i[i][n] + self.c[n] for n in g}
            w = self.locals[i].step(w, g) if self.locals else combine(1.0, w, -self.gamma, g)
        return w


@dataclass
class Momentum:
    """FedAvgM: u = βu + Δ; W −= ηu."""

    eta: float
    beta: float
    u: Tree = field(default_factory=dict)

    def step(self, params: Tree, delta: Tree) -> Tree:
        self.u = {n: self.beta * self.u.get(n, 0.0) + delta[n] for n in params}
        return combine(1.0, params, -self.eta, self.u)
