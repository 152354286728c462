"""From an Equinox model and a data set to a classification task: mean softmax cross-entropy and accuracy."""

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


def images(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Images as float32 in 0…1 (only divided by 255, no augmentation), and labels."""
    return batch["x"].astype(jnp.float32) / 255, batch["y"]


def classifier_task(name: str, build: Callable[[jax.Array], Model], dataset: Dataset, read: Read = images) -> Task:
    """The task of a model `build(key)` that maps a batch [B, …] to logits [B, classes]."""

    def train(model: Model, x: jax.Array, state: ModelState) -> tuple[jax.Array, ModelState]:
        return model(x), state

    def infer(model: Model, x: jax.Array, state: ModelState) -> jax.Array:
        return model(x)

    return _task(name, lambda key: (build(key), ()), dataset, read, train, infer)


def stateful_classifier_task(
    name: str, build: Callable[[jax.Array], tuple[Model, ModelState]], dataset: Dataset, read: Read = images
) -> Task:
    """The same for a model with statistics: `build(key) → (model, state)`.

    `model.train(x, state) → (logits, state)` and `model.infer(x, state) → logits`.
    """

    def train(model: Model, x: jax.Array, state: ModelState) -> tuple[jax.Array, ModelState]:
        return model.train(x, state)

    def infer(model: Model, x: jax.Array, state: ModelState) -> jax.Array:
        return model.infer(x, state)

    return _task(name, build, dataset, read, train, infer)


def _task(
    name: str,
    build: Callable[[jax.Array], tuple[Model, ModelState]],
    dataset: Dataset,
    read: Read,
    train: Callable[[Model, jax.Array, ModelState], tuple[jax.Array, ModelState]],
    infer: Callable[[Model, jax.Array, ModelState], jax.Array],
) -> Task:
    static = _static_part(lambda key: build(key)[0])

    def init(key: jax.Array) -> tuple[Params, ModelState]:
        model, state = build(key)
        return eqx.filter(model, eqx.is_array), state

    def loss(params: Params, model_state: ModelState, batch: Batch, key: jax.Array) -> tuple[jax.Array, Aux]:
        x, labels = read(batch)
        logits, model_state = train(eqx.combine(params, static), x, model_state)
        metrics = score(logits, labels)
        return metrics["loss"], Aux(model_state, {"accuracy": metrics["accuracy"]})

    def evaluate(params: Params, model_state: ModelState, batch: Batch) -> Metrics:
        x, labels = read(batch)
        return score(infer(eqx.combine(params, static), x, model_state), labels)

    return Task(name, init, loss, dataset.feed, evaluate=evaluate, classes=dataset.classes)


def _static_part(build: Callable[[jax.Array], Model]) -> Model:
    """What is left of a model without its arrays; found by tracing, so that nothing is computed."""
    shapes = eqx.filter_eval_shape(build, jax.random.key(0))
    return eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)


def score(logits: jax.Array, labels: jax.Array) -> Metrics:
    """Mean cross-entropy in nats, and the share of labels that have the largest logit."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
    return {"loss": jnp.mean(loss), "accuracy": jnp.mean(right)}
