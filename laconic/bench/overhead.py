"""What a server step adds to local training: the paper's table of times, for any task.

One worker's time on one device. A round takes H local steps (forward, backward, SGD's update) and a
server step. Each part is timed by itself: the median of the last 40 of 50 steps, then the median
over 3 restarts from its first state. A round is one program on the device, so a call here takes
several steps; their mean counts for each.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from laconic.bench.timing import Step, Tick, compiled
from laconic.data.feed import Streamed, count_rows
from laconic.errors import LaconicError, require_positive, require_some
from laconic.outer.base import outer_step
from laconic.outer.kernels import Tuning
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.momentum import average
from laconic.tasks.base import Task, count_parameters
from laconic.tasks.catalog import make_task

METHODS = ("local-sgd", "lopt-a", "lagg-a")
PARTS = ("forward-backward", "local step", *METHODS)  # what is timed, in this order


@dataclass(frozen=True)
class OverheadConfig:
    """What the server's step adds to H local steps: local SGD, LOpt-A and LAgg-A on one task."""

    task: str = "digits-mlp"
    """The task, as `laconic tasks` lists it; options after a colon."""
    local_steps: tuple[int, ...] = (8, 16, 32, 64)
    """Values of H to report the overhead for."""
    batch: int = 128
    """Examples in a local step."""
    workers: int = 8
    """K, the deltas that LAgg-A receives."""
    rate: float = 0.1
    """SGD's learning rate in the local steps."""
    precision: str = Tuning().precision
    """Precision of the learned step's matrix products in GPU kernels; half is about TF32."""
    steps: int = 50
    """Steps of each part in a restart."""
    last: int = 40
    """The median is over this many of them, the last ones."""
    restarts: int = 3
    """Restarts from the first state; their median counts."""
    inner: int | None = None
    """Steps in one call on the device; 5, or 1 on a CPU."""

    @property
    def at_once(self) -> int:
        """`inner`, or what suits the platform; no more than the steps there are."""
        suited = 1 if jax.default_backend() == "cpu" else 5
        return min(self.inner or suited, self.last, self.steps)

    def check(self) -> None:
        """Refuse what cannot be measured."""
        require_some(local_steps=self.local_steps)
        require_positive(
            batch=self.batch,
            workers=self.workers,
            rate=self.rate,
            restarts=self.restarts,
            steps=self.steps,
            last=self.last,
            local_steps=min(self.local_steps),
            inner=1 if self.inner is None else self.inner,
        )
        Tuning(precision=self.precision).check()


def measure(
    config: OverheadConfig,
    tick: Tick = lambda name: None,
    known: Mapping[str, float] | None = None,
    keep: Callable[[str, float], None] = lambda name, seconds: None,
) -> dict[str, Any]:
    """Figures by method and H: seconds of a local step and its share of the server's step.

    Parts whose seconds are `known` are not timed again; `keep` is called with the others as they
    are measured, and may raise to stop.
    """
    config.check()
    task = jax.device_put(make_task(config.task))
    makers: dict[str, Callable[[], Step]] = {
        "forward-backward": lambda: _gradient(task, config),
        "local step": lambda: _local(task, config),
        **{name: lambda name=name: _server(task, name, config) for name in METHODS},
    }
    took = dict(known or {})
    for name in PARTS:
        if name not in took:
            step = makers[name]()
            took[name] = statistics.median(
                [_one(step, config, partial(tick, name)) for _ in range(config.restarts)]
            )
            keep(name, took[name])
    params = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))[0]
    return {
        "parameters": count_parameters(params),
        "parts_seconds": took,
        "figures": figures(config, took),
    }


def figures(config: OverheadConfig, took: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Seconds and overhead for each H and method, from those of the parts."""
    found = {}
    for H in config.local_steps:
        base = took["local step"] + took["local-sgd"] / H
        for name in METHODS:
            total = took["local step"] + took[name] / H
            found[f"H={H} {name}"] = {
                "seconds": total,
                "forward_backward_seconds": took["forward-backward"],
                "optimizer_seconds": total - took["forward-backward"],
                "overhead": total / base,
            }
    return found


def _one(step: Step, config: OverheadConfig, tick: Callable[[], None]) -> float:
    """The median of the last steps of one start; calls donate their state, so it is copied."""
    times = []
    state = jax.block_until_ready(step.call(jax.tree.map(jnp.copy, step.state), *step.rest))
    for _ in range(math.ceil(config.steps / step.inner)):
        begin = time.perf_counter()
        state = jax.block_until_ready(step.call(state, *step.rest))
        times.append((time.perf_counter() - begin) / step.inner)
    tick()
    return statistics.median(times[-math.ceil(config.last / step.inner) :])


def _batch(task: Task, batch: int) -> Any:
    feed = task.feed
    if isinstance(feed, Streamed):
        found = jax.tree.map(jnp.asarray, next(iter(feed.batches())))
        if count_rows(found) != batch:
            raise LaconicError(
                f"the stream's batches have {count_rows(found)} examples, but the setting says "
                f"{batch}."
            )
        return found
    return feed.take(feed.sample(jax.random.key(1), (batch,)))


def _gradient(task: Task, config: OverheadConfig) -> Step:
    """Forward and backward alone; the gradient is the state, so that none of it can be left out."""
    params, model_state = task.init(jax.random.key(0))

    def step(gradient: Any, params: Any, model_state: Any, batch: Any) -> Any:
        del gradient
        gradient_of = jax.value_and_grad(task.loss, has_aux=True)
        return gradient_of(params, model_state, batch, jax.random.key(2))[1]

    zeros, batch = jax.tree.map(jnp.zeros_like, params), _batch(task, config.batch)
    return compiled(step, zeros, params, model_state, batch, inner=config.at_once)


def _local(task: Task, config: OverheadConfig) -> Step:
    """A local step of plain SGD."""

    def step(state: Any, batch: Any) -> Any:
        gradient_of = jax.value_and_grad(task.loss, has_aux=True)
        (_, aux), gradient = gradient_of(*state, batch, jax.random.key(2))
        return jax.tree.map(lambda p, g: p - config.rate * g, state[0], gradient), aux.model_state

    first, batch = task.init(jax.random.key(0)), _batch(task, config.batch)
    return compiled(step, first, batch, inner=config.at_once)


def _server(task: Task, name: str, config: OverheadConfig) -> Step:
    """The server's step of a method, parameters and state in place."""
    K = config.workers
    params = task.init(jax.random.key(0))[0]
    mean = jax.tree.map(lambda p: 0.01 * jnp.ones_like(p), params)
    deltas, outer = None, average()
    if name != "local-sgd":
        learned = LearnedOptimizer(name, K if name == "lagg-a" else None)
        theta = learned.init(jax.random.key(0))
        outer = learned(theta, tuning=Tuning(precision=config.precision))
    if name == "lagg-a":
        deltas = jax.tree.map(lambda d: jnp.broadcast_to(d, (K, *d.shape)) + 0.0, mean)

    def step(both: Any, mean: Any, deltas: Any) -> Any:
        return outer_step(outer, mean, both[1], both[0], worker_deltas=deltas)

    return compiled(step, (params, outer.tx.init(params)), mean, deltas, inner=config.at_once)
