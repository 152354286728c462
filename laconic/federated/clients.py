"""Clients against drift: FedProx's proximal term and SCAFFOLD's control variates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.client import (
    Client,
    Controlled,
    Message,
    Shared,
    State,
    Work,
    beginning,
    local_steps,
    local_work,
    sent_delta,
    work_of,
)
from laconic.tasks.base import Params, Task


def proximal_client(
    task: Task, optimizer: optax.GradientTransformation, mu: float | jax.Array
) -> Client:
    """FedProx (Li et al., 2020): every local loss has μ/2·‖W − W₀‖² added, W₀ being the round's
    shared weights."""

    def correct(grads: Params, params: Params, shared: Shared, own: Any) -> Params:
        return jax.tree.map(lambda g, w, w0: g + mu * (w - w0), grads, params, shared.params)

    return local_work(task, optimizer, correct)


class ScaffoldState(NamedTuple):
    """A client's control variate cᵢ, and its optimizer's state."""

    control: Params
    local: State


def scaffold_client(
    task: Task, optimizer: optax.GradientTransformation, gamma: float | jax.Array
) -> Client:
    """SCAFFOLD (Karimireddy et al., 2020) with option II control variates; `gamma` is the rate of
    the SGD optimizer.

    Every local gradient has c − cᵢ added. After τ steps cᵢ⁺ = cᵢ − c + Δ/(τγ), and the client also
    sends cᵢ⁺ − cᵢ, of which the server's c takes its share: c is always the mean of all cᵢ.
    """

    def correct(grads: Params, params: Params, shared: Any, own: Params) -> Params:
        return jax.tree.map(lambda g, c, ci: g + (c - ci), grads, shared.control, own)

    walk = local_steps(task, optimizer, correct)

    def init(shared: Shared) -> ScaffoldState:
        return ScaffoldState(_zeros(shared.params), optimizer.init(shared.params))

    def run(
        shared: Any, state: ScaffoldState, items: Any, key: jax.Array
    ) -> tuple[Message, State, jax.Array]:
        work = work_of(items)
        start = beginning(shared, state.local)
        end, losses_H = walk(shared, start, state.control, work, key)
        steps_taken = jnp.int32(losses_H.shape[0]) if work.steps is None else work.steps
        tau = steps_taken.astype(jnp.float32)
        whole = sent_delta(shared, end.params, Work(()))
        change = jax.tree.map(lambda d, c: d / (tau * gamma) - c, whole, shared.control)
        control = jax.tree.map(jnp.add, state.control, change)
        sent = sent_delta(shared, end.params, work)
        message = Message(sent, end.model_state, control=change)
        return message, ScaffoldState(control, end.local), losses_H

    def begin(shared: Shared) -> Controlled:
        return Controlled(shared.params, shared.model_state, _zeros(shared.params))

    return Client(init, run, begin)


def _zeros(tree: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, tree)
