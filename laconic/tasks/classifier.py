"""Classification tasks from an Equinox model and a data set: mean cross-entropy and accuracy."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from laconic.data.feed import Batch
from laconic.data.splits import Dataset
from laconic.tasks.base import Aux, Metrics, ModelState, Params, Task

Model = Any  # an Equinox module
Read = Callable[[Batch], tuple[jax.Array, jax.Array]]
Compute = Any  # a dtype to compute in, such as jnp.bfloat16; None: the parameters' own
COMPUTE: dict[str, Compute] = {"f32": None, "bf16": jnp.bfloat16}


def images(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Images as float32 in 0…1 (only divided by 255, no augmentation), and labels."""
    return batch["x"].astype(jnp.float32) / 255, batch["y"]


def classifier_task(
    name: str,
    build: Callable[[jax.Array], Model],
    dataset: Dataset,
    read: Read = images,
    compute: Compute = None,
) -> Task:
    """The task of a model `build(key)` that maps a batch [B, …] to logits [B, classes].

    With `compute` jnp.bfloat16 the model runs on a bfloat16 copy of its matrices; parameters,
    gradients, statistics and the loss stay float32.
    """
    train = lambda model, x, state: (model(x), state)
    infer = lambda model, x, state: model(x)
    return _task(name, build, lambda model: (), dataset, read, train, infer, compute)


def stateful_classifier_task(
    name: str,
    build: Callable[[jax.Array], Model],
    dataset: Dataset,
    read: Read = images,
    compute: Compute = None,
) -> Task:
    """The same for a model with statistics, which has three methods instead of a call.

    `begin() → state`, `train(x, state) → (logits, state)` and `infer(x, state) → logits`.
    """
    begin = lambda model: model.begin()
    train = lambda model, x, state: model.train(x, state)
    infer = lambda model, x, state: model.infer(x, state)
    return _task(name, build, begin, dataset, read, train, infer, compute)


def _task(
    name: str,
    build: Callable[[jax.Array], Model],
    begin: Callable[[Model], ModelState],
    dataset: Dataset,
    read: Read,
    train: Callable[[Model, jax.Array, ModelState], tuple[jax.Array, ModelState]],
    infer: Callable[[Model, jax.Array, ModelState], jax.Array],
    compute: Compute,
) -> Task:
    shapes = eqx.filter_eval_shape(build, jax.random.key(0))
    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    static = eqx.filter(shapes, is_shape, inverse=True)

    def init(key: jax.Array) -> tuple[Params, ModelState]:
        model = build(key)
        return eqx.filter(model, eqx.is_array), begin(model)

    def prepare(params: Params, batch: Batch) -> tuple[Model, jax.Array, jax.Array]:
        """The model in the type to compute in (vectors stay float32), inputs and labels."""
        x, labels = read(batch)
        cast = lambda leaf: _floats_to(compute, leaf) if leaf.ndim > 1 else leaf
        return eqx.combine(jax.tree.map(cast, params), static), _floats_to(compute, x), labels

    def loss(
        params: Params, model_state: ModelState, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Aux]:
        model, x, labels = prepare(params, batch)
        logits, model_state = train(model, x, model_state)
        metrics = score(logits, labels)
        return metrics["loss"], Aux(model_state, {"accuracy": metrics["accuracy"]})

    def evaluate(params: Params, model_state: ModelState, batch: Batch) -> Metrics:
        model, x, labels = prepare(params, batch)
        return score(infer(model, x, model_state), labels)

    return Task(name, init, loss, dataset.feed, evaluate=evaluate, classes=dataset.classes)


def _floats_to(compute: Compute, x: jax.Array) -> jax.Array:
    return x if compute is None or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(compute)


def score(logits: jax.Array, labels: jax.Array) -> Metrics:
    """Mean cross-entropy in nats, and the share of labels that have the largest logit."""
    logits = logits.astype(jnp.float32)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
    return {"loss": jnp.mean(loss), "accuracy": jnp.mean(right)}
