"""A task: how to start a model, its loss on a batch, and where batches come from."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from laconic.data.feed import Arrays, Batch, Feed, Resident, rows
from laconic.errors import LaconicError

Params = Any
ModelState = Any
Metrics = dict[str, jax.Array]


class Aux(NamedTuple):
    """What a loss returns beside its value.

    Attributes:
        model_state: the model state after the batch, () if the model carries none.
        metrics: means over the batch by name, such as "accuracy".

    Example:
        >>> from laconic import Aux
        >>> Aux(metrics={"accuracy": 0.5}).model_state
        ()
    """

    model_state: ModelState = ()
    metrics: Metrics = {}  # noqa: RUF012  (never mutated)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["feed"],
    meta_fields=["name", "init", "loss", "evaluate", "classes", "at_once"],
)
@dataclass(frozen=True)
class Task:
    """Anything that can be trained by communication rounds.

    A task is a pytree whose only leaves are its feed's arrays. `make_task` makes the named ones,
    `plain_task` one from two plain functions.

    Args:
        name: what records and messages call it.
        init: key → (params, model_state); model_state is () unless the model carries statistics
            (BatchNorm).
        loss: (params, model_state, batch, key) → (scalar loss, Aux), in training mode.
        feed: where batches come from.
        evaluate: (params, model_state, batch) → metrics, in inference mode; must hold "loss" and
            may hold "accuracy".
        classes: number of classes C; ln C is the loss of a uniform guess. None: no classes.
        at_once: examples of a batch whose gradient is taken at a time, to save memory; None: all.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from laconic import make_task
        >>> task = make_task("digits-mlp")
        >>> params, model_state = task.init(jax.random.key(0))
        >>> batch = task.feed.take(jnp.arange(32))
        >>> loss, aux = task.loss(params, model_state, batch, jax.random.key(1))
        >>> loss.shape
        ()
    """

    name: str
    init: Callable[[jax.Array], tuple[Params, ModelState]]
    loss: Callable[[Params, ModelState, Batch, jax.Array], tuple[jax.Array, Aux]]
    feed: Feed
    evaluate: Callable[[Params, ModelState, Batch], Metrics] = field(kw_only=True)
    classes: int | None = field(default=None, kw_only=True)
    at_once: int | None = field(default=None, kw_only=True)


def plain_task(
    name: str,
    init: Callable[[jax.Array], Params],
    loss: Callable[[Params, Batch], jax.Array],
    data: Arrays | Feed,
    *,
    test: Arrays | None = None,
    metrics: Callable[[Params, Batch], Metrics] | None = None,
    classes: int | None = None,
) -> Task:
    """A task from two plain functions.

    Args:
        name: what records and messages call it.
        init: key → params, any pytree of arrays.
        loss: (params, batch) → scalar.
        data: training data, a pytree of arrays with one example a row; or a ready feed.
        test: held-out data of the same form; without it no test loss is measured.
        metrics: (params, batch) → further numbers to evaluate beside the loss, by name: each is a
            column of a comparison's table and a curve in its report.
        classes: number of classes C, if there are any; ln C is the loss of a uniform guess.

    Returns:
        The `Task`.

    Example:
        >>> import jax.numpy as jnp
        >>> from laconic import plain_task
        >>> x = jnp.linspace(-1.0, 1.0, 64)
        >>> init = lambda key: {"w": jnp.zeros(())}
        >>> loss = lambda params, batch: jnp.mean((params["w"] * batch["x"] - batch["y"]) ** 2)
        >>> task = plain_task("line", init, loss, {"x": x, "y": 3 * x})
        >>> task.feed.size()
        64
    """
    if isinstance(data, Feed):
        if test is not None:
            raise LaconicError(f"{name}: the feed holds its own splits; put the test data into it.")
        feed = data
    else:
        feed = Resident({"train": data} if test is None else {"train": data, "test": test})
    if isinstance(feed, Resident) and feed.gather is rows:
        for split, arrays in feed.splits.items():
            _check_examples(arrays, f"{name}, {split} data")

    def full_loss(
        params: Params, model_state: ModelState, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Aux]:
        return loss(params, batch), Aux(model_state)

    def evaluate(params: Params, model_state: ModelState, batch: Batch) -> Metrics:
        more = metrics(params, batch) if metrics else {}
        if not isinstance(more, dict) or "loss" in more:
            raise LaconicError(f"{name}: metrics gives a dict without 'loss', got {more!r}.")
        return {"loss": loss(params, batch), **more}

    return Task(
        name, lambda key: (init(key), ()), full_loss, feed, evaluate=evaluate, classes=classes
    )


def _check_examples(arrays: Arrays, where: str) -> None:
    """Refuse data without rows, and arrays of different lengths."""
    named = jax.tree_util.tree_flatten_with_path(arrays)[0]
    if not named:
        raise LaconicError(f"{where}: there are no arrays; give at least one, an example a row.")
    lengths = {}
    for path, leaf in named:
        what = jax.tree_util.keystr(path) or "it"
        if not isinstance(leaf, np.ndarray | jax.Array) or leaf.dtype.kind in "OUSMm":
            raise LaconicError(
                f"{where}: {what} is no array of numbers but {reprlib.repr(leaf)}; give NumPy or "
                "JAX arrays (np.asarray of a list)."
            )
        if leaf.ndim == 0 or leaf.shape[0] == 0:
            raise LaconicError(f"{where}: {what} has shape {leaf.shape}, which holds no example.")
        lengths[what] = leaf.shape[0]
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{what} has {many}" for what, many in lengths.items())
        raise LaconicError(f"{where}: arrays differ in their number of examples: {found} rows.")


def count_parameters(params: Params) -> int:
    """How many numbers a pytree of parameters holds."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
