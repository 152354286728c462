"""The learned step of a tensor: p ← p − λ₁·d·exp(λ₂·m), (d, m) = MLP_φ(features), a tile at a
time, or of a stack of tensors of one shape that fit in one tile.

As in `laconic/outer/learned.py` the features' normalisers are folded into the first layer's weights
(a stack has normalisers for each tensor, and its features are multiplied by them) and the time
features into its bias, and two passes go over a tensor of more than one tile: second moments first,
then the MLP. The [39, n] matrix exists for a tile only.
"""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from laconic.architecture import (
    DECAYS,
    LAMBDA,
    NORMALISER_EPSILON,
    TIME_SHIFT,
    Architecture,
)
from laconic.torch.features import CPU, Fields, cut, round_features, write
from laconic.torch.shards import Spread

CPU_TILE = (
    1 << 16
)  # smaller ones are a little faster on one core, and much slower on several busy ones
ACCELERATOR_TILE = 1 << 20  # as much at once as keeps them under half a gigabyte


class Placed:
    """φ on whatever devices it has been asked for."""

    def __init__(self, theta: Mapping[str, np.ndarray]) -> None:
        self._copies = {CPU: {name: _float32(x) for name, x in theta.items()}}

    def on(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The tensors of φ on a device."""
        if device not in self._copies:
            self._copies[device] = {name: x.to(device) for name, x in self._copies[CPU].items()}
        return self._copies[device]


class Phi:
    """The weights φ of an architecture whose MLP sees every parameter."""

    def __init__(
        self, architecture: Architecture, theta: Mapping[str, np.ndarray], tile: int | None
    ) -> None:
        self.architecture = architecture
        self.count = architecture.normalised
        self._tile = tile
        self._placed = Placed(theta)

    def rates(self) -> list[float]:
        """1 − β = (1 − β₀)·e^{10θ} of the seven accumulators, at most 1."""
        complement = _float32([1 - beta for beta in DECAYS])
        return (complement * torch.exp(10 * self._placed.on(CPU)["decay"])).clamp(max=1.0).tolist()

    def step(self, fields: Fields, spread: Spread, round_t: int) -> torch.Tensor:
        """λ₁·d·exp(λ₂·m) for every parameter of a stack [G, *s] that this process holds."""
        device, shape = fields.param.device, fields.param.shape[1:]
        new = lambda *size: torch.empty(size, dtype=torch.float32, device=device)
        out = new(*shape)
        room = min(tile_on(device, self._tile), out.numel())
        width = max(self.count, self.architecture.hidden)
        buffers = [new(width * room) for _ in range(2)]
        # A process may hold nothing of a tensor, and take part in its sums all the same.
        places = list(tiles(shape, tile_on(device, self._tile))) if out.numel() else []
        total_FG = new(self.count, len(out)).zero_()
        for at in places:
            x_Fn = self._features(fields, at, shape, buffers[0])
            square = buffers[1][: x_Fn.numel()].view(x_Fn.shape)
            total_FG += self._by_tensor(torch.mul(x_Fn, x_Fn, out=square), len(out)).sum(2)
        scales_FG = torch.rsqrt(NORMALISER_EPSILON + spread.total(total_FG) / spread.size)
        layers = self._layers(scales_FG, round_t)
        for at in places:
            if len(places) > 1:  # else they are there still
                self._features(fields, at, shape, buffers[0])
            part = out[tuple(at)]
            if len(out) > 1:
                x_Fn = buffers[0][: self.count * part.numel()].view(self.count, -1)
                self._by_tensor(x_Fn, len(out)).mul_(scales_FG[:, :, None])
            part.copy_(self._mlp(layers, buffers, part.numel()).view(part.shape))
        return out

    def _by_tensor(self, x_Fn: torch.Tensor, count: int) -> torch.Tensor:
        """A tile's features as [F, G, n/G]; a tile of several tensors holds all of the stack."""
        return x_Fn.view(self.count, count, x_Fn.shape[1] // count)

    def _features(
        self, fields: Fields, at: Sequence[slice], shape: Sequence[int], buffer: torch.Tensor
    ) -> torch.Tensor:
        """The tile's features as [F, n], written into the buffer."""
        size = [len(range(*where.indices(n))) for where, n in zip(at, shape, strict=True)]
        x = buffer[: self.count * math.prod(size)]
        write(cut(fields, at), x.view(self.count, *size))
        return x.view(self.count, math.prod(size))

    def _layers(
        self, scales_FG: torch.Tensor, round_t: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Weights [N, F] and biases [N, 1] of the three layers, with the time features folded in,
        and for a tensor by itself the normalisers."""
        theta = self._placed.on(scales_FG.device)
        time = round_features(round_t, TIME_SHIFT[self.architecture.time])
        first = theta["w0"][: self.count]
        first = scales_FG * first if scales_FG.shape[1] == 1 else first
        weights = [first, theta["w1"], theta["w2"]]
        biases = [
            theta["b0"] + time.to(scales_FG.device) @ theta["w0"][self.count :],
            theta["b1"],
            theta["b2"],
        ]
        return [(w.T, b[:, None]) for w, b in zip(weights, biases, strict=True)]

    def _mlp(
        self, layers: list[tuple[torch.Tensor, torch.Tensor]], buffers: list[torch.Tensor], n: int
    ) -> torch.Tensor:
        """[n] steps of the tile whose features stand in the first buffer; the hidden layers use
        both in turn."""
        h = buffers[0][: self.count * n].view(-1, n)
        for i, (w_NF, bias) in enumerate(layers):
            into = buffers[1 - i % 2][: len(w_NF) * n].view(-1, n)
            h = torch.addmm(bias, w_NF, h if i == 0 else h.relu_(), out=into)
        return LAMBDA * h[0] * torch.exp(LAMBDA * h[1])


def tile_on(device: torch.device, asked: int | None) -> int:
    """How many parameters to work on at a time."""
    return asked or (CPU_TILE if device.type == "cpu" else ACCELERATOR_TILE)


def tiles(shape: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cover the shape, of at most `most` entries each: as many whole rows as fit, or
    parts of one."""
    if not shape:
        yield ()
        return
    row, everything = math.prod(shape[1:]), tuple(slice(0, n) for n in shape[1:])
    if row <= most:
        rows = max(1, most // max(1, row))
        yield from (
            (slice(i, min(i + rows, shape[0])), *everything) for i in range(0, shape[0], rows)
        )
        return
    for i in range(shape[0]):
        yield from ((slice(i, i + 1), *rest) for rest in tiles(shape[1:], most))


def _float32(x: Any) -> torch.Tensor:
    """A copy on the CPU, whatever PyTorch's default device and dtype are."""
    return torch.tensor(x, dtype=torch.float32, device=CPU)
