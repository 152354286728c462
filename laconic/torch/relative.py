"""lopt-r in PyTorch: accumulators, inputs and step, as `laconic/outer/relative.py` has them, for a
stack of G tensors of one shape s. Nothing is read back from the device."""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from laconic.relative import (
    ADAM,
    COUNT_UNIT,
    DECAYS,
    FAST,
    FLOOR,
    GAIN,
    GATE_INPUTS,
    GATE_LIMIT,
    GATES,
    LIMIT,
    LONG,
    PARAMETER_LIMIT,
    PARAMETER_UNIT,
    SCALE_DECAY,
    SHORT,
    SIZE_UNIT,
    SQUARE_DECAY,
    SWING,
    TIMESCALES,
    TINY,
    RelativeArchitecture,
    check_told,
    kind_of,
)
from laconic.torch.shards import Spread
from laconic.torch.step import Placed


class RelativePhi:
    """The weights φ of an lopt-r, and what it was told of the run."""

    def __init__(
        self,
        architecture: RelativeArchitecture,
        theta: Mapping[str, np.ndarray],
        workers: int | None,
        local_steps: int | None,
        rounds: int | None,
    ) -> None:
        check_told(workers=workers, local_steps=local_steps, rounds=rounds)
        self.architecture = architecture
        self.workers, self.local_steps, self.rounds = workers, local_steps, rounds
        self._placed = Placed(theta)

    def shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """The accumulators of a parameter: b for each of `DECAYS`, v and q."""
        return {"b": (len(DECAYS), *p.shape), "v": tuple(p.shape), "q": ()}

    def step(
        self,
        state: dict[str, torch.Tensor],
        round_t: int,
        delta: torch.Tensor,
        param: torch.Tensor,
        spread: Spread,
        squares: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """What is subtracted from the parameters [G, *s]; all float32. The accumulators move on.

        `squares` are the workers' ‖Δ‖² [K, G], if known, and `weights` their weights.
        """
        b, v, q = state["b"], state["v"], state["q"]
        pairs = [(delta, delta), (param, param), *((delta, x) for x in b), *((x, x) for x in b)]
        parts = itertools.chain((x * y for x, y in pairs), (delta.abs(),))
        square, of_param, *seen, size = spread.means(parts)
        products, squares_before = seen[: len(DECAYS)], seen[len(DECAYS) :]
        inputs = [
            product * torch.rsqrt(square + TINY) * torch.rsqrt(before + TINY)
            for product, before in zip(products, squares_before, strict=True)
        ]
        for beta, x in zip(DECAYS, b, strict=True):
            x.mul_(beta).add_(delta)
        v.mul_(SQUARE_DECAY).addcmul_(delta, delta, value=1 - SQUARE_DECAY)
        q.mul_(SCALE_DECAY).add_(square, alpha=1 - SCALE_DECAY)
        scale = q / _correction(SCALE_DECAY, round_t)
        inputs += [
            _log_ratio((1 - beta) ** 2 * after, scale)
            for beta, after in zip(DECAYS, spread.means(x * x for x in b), strict=True)
        ]
        inputs.append(_log_ratio(square, scale))
        inputs.append(_log_ratio(scale, of_param, PARAMETER_UNIT, PARAMETER_LIMIT))
        inputs.append(_log_ratio(torch.square(size), square))
        inputs += _agreement(square, spread.size, squares, weights)
        known = self._known(round_t, spread, squares, weights)
        numbers = torch.tensor(known, dtype=torch.float32, device=delta.device)
        inputs += list(numbers[:, None].expand(-1, len(delta)))
        o, hidden = self._head(torch.stack([inputs[i] for i in self.architecture.columns]))
        along = lambda x: x.reshape(-1, *[1] * (delta.ndim - 1))
        s = along(torch.sqrt(scale + TINY))
        return self._mixed([along(x) for x in o], hidden, round_t, delta, b, v, s)

    def _mixed(
        self,
        o: list[torch.Tensor],
        hidden: torch.Tensor,
        t: int,
        delta: torch.Tensor,
        b: torch.Tensor,
        v: torch.Tensor,
        s: torch.Tensor,
    ) -> torch.Tensor:
        """The formula in `outer/relative.py`."""
        spec = self.architecture
        root = torch.sqrt(v / _correction(SQUARE_DECAY, t) + TINY)
        share = 1 / (root + FLOOR * s)
        unbiased = lambda i: (1 - DECAYS[i]) / _correction(DECAYS[i], t) * b[i]
        adam = unbiased(FAST) * share
        momentum = spec.momentum * b[DECAYS.index(spec.momentum)]
        change = delta + (1 + SWING * o[1]) * momentum
        change.add_(SHORT * o[2] * b[0]).add_(LONG * o[3] * b[-1]).add_(ADAM * o[4] * s * adam)
        if spec.gates:
            now, slow = delta * share, unbiased(-1) * share
            seen = (torch.log(root / s), adam.abs(), now * adam, slow.abs(), now.abs())
            directions = (delta, momentum, s * adam, s * now, s * slow)
            gates = self._gates(hidden, seen)
            for limit, gate, direction in zip(GATES, gates, directions, strict=True):
                change.addcmul_(gate, direction, value=limit)
        return change.mul_(spec.rate * torch.exp(GAIN * o[0]))

    def _head(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[I, G] → [`OUTPUTS`, G] and the hidden units."""
        theta = self._placed.on(inputs.device)
        layer = lambda x, w, b: torch.tanh((x[:, None] * w[:, :, None]).sum(0) + b[:, None])
        hidden = layer(inputs, theta["w0"], theta["b0"])
        return layer(hidden, theta["w1"], theta["b1"]), hidden

    def _gates(
        self, hidden: torch.Tensor, seen: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """A gate for each of `GATES` and every parameter."""
        theta = self._placed.on(hidden.device)
        g0, g1 = theta["g0"], theta["g1"]
        shared = (hidden[:, None] * g0[GATE_INPUTS:, :, None]).sum(0).T + theta["c0"]  # [G, gates]
        shared = shared.reshape(len(shared), *[1] * (seen[0].ndim - 1), -1)
        inputs = torch.stack(seen, dim=-1).clamp(-GATE_LIMIT, GATE_LIMIT)
        units = torch.tanh(inputs @ g0[:GATE_INPUTS] + shared)
        return torch.tanh(units @ g1 + theta["c1"]).unbind(-1)

    def _known(
        self, t: int, spread: Spread, squares: Any, weights: torch.Tensor | None
    ) -> list[float]:
        """The inputs that are plain numbers, in the order of `INPUTS`."""
        workers = self.workers
        if workers is None and weights is not None:
            workers = int((weights > 0).sum())
        elif workers is None and squares is not None:
            workers = len(squares)
        done = [0.0, 0.0] if self.rounds is None else [min(t / self.rounds, 1.0), 1.0]
        return [
            *_count(workers),
            *_count(self.local_steps),
            math.log(spread.size) / SIZE_UNIT,
            *kind_of(len(spread.shape)),
            *(math.tanh(t / scale) for scale in TIMESCALES),
            *done,
        ]


def _agreement(
    square: torch.Tensor,
    size: int,
    squares: torch.Tensor | None,
    weights: torch.Tensor | None,
) -> list[torch.Tensor]:
    """The logarithm of K‖mean Δ‖²/Σ‖Δₖ‖², and whether it is known."""
    if squares is None:
        return [torch.zeros_like(square)] * 2
    shares = torch.ones_like(squares) if weights is None else weights.to(squares)[:, None]
    norm = torch.where(shares > 0, squares * shares, 0.0).sum(0) / shares.sum(0)
    known = (norm > 0) & norm.isfinite()
    ratio = _log_ratio(square, torch.where(known, norm, 1.0) / size, 0.5)
    return [torch.where(known, ratio, 0.0), known.float()]


def _count(told: int | None) -> tuple[float, float]:
    return (0.0, 0.0) if told is None else (math.log(told) / COUNT_UNIT, 1.0)


def _log_ratio(
    over: torch.Tensor, under: torch.Tensor, unit: float = 1.0, limit: float = LIMIT
) -> torch.Tensor:
    """Half the logarithm of a ratio of squares, in units and within a limit; 0 for 0/0."""
    log = lambda x: torch.log(torch.where(x > 0, x, 1.0))
    inside = (0.5 * (log(over) - log(under)) / unit).clamp(-limit, limit)
    outside = limit * (torch.sign(over) - torch.sign(under))
    return torch.where((over > 0) & (under > 0), inside, outside)


def _correction(decay: float, t: int) -> float:
    return -math.expm1((t + 1) * math.log(decay))
