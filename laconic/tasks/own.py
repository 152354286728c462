"""A task of the user's own: found by a word such as `mymodule:make_task`, checked before it is
trained, and told from another by digests."""

import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Batch, Resident
from laconic.errors import LaconicError
from laconic.tasks.base import Task

WORD = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
LACONIC = str(Path(__file__).parents[1])
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def is_word(spec: str) -> bool:
    """Whether a text has the form `module:name`."""
    return WORD.fullmatch(spec) is not None and ".py:" not in spec


def find_task(word: str) -> Task:
    """The task that `module:name` names: a `Task`, or what a function without arguments returns.

    The module is looked for in the current directory, then on Python's path.
    """
    module, _, name = word.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = _imported(module, word)
    where = f"{module} ({getattr(found, '__file__', None) or 'built in'})"
    if not hasattr(found, name):
        raise LaconicError(f"task {word!r}: {where} has no {name!r}.")
    made = getattr(found, name)
    if isinstance(made, Task):
        return made
    if not callable(made):
        raise LaconicError(f"task {word!r}: {name} is {_a(made)}, no Task and no function.")
    with blamed(f"task {word!r}"):
        needed = _arguments(made)
        if needed:
            raise LaconicError(
                f"{name} needs {', '.join(needed)}, but is called without arguments; give them "
                "defaults."
            )
        made = made()
    if not isinstance(made, Task):
        raise LaconicError(
            f"task {word!r}: {name}() returns {_a(made)}, no Task; laconic.plain_task makes one."
        )
    return made


def _imported(module: str, word: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            others = [path for path in sys.path if _is_theirs(f"{path}/x") and Path(path).is_dir()]
            looked = ", ".join(dict.fromkeys([str(Path.cwd()), *others]))
            raise LaconicError(
                f"task {word!r}: there is no module {error.name!r} in {looked} or among what is "
                "installed; run the command where it lies, or set PYTHONPATH."
            ) from None
        raise _blame(f"task {word!r}", error) from error
    except (Exception, SystemExit) as error:
        raise _blame(f"task {word!r}", error) from error


def _arguments(function: Callable[..., Any]) -> list[str]:
    """The arguments that a function cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of built-in functions that do not say
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


# --- errors in the user's code --------------------------------------------------------------------


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn an error in the user's code into a `LaconicError` that names their line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _blame(what, error) from error


def _blame(what: str, error: BaseException) -> LaconicError:
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if not isinstance(error, LaconicError):
        text = f"{kind}: {text}" if text else kind
    if isinstance(error, SyntaxError) and error.filename:
        return LaconicError(f"{what}: {error.filename}, line {error.lineno}: {kind}: {error.msg}.")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame.filename)]
    where = f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""
    return LaconicError(f"{what}: {where}{text if len(text) < 300 else text[:299] + '…'}")


def _is_theirs(path: str) -> bool:
    """Whether a file is neither Python's, nor laconic's, nor installed."""
    return not path.startswith(("<", *(f"{root}/" for root in (*LIBRARIES, LACONIC))))


def _a(thing: Any) -> str:
    kind = type(thing).__name__
    return "None" if thing is None else f"a{'n' if kind[0] in 'aeiou' else ''} {kind}"


# --- what tells a task from another ---------------------------------------------------------------


def fingerprint(task: Task, B: int) -> dict[str, str]:
    """Refuse a task that cannot be trained with batches of B → the digests of its data, and of its
    functions as JAX traces them (which depends on JAX's version)."""
    batch = _batch(task, B)
    key = jax.eval_shape(lambda: jax.random.key(0))
    functions = hashlib.sha256()
    started = _traced(functions, task, "init", task.init, key)
    if not isinstance(started, tuple) or len(started) != 2:
        raise LaconicError(
            f"{task.name}: init gives {_a(started)} instead of (params, model_state); write "
            "params, () for a model without state."
        )
    found = _traced(functions, task, "loss", task.loss, *started, batch, key)
    if not isinstance(found, tuple) or len(found) != 2:
        raise LaconicError(f"{task.name}: loss gives {_a(found)} instead of (loss, Aux).")
    _check_scalar(task, "the loss", found[0])
    # a metric may be mended and the run resumed, so its program is not part of the digest
    metrics = _traced(hashlib.sha256(), task, "evaluate", task.evaluate, *started, batch)
    check_metrics(task, metrics)
    functions.update(str(sorted(metrics)).encode())
    return {"data_sha256": _digest(task.feed), "functions_sha256": functions.hexdigest()}


def check_metrics(task: Task, metrics: Any) -> None:
    """Refuse metrics without "loss", and those that are no scalars."""
    if not isinstance(metrics, dict) or "loss" not in metrics:
        raise LaconicError(
            f"{task.name}: evaluate gives {metrics if isinstance(metrics, dict) else _a(metrics)} "
            "instead of a dict of numbers that holds 'loss'."
        )
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.isprintable() or not name.strip():
            raise LaconicError(f"{task.name}: a metric is named by a word, got {name!r}.")
        _check_scalar(task, f"the metric {name!r}", value)


def check_names(task: Task, before: Any, metrics: Any) -> None:
    """Refuse metrics of a batch that have other names than those of the batches before."""
    if set(before) != set(metrics):
        raise LaconicError(
            f"{task.name}: the metrics are {sorted(before)} for one batch and {sorted(metrics)} "
            "for another; give the same names for each."
        )


def _check_scalar(task: Task, what: str, value: Any) -> None:
    shape = getattr(value, "shape", None)
    if shape != ():
        got = _a(value) if shape is None else f"an array of shape {shape}; take its mean"
        raise LaconicError(f"{task.name}: {what} of a batch must be one number, got {got}.")


def _batch(task: Task, B: int) -> Batch:
    """The shapes of a batch of B training examples; of a stream, its first batch."""
    with blamed(f"{task.name}: its training data"):
        if isinstance(task.feed, Resident):
            return jax.eval_shape(task.feed.take, jax.ShapeDtypeStruct((B,), jnp.int32))
        return jax.tree.map(jnp.asarray, next(iter(task.feed.batches())))


def _traced(digest: Any, task: Task, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """The shapes a function gives; the digest takes in its program and the arrays it holds."""
    with blamed(f"{task.name}: {name}"):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
    digest.update(ADDRESS.sub("", str(program)).encode())
    digest.update(str(jax.tree.structure(shapes)).encode())
    digest.update(_digest(program.consts).encode())
    return shapes


def _digest(tree: Any) -> str:
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.ascontiguousarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
