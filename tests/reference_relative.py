"""The slow, readable twin of lopt-r in float64 NumPy; nothing is shared with the package."""

from typing import Any

import numpy as np

Array = np.ndarray


class Tensor:
    """One tensor's accumulators and its rounds."""

    def __init__(self, shape: tuple[int, ...]):
        self.b = {beta: np.zeros(shape) for beta in (0.5, 0.9, 0.99)}
        self.v = np.zeros(shape)
        self.q = 0.0
        self.t = 0


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def log_ratio(a: float, b: float, unit: float, limit: float) -> float:
    """log(a/b)/unit within ±limit, where x/0 and 0/x are at the limits and 0/0 is 0."""
    if a == 0 or b == 0:
        return limit * (float(a > 0) - float(b > 0))
    return float(np.clip(np.log(a / b) / unit, -limit, limit))


def cosine(x: Array, y: Array) -> float:
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(np.sum(x * y) / lengths) if lengths else 0.0


def count(number: float | None) -> list[float]:
    return [0.0, 0.0] if number is None else [np.log(number) / 4, 1.0]


def step(
    theta: dict[str, Array],
    tensor: Tensor,
    delta: Any,
    param: Any,
    *,
    workers: float | None = None,
    local_steps: float | None = None,
    rounds: float | None = None,
    deltas: Any = None,
    weights: Any = None,
    rate: float = 0.8,
    momentum: float = 0.9,
    columns: Any = None,
) -> Array:
    """What is subtracted from the parameters; the tensor's accumulators move on."""
    delta, param = np.asarray(delta, np.float64), np.asarray(param, np.float64)
    before, t = {beta: b.copy() for beta, b in tensor.b.items()}, tensor.t
    for beta in tensor.b:
        tensor.b[beta] = beta * tensor.b[beta] + delta
    tensor.v = 0.99 * tensor.v + 0.01 * delta**2
    tensor.q = 0.95 * tensor.q + 0.05 * float(np.mean(delta**2))
    tensor.t += 1
    s = float(np.sqrt(tensor.q / (1 - 0.95**tensor.t)))

    x = [cosine(delta, b) for b in before.values()]
    x += [log_ratio((1 - beta) * rms(b), s, 1, 5) for beta, b in tensor.b.items()]
    x += [log_ratio(rms(delta), s, 1, 5), log_ratio(s, rms(param), 5, 3)]
    x += [log_ratio(float(np.mean(np.abs(delta))), rms(delta), 1, 5)]
    if deltas is None:
        x += [0.0, 0.0]
    else:
        each = [float(np.sum(np.square(np.asarray(d, np.float64)))) for d in deltas]
        shares = np.ones(len(each)) if weights is None else np.asarray(weights, np.float64)
        norm = float(np.sum([w * e for w, e in zip(shares, each, strict=True) if w > 0]))
        norm /= shares.sum()
        x += [log_ratio(float(np.sum(delta**2)), norm, 1, 5), 1.0] if norm else [0.0, 0.0]
    x += [*count(workers), *count(local_steps), np.log(delta.size) / 10]
    x += [delta.ndim < 2, delta.ndim == 2, delta.ndim > 2]
    x += [np.tanh(t / scale) for scale in (3, 10, 30, 100, 300, 1000)]
    x += [0.0, 0.0] if rounds is None else [min(t / rounds, 1), 1.0]

    x = x if columns is None else [x[i] for i in columns]
    phi = {name: np.asarray(w, np.float64) for name, w in theta.items()}
    hidden = np.tanh(np.array(x, np.float64) @ phi["w0"] + phi["b0"])
    o = np.tanh(hidden @ phi["w1"] + phi["b1"])
    b = tensor.b
    if not s:
        return np.zeros_like(delta)
    root = np.sqrt(tensor.v / (1 - 0.99**tensor.t))
    share = 1 / (root + 0.1 * s)
    adam = 0.1 * b[0.9] / (1 - 0.9**tensor.t) * share
    nesterov = delta + momentum * (1 + 1.2 * o[1]) * b[momentum]
    mixed = nesterov + 0.5 * o[2] * b[0.5] + 0.1 * o[3] * b[0.99] + 3 * o[4] * s * adam
    if "g0" in phi:
        now = delta * share
        slow = 0.01 * b[0.99] / (1 - 0.99**tensor.t) * share
        with np.errstate(divide="ignore"):
            evenness = np.log(root / s)
        seen = np.stack([evenness, np.abs(adam), now * adam, np.abs(slow), np.abs(now)], axis=-1)
        shared = hidden @ phi["g0"][5:] + phi["c0"]
        gates = np.tanh(
            np.tanh(np.clip(seen, -3, 3) @ phi["g0"][:5] + shared) @ phi["g1"] + phi["c1"]
        )
        mixed = mixed + gates[..., 0] * delta + 0.5 * gates[..., 1] * momentum * b[momentum]
        mixed = mixed + s * (
            3 * gates[..., 2] * adam + gates[..., 3] * now + 3 * gates[..., 4] * slow
        )
    return rate * np.exp(1.5 * o[0]) * mixed
