"""LOpt-A and LAgg-A: a small MLP per parameter over Ada features takes the outer step (the paper's section 4).

For each parameter p, (d, m) = MLP_φ(features) and p ← p − λ₁·d·exp(λ₂·m), λ₁ = λ₂ = 0.001. LOpt-A sees the mean Δ, so
it serves any number of workers; LAgg-A sees every worker's Δ, so K is fixed. LOpt and LAgg are the same without
accumulators: only deltas, the parameter and time.

Two passes over each tensor, a tile at a time: the first reduces every feature's second moment, the second recomputes
the features and runs the MLP. The normalisers are folded into the first layer's weights and the time features into its
bias. The [n, 39] matrix never exists.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.architecture import FILLS, LAMBDA, TIME_SHIFT, Architecture
from laconic.errors import LaconicError, unknown
from laconic.outer import features, fused
from laconic.outer.base import OuterOptimizer
from laconic.outer.tiles import Walk, default_tile

Theta = dict[str, jax.Array]


class LearnedState(NamedTuple):
    """Rounds taken, and for each tensor its accumulators (() for LOpt and LAgg)."""

    round: jax.Array
    ada: Any


@dataclass(frozen=True)
class LearnedOptimizer(Architecture):
    """An architecture; `init(key)` draws weights φ for it, and calling it with some φ gives an outer optimizer."""

    def init(self, key: jax.Array) -> Theta:
        """Truncated normal weights (±2σ, σ = 1/√fan_in), zero biases, zero decay offsets."""
        theta: Theta = {"decay": jnp.zeros(7)} if self.accumulates else {}
        for i, layer_key in enumerate(jax.random.split(key, 3)):
            fan_in, fan_out = self.shapes[f"w{i}"]
            draw = jax.random.truncated_normal(layer_key, -2.0, 2.0, (fan_in, fan_out)) / fan_in**0.5
            theta |= {f"w{i}": draw * (self.output_scale if i == 2 else 1.0), f"b{i}": jnp.zeros(fan_out)}
        return theta

    def __call__(
        self,
        theta: Theta,
        *,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        fill: str = "mean",
        horizon: int | None = None,
        tile: int | None = None,
    ) -> OuterOptimizer:
        """The outer optimizer with weights φ.

        `scale` multiplies every step; `weight_decay` subtracts that share of each parameter a round (decoupled); `fill`
        is what LAgg-A sees in an absent worker's slot, the "mean" of the others or "zero"; `horizon` is how many rounds
        φ was meta-trained for; `tile` is how many parameters to work on at a time (None: what suits the platform).
        """
        self.check(theta)
        if fill not in FILLS:
            raise unknown("fill of an empty slot", fill, FILLS)

        def init(params: Any) -> LearnedState:
            return LearnedState(jnp.int32(0), jax.tree.map(features.init_ada, params) if self.accumulates else ())

        def update(
            updates: Any,
            state: Any,
            params: Any = None,
            *,
            worker_deltas: Any = None,
            weights: jax.Array | None = None,
            **extra: Any,
        ) -> tuple[Any, LearnedState]:
            del extra
            if params is None:
                raise LaconicError(f"{self.architecture} needs the parameters: call update(delta, state, params).")
            mean_delta = _float32(updates)
            deltas = self._deltas(mean_delta, _float32(worker_deltas), weights, fill)
            ada = state.ada
            if self.accumulates:
                rate_7 = features.decays(theta["decay"])
                ada = jax.tree.map(lambda d, a: features.accumulate(a, d, rate_7), mean_delta, ada)
            time = features.time_features(state.round, TIME_SHIFT[self.time])
            leaves, structure = jax.tree.flatten(_float32(params))
            adas = structure.flatten_up_to(ada) if self.accumulates else [None] * len(leaves)
            rows = zip(leaves, adas, structure.flatten_up_to(mean_delta), structure.flatten_up_to(deltas), strict=True)
            steps = [tensor_step(theta, time, *row, tile or default_tile()) for row in rows]
            shares = [scale * self.share(p.shape) for p in leaves]
            changes = [-(r * s + weight_decay * p) for r, s, p in zip(shares, steps, leaves, strict=True)]
            changes = jax.tree.map(lambda p, c: c.astype(p.dtype), params, jax.tree.unflatten(structure, changes))
            return changes, LearnedState(state.round + 1, ada)

        tx = optax.GradientTransformationExtraArgs(init, update)
        return OuterOptimizer(tx, "gather" if self.gathers else "mean", self.workers, horizon)

    def _deltas(self, mean_delta: Any, worker_deltas: Any, weights: jax.Array | None, fill: str) -> Any:
        """The delta features, leaves [n, …]; an absent worker (weight 0) leaves an empty slot, which is filled."""
        if not self.gathers:
            return jax.tree.map(lambda d: d[None], mean_delta)
        if worker_deltas is None:
            raise LaconicError(f"{self.architecture} needs the keyword worker_deltas, with leaves [K, …].")
        K = jax.tree.leaves(worker_deltas)[0].shape[0]
        if K != self.workers:
            raise LaconicError(f"this {self.architecture} was made for K = {self.workers} workers and got {K} deltas.")
        if weights is None:
            return worker_deltas
        here = lambda d: (weights > 0).reshape(-1, *[1] * (d.ndim - 1))
        empty = {"mean": lambda mean: mean[None], "zero": lambda mean: jnp.zeros((), mean.dtype)}[fill]
        return jax.tree.map(lambda d, mean: jnp.where(here(d), d, empty(mean)), worker_deltas, mean_delta)


def tensor_step(
    theta: Theta,
    time: jax.Array,
    param: jax.Array,
    ada: features.Ada | None,
    mean: jax.Array,
    deltas: jax.Array,
    tile: int,
) -> jax.Array:
    """λ₁·d·exp(λ₂·m) for every parameter of one tensor, `deltas` being [n, *shape]."""
    if not param.size:
        return param
    if ada is None:
        view = features.view_of(param.shape)
        fields = [features.to_view(view, x, param.shape) for x in (deltas, param)]
        groups = list
    else:
        view, fields = features.fields_of(param, ada, mean, deltas)
        groups = features.groups
    walk = Walk((param.size // (view.A * view.B), view.A, view.B), tile)
    sums = walk.reduce(lambda f, masks: features.square_sums(groups(f), masks), fields)
    count = sums.shape[0]
    first = {
        "w0": features.normaliser(sums / param.size)[:, None] * theta["w0"][:count],
        "b0": theta["b0"] + time @ theta["w0"][count:],
    }
    if isinstance(fields, features.Fields) and fused.serves(jax.default_backend(), theta["b0"].size, ada):
        step = fused.learned_step(theta | first, fields, LAMBDA)
    else:
        step = walk.fill(lambda f: _mlp(theta | first, groups(f)), fields)
    return features.from_view(view, step, param.shape)


def _float32(tree: Any) -> Any:
    """Everything is computed in float32, whatever the parameters are kept in."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def _mlp(theta: Theta, groups: list[jax.Array]) -> jax.Array:
    """One tile [1, l, a, b] of steps. Features run along the first axis, so no transpose is ever needed."""
    tile = jnp.broadcast_shapes(*(x.shape[1:] for x in groups))
    # Without the barrier XLA's CPU code computes the features inside the concatenation, one by one: 1.5 times slower.
    apart = jax.lax.optimization_barrier(groups) if jax.default_backend() == "cpu" else groups
    h = jnp.concatenate([jnp.broadcast_to(x, (x.shape[0], *tile)) for x in apart])
    for i in range(3):
        h = _dense(theta[f"w{i}"], h if i == 0 else jax.nn.relu(h)) + theta[f"b{i}"].reshape(-1, 1, 1, 1)
    return LAMBDA * h[:1] * jnp.exp(LAMBDA * h[1:])


def _dense(w_FN: jax.Array, x: jax.Array) -> jax.Array:
    """[F, …] → [N, …]."""
    return jnp.tensordot(w_FN.T, x, axes=1)
