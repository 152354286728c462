"""A model's tensors as one array, for meta-training on tiny models.

The outer step of `lopt-r` takes a dozen means of every tensor. Tensor by tensor these are hundreds
of kernels a round on a GPU, each of which takes longer to start than to run. Here a model is one
array of rows, each tensor filling whole rows of its own: the means of all tensors are one pass over
the array and one small matrix product, and the step is another pass. The workers' local steps see
the tensors themselves, as views.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from laconic.client import (
    Client,
    Message,
    Shared,
    beginning,
    local_steps,
    sent_delta,
    work_of,
)
from laconic.outer.base import OuterOptimizer
from laconic.outer.learned import Theta
from laconic.outer.relative import (
    Count,
    Moments,
    RelativeOptimizer,
    RelativeState,
    Told,
    init_moments,
    step,
)
from laconic.outer.together import columns, decide
from laconic.relative import DECAYS, SQUARE_DECAY
from laconic.tasks.base import Task

WIDTH = 64  # parameters in a row; the last row of a tensor is filled up with zeros


@dataclass(frozen=True)
class Rows:
    """Where the tensors of a model lie: `shapes` in the order of the tree's leaves."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        """How many parameters each tensor has."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def counts(self) -> list[int]:
        """How many rows each tensor fills."""
        return [-(-size // WIDTH) for size in self.sizes]

    @property
    def tensors(self) -> np.ndarray:
        """The tensor of every row."""
        return np.repeat(np.arange(len(self.shapes)), self.counts)

    def pack(self, params: Any) -> jax.Array:
        """A tree of tensors as rows [R, `WIDTH`]."""
        parts = []
        for leaf, size, count in zip(
            self.tree.flatten_up_to(params), self.sizes, self.counts, strict=True
        ):
            parts.append(jnp.pad(leaf.reshape(-1), (0, count * WIDTH - size)))
        return jnp.concatenate(parts).reshape(-1, WIDTH)

    def unpack(self, rows: jax.Array) -> Any:
        """The tree of tensors in rows."""
        flat, ends = rows.reshape(-1), np.cumsum(self.counts) * WIDTH
        starts = ends - np.array(self.counts) * WIDTH
        leaves = [
            flat[start : start + size].reshape(shape)
            for start, size, shape in zip(starts, self.sizes, self.shapes, strict=True)
        ]
        return self.tree.unflatten(leaves)


def rows_of(task: Task) -> Rows | None:
    """How the task's parameters lie in rows; None if they are not all of float32."""
    params, _ = jax.eval_shape(task.init, jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    if any(leaf.dtype != jnp.float32 or leaf.size == 0 for leaf in leaves):
        return None
    return Rows(tree, tuple(leaf.shape for leaf in leaves))


def packed_init(task: Task, layout: Rows) -> Task:
    """The task, its first parameters in rows."""

    def init(key: jax.Array) -> tuple[jax.Array, Any]:
        params, model_state = task.init(key)
        return layout.pack(params), model_state

    return Task(task.name, init, task.loss, task.feed, evaluate=task.evaluate, classes=task.classes)


def packed_client(task: Task, optimizer: optax.GradientTransformation, layout: Rows) -> Client:
    """`local_client` of which the server only sees rows."""
    walk = local_steps(task, optimizer, None)

    def opened(shared: Shared) -> Shared:
        return shared._replace(params=layout.unpack(shared.params))

    def run(
        shared: Shared, state: Any, items: Any, key: jax.Array
    ) -> tuple[Message, Any, jax.Array]:
        work = work_of(items)
        end, losses_H = walk(shared, beginning(opened(shared), state), (), work, key)
        delta = sent_delta(shared, layout.pack(end.params), work)
        return Message(delta, end.model_state), end.local, losses_H

    return Client(lambda shared: optimizer.init(opened(shared).params), run)


class Watched(NamedTuple):
    """The state of an `lopt-r` on rows, and what its head saw in the last round [T, inputs]."""

    own: RelativeState
    inputs: jax.Array


def packed_relative(
    spec: RelativeOptimizer,
    theta: Theta,
    layout: Rows,
    told: tuple[Count, Count, Count],
    agreement: jax.Array,
    watched: bool = False,
) -> OuterOptimizer:
    """`spec(theta, workers=, local_steps=, rounds=)` on rows; `agreement` is 1 where it sees how
    far the workers agree, and 0 where it does not. Its state is `Watched` if it is."""
    tensor_R = layout.tensors
    member_RT = jnp.asarray(np.eye(len(layout.shapes), dtype=np.float32)[tensor_R])

    def init(params: Any) -> Any:
        count = len(layout.shapes)
        moments = init_moments(params)._replace(q=jnp.zeros(count))
        state = RelativeState(jnp.int32(0), moments)
        return Watched(state, jnp.zeros((count, len(spec.inputs)))) if watched else state

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        worker_deltas: Any = None,
        weights: Any = None,
        **extra: Any,
    ) -> tuple[jax.Array, Any]:
        del extra
        delta = updates
        round, old = state.own if watched else state
        b = tuple(beta * x + delta for beta, x in zip(DECAYS, old.b, strict=True))
        v = SQUARE_DECAY * old.v + (1 - SQUARE_DECAY) * jnp.square(delta)
        summed = [
            *columns(delta, old.b, params),
            _mean_square(worker_deltas, weights) * agreement,
        ]
        sums_CR = jnp.sum(jnp.stack(summed), axis=2)
        sums_CT = jnp.dot(sums_CR, member_RT, precision=jax.lax.Precision.HIGHEST)
        counts = Told(round, *told)
        found = decide(spec, theta, counts, sums_CT[:-1], old.q, sums_CT[-1], layout.shapes)
        moments = Moments(b, v, found.q)
        o = [found.o[tensor_R, i][:, None] for i in range(found.o.shape[1])]
        s = found.s[tensor_R][:, None]
        change = step(spec, round, o, found.hidden, None, delta, s, moments)
        new = RelativeState(round + 1, moments)
        return -change, Watched(new, found.inputs) if watched else new

    tx = optax.GradientTransformationExtraArgs(init, update)
    return OuterOptimizer(tx, "gather")


def _mean_square(deltas_K: jax.Array, weights_K: jax.Array) -> jax.Array:
    """The mean Δ² of the workers that are there, by their weights; written out, one pass."""
    total = jnp.sum(weights_K)
    shares_K = weights_K / jnp.where(total > 0, total, 1.0)
    parts = (
        jnp.where(weights_K[k] > 0, jnp.square(deltas_K[k]) * shares_K[k], 0)
        for k in range(len(weights_K))
    )
    return sum(parts, jnp.zeros_like(deltas_K[0]))
