"""A regression small enough to differentiate by hand: two layers, 64 examples, gradients in float64
NumPy.

And rounds of it: K workers, H steps of B examples each.
"""

import contextlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.client import LocalOptimizer, local_client
from laconic.compress import parse_compressor
from laconic.data.feed import Resident
from laconic.outer import OuterOptimizer
from laconic.round import Items, RoundState, Server, draw_items, init_round
from laconic.tasks.base import Aux, Task, plain_task
from laconic.workers import Simulated
from tests.outer.trees import QUICK

Tree = dict[str, np.ndarray]
SHAPES = {"w1": (5, 6), "b1": (6,), "w2": (6, 2), "b2": (2,)}
_rng = np.random.default_rng(0)
X = np.asarray(_rng.normal(size=(64, 5)), np.float32)
Y = np.asarray(np.sin(X[:, :2]) + 0.1 * _rng.normal(size=(64, 2)), np.float32)


def init(key: jax.Array) -> Any:
    keys = jax.random.split(key, len(SHAPES))
    return {name: 0.5 * jax.random.normal(keys[i], s) for i, (name, s) in enumerate(SHAPES.items())}


def loss(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    hidden = jnp.tanh(x @ params["w1"] + params["b1"][None, :])
    error = hidden @ params["w2"] + params["b2"][None, :] - y
    return 0.5 * jnp.mean(jnp.sum(error**2, axis=1))


def task() -> Task:
    return plain_task("tiny", init, loss, (jnp.asarray(X), jnp.asarray(Y)))


def stateful_task() -> Task:
    """The same with a model state, as BatchNorm has: a running mean of the inputs, and how many
    batches it saw."""

    def start(key: jax.Array) -> Any:
        return init(key), {"mean": jnp.zeros(5), "seen": jnp.int32(0)}

    def full(params: Any, model_state: Any, batch: Any, key: jax.Array) -> Any:
        mean = 0.9 * model_state["mean"] + 0.1 * jnp.mean(batch[0], axis=0)
        centred = (batch[0] - model_state["mean"][None, :], batch[1])
        return loss(params, centred), Aux({"mean": mean, "seen": model_state["seen"] + 1})

    return Task("stateful", start, full, task().feed, evaluate=lambda p, s, b: {"loss": loss(p, b)})


def loss_and_gradient(params: Tree, rows: np.ndarray, centre: Any = 0.0) -> tuple[float, Tree]:
    """By hand, in float64."""
    x, y = X[rows].astype(np.float64) - centre, Y[rows].astype(np.float64)
    hidden = np.tanh(x @ params["w1"] + params["b1"])
    error = hidden @ params["w2"] + params["b2"] - y
    value = 0.5 * float(np.mean(np.sum(error**2, axis=1)))
    error = error / len(rows)
    back = (error @ params["w2"].T) * (1 - hidden**2)
    return value, {
        "w1": x.T @ back,
        "b1": back.sum(axis=0),
        "w2": hidden.T @ error,
        "b2": error.sum(axis=0),
    }


def gradient(params: Tree, rows: np.ndarray) -> Tree:
    return loss_and_gradient(params, rows)[1]


def lenient(needed: bool) -> contextlib.AbstractContextManager:
    """optax's Adam and schedules mix integers and floats, which strict promotion forbids; all else
    obeys it."""
    return jax.numpy_dtype_promotion("standard") if needed else contextlib.nullcontext()


K, H, B, GAMMA = 4, 3, 4, 0.3
SGD, ADAMW = LocalOptimizer("sgd", GAMMA), LocalOptimizer("adamw", 0.003, weight_decay=0.1)
TASK = task()


def set_up(
    outer: OuterOptimizer, local: Any = SGD, spec: str = "dense", task: Task = TASK
) -> tuple[Simulated, Server]:
    return Simulated(local_client(task, local.optax()), parse_compressor(spec)), Server(outer)


def first_state(
    workers: Simulated, server: Server, clients: int = K, task: Task = TASK, seed: int = 0
) -> RoundState:
    return init_round(task, workers, server, clients, jax.random.key(seed))


def draw(state: RoundState, workers: int = K, steps: int = H, rounds: int = 1) -> Items:
    """The items of the state's round, or of `rounds` rounds from it on, leaves [rounds, …]."""
    return _draw(state.key, state.round, workers, steps, rounds)


@partial(jax.jit, static_argnums=(2, 3, 4), compiler_options=QUICK)
def _draw(key: jax.Array, now: jax.Array, workers: int, steps: int, rounds: int) -> Items:
    feed, rest = TASK.feed, ()  # of a state, only the seed and the round matter
    assert isinstance(feed, Resident)
    state: Any = RoundState(rest, rest, rest, now, key)  # pyright: ignore[reportArgumentType]
    one = lambda t: draw_items(feed, state._replace(round=now + t), workers, steps, B)
    return one(0) if rounds == 1 else jax.vmap(one)(jnp.arange(rounds))
