"""A worker's side of a round: H local steps, then one message (Algorithm 1, lines 3-7)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.errors import LaconicError
from laconic.local import LocalOptimizer as LocalOptimizer  # a worker is made of one
from laconic.tasks.base import ModelState, Params, Task

State = Any


class Shared(NamedTuple):
    """What every worker receives at the start of a round."""

    params: Params
    model_state: ModelState = ()


class Controlled(NamedTuple):
    """The same with the server's control variate, which corrects drift (SCAFFOLD's c)."""

    params: Params
    model_state: ModelState
    control: Any


class Message(NamedTuple):
    """What a worker sends.

    Args:
        delta: Δ = W_before − W_after; a payload once it is compressed.
        extra: averaged and never compressed, such as BatchNorm statistics.
        weight: how much the worker counts in the mean; 0: it is absent.
        control: the change of its control variate; the server adds these up whatever the weights.

    Example:
        >>> from laconic import Message
        >>> Message(delta={"w": 0.1}).weight
        1.0
    """

    delta: Any
    extra: Any = ()
    weight: float | jax.Array = 1.0
    control: Any = ()


class Work(NamedTuple):
    """Items of a worker that may stop early."""

    batches: Any  # [H, …]
    steps: jax.Array | None = None  # how many of the H steps it takes; None: all
    scale: jax.Array | None = None  # a factor of its Δ; None: 1


class Standing(NamedTuple):
    """Where a worker stands in a round: its weights and model state, its optimizer's state, and the
    step it takes next."""

    params: Params
    model_state: ModelState
    local: State
    step: jax.Array


class Peers(NamedTuple):
    """What workers exchange with each other at the end of a round; in the simulator only.

    meet:    (states [K, …], who is here [K], round, key) → states [K, …]
    bits:    shared → bits that a worker sends, and receives, in a round, the mean over rounds
    instead: messages are not sent, they only say how the mean of the workers' weights moves
    """

    meet: Callable[[Any, jax.Array, jax.Array, jax.Array], Any]
    bits: Callable[[Any], int]
    instead: bool = False


class Client(NamedTuple):
    """What a worker does in a round, as pure functions.

    Args:
        init: shared → the state that stays with a client.
        run: (shared, state, items, key) → (message, new state, losses [H]).
        begin: shared → the same with what the server shares beside the weights; called once before
            the first round.
        steps: (shared, standing, batches, key) → (standing, losses), some local steps from where
            the worker stands; for models that are exchanged in fragments (`laconic.fragments`).
            None: it cannot stop within a round.
        peers: what workers exchange with each other beside their messages; None: nothing.

    Example:
        >>> from laconic import Client, Message
        >>> idle = Client(
        ...     init=lambda shared: (),
        ...     run=lambda shared, state, items, key: (Message(0.0), state, items),
        ... )
    """

    init: Callable[[Shared], State]
    run: Callable[[Any, State, Any, jax.Array], tuple[Message, State, jax.Array]]
    begin: Callable[[Shared], Any] = lambda shared: shared
    steps: Callable[[Any, Standing, Any, jax.Array], tuple[Standing, jax.Array]] | None = None
    peers: Peers | None = None


# (gradients, weights, what is shared, what is the worker's own) → gradients
Correction = Callable[[Params, Params, Any, Any], Params]


def local_client(task: Task, optimizer: optax.GradientTransformation) -> Client:
    """A worker that takes H local steps from the shared weights and sends Δ = W₀ − W_H.

    Args:
        task: its loss and data.
        optimizer: any optax optimizer; its state stays with the worker across rounds.

    Returns:
        A `Client`.

    Example:
        >>> import optax
        >>> import laconic
        >>> client = laconic.local_client(laconic.make_task("digits-mlp"), optax.adamw(1e-3))
    """
    return local_work(task, optimizer, None)


def local_work(
    task: Task, optimizer: optax.GradientTransformation, correct: Correction | None
) -> Client:
    """`local_client` with a correction of every gradient that needs no memory of the worker."""
    walk = local_steps(task, optimizer, correct)

    def init(shared: Shared) -> State:
        return optimizer.init(shared.params)

    def run(
        shared: Any, state: State, items: Any, key: jax.Array
    ) -> tuple[Message, State, jax.Array]:
        work = work_of(items)
        end, losses_H = walk(shared, beginning(shared, state), (), work, key)
        return Message(sent_delta(shared, end.params, work), end.model_state), end.local, losses_H

    def steps(
        shared: Any, standing: Standing, batches: Any, key: jax.Array
    ) -> tuple[Standing, jax.Array]:
        return walk(shared, standing, (), Work(batches), key)

    # A correction looks at the weights that a round began from, which fragments do not have.
    return Client(init, run, steps=steps if correct is None else None)


def beginning(shared: Any, state: State) -> Standing:
    """Where a worker stands before a round's first step."""
    return Standing(shared.params, shared.model_state, state, jnp.int32(0))


def local_steps(
    task: Task, optimizer: optax.GradientTransformation, correct: Correction | None
) -> Callable:
    """(shared, standing, own, work, key) → where the worker stands then, and the losses.

    The losses of steps that a worker does not take are the mean of those it takes, so that a mean
    over H is the mean over its steps.
    """
    tx = optax.with_extra_args_support(optimizer)
    value_and_grad = jax.value_and_grad(task.loss, has_aux=True)

    def run(
        shared: Any, standing: Standing, own: Any, work: Work, key: jax.Array
    ) -> tuple[Standing, jax.Array]:
        taken = work.steps

        def step(carry: Standing, item_h: Any) -> tuple[Standing, jax.Array]:
            params, model_state, opt_state, h = carry
            batch = task.feed.take(item_h)  # line 4
            (loss, aux), grads = value_and_grad(
                params, model_state, batch, jax.random.fold_in(key, h)
            )
            if correct is not None:
                grads = correct(grads, params, shared, own)
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)  # line 5
            new = Standing(params, aux.model_state, opt_state, h + 1)
            if taken is not None:
                due = h < taken
                kept = jax.tree.map(lambda n, o: jnp.where(due, n, o), new, carry)
                new = kept._replace(step=h + 1)
            return new, loss

        end, losses_H = jax.lax.scan(step, standing, work.batches)
        if taken is not None:
            losses_H = _of_steps(losses_H, taken)
        return end, losses_H

    return run


def work_of(items: Any) -> Work:
    """A worker's items as `Work`: of plain minibatches it takes all."""
    return items if isinstance(items, Work) else Work(items)


def sent_delta(shared: Any, params: Params, work: Work) -> Params:
    """Δ = W₀ − W_H, times the factor of the work if there is one."""
    delta = jax.tree.map(jnp.subtract, shared.params, params)  # line 7
    return delta if work.scale is None else jax.tree.map(lambda d: d * work.scale, delta)


def _of_steps(losses_H: jax.Array, steps: jax.Array) -> jax.Array:
    done_H = jnp.arange(losses_H.shape[0]) < steps
    mean = jnp.sum(jnp.where(done_H, losses_H, 0)) / steps.astype(losses_H.dtype)
    return jnp.where(done_H, losses_H, mean)


def gradient_client(task: Task) -> Client:
    """The synchronous worker: one gradient over its H·B examples, and no local step.

    Its message Δ is the gradient, so data-parallel SGD or Adam at batch K·H·B is the outer
    optimizer of the same name, on the same data and as many messages as with H local steps.

    Args:
        task: its loss and data. If `task.at_once` is less than H·B, the gradient is the mean over
            several batches, and BatchNorm sees each of them by itself.

    Returns:
        A `Client`.

    Example:
        >>> import laconic
        >>> client = laconic.gradient_client(laconic.make_task("digits-mlp"))
    """
    value_and_grad = jax.value_and_grad(task.loss, has_aux=True)

    def run(
        shared: Shared, state: State, items: Any, key: jax.Array
    ) -> tuple[Message, State, jax.Array]:
        if isinstance(items, Work):
            raise LaconicError(
                "a synchronous method takes no local steps, so its workers cannot stop early."
            )
        merged = jax.tree.map(lambda i: i.reshape(i.shape[0] * i.shape[1], *i.shape[2:]), items)
        pieces = _pieces(jax.tree.leaves(merged)[0].shape[0], task.at_once)
        if pieces == 1:
            (loss, aux), grads = value_and_grad(
                shared.params, shared.model_state, task.feed.take(merged), key
            )
            return Message(grads, aux.model_state), state, loss[None]

        def add(carry: Any, item: Any) -> tuple[Any, jax.Array]:
            total, model_state, p = carry
            piece_key = jax.random.fold_in(key, p)
            (loss, aux), grads = value_and_grad(
                shared.params, model_state, task.feed.take(item), piece_key
            )
            total = jax.tree.map(lambda t, g: t + g / pieces, total, grads)
            return (total, aux.model_state, p + 1), loss

        cut = jax.tree.map(lambda i: i.reshape(pieces, -1, *i.shape[1:]), merged)
        start = (jax.tree.map(jnp.zeros_like, shared.params), shared.model_state, jnp.int32(0))
        (grads, model_state, _), losses = jax.lax.scan(add, start, cut)
        return Message(grads, model_state), state, jnp.mean(losses)[None]

    return Client(lambda shared: (), run)


def _pieces(examples: int, at_once: int | None) -> int:
    """In how many equal parts a gradient is taken."""
    if at_once is None or examples <= at_once:
        return 1
    if examples % at_once:
        raise LaconicError(
            f"a gradient of {examples} examples cannot be taken {at_once} at once: choose at_once, "
            "an option of the task, to divide it."
        )
    return examples // at_once
