"""The slow, readable twin of Algorithm 2: persistent evolution strategies in float64 NumPy, one
particle at a time.

Nothing here is shared with the package; it is the oracle `laconic.meta` is tested against. NumPy
cannot draw JAX's random numbers, so all that is random comes in from outside: the noise of each
pair, and the run and the horizon with which a pair would begin anew. φ and ξ are flat vectors; a
run is whatever `unroll(phi, run) → (run, losses)` takes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Unroll = Callable[[Array, Any], tuple[Any, Sequence[float]]]


@dataclass
class Particle:
    """s⁽ⁱ⁾, ξ⁽ⁱ⁾, κ⁽ⁱ⁾ and c_i. Particles 2j and 2j + 1 are the + and the − of pair j."""

    run: Any
    xi: Array
    kappa: int
    c: int = 0


@dataclass
class Settings:
    """T_r, σ, where losses are cut, and whether a pair whose two losses both sit there begins anew
    at once."""

    truncation: int
    sigma: float
    ceiling: float = math.inf
    give_up: bool = False


@dataclass
class Drawn:
    """One outer step's random numbers, one of each for every pair: ε, and what a reset would begin
    with."""

    noise: Sequence[Array]
    runs: Sequence[Any]
    kappas: Sequence[int]


def start(
    runs: Sequence[Any], kappas: Sequence[int], offsets: Sequence[int], size: int
) -> list[Particle]:
    """Lines 3-6: both signs of a pair begin alike with ξ = 0; the counters start at an offset
    instead of 0."""
    particles = []
    for run, kappa, offset in zip(runs, kappas, offsets, strict=True):
        particles += [Particle(run, np.zeros(size), int(kappa), int(offset)) for _ in "+-"]
    return particles


def cut(losses: Sequence[float], ceiling: float) -> list[float]:
    """Each loss into [0, ceiling]; NaN is as bad as it gets."""
    return [ceiling if math.isnan(loss) else min(max(float(loss), 0.0), ceiling) for loss in losses]


def pes_step(
    particles: list[Particle], phi: Array, unroll: Unroll, drawn: Drawn, settings: Settings
) -> tuple[Array, list[Particle], Array]:
    """Lines 8-20 without AdamW → the gradient, the particles after the resets, and each particle's
    meta-loss [2N]."""
    return _outer_step(particles, phi, unroll, drawn, settings, lambda xi, epsilon: xi + epsilon)


def es_step(
    particles: list[Particle], phi: Array, unroll: Unroll, drawn: Drawn, settings: Settings
) -> tuple[Array, list[Particle], Array]:
    """Truncated evolution strategies: the same, but a loss is put down to this truncation's noise
    alone."""
    return _outer_step(particles, phi, unroll, drawn, settings, lambda xi, epsilon: epsilon)


def _outer_step(
    particles: list[Particle],
    phi: Array,
    unroll: Unroll,
    drawn: Drawn,
    settings: Settings,
    blame: Callable[[Array, Array], Array],
) -> tuple[Array, list[Particle], Array]:
    gradient = np.zeros_like(phi)  # line 8
    after, meta_losses, at_ceiling = [], [], []
    for i, particle in enumerate(particles):  # line 9
        epsilon = drawn.noise[i // 2] * (1 if i % 2 == 0 else -1)  # line 10
        run, losses = unroll(phi + epsilon, particle.run)  # line 11
        assert len(losses) == settings.truncation
        losses = cut(losses, settings.ceiling)
        meta_loss = float(np.mean(losses))
        xi = blame(particle.xi, epsilon)  # line 12
        gradient = gradient + xi * meta_loss  # line 13
        after.append(Particle(run, xi, particle.kappa, particle.c + settings.truncation))  # line 14
        meta_losses.append(meta_loss)
        at_ceiling.append(min(losses) >= settings.ceiling)
    gradient = gradient / (len(particles) * settings.sigma**2)  # line 16
    lost = [
        settings.give_up and at_ceiling[2 * j] and at_ceiling[2 * j + 1]
        for j in range(len(particles) // 2)
    ]
    return gradient, _begin_anew(after, lost, drawn), np.array(meta_losses)


def _begin_anew(particles: list[Particle], lost: Sequence[bool], drawn: Drawn) -> list[Particle]:
    new = []
    for i, particle in enumerate(particles):  # line 18
        pair = i // 2
        if particle.c >= particle.kappa or lost[pair]:  # line 19
            particle = Particle(
                drawn.runs[pair], np.zeros_like(particle.xi), int(drawn.kappas[pair])
            )  # line 20
        new.append(particle)
    return new
