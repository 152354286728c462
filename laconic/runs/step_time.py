"""How long a local step takes on this machine."""

from typing import Any

import jax
import jax.numpy as jnp

from laconic.client import LocalOptimizer, Shared, local_client
from laconic.data.feed import Streamed
from laconic.show.timing import measure_step
from laconic.tasks.base import Task


def local_step_seconds(task: Task, batch: int) -> float:
    """Seconds that one local step of plain SGD takes on this machine, for one worker, its minibatch
    gathered too."""
    feed = task.feed
    item = (
        next(iter(feed.batches()))
        if isinstance(feed, Streamed)
        else feed.sample(jax.random.key(1), (batch,))
    )
    items = jax.tree.map(lambda x: jnp.asarray(x)[None], item)
    shared = Shared(*task.init(jax.random.key(0)))

    def step(task: Task, shared: Shared) -> Any:
        client = local_client(task, LocalOptimizer("sgd").optax())
        return client.run(shared, client.init(shared), items, jax.random.key(2))

    run, task = jax.jit(step), jax.device_put(task)
    return measure_step(lambda: run(task, shared))
