"""What a run measures: metrics on held-out data, whether weights are finite, and step times."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.client import LocalOptimizer, Shared, local_client
from laconic.data.feed import Resident, Streamed
from laconic.errors import LaconicError
from laconic.show.timing import measure_step
from laconic.tasks.base import Task
from laconic.tasks.own import check_names

EVALUATION_BATCH = 250
Metrics = Callable[[Task, Shared], dict[str, jax.Array]]


def all_finite(tree: Any) -> jax.Array:
    """Whether every number in a tree is finite."""
    flags = [
        jnp.all(jnp.isfinite(x))
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return jnp.all(jnp.stack(flags))


def heldout_metrics(task: Task, shared: Shared, split: str = "test") -> dict[str, jax.Array]:
    """Means of the task's metrics over a whole split; nothing if there is no such split."""
    if split not in task.feed.splits:
        return {}
    n = task.feed.size(split)
    size = min(n, EVALUATION_BATCH)

    def metrics(indices: jax.Array) -> dict[str, jax.Array]:
        return task.evaluate(shared.params, shared.model_state, task.feed.take(indices, split))

    full, rest = divmod(n, size)
    sums = jax.lax.map(metrics, jnp.arange(full * size).reshape(full, size))
    total = jax.tree.map(lambda x: jnp.sum(x, axis=0) * size, sums)
    if rest:
        last = metrics(jnp.arange(n - rest, n))
        check_names(task, total, last)
        total = jax.tree.map(lambda t, x: t + x * rest, total, last)
    return jax.tree.map(lambda t: t / n, total)


def with_fresh_statistics(
    task: Task, shared: Shared, key: jax.Array, batches: int, batch: int
) -> Shared:
    """The model state, such as BatchNorm's statistics, after so many training minibatches at the
    present weights; the weights stay.

    What workers send of it is from before the outer step, and says little of other weights. A
    running mean that keeps 0.9 forgets all but 0.5 % of it in 50 minibatches.
    """

    feed = task.feed
    assert isinstance(feed, Resident)  # check_fresh_statistics refuses streams

    def one(model_state: Any, key: jax.Array) -> tuple[Any, None]:
        drawn, used = jax.random.split(key)
        examples = feed.take(feed.sample(drawn, (batch,)))
        return task.loss(shared.params, model_state, examples, used)[1].model_state, None

    model_state, _ = jax.lax.scan(one, shared.model_state, jax.random.split(key, batches))
    return shared._replace(model_state=model_state)


def check_fresh_statistics(task: Task) -> None:
    """Refuse a model without statistics, and data that cannot be drawn from again."""
    if isinstance(task.feed, Streamed):
        raise LaconicError(
            f"the batches of {task.name!r} are streamed, so none can be drawn for fresh "
            "statistics: leave out fresh_statistics."
        )
    _, model_state = jax.eval_shape(task.init, jax.random.key(0))
    if not jax.tree.leaves(model_state):
        raise LaconicError(
            f"{task.name} has no statistics to estimate anew, as only BatchNorm has: leave out "
            "fresh_statistics."
        )


def as_numbers(metrics: Metrics, task: Task, shared: Shared) -> dict[str, float]:
    """Metrics of a model as numbers."""
    return {name: float(value) for name, value in jax.jit(metrics)(task, shared).items()}


def one_item(task: Task, batch: int) -> Any:
    """What a local step is fed: indices of `batch` examples, or the first batch of a stream."""
    feed = task.feed
    if isinstance(feed, Streamed):
        return next(iter(feed.batches()))
    return feed.sample(jax.random.key(1), (batch,))


def broken_metric(heldout: Mapping[str, Any]) -> str | None:
    """In words, the first metric of a user's own that is not finite while the loss is."""
    for name, values in heldout.items():
        if name in ("loss", "accuracy", "valid_loss"):
            continue
        bad = ~np.isfinite(values) & np.isfinite(heldout["loss"])
        if np.any(bad):
            return f"the test metric {name!r} is {np.asarray(values)[bad].flat[0]}"
    return None


def local_step_seconds(task: Task, batch: int) -> float:
    """Seconds that a worker's local step of plain SGD takes here, with gathering its minibatch."""
    items = jax.tree.map(lambda x: jnp.asarray(x)[None], one_item(task, batch))
    shared = Shared(*task.init(jax.random.key(0)))

    def step(task: Task, shared: Shared) -> Any:
        client = local_client(task, LocalOptimizer("sgd").optax())
        return client.run(shared, client.init(shared), items, jax.random.key(2))

    run = jax.jit(step)
    task = jax.device_put(task)
    return measure_step(lambda: run(task, shared))
