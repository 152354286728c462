"""Feeds hand out minibatches: from data held on the device, or from a stream.

A round's *items* are what the workers need to form their minibatches: row indices for resident data
(gathered inside the local step, so that only integers move) or the batches themselves for a stream.
Both feeds are pytrees whose leaves are the arrays, so a task can be an argument of a jitted
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
    """Data held on the device; minibatches are drawn uniformly with replacement.

    Args:
        splits: "train" (and optionally "valid", "outer_valid", "test") → a pytree of arrays with
            one example a row.
        gather: (arrays, indices) → batch; by default the rows at the indices.
        count: arrays → how many examples they hold; by default the length of the first axis.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from laconic import Resident
        >>> feed = Resident({"train": {"x": jnp.zeros((100, 3)), "y": jnp.zeros(100)}})
        >>> items = feed.sample(jax.random.key(0), (8,))
        >>> feed.take(items)["x"].shape
        (8, 3)
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
        # The same numbers as a draw of that shape, which takes twice as long to compile.
        return flat.reshape(shape)

    def take(self, items: jax.Array, split: str = "train") -> Batch:
        """Turn items into a batch, on the device."""
        return self.gather(self.splits[split], items)


@partial(jax.tree_util.register_dataclass, data_fields=["splits"], meta_fields=["batches"])
@dataclass(frozen=True)
class Streamed:
    """Data too large to hold on the device: training batches come from a Python iterable.

    Args:
        splits: small held-out sets ("valid", "test") that lie on the device; may be empty.
        batches: starts an iterable of training batches, each a pytree of arrays with B rows. Every
            start must give the same batches in the same order, or a resumed run would differ.

    Example:
        >>> import itertools
        >>> import numpy as np
        >>> from laconic import Streamed
        >>> feed = Streamed({}, lambda: ({"x": np.full(8, i)} for i in itertools.count()))
        >>> rounds = feed.rounds(K=4, H=2)
        >>> next(rounds)["x"].shape
        (4, 2, 8)
        >>> rounds.close()
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
        """One pytree with leaves [K, H, B, …] a round, stacked by a background thread.

        Worker k takes batches k·H … k·H + H − 1 of a round. A resumed run skips its first `skip`
        rounds; an incomplete last round is dropped. Closing the generator stops the thread.
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
    """Run `source` in a thread, `depth` items ahead; errors are raised here, closing stops it."""
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
        except BaseException as error:  # raised again by the consumer
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
