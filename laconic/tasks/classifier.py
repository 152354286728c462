"""From an Equinox model and a data set to a classification task: mean softmax cross-entropy and
accuracy."""

from collections.abc import Callable
from functools import partial
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
    gradients, statistics and the loss are float32 all the same.
    """

    def train(model: Model, x: jax.Array, state: ModelState) -> tuple[jax.Array, ModelState]:
        return model(x), state

    def infer(model: Model, x: jax.Array, state: ModelState) -> jax.Array:
        return model(x)

    return _task(name, lambda key: (build(key), ()), dataset, read, train, infer, compute)


def stateful_classifier_task(
    name: str,
    build: Callable[[jax.Array], tuple[Model, ModelState]],
    dataset: Dataset,
    read: Read = images,
    compute: Compute = None,
) -> Task:
    """The same for a model with statistics: `build(key) → (model, state)`.

    `model.train(x, state) → (logits, state)` and `model.infer(x, state) → logits`.
    """

    def train(model: Model, x: jax.Array, state: ModelState) -> tuple[jax.Array, ModelState]:
        return model.train(x, state)

    def infer(model: Model, x: jax.Array, state: ModelState) -> jax.Array:
        return model.infer(x, state)

    return _task(name, build, dataset, read, train, infer, compute)


def _task(
    name: str,
    build: Callable[[jax.Array], tuple[Model, ModelState]],
    dataset: Dataset,
    read: Read,
    train: Callable[[Model, jax.Array, ModelState], tuple[jax.Array, ModelState]],
    infer: Callable[[Model, jax.Array, ModelState], jax.Array],
    compute: Compute,
) -> Task:
    static = _static_part(lambda key: build(key)[0])
    cast = partial(_computing_in, compute)

    def init(key: jax.Array) -> tuple[Params, ModelState]:
        model, state = build(key)
        return eqx.filter(model, eqx.is_array), state

    def loss(
        params: Params, model_state: ModelState, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Aux]:
        x, labels = read(batch)
        logits, model_state = train(
            eqx.combine(cast(params), static), _floats_to(compute, x), model_state
        )
        metrics = score(logits, labels)
        return metrics["loss"], Aux(model_state, {"accuracy": metrics["accuracy"]})

    def evaluate(params: Params, model_state: ModelState, batch: Batch) -> Metrics:
        x, labels = read(batch)
        return score(
            infer(eqx.combine(cast(params), static), _floats_to(compute, x), model_state), labels
        )

    return Task(name, init, loss, dataset.feed, evaluate=evaluate, classes=dataset.classes)


def _computing_in(compute: Compute, params: Params) -> Params:
    """Matrices and kernels in another type; vectors stay, for they are cheap and layers use them in
    float32."""
    return jax.tree.map(lambda leaf: _floats_to(compute, leaf) if leaf.ndim > 1 else leaf, params)


def _floats_to(compute: Compute, x: jax.Array) -> jax.Array:
    return x if compute is None or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(compute)


def _static_part(build: Callable[[jax.Array], Model]) -> Model:
    """What is left of a model without its arrays; found by tracing, so that nothing is computed."""
    shapes = eqx.filter_eval_shape(build, jax.random.key(0))
    return eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)


def score(logits: jax.Array, labels: jax.Array) -> Metrics:
    """Mean cross-entropy in nats, and the share of labels that have the largest logit."""
    logits = logits.astype(jnp.float32)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
    return {"loss": jnp.mean(loss), "accuracy": jnp.mean(right)}
