"""A worker's side of a round: H local steps of any optax optimizer, then one message (Algorithm 1, lines 3-7)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.local import LOCAL_OPTIMIZERS as LOCAL_OPTIMIZERS  # a worker is made of one, so it is found here too
from laconic.local import LocalOptimizer as LocalOptimizer
from laconic.tasks.base import ModelState, Params, Task

State = Any


class Shared(NamedTuple):
    """What every worker receives at the start of a round."""

    params: Params
    model_state: ModelState = ()


class Message(NamedTuple):
    """What a worker sends: Δ (compressed on the way), `extra` (plainly averaged, never compressed) and its weight."""

    delta: Any
    extra: Any = ()
    weight: float | jax.Array = 1.0


class Client(NamedTuple):
    """Two pure functions. `run` returns the message, the state to keep for next time, and the losses [H]."""

    init: Callable[[Shared], State]
    run: Callable[[Shared, State, Any, jax.Array], tuple[Message, State, jax.Array]]


def local_client(task: Task, optimizer: optax.GradientTransformation) -> Client:
    """H steps from the shared weights; Δ = W₀ − W_H. The optimizer's state stays with the worker across rounds."""
    tx = optax.with_extra_args_support(optimizer)
    value_and_grad = jax.value_and_grad(task.loss, has_aux=True)

    def init(shared: Shared) -> State:
        return tx.init(shared.params)

    def run(shared: Shared, state: State, items: Any, key: jax.Array) -> tuple[Message, State, jax.Array]:
        def step(carry: Any, item_h: Any) -> tuple[Any, jax.Array]:
            params, model_state, opt_state, h = carry
            batch = task.feed.take(item_h)  # line 4
            (loss, aux), grads = value_and_grad(params, model_state, batch, jax.random.fold_in(key, h))
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)  # line 5
            return (params, aux.model_state, opt_state, h + 1), loss

        start = (shared.params, shared.model_state, state, jnp.int32(0))
        (params, model_state, state, _), losses_H = jax.lax.scan(step, start, items)
        delta = jax.tree.map(jnp.subtract, shared.params, params)  # line 7
        return Message(delta, model_state), state, losses_H

    return Client(init, run)


def gradient_client(task: Task) -> Client:
    """The synchronous worker: one gradient over its H·B examples at the shared weights, and no local step.

    With it the message Δ is the gradient itself, so data-parallel SGD or Adam at batch K·H·B is the outer optimizer
    of the same name, on the same data and the same number of messages as H local steps.
    """
    value_and_grad = jax.value_and_grad(task.loss, has_aux=True)

    def run(shared: Shared, state: State, items: Any, key: jax.Array) -> tuple[Message, State, jax.Array]:
        merged = jax.tree.map(lambda i: i.reshape(i.shape[0] * i.shape[1], *i.shape[2:]), items)
        batch = task.feed.take(merged)
        (loss, aux), grads = value_and_grad(shared.params, shared.model_state, batch, key)
        return Message(grads, aux.model_state), state, loss[None]

    return Client(lambda shared: (), run)
