"""The slow, readable twin: Algorithm 1, the learned optimizers and every baseline in float64 NumPy.

Nothing here is shared with the package; it is the oracle the package is tested against. A tree is a
dict of name → float64 array, Δ = W_0 − W_H is a pseudo-gradient (it is subtracted), and
`worker_deltas` has leaves [K, …]. AdamW, clipping, compression, bits on the wire and the metrics
are in `reference_compress.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = np.ndarray
Tree = dict[str, Array]
Time = Literal["shifted", "paper"]
Kind = Literal["lopt_a", "lagg_a", "lopt", "lagg"]
Weights = Sequence[float] | None

# β0 of the three momenta, of v, and of the three Adafactor pairs: the order of theta["decay"].
INITIAL_BETAS = np.array([0.9, 0.99, 0.999, 0.999, 0.9, 0.99, 0.999])
TIME_SCALES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


@dataclass
class AdaState:
    """The accumulators U_t: m, row and col hold one array for each of three decays; t updates were
    made."""

    m: dict[str, list[Array]]
    v: Tree
    row: dict[str, list[Array]]
    col: dict[str, list[Array]]
    t: int = 0


def lift(x: Any) -> Array:
    """float64, with a 0-D tensor made [1]."""
    return np.atleast_1d(np.asarray(x, dtype=np.float64))


def factored_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    """The largest and the second largest axis; of equal ones the later counts as larger."""
    ascending = sorted(range(len(shape)), key=lambda axis: (shape[axis], axis))
    return ascending[-1], ascending[-2]


def row_and_col_mean(square: Array) -> tuple[Array, Array]:
    """Mean over the largest axis and over the second largest (both kept with size 1); a vector is
    its own mean."""
    if square.ndim == 1:
        return square, square
    largest, second = factored_axes(square.shape)
    return square.mean(axis=largest, keepdims=True), square.mean(axis=second, keepdims=True)


def ada_init(params: Tree) -> AdaState:
    """Every accumulator is zero, in the shape it will have."""
    zeros = {name: np.zeros_like(lift(p)) for name, p in params.items()}
    means = {name: row_and_col_mean(z) for name, z in zeros.items()}
    return AdaState(
        m={name: [z, z, z] for name, z in zeros.items()},
        v=zeros,
        row={name: [row] * 3 for name, (row, _) in means.items()},
        col={name: [col] * 3 for name, (_, col) in means.items()},
    )


def accumulate(state: AdaState, mean_delta: Tree, betas: Array) -> AdaState:
    """U_{t+1}: exponential averages without bias correction."""
    new = AdaState(m={}, v={}, row={}, col={}, t=state.t + 1)
    for name in state.v:
        delta = lift(mean_delta[name])
        row_mean, col_mean = row_and_col_mean(delta**2 + 1e-30)
        new.m[name] = [betas[i] * state.m[name][i] + (1 - betas[i]) * delta for i in range(3)]
        new.v[name] = betas[3] * state.v[name] + (1 - betas[3]) * delta**2
        new.row[name] = [
            betas[4 + i] * state.row[name][i] + (1 - betas[4 + i]) * row_mean for i in range(3)
        ]
        new.col[name] = [
            betas[4 + i] * state.col[name][i] + (1 - betas[4 + i]) * col_mean for i in range(3)
        ]
    return new


def rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def safe_rsqrt(x: Array) -> Array:
    return rsqrt(np.maximum(x, 1e-9))


def adafactor_scales(row: Array, col: Array, ndim: int) -> tuple[Array, Array]:
    """What multiplies Δ (item 7) and what multiplies a momentum (item 12)."""
    if ndim == 1:
        return safe_rsqrt(row + 1e-9), rsqrt(row + 1e-6)
    # `row` is tiled over the largest axis by now, so that its shape still names the second largest.
    _, second = factored_axes(row.shape)
    row_factor = safe_rsqrt(row / (row.mean(axis=second, keepdims=True) + 1e-9))
    return row_factor * safe_rsqrt(col), row_factor * safe_rsqrt(col)


def ada_columns(
    w: Array, delta: Array, m: list[Array], v: Array, rows: list[Array], cols: list[Array]
) -> list[Array]:
    """Items 2 to 12 of the input, 27 arrays of the shape of `w`, not yet normalised."""
    rows = [np.broadcast_to(row, w.shape) for row in rows]
    cols = [np.broadcast_to(col, w.shape) for col in cols]
    scales = [adafactor_scales(row, col, w.ndim) for row, col in zip(rows, cols, strict=True)]
    return [
        w,  # 2
        *m,  # 3
        v,  # 4
        *[m_i * rsqrt(v + 1e-6) for m_i in m],  # 5
        rsqrt(v + 1e-6),  # 6
        *[delta * for_delta for for_delta, _ in scales],  # 7
        *rows,  # 8
        *cols,  # 9
        *[rsqrt(row + 1e-8) for row in rows],  # 10
        *[rsqrt(col + 1e-8) for col in cols],  # 11
        *[m_i * for_momentum for m_i, (_, for_momentum) in zip(m, scales, strict=True)],  # 12
    ]


def normalise(x: Array) -> Array:
    """Second moment one over the whole tensor."""
    return x * rsqrt(1e-5 + np.mean(x**2))


def time_features(t: int, time: Time) -> Array:
    """Item 13: tanh(t/x) as the paper writes it, or "shifted": tanh(t/x − 1); t = 0 at the first
    update."""
    shift = {"shifted": 1.0, "paper": 0.0}[time]
    return np.array([math.tanh(t / x - shift) for x in TIME_SCALES])


def input_matrix(columns: list[Array], t: int, time: Time) -> Array:
    """[n, F]: normalised columns, then the time features as they are; parameters in C order."""
    normalised = np.stack([normalise(c).reshape(-1) for c in columns], axis=1)
    return np.concatenate(
        [normalised, np.tile(time_features(t, time), (len(normalised), 1))], axis=1
    )


def ada_features(
    params: Tree,
    state: AdaState,
    mean_delta: Tree,
    betas: Array,
    t: int,
    time: Time = "shifted",
    worker_deltas: Tree | None = None,
) -> tuple[Tree, AdaState]:
    """Items 1 to 13 for every tensor, [n, 39] or with `worker_deltas` [n, 38+K], and the state they
    came from.

    The accumulators are updated first; the features see the new ones.
    """
    new = accumulate(state, mean_delta, betas)
    new.t = t + 1
    features = {}
    for name, param in params.items():
        w, delta = lift(param), lift(mean_delta[name])
        item_1 = [delta] if worker_deltas is None else [lift(d) for d in worker_deltas[name]]
        rest = ada_columns(w, delta, new.m[name], new.v[name], new.row[name], new.col[name])
        features[name] = input_matrix(item_1 + rest, t, time)
    return features, new


def count_inputs(kind: Kind, K: int) -> int:
    """How many numbers the MLP sees for one parameter."""
    return {"lopt_a": 39, "lagg_a": 38 + K, "lopt": 1 + 1 + 11, "lagg": K + 1 + 11}[kind]


def count_weights(kind: Kind, K: int) -> int:
    """|φ|: two hidden layers of 32 and two outputs; the seven decay offsets are not counted."""
    return (count_inputs(kind, K) * 32 + 32) + (32 * 32 + 32) + (32 * 2 + 2)


def betas_of(theta: Tree) -> Array:
    """1−β = (1−β0)·e^{10θ}, at most 1."""
    return 1 - np.minimum((1 - INITIAL_BETAS) * np.exp(10 * theta["decay"]), 1.0)


def mlp_step(theta: Tree, params: Tree, features: Tree) -> Tree:
    """p − 0.001·d·exp(0.001·m) with (d, m) = MLP(features)."""
    stepped = {}
    for name, param in params.items():
        hidden = np.maximum(features[name] @ theta["w0"] + theta["b0"], 0.0)
        hidden = np.maximum(hidden @ theta["w1"] + theta["b1"], 0.0)
        out = hidden @ theta["w2"] + theta["b2"]
        step = 0.001 * out[:, 0] * np.exp(0.001 * out[:, 1])
        stepped[name] = np.asarray(param, dtype=np.float64) - step.reshape(np.shape(param))
    return stepped


def lopt_a_update(
    theta: Tree, params: Tree, state: AdaState, mean_delta: Tree, time: Time = "shifted"
) -> tuple[Tree, AdaState]:
    """LOpt-A: the mean delta and its Ada features."""
    features, state = ada_features(params, state, mean_delta, betas_of(theta), state.t, time)
    return mlp_step(theta, params, features), state


def lagg_a_update(
    theta: Tree,
    params: Tree,
    state: AdaState,
    worker_deltas: Tree,
    time: Time = "shifted",
    weights: Weights = None,
    fill: str = "mean",
) -> tuple[Tree, AdaState]:
    """LAgg-A: the K deltas in worker order and the Ada features of their (weighted) mean."""
    mean, seen = weighted_mean(worker_deltas, weights), fill_absent(worker_deltas, weights, fill)
    features, state = ada_features(params, state, mean, betas_of(theta), state.t, time, seen)
    return mlp_step(theta, params, features), state


def lopt_update(
    theta: Tree, params: Tree, t: int, mean_delta: Tree, time: Time = "shifted"
) -> tuple[Tree, int]:
    """LOpt, the ablation: mean delta, parameter, time; nothing is remembered but t."""
    columns = {name: [lift(mean_delta[name]), lift(p)] for name, p in params.items()}
    features = {name: input_matrix(c, t, time) for name, c in columns.items()}
    return mlp_step(theta, params, features), t + 1


def lagg_update(
    theta: Tree,
    params: Tree,
    t: int,
    worker_deltas: Tree,
    time: Time = "shifted",
    weights: Weights = None,
    fill: str = "mean",
) -> tuple[Tree, int]:
    """LAgg, the ablation: K deltas, parameter, time."""
    seen = fill_absent(worker_deltas, weights, fill)
    columns = {name: [*map(lift, seen[name]), lift(p)] for name, p in params.items()}
    features = {name: input_matrix(c, t, time) for name, c in columns.items()}
    return mlp_step(theta, params, features), t + 1


@dataclass
class Learned:
    """Any of the four as an outer optimizer; `state` is `ada_init(params)`, or t = 0 for the
    ablations."""

    kind: Kind
    theta: Tree
    state: Any
    time: Time = "shifted"

    def step(self, params: Tree, delta: Tree, worker_deltas: Tree) -> Tree:
        update = {
            "lopt_a": lopt_a_update,
            "lagg_a": lagg_a_update,
            "lopt": lopt_update,
            "lagg": lagg_update,
        }[self.kind]
        seen = worker_deltas if self.kind.startswith("lagg") else delta
        params, self.state = update(self.theta, params, self.state, seen, self.time)
        return params


class Average:
    """Local SGD: W − Δ."""

    def step(self, params: Tree, delta: Tree) -> Tree:
        return {name: params[name] - delta[name] for name in params}


@dataclass
class SlowMo:
    """u = βu + Δ/γ; W −= αγu; u starts at 0 (Wang et al.)."""

    alpha: float
    beta: float
    gamma: float
    u: Tree = field(default_factory=dict)

    def step(self, params: Tree, delta: Tree) -> Tree:
        self.u = {
            name: self.beta * self.u.get(name, 0.0) + delta[name] / self.gamma for name in params
        }
        return {name: params[name] - self.alpha * self.gamma * self.u[name] for name in params}


@dataclass
class Nesterov:
    """u = βu + Δ; W −= lr·(Δ + βu); u starts at 0 (DiLoCo, as PyTorch and optax write it)."""

    lr: float
    beta: float
    u: Tree = field(default_factory=dict)

    def step(self, params: Tree, delta: Tree) -> Tree:
        self.u = {name: self.beta * self.u.get(name, 0.0) + delta[name] for name in params}
        return {
            name: params[name] - self.lr * (delta[name] + self.beta * self.u[name])
            for name in params
        }


@dataclass
class FedAdam:
    """m = β1·m + (1−β1)Δ; v = β2·v + (1−β2)Δ²; W −= η·m/(√v+τ) (Reddi et al.); v starts at `v0`, τ²
    if None."""

    eta: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v0: float | None = None
    m: Tree = field(default_factory=dict)
    v: Tree = field(default_factory=dict)

    def second_moment(self, v: Array, square: Array) -> Array:
        return self.beta2 * v + (1 - self.beta2) * square

    def step(self, params: Tree, delta: Tree) -> Tree:
        stepped = {}
        for name, p in params.items():
            start = np.full_like(p, self.tau**2 if self.v0 is None else self.v0)
            self.m[name] = (
                self.beta1 * self.m.get(name, np.zeros_like(p)) + (1 - self.beta1) * delta[name]
            )
            self.v[name] = self.second_moment(self.v.get(name, start), delta[name] ** 2)
            stepped[name] = p - self.eta * self.m[name] / (np.sqrt(self.v[name]) + self.tau)
        return stepped


class FedYogi(FedAdam):
    """FedAdam with v = v − (1−β2)·Δ²·sign(v − Δ²)."""

    def second_moment(self, v: Array, square: Array) -> Array:
        return v - (1 - self.beta2) * square * np.sign(v - square)


class FedAdagrad(FedAdam):
    """FedAdam with v = v + Δ²."""

    def second_moment(self, v: Array, square: Array) -> Array:
        return v + square


@dataclass
class FedExP:
    """η = max(1, Σ pₖ‖Δₖ‖² / (2(‖Δ‖² + ε))), W −= ηΔ, Δ = Σ pₖΔₖ; pₖ = wₖ/Σw, norms of the whole
    model (Jhunjhunwala et al., with M equal clients: Σ‖Δₖ‖² / (2M(‖Δ‖² + ε)))."""

    eps: float

    def step(self, params: Tree, worker_deltas: Tree, weights: list[float]) -> Tree:
        above, mean = 0.0, {name: np.zeros_like(p) for name, p in params.items()}
        for k, weight in enumerate(weights):
            if weight == 0:
                continue
            share = weight / sum(weights)
            above += share * sum((worker_deltas[name][k] ** 2).sum() for name in params)
            mean = {name: mean[name] + share * worker_deltas[name][k] for name in params}
        square = sum((mean[name] ** 2).sum() for name in params)
        eta = max(1.0, above / (2 * (square + self.eps)))
        return {name: params[name] - eta * mean[name] for name in params}


@dataclass
class Muon:
    """Muon for matrices and Nesterov Adam for the rest, both with decoupled weight decay, as
    `optax.contrib.muon` has them: NAdam's bias correction, five quintic Newton-Schulz steps on the
    momentum over its Frobenius norm, and 0.2·√(longer side) to match the size of Adam's steps."""

    lr: float
    decay: float = 0.0
    m: Tree = field(default_factory=dict)
    v: Tree = field(default_factory=dict)
    t: int = 0

    def step(self, params: Tree, grads: Tree) -> Tree:
        self.t += 1
        return {name: self.stepped(name, p, grads[name]) for name, p in params.items()}

    def stepped(self, name: str, p: Array, g: Array) -> Array:
        beta = 0.95 if p.ndim == 2 else 0.9
        self.m[name] = beta * self.m.get(name, 0.0) + (1 - beta) * g
        ahead = beta * self.m[name] / (1 - beta ** (self.t + 1))
        ahead = ahead + (1 - beta) * g / (1 - beta**self.t)
        if p.ndim == 2:
            direction = 0.2 * math.sqrt(max(p.shape)) * self.orthogonal(ahead)
        else:
            self.v[name] = 0.999 * self.v.get(name, 0.0) + 0.001 * g**2
            direction = ahead / (np.sqrt(self.v[name] / (1 - 0.999**self.t)) + 1e-8)
        return p - self.lr * (direction + self.decay * p)

    @staticmethod
    def orthogonal(x: Array) -> Array:
        """Through the singular values: Newton-Schulz is the same odd polynomial of each."""
        u, s, vt = np.linalg.svd(x / (np.linalg.norm(x) + 1e-8), full_matrices=False)
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        return (u * s) @ vt


def weighted_mean(worker_deltas: Tree, weights: Weights = None) -> Tree:
    """Σ w_k Δ^(k) / Σ w_k; a worker of weight 0 is absent, whatever its delta holds."""
    K = len(next(iter(worker_deltas.values())))
    weights = [1.0] * K if weights is None else list(weights)
    if len(weights) != K or sum(weights) <= 0:
        raise ValueError(f"{K} deltas need {K} weights with a positive sum, got {weights}")
    mean = {}
    for name, deltas in worker_deltas.items():
        total = np.zeros(np.shape(deltas)[1:])
        for k in range(K):
            if weights[k] != 0:
                total = total + weights[k] * np.asarray(deltas[k], dtype=np.float64)
        mean[name] = total / sum(weights)
    return mean


def fill_absent(worker_deltas: Tree, weights: Weights, fill: str = "mean") -> Tree:
    """A worker of weight 0 left an empty slot; the weighted mean of the others stands in it, or
    nothing does."""
    if weights is None:
        return worker_deltas
    mean = weighted_mean(worker_deltas, weights)
    stand_in = {name: x if fill == "mean" else np.zeros_like(x) for name, x in mean.items()}
    return {
        name: np.stack(
            [stand_in[name] if weights[k] == 0 else deltas[k] for k in range(len(deltas))]
        )
        for name, deltas in worker_deltas.items()
    }


def algorithm_1(
    params: Tree,
    grad: Callable[[Tree, Any], Tree],
    batches: Sequence[Sequence[Sequence[Any]]],
    gamma: float,
    outer: Any,
    locals_K: Sequence[Any] | None = None,
    send_K: Sequence[Callable[[Tree], Tree]] | None = None,
) -> list[Tree]:
    """The weights before the first and after each round, over `batches[t][k][h]`.

    Local steps are W −= γ∇L unless `locals_K` gives each worker an object with `step(params,
    grads)`, whose state lives on across rounds; `send_K`, one function a worker, turns a delta into
    what the server decodes.
    """
    K = len(batches[0])
    history = [{name: np.asarray(p, dtype=np.float64) for name, p in params.items()}]
    for round_batches in batches:  # line 1
        start, deltas = history[-1], []
        for k in range(K):  # line 2
            w = start
            for batch in round_batches[k]:  # lines 3-6
                g = grad(w, batch)
                w = (
                    {name: w[name] - gamma * g[name] for name in w}
                    if locals_K is None
                    else locals_K[k].step(w, g)
                )
            delta = {name: start[name] - w[name] for name in w}  # line 7
            deltas.append(delta if send_K is None else send_K[k](delta))
        worker_deltas = {name: np.stack([delta[name] for delta in deltas]) for name in start}
        mean = weighted_mean(worker_deltas)  # line 9
        gathers = isinstance(outer, Learned)
        history.append(
            outer.step(start, mean, worker_deltas) if gathers else outer.step(start, mean)
        )  # lines 10-11
    return history
