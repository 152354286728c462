"""LOpt-A and LAgg-A: a small MLP per parameter over Ada features takes the outer step (the paper's
section 4).

For each parameter p, (d, m) = MLP_φ(features) and p ← p − λ₁·d·exp(λ₂·m), λ₁ = λ₂ = 0.001. LOpt-A
sees the mean Δ, so it serves any number of workers; LAgg-A sees every worker's Δ, so K is fixed.
LOpt and LAgg are the same without accumulators: only deltas, the parameter and time.

The [n, 39] matrix of features never exists on any of the paths that compute this, see `PATHS`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from laconic.architecture import (
    DECAYS,
    FILLS,
    TIME_SHIFT,
    Architecture,
    feature_places,
    matrices_among,
)
from laconic.device import has_tensor_cores
from laconic.errors import LaconicError, unknown
from laconic.outer import features, passes
from laconic.outer.base import OuterOptimizer
from laconic.outer.kernels import Tuning
from laconic.outer.layout import Split
from laconic.outer.stacks import Tensor
from laconic.outer.tensor import Theta, tensor_step
from laconic.outer.tiles import default_tiles

PATHS = {
    "auto": "passes on NVIDIA GPUs since Ampere for models from 4 M parameters on, otherwise "
    "tensorwise",
    "xla": "no kernel of our own; the reference",
    "tensorwise": "a tensor at a time; on a GPU one kernel runs a factored tensor's MLP",
    "passes": "three GPU kernels over the whole model, parameters and accumulators in place",
}
LARGE = 1 << 22  # parameters from which on `auto` takes the passes; they compile longer
ARRAYS = (jax.Array, np.ndarray)
ACCUMULATORS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class LearnedState(NamedTuple):
    """Rounds taken, and for each tensor its accumulators (() for LOpt and LAgg)."""

    round: jax.Array
    ada: Any


@dataclass(frozen=True)
class LearnedOptimizer(Architecture):
    """A learned optimizer's architecture; called with weights φ it is an outer optimizer.

    Args:
        architecture: "lopt-a", "lagg-a", or "lopt" and "lagg" without accumulators.
        workers: K for lagg-a and lagg, which see every worker's delta; None for the others.
        hidden: width of the two hidden layers.
        time: "shifted" is tanh(t/x − 1), "paper" is tanh(t/x).
        output_scale: shrinks the last layer of freshly drawn weights.
        widest: tensors of more inputs take smaller steps (0: off, as in the paper).
        deepest: models of more matrices take smaller steps (0: off, as in the paper).
        blind: features that it does without: their rows of the first layer count as zeros.

    Example:
        >>> import jax
        >>> from laconic import LearnedOptimizer
        >>> lopt_a = LearnedOptimizer("lopt-a")
        >>> lopt_a.inputs, lopt_a.weights
        (39, 2402)
        >>> outer = lopt_a(lopt_a.init(jax.random.key(0)))
        >>> params = {"w": jax.numpy.ones((3, 2))}
        >>> updates, state = outer.tx.update(params, outer.tx.init(params), params)
    """

    blind: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.blind:
            if name not in self._places:
                raise unknown(f"feature of {self.architecture}", name, self._places)

    @property
    def _places(self) -> dict[str, slice]:
        return feature_places(self.deltas, self.accumulates)

    def seen(self, theta: Theta) -> Theta:
        """φ with zeros where it is blind, so that a plain optimizer of these weights is it."""
        if not self.blind:
            return theta
        keep = np.ones((self.inputs, 1), np.float32)
        for name in self.blind:
            keep[self._places[name]] = 0
        return {**theta, "w0": theta["w0"] * keep}

    def widened(self, theta: Theta, workers: int) -> Theta:
        """φ of one that sees K workers for this one, which sees n·K: each worker's row of the first
        layer goes to n workers, divided by n. Where these n agree it takes the same steps."""
        n, rest = divmod(self.deltas, workers)
        if rest or not self.gathers:
            raise LaconicError(
                f"{self.architecture} for {self.deltas} deltas cannot begin from one for "
                f"{workers}: it must see every worker, and a multiple of them."
            )
        w0 = jnp.asarray(theta["w0"])
        rows = jnp.repeat(w0[:workers] / n, n, axis=0)
        return {**theta, "w0": jnp.concatenate([rows, w0[workers:]])}

    def init(self, key: jax.Array) -> Theta:
        """Truncated normal weights (±2σ, σ = 1/√fan_in), zero biases, zero decay offsets."""
        theta: Theta = {"decay": jnp.zeros(len(DECAYS), jnp.float32)} if self.accumulates else {}
        for i, layer_key in enumerate(jax.random.split(key, 3)):
            shape = self.shapes[f"w{i}"]
            draw = jax.random.truncated_normal(layer_key, -2.0, 2.0, shape, jnp.float32)
            unseen = sum(len(range(*self._places[x].indices(shape[0]))) for x in self.blind)
            fan_in = shape[0] - unseen if i == 0 else shape[0]
            theta[f"w{i}"] = draw / fan_in**0.5 * (self.output_scale if i == 2 else 1.0)
            theta[f"b{i}"] = jnp.zeros(shape[1], jnp.float32)
        return self.seen(theta)

    def __call__(
        self,
        theta: Theta,
        *,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        fill: str = "mean",
        horizon: int | None = None,
        tile: int | None = None,
        path: str = "auto",
        accumulators: str = "float32",
        tuning: Tuning | None = None,
        splits: Any = None,
        matrices: int | None = None,
    ) -> OuterOptimizer:
        """The outer optimizer with weights φ.

        Args:
            theta: φ, as `init` or a published optimizer gives it.
            scale: multiplies every step.
            weight_decay: the share of each parameter that a round subtracts (decoupled).
            fill: what LAgg-A sees in place of an absent worker, the "mean" of the others or "zero".
            horizon: how many rounds φ was meta-trained for.
            tile: how many parameters to work on at a time (None: what suits the platform).
            path: one of `PATHS`.
            accumulators: "float32", or "bfloat16" (rounded to nearest) for momenta and second
                moments of half the memory, whose slow decays stop changing early.
            tuning: how kernels are cut.
            splits: how each tensor is split over devices, from `laconic.outer.sharded`.
            matrices: how many the whole model has, where only a part of it is given (None: count).
        """
        self.check(theta)
        theta = self.seen(theta)
        for what, value, known in (
            ("fill of an empty slot", fill, FILLS),
            ("path", path, PATHS),
            ("kind of accumulators", accumulators, ACCUMULATORS),
        ):
            if value not in known:
                raise unknown(what, value, known)
        kernels = tuning or Tuning()
        options = (scale, weight_decay, fill, tile, path, accumulators, kernels, splits, matrices)
        run = Run(self, theta, *options)
        tx = optax.GradientTransformationExtraArgs(run.init, run.update)
        combine = "gather" if self.gathers else "mean"

        def part(params: Any) -> OuterOptimizer:
            found = matrices_among(p.shape for p in jax.tree.leaves(params))
            return self(
                theta,
                scale=scale,
                weight_decay=weight_decay,
                fill=fill,
                horizon=horizon,
                tile=tile,
                path=path,
                accumulators=accumulators,
                tuning=tuning,
                splits=splits,
                matrices=found if matrices is None else matrices,
            )

        return OuterOptimizer(tx, combine, self.workers, horizon, run.step, part=part)


@dataclass(frozen=True, eq=False)
class Run:
    """An architecture with weights and options; its methods are those of an outer optimizer."""

    spec: LearnedOptimizer
    theta: Theta
    scale: float
    weight_decay: float
    fill: str
    tile: int | None
    path: str
    accumulators: str
    tuning: Tuning
    splits: Any
    matrices: int | None

    def init(self, params: Any) -> LearnedState:
        """Zero accumulators."""
        zeros = lambda p: features.init_ada(p, ACCUMULATORS[self.accumulators])
        ada = jax.tree.map(zeros, params) if self.spec.accumulates else ()
        return LearnedState(jnp.int32(0), ada)

    def update(
        self,
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        worker_deltas: Any = None,
        weights: jax.Array | None = None,
        **extra: Any,
    ) -> tuple[Any, LearnedState]:
        """The change of every parameter, by optax's convention."""
        del extra
        if params is None:
            raise LaconicError(
                f"{self.spec.architecture} needs the parameters: call update(delta, state, params)."
            )
        self._check_deltas(worker_deltas)
        if self._chosen(params) == "passes":
            return self._by_passes(updates, state, params, worker_deltas, weights, in_place=False)
        return self._by_tensor(updates, state, params, worker_deltas, weights)

    def step(
        self,
        updates: Any,
        state: Any,
        params: Any,
        *,
        worker_deltas: Any = None,
        weights: jax.Array | None = None,
    ) -> tuple[Any, LearnedState]:
        """The new parameters, in place where the path can."""
        if self._chosen(params) == "passes":
            self._check_deltas(worker_deltas)
            return self._by_passes(updates, state, params, worker_deltas, weights, in_place=True)
        changes, state = self.update(
            updates, state, params, worker_deltas=worker_deltas, weights=weights
        )
        return optax.apply_updates(params, changes), state

    def _chosen(self, params: Any) -> str:
        return choose(self.path, self.spec, [p.size for p in jax.tree.leaves(params)])

    def _by_passes(
        self,
        mean: Any,
        state: Any,
        params: Any,
        worker_deltas: Any,
        weights: jax.Array | None,
        *,
        in_place: bool,
    ) -> tuple[Any, LearnedState]:
        theta, scale, decay = self._known()
        time = self._time(state)
        phi = passes.Phi(
            theta,
            self.theta["b0"] + _exactly(time, self.theta["w0"][self.spec.normalised :]),
            features.decays(self.theta["decay"]),
            weights.astype(jnp.float32) if self.spec.gathers and weights is not None else None,
            self.fill == "mean",
            decay,
            in_place,
        )
        leaves, structure = jax.tree.flatten(params)
        flat = structure.flatten_up_to
        deltas = flat(worker_deltas) if self.spec.gathers else [None] * len(leaves)
        splits = self._splits(params)
        scales = [scale * share for share in self._shares(splits)]
        rows = zip(leaves, flat(state.ada), flat(mean), deltas, splits, scales, strict=True)
        tensors = [Tensor(*row) for row in rows]
        stepped = passes.model_step(phi, tensors, self.tuning)
        new = [row[0] for row in stepped]
        ada = [row[1] for row in stepped]
        if isinstance(self.weight_decay, ARRAYS):
            share = jnp.float32(self.weight_decay)
            decayed = [(share * p.astype(jnp.float32)).astype(p.dtype) for p in leaves]
            new = [x - y for x, y in zip(new, decayed, strict=True)]
        new_state = LearnedState(state.round + 1, jax.tree.unflatten(structure, ada))
        return jax.tree.unflatten(structure, new), new_state

    def _known(self) -> tuple[Theta, float, float]:
        """φ, scale and decay for kernels: a traced scale goes into φ, a traced decay is 0."""
        decay = 0.0 if isinstance(self.weight_decay, ARRAYS) else self.weight_decay
        if not isinstance(self.scale, ARRAYS):
            return self.theta, self.scale, decay
        # The direction d is proportional to its weights and bias.
        first = jnp.stack([jnp.float32(self.scale), jnp.float32(1)])
        w2, b2 = self.theta["w2"] * first[None], self.theta["b2"] * first
        return {**self.theta, "w2": w2, "b2": b2}, 1.0, decay

    def _by_tensor(
        self, mean: Any, state: Any, params: Any, worker_deltas: Any, weights: jax.Array | None
    ) -> tuple[Any, LearnedState]:
        mean = _float32(mean)
        deltas = self._deltas(mean, _float32(worker_deltas), weights)
        leaves, structure = jax.tree.flatten(_float32(params))
        flat, splits = structure.flatten_up_to, self._splits(params)
        adas: list[Any] = [None] * len(leaves)
        if self.spec.accumulates:
            rates = features.decays(self.theta["decay"])
            rows = zip(flat(state.ada), flat(mean), splits, strict=True)
            adas = [features.accumulate(ada, delta, rates, split) for ada, delta, split in rows]
        tiles = default_tiles(self.tile)
        kernel = self.path != "xla" and jax.default_backend() == "gpu"
        time = self._time(state)
        rows = zip(leaves, adas, flat(mean), flat(deltas), splits, strict=True)
        steps = [tensor_step(self.theta, time, *row[:4], tiles, row[4], kernel) for row in rows]
        shares = [self.scale * share for share in self._shares(splits)]
        rows = zip(shares, steps, leaves, flat(params), strict=True)
        changes = [(-(r * s + self.weight_decay * p)).astype(x.dtype) for r, s, p, x in rows]
        kept: Any = ()
        if self.spec.accumulates:
            kept = jax.tree.unflatten(structure, [self._kept(ada) for ada in adas])
        return jax.tree.unflatten(structure, changes), LearnedState(state.round + 1, kept)

    def _kept(self, ada: features.Ada) -> features.Ada:
        dtype = ACCUMULATORS[self.accumulators]
        return ada._replace(m=ada.m.astype(dtype), v=ada.v.astype(dtype))

    def _time(self, state: LearnedState) -> jax.Array:
        return features.round_features(state.round, TIME_SHIFT[self.spec.time])

    def _splits(self, params: Any) -> list[Split]:
        return self.splits or [Split(p.shape) for p in jax.tree.leaves(params)]

    def _shares(self, splits: Sequence[Split]) -> list[float]:
        """Each tensor's share of a whole step."""
        counted = matrices_among(split.shape for split in splits)
        matrices = counted if self.matrices is None else self.matrices
        return [self.spec.share(split.shape, matrices) for split in splits]

    def _check_deltas(self, worker_deltas: Any) -> None:
        if not self.spec.gathers:
            return
        name = self.spec.architecture
        if worker_deltas is None:
            raise LaconicError(f"{name} needs the keyword worker_deltas, with leaves [K, …].")
        K = jax.tree.leaves(worker_deltas)[0].shape[0]
        if K != self.spec.workers:
            raise LaconicError(
                f"this {name} was made for K = {self.spec.workers} workers and got {K} deltas."
            )

    def _deltas(self, mean_delta: Any, worker_deltas: Any, weights: jax.Array | None) -> Any:
        """The delta features, leaves [n, …]; slots of absent workers (weight 0) are filled."""
        if not self.spec.gathers:
            return jax.tree.map(lambda d: d[None], mean_delta)
        if weights is None:
            return worker_deltas

        def filled(delta: jax.Array, mean: jax.Array) -> jax.Array:
            here = (weights > 0).reshape(-1, *[1] * mean.ndim)
            empty = mean[None] if self.fill == "mean" else jnp.zeros((), mean.dtype)
            return jnp.where(here, delta, empty)

        return jax.tree.map(filled, worker_deltas, mean_delta)


def choose(path: str, spec: LearnedOptimizer, sizes: Sequence[int]) -> str:
    """The path for tensors of these sizes on the platform JAX runs on; logged once."""
    backend = jax.default_backend()
    can = spec.accumulates and passes.serves(spec.hidden, spec.deltas, sizes)
    if path == "passes" and not can:
        raise LaconicError(
            "the three kernels need an architecture with accumulators, a hidden width that is a "
            "power of two from 16 on, and tensors whose deltas and momenta, of small ones "
            f"together, are below {passes.OFFSETS:,} numbers: choose path='auto'."
        )
    if path == "auto":
        large = can and backend == "gpu" and sum(sizes) >= LARGE
        path = "passes" if large and has_tensor_cores() else "tensorwise"
    _say(spec.architecture, path, backend)
    return path


@cache
def _say(architecture: str, path: str, backend: str) -> None:
    log = logging.getLogger("laconic")
    log.info("the %s step takes the path %r on %s: %s", architecture, path, backend, PATHS[path])


def _exactly(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.dot(x, w, precision=jax.lax.Precision.HIGHEST)


def _float32(tree: Any) -> Any:
    """Everything is computed in float32, whatever the parameters are kept in."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
