"""Feeds hand out minibatches: `Resident` data lies on the device as uint8, `Streamed` data passes
through it.

A round's *items* are what the workers need to form their minibatches: row indices for resident data
(gathered inside the local step, so that nothing but integers moves) or the batches themselves for a
stream. Both feeds are pytrees whose leaves are the arrays, so a task can be an argument of a jitted
function.
"""

import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.errors import LaconicError, require_positive

Arrays = Any  # a pytree of arrays with examples along the first axis
Batch = Any


def rows(arrays: Arrays, indices: jax.Array) -> Batch:
    """The usual gather: row `i` of every array is example `i`."""
    return jax.tree.map(lambda a: jnp.asarray(a)[indices], arrays)


def count_rows(arrays: Arrays) -> int:
    """The usual number of examples: the length of the first axis."""
    return jax.tree.leaves(arrays)[0].shape[0]


@partial(jax.tree_util.register_dataclass, data_fields=["splits"], meta_fields=["gather", "count"])
@dataclass(frozen=True)
class Resident:
    """Data held on the device; minibatches are uniform with replacement from a split.

    `splits` maps "train" (and optionally "valid", "outer_valid", "test") to a pytree of arrays.
    """

    splits: dict[str, Arrays]
    gather: Callable[[Arrays, jax.Array], Batch] = rows
    count: Callable[[Arrays], int] = count_rows

    def size(self, split: str = "train") -> int:
        """How many examples a split has."""
        return self.count(self.splits[split])

    def sample(self, key: jax.Array, shape: tuple[int, ...], split: str = "train") -> jax.Array:
        """Items for minibatches: indices drawn uniformly with replacement."""
        flat = jax.random.randint(key, (math.prod(shape),), 0, self.size(split), dtype=jnp.int32)
        return flat.reshape(
            shape
        )  # the same numbers as a draw of that shape, which takes twice as long to compile

    def take(self, items: jax.Array, split: str = "train") -> Batch:
        """Turn items into a batch, on the device."""
        return self.gather(self.splits[split], items)


@partial(jax.tree_util.register_dataclass, data_fields=["splits"], meta_fields=["batches"])
@dataclass(frozen=True)
class Streamed:
    """Data too large to hold: `batches()` starts any Python iterable of training batches, each a
    pytree with B rows.

    The iterable decides the order; starting it twice must give the same batches, or a resumed run
    would differ. `splits` may hold small resident "valid" and "test" sets.
    """

    splits: dict[str, Arrays]
    batches: Callable[[], Iterable[Batch]]

    def size(self, split: str) -> int:
        """How many examples a held-out split has."""
        return count_rows(self.splits[split])

    def take(self, items: Batch, split: str = "train") -> Batch:
        """Training items are the batches themselves; held-out splits are gathered by index."""
        return items if split == "train" else rows(self.splits[split], items)

    def rounds(
        self, K: int, H: int, skip: int = 0, prefetch: int = 2
    ) -> Generator[Batch, None, None]:
        """One pytree with leaves [K, H, B, …] a round, stacked and put on the device by a
        background thread.

        Worker k takes batches k·H … k·H + H − 1 of a round; `skip` rounds are passed over (a
        resumed run), and an incomplete last round is dropped. Closing the generator stops the
        thread.
        """
        require_positive(K=K, H=H)
        return prefetched(_stack_rounds(iter(self.batches()), K, H, skip), prefetch)


Feed = Resident | Streamed


def _stack_rounds(batches: Iterator[Batch], K: int, H: int, skip: int) -> Iterator[Batch]:
    need = K * H
    for _ in range(skip * need):
        next(batches, None)
    while True:
        got = [b for _, b in zip(range(need), batches, strict=False)]
        if len(got) < need:
            return
        yield jax.tree.map(lambda *leaves: _stack(leaves, K, H), *got)


def _stack(leaves: tuple[Any, ...], K: int, H: int) -> jax.Array:
    shapes = {np.shape(leaf) for leaf in leaves}
    if len(shapes) > 1:
        raise LaconicError(
            f"the batches of a round must have one shape, got {sorted(shapes)}: let the stream "
            "drop its short batches."
        )
    return jnp.asarray(np.stack(leaves).reshape(K, H, *shapes.pop()))


def prefetched(source: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """Run `source` in a thread, at most `depth` items ahead; its exception is raised here, and
    closing stops it."""
    if depth < 1:
        raise LaconicError(f"prefetch depth must be at least 1, got {depth}.")
    return _prefetched(source, depth)


def _prefetched(source: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: tuple[str, Any]) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for value in source:
                if not put(("item", value)):
                    return
            put(("end", None))
        except BaseException as error:  # handed to the consumer, who raises it
            put(("error", error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stop.set()
        thread.join()
