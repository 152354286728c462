"""The step of `lopt-r` in two passes over all tensors, with one head between them.

`RelativeOptimizer` takes a dozen sums of every tensor, and the numbers made of them, one by one. On
a model of 150 tensors XLA makes 2,000 kernels of that for a GPU, most of them for single numbers,
and copies every momentum, because its new value is written while others still read the old. Here
the sums of a tensor are one reduction of a tuple, all numbers of all tensors are vectors, and a
barrier keeps XLA from writing momenta before all sums are taken. The formulas are the same.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.outer.learned import ACCUMULATORS
from laconic.outer.relative import (
    Means,
    Moments,
    RelativeOptimizer,
    RelativeState,
    Told,
    agreement_inputs,
    common_inputs,
    head,
    mean_of_squares,
    own_inputs,
    step,
    workers_among,
)
from laconic.outer.tensor import Theta
from laconic.relative import DECAYS, SCALE_DECAY, SIZE_UNIT, SQUARE_DECAY, kind_of

SUMS = 2 + 3 * len(DECAYS) + 1


class Decided(NamedTuple):
    """What the head decides for all tensors: o [T, outputs], hidden units, s [T] and q [T]; and
    what it saw of them, [T, inputs]."""

    o: jax.Array
    hidden: jax.Array
    s: jax.Array
    q: jax.Array
    inputs: jax.Array


def columns(delta: jax.Array, b: Sequence[jax.Array], param: jax.Array) -> list[jax.Array]:
    """What is summed over a tensor, in the order of `Means`: `SUMS` arrays of its shape."""
    after = [beta * x + delta for beta, x in zip(DECAYS, b, strict=True)]
    squares = [x * x for x in (*b, *after)]
    return [delta * delta, *(delta * x for x in b), *squares, param * param, jnp.abs(delta)]


def decide(
    spec: RelativeOptimizer,
    theta: Theta,
    told: Told,
    sums_CT: jax.Array,
    old_q: jax.Array,
    norms_T: jax.Array,
    shapes: Sequence[tuple[int, ...]],
) -> Decided:
    """The head, from the sums of `columns` over all tensors and their workers' mean ‖Δ‖²."""
    sizes = [max(math.prod(shape), 1) for shape in shapes]
    sizes_T = jnp.array(sizes, jnp.float32)
    means, count = [sums_T / sizes_T for sums_T in sums_CT], len(DECAYS)
    square = means[0]
    along, before, after = (tuple(means[1 + i * count :][:count]) for i in range(3))
    q = SCALE_DECAY * old_q + (1 - SCALE_DECAY) * square
    seen = Means(square, along, before, after, means[-2], means[-1])
    s, own = own_inputs(seen, q, told.round)
    common = common_inputs(told)
    logs_T = jnp.array([math.log(size) / SIZE_UNIT for size in sizes], jnp.float32)
    kinds = zip(*(kind_of(len(shape)) for shape in shapes), strict=True)
    shape = [logs_T, *(jnp.array(kind, jnp.float32) for kind in kinds)]
    of_workers = agreement_inputs(square, norms_T, sizes_T)
    every = [*own, *of_workers, *common[:4], *shape, *common[4:]]
    inputs_T = [jnp.broadcast_to(every[i], q.shape) for i in spec.columns]
    inputs = jnp.stack(inputs_T, axis=1)
    outputs, hidden = head(theta, inputs)
    return Decided(outputs, hidden, s, q, inputs)


def together(
    spec: RelativeOptimizer, theta: Theta, *, accumulators: str = "float32", **run: Any
) -> optax.GradientTransformationExtraArgs:
    """`spec(theta, accumulators=…, workers=, local_steps=, rounds=).tx` with the same state."""
    dtype = ACCUMULATORS[accumulators]
    plain = spec(theta, accumulators=accumulators, **run).tx
    gates = theta if spec.gates else None

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        worker_squares: Any = None,
        weights: Any = None,
        **extra: Any,
    ) -> tuple[Any, RelativeState]:
        del extra
        leaves, structure = jax.tree.flatten(params)
        if not leaves:
            return updates, RelativeState(state.round + 1, state.moments)
        flat = structure.flatten_up_to
        squares = [None] * len(leaves) if worker_squares is None else flat(worker_squares)
        workers = run.get("workers")
        known = workers_among(squares, weights) if workers is None else workers
        told = Told(state.round, known, run.get("local_steps"), run.get("rounds"))
        deltas, moments = flat(updates), flat(state.moments)
        rows = zip(deltas, moments, leaves, strict=True)
        numbers = [number for row in rows for number in _sums(*row)]
        sums_CT = jnp.stack(numbers).reshape(len(leaves), SUMS).T
        old_q = jnp.stack([old.q for old in moments])
        norms_T = jnp.stack([mean_of_squares(x, weights) for x in squares])
        shapes = [leaf.shape for leaf in leaves]
        decided = decide(spec, theta, told, sums_CT, old_q, norms_T, shapes)
        # Without the barrier XLA writes new momenta with the sums, and keeps copies of the old.
        decided, deltas, moments, leaves = jax.lax.optimization_barrier(
            (decided, deltas, moments, leaves)
        )
        changes, kept = [], []
        for i, (delta, old, p) in enumerate(zip(deltas, moments, leaves, strict=True)):
            new = _moments(delta, old, decided.q[i])
            o, s, hidden = decided.o[i], decided.s[i], decided.hidden[i]
            found = step(spec, told.round, o, hidden, gates, delta.astype(jnp.float32), s, new)
            changes.append((-found).astype(p.dtype))
            b, v, q = new
            kept.append(Moments(tuple(x.astype(dtype) for x in b), v.astype(dtype), q))
        return structure.unflatten(changes), RelativeState(
            state.round + 1, structure.unflatten(kept)
        )

    return optax.GradientTransformationExtraArgs(plain.init, update)


def _sums(delta: jax.Array, old: Moments, param: jax.Array) -> tuple[jax.Array, ...]:
    """The sums of `columns` as one reduction of a tuple, which is one pass over memory."""
    wide = lambda x: x.astype(jnp.float32)
    parts = tuple(columns(wide(delta), [wide(b) for b in old.b], wide(param)))
    add = lambda xs, ys: tuple(x + y for x, y in zip(xs, ys, strict=True))
    zeros = (jnp.float32(0),) * SUMS
    return jax.lax.reduce(parts, zeros, add, tuple(range(delta.ndim)))


def _moments(delta: jax.Array, old: Moments, q: jax.Array) -> Moments:
    delta = delta.astype(jnp.float32)
    b = tuple(beta * x.astype(jnp.float32) + delta for beta, x in zip(DECAYS, old.b, strict=True))
    v = SQUARE_DECAY * old.v.astype(jnp.float32) + (1 - SQUARE_DECAY) * jnp.square(delta)
    return Moments(b, v, q)
