"""lopt-r: a Nesterov step whose length and momenta a small head decides, tensor by tensor.

Everything is measured in what the workers did. For each tensor, with Δ the mean delta and p the
parameters,

    b_β ← β·b_β + Δ  for β = 0.5, 0.9, 0.99
    v ← 0.99·v + 0.01·Δ²,  q ← 0.95·q + 0.05·mean(Δ²),  m = 0.1·b_0.9  (with a hat: bias-corrected)
    s = √q̂,  o = tanh(head(inputs))
    step = ρ·e^{1.5·o₀}·[Δ + μ·(1 + 1.2·o₁)·b_μ + 0.5·o₂·b_0.5 + 0.1·o₃·b_0.99
                        + 3·o₄·s·m̂/(√v̂ + 0.1·s)]

The inputs (`INPUTS`) are ratios and counts, so a step scales with Δ and p, and every tensor is on
its own. With a zero last layer o = 0, and the step is Nesterov's with rate ρ and momentum μ. Gates,
if there are any, add bounded shares of Δ, momentum and Adam-like directions to each parameter's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.errors import LaconicError, unknown
from laconic.outer.base import OuterOptimizer
from laconic.outer.learned import ACCUMULATORS
from laconic.outer.tensor import Theta
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

Count = int | float | jax.Array | None  # None, or a traced 0: unknown


class Moments(NamedTuple):
    """What is kept of one tensor: b for each of `DECAYS`, v, and the number q."""

    b: tuple[jax.Array, ...]
    v: jax.Array
    q: jax.Array


class RelativeState(NamedTuple):
    """Rounds taken, and for each tensor its `Moments`."""

    round: jax.Array
    moments: Any


class Told(NamedTuple):
    """What is the same for all tensors: the rounds before this one, and what the user said."""

    round: jax.Array
    workers: Count
    local_steps: Count
    rounds: Count


@dataclass(frozen=True)
class RelativeOptimizer(RelativeArchitecture):
    """The architecture `lopt-r`; called with weights φ it is an outer optimizer.

    Args:
        rate: ρ, the rate of the Nesterov step that it begins with.
        momentum: μ, its momentum: 0.5, 0.9 or 0.99.
        hidden: width of the hidden layer.
        gates: width of the hidden layer of gates for each parameter; 0: none.
        inputs: the names of its inputs, all that there are or some of them.

    Example:
        >>> import jax
        >>> from laconic import RelativeOptimizer
        >>> lopt_r = RelativeOptimizer()
        >>> len(lopt_r.inputs), lopt_r.weights
        (27, 533)
        >>> outer = lopt_r(lopt_r.init(jax.random.key(0)), workers=8, rounds=500)
        >>> params = {"w": jax.numpy.ones((3, 2))}
        >>> updates, state = outer.tx.update(params, outer.tx.init(params), params)
    """

    def init(self, key: jax.Array) -> Theta:
        """Truncated normal weights (±2σ, σ = 1/√fan_in), last layers and biases of zeros."""
        found = {name: jnp.zeros(shape, jnp.float32) for name, shape in self.shapes.items()}
        for name, own in (("w0", key), ("g0", jax.random.fold_in(key, 1))):
            if name in found:
                shape = found[name].shape
                draw = jax.random.truncated_normal(own, -2.0, 2.0, shape, jnp.float32)
                found[name] = draw / shape[0] ** 0.5
        return found

    def grown(self, theta: Theta) -> Theta:
        """φ of one with fewer hidden units for this one: the new units begin as `init` draws them
        and nothing listens to them yet, so it takes the same steps."""
        few = theta["b0"].shape[0]
        if few == self.hidden:
            return theta
        if self.gates or few > self.hidden:
            raise LaconicError(
                f"lopt-r with {self.hidden} hidden units and {self.gates} gates cannot begin from "
                f"one with {few}: it needs more units, and no gates."
            )
        fresh = self.init(jax.random.key(few))
        rest = {"w0": fresh["w0"][:, few:], "b0": fresh["b0"][few:], "w1": fresh["w1"][few:]}
        axes = {"w0": 1, "b0": 0, "w1": 0}
        return {
            name: jnp.concatenate([jnp.asarray(x), rest[name]], axes[name]) if name in rest else x
            for name, x in theta.items()
        }

    def __call__(
        self,
        theta: Theta,
        *,
        workers: Count = None,
        local_steps: Count = None,
        rounds: Count = None,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        horizon: int | None = None,
        accumulators: str = "float32",
    ) -> OuterOptimizer:
        """The outer optimizer with weights φ. What it is not told it does without.

        Args:
            theta: φ, as `init` or a published optimizer gives it.
            workers: K; None: as many as a round shows, if it shows more than their mean.
            local_steps: H.
            rounds: how long training will be.
            scale: multiplies every step.
            weight_decay: the share of each parameter that a round subtracts (decoupled).
            horizon: how many rounds φ was meta-trained for.
            accumulators: "float32", or "bfloat16" (rounded to nearest) for half the memory.

        `workers`, `local_steps` and `rounds` may be traced numbers, where 0 means unknown.
        """
        self.check(theta)
        check_told(workers=workers, local_steps=local_steps, rounds=rounds)
        if accumulators not in ACCUMULATORS:
            raise unknown("kind of accumulators", accumulators, ACCUMULATORS)

        def init(params: Any) -> RelativeState:
            zeros = lambda p: init_moments(p, ACCUMULATORS[accumulators])
            return RelativeState(jnp.int32(0), jax.tree.map(zeros, params))

        def update(
            updates: Any,
            state: Any,
            params: Any = None,
            *,
            worker_deltas: Any = None,
            worker_squares: Any = None,
            weights: jax.Array | None = None,
            **extra: Any,
        ) -> tuple[Any, RelativeState]:
            del extra
            if params is None:
                raise LaconicError(
                    "lopt-r needs the parameters: call update(delta, state, params)."
                )
            leaves, structure = jax.tree.flatten(params)
            flat = structure.flatten_up_to
            if worker_squares is None and worker_deltas is not None:
                worker_squares = squared_norms(worker_deltas)
            squares = [None] * len(leaves) if worker_squares is None else flat(worker_squares)
            known = workers_among(squares, weights) if workers is None else workers
            told = Told(state.round, known, local_steps, rounds)
            deltas = [d.astype(jnp.float32) for d in flat(updates)]
            rows = zip(deltas, flat(state.moments), leaves, strict=True)
            seen = [_see(told.round, *row) for row in rows]
            norms = [mean_of_squares(x, weights) for x in squares]
            steps = _steps(self, theta, told, deltas, seen, norms)
            changes = [
                (-(scale * step + weight_decay * p.astype(jnp.float32))).astype(p.dtype)
                for step, p in zip(steps, leaves, strict=True)
            ]
            kept = [_kept(tensor.moments, ACCUMULATORS[accumulators]) for tensor in seen]
            return structure.unflatten(changes), RelativeState(
                state.round + 1, structure.unflatten(kept)
            )

        def tell(**run: Count) -> OuterOptimizer:
            known = {"workers": workers, "local_steps": local_steps, "rounds": rounds}
            run |= {name: value for name, value in known.items() if value is not None}
            return self(
                theta,
                **run,
                scale=scale,
                weight_decay=weight_decay,
                horizon=horizon,
                accumulators=accumulators,
            )

        tx = optax.GradientTransformationExtraArgs(init, update)
        return OuterOptimizer(tx, "norms", horizon=horizon, tell=tell)


class _Seen(NamedTuple):
    """One tensor in this round: its new moments in float32, s, mean Δ² and its own inputs."""

    moments: Moments
    s: jax.Array
    square: jax.Array
    inputs: list[jax.Array]


class Means(NamedTuple):
    """Means over a tensor: of Δ², Δ·b and b² before the round and after, of p² and of |Δ|."""

    square: jax.Array
    along: tuple[jax.Array, ...]
    before: tuple[jax.Array, ...]
    after: tuple[jax.Array, ...]
    parameters: jax.Array
    absolute: jax.Array


def init_moments(param: jax.Array, dtype: Any = jnp.float32) -> Moments:
    """Zeros, each in memory of its own, so that a state can be donated."""
    *b, v = (jnp.zeros(jnp.shape(param), dtype) for _ in range(len(DECAYS) + 1))
    return Moments(tuple(b), v, jnp.zeros((), jnp.float32))


def squared_norms(worker_deltas: Any) -> Any:
    """Every worker's ‖Δ‖², leaves [K, …] → [K]."""
    square = lambda x: jnp.square(x.astype(jnp.float32))
    return jax.tree.map(lambda x: jnp.sum(square(x), axis=tuple(range(1, x.ndim))), worker_deltas)


def workers_among(squares: list[Any], weights_K: jax.Array | None) -> Count:
    """How many workers a round shows; None if it shows only their mean."""
    if weights_K is not None:
        return jnp.sum((weights_K > 0).astype(jnp.float32))
    return next((x.shape[0] for x in squares if x is not None), None)


def mean_of_squares(squares_K: jax.Array | None, weights_K: jax.Array | None) -> jax.Array:
    """The mean ‖Δ‖² of the workers that are there, by their weights; 0 if nobody told."""
    if squares_K is None:
        return jnp.float32(0)
    if weights_K is None:
        return jnp.mean(squares_K)
    weights_K = weights_K.astype(jnp.float32)
    total = jnp.sum(weights_K)
    sums = jnp.sum(jnp.where(weights_K > 0, squares_K * weights_K, 0))
    return sums / jnp.where(total > 0, total, 1.0)


def _see(round: jax.Array, delta: jax.Array, old: Moments, param: jax.Array) -> _Seen:
    """The new moments of a tensor, and the inputs that come from it alone."""
    before = [b.astype(jnp.float32) for b in old.b]
    b = tuple(beta * x + delta for beta, x in zip(DECAYS, before, strict=True))
    v = SQUARE_DECAY * old.v.astype(jnp.float32) + (1 - SQUARE_DECAY) * jnp.square(delta)
    square = _mean(delta, delta)
    q = SCALE_DECAY * old.q + (1 - SCALE_DECAY) * square
    p = param.astype(jnp.float32)
    means = Means(
        square,
        tuple(_mean(delta, x) for x in before),
        tuple(_mean(x, x) for x in before),
        tuple(_mean(x, x) for x in b),
        _mean(p, p),
        jnp.sum(jnp.abs(delta)) / max(delta.size, 1),
    )
    s, inputs = own_inputs(means, q, round)
    return _Seen(Moments(b, v, q), s, square, inputs)


def own_inputs(means: Means, q: jax.Array, round: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """s, and the inputs that come from a tensor alone."""
    scale = q / _correction(SCALE_DECAY, round)
    found = zip(means.along, means.before, strict=True)
    inputs = [along * _rsqrt(means.square) * _rsqrt(old) for along, old in found]
    inputs += [
        _log_ratio((1 - beta) ** 2 * new, scale)
        for beta, new in zip(DECAYS, means.after, strict=True)
    ]
    inputs += [
        _log_ratio(means.square, scale),
        _log_ratio(scale, means.parameters, PARAMETER_UNIT, PARAMETER_LIMIT),
        _log_ratio(jnp.square(means.absolute), means.square),
    ]
    return jnp.sqrt(scale + TINY), inputs


def _steps(
    spec: RelativeArchitecture,
    theta: Theta,
    told: Told,
    deltas: list[jax.Array],
    seen: list[_Seen],
    norms: list[jax.Array],
) -> list[jax.Array]:
    """The step of every tensor; the head sees all tensors at once."""
    if not deltas:
        return []
    common = common_inputs(told)
    rows = zip(deltas, seen, norms, strict=True)
    every = jnp.stack([_row(delta, tensor, norm, common) for delta, tensor, norm in rows])
    outputs, hidden = head(theta, every[:, jnp.array(spec.columns)])
    gates = theta if spec.gates else None
    rows = zip(outputs, hidden, deltas, seen, strict=True)
    return [
        step(spec, told.round, o, h, gates, delta, tensor.s, tensor.moments)
        for o, h, delta, tensor in rows
    ]


def head(theta: Theta, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Outputs and hidden units of every tensor, from its inputs."""
    hidden = jnp.tanh(_dot(inputs, theta["w0"]) + theta["b0"][None])
    return jnp.tanh(_dot(hidden, theta["w1"]) + theta["b1"][None]), hidden


def step(
    spec: RelativeArchitecture,
    round: jax.Array,
    o: Sequence[jax.Array] | jax.Array,
    hidden: jax.Array,
    theta: Theta | None,
    delta: jax.Array,
    s: jax.Array,
    moments: Moments,
) -> jax.Array:
    """The formula at the top of this file; θ holds gates, or is None."""
    b, v, _ = moments
    root = jnp.sqrt(v / _correction(SQUARE_DECAY, round) + TINY)
    share = 1 / (root + FLOOR * s)
    unbiased = lambda i: (1 - DECAYS[i]) / _correction(DECAYS[i], round) * b[i]
    adam = unbiased(FAST) * share
    momentum = spec.momentum * b[DECAYS.index(spec.momentum)]
    nesterov = delta + (1 + SWING * o[1]) * momentum
    mixed = nesterov + SHORT * o[2] * b[0] + LONG * o[3] * b[-1] + ADAM * o[4] * s * adam
    if theta is not None:
        now, slow = delta * share, unbiased(-1) * share
        seen = (
            jnp.log(root / s),
            jnp.abs(adam),
            now * adam,
            jnp.abs(slow),
            jnp.abs(now),
        )
        directions = (delta, momentum, s * adam, s * now, s * slow)
        for limit, gate, direction in zip(
            GATES, _gates(theta, hidden, seen), directions, strict=True
        ):
            mixed += limit * gate * direction
    return spec.rate * jnp.exp(GAIN * o[0]) * mixed


def _gates(theta: Theta, hidden: jax.Array, seen: tuple[jax.Array, ...]) -> list[jax.Array]:
    """A gate in (−1, 1) for each direction and parameter. Written out unit by unit: XLA makes one
    loop over the parameters of it."""
    g0, g1 = theta["g0"], theta["g1"]
    shared = _dot(hidden, g0[GATE_INPUTS:]) + theta["c0"]
    seen = tuple(jnp.clip(x, -GATE_LIMIT, GATE_LIMIT) for x in seen)
    units = [
        jnp.tanh(sum((x * g0[i, j] for i, x in enumerate(seen)), shared[j]))
        for j in range(g0.shape[1])
    ]
    return [
        jnp.tanh(sum((unit * g1[j, k] for j, unit in enumerate(units)), theta["c1"][k]))
        for k in range(g1.shape[1])
    ]


def _row(delta: jax.Array, tensor: _Seen, norm: jax.Array, common: list[jax.Array]) -> jax.Array:
    """The inputs of a tensor, in the order of `INPUTS`."""
    size = max(delta.size, 1)
    agreement, known = agreement_inputs(tensor.square, norm, size)
    shape = [jnp.float32(math.log(size) / SIZE_UNIT), *map(jnp.float32, kind_of(delta.ndim))]
    return jnp.stack([*tensor.inputs, agreement, known, *common[:4], *shape, *common[4:]])


def agreement_inputs(
    square: jax.Array, norm: jax.Array, size: int | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """How far the workers agree, from mean Δ² and their mean ‖Δ‖², and whether that is known."""
    known = (norm > 0) & jnp.isfinite(norm)
    mean = jnp.where(known, norm, 1.0) / size
    return jnp.where(known, _log_ratio(square, mean, 0.5), 0.0), known.astype(jnp.float32)


def common_inputs(told: Told) -> list[jax.Array]:
    """The inputs that all tensors share: counts, times, and the share of training that is done."""
    t = told.round.astype(jnp.float32)
    length, known = _count(told.rounds)
    counts = []
    for count in (told.workers, told.local_steps):
        number, flag = _count(count)
        counts += [flag * jnp.log(number) / COUNT_UNIT, flag]
    times = [jnp.tanh(t / scale) for scale in TIMESCALES]
    return [*counts, *times, known * jnp.minimum(t / length, 1.0), known]


def _count(told: Count) -> tuple[jax.Array, jax.Array]:
    """A number that is safe to use, and whether it is known."""
    number = jnp.asarray(0 if told is None else told).astype(jnp.float32)
    known = number > 0
    return jnp.where(known, number, 1.0), known.astype(jnp.float32)


def _log_ratio(
    over: jax.Array, under: jax.Array, unit: float = 1.0, limit: float = LIMIT
) -> jax.Array:
    """Half the logarithm of a ratio of squares, in units and within a limit; 0 for 0/0."""
    log = lambda x: jnp.log(jnp.where(x > 0, x, 1.0))
    inside = jnp.clip(0.5 * (log(over) - log(under)) / unit, -limit, limit)
    return jnp.where((over > 0) & (under > 0), inside, limit * (jnp.sign(over) - jnp.sign(under)))


def _kept(moments: Moments, dtype: Any) -> Moments:
    return Moments(tuple(b.astype(dtype) for b in moments.b), moments.v.astype(dtype), moments.q)


def _correction(decay: float, round: jax.Array) -> jax.Array:
    """1 − β^t, t counting this round; exact for small ones too."""
    return -jnp.expm1((round.astype(jnp.float32) + 1) * math.log(decay))


def _mean(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum(x * y) / max(x.size, 1)


def _rsqrt(square: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(square + TINY)


def _dot(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.dot(x, w, precision=jax.lax.Precision.HIGHEST)
