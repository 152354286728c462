"""Several processes as one run: each computes its part, the first one writes, and all of them stop
together.

With one process, as nearly always, everything here is free and changes nothing.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from laconic.errors import LaconicError

T = TypeVar("T")


def agreed(*values: int) -> tuple[int, ...]:
    """The largest of each number over all processes: what they agree on, whatever each of them saw."""
    if jax.process_count() == 1:
        return values
    return tuple(multihost_utils.process_allgather(np.array(values)).max(axis=0).tolist())


def by_the_first(action: Callable[[], T]) -> T | None:
    """What `action` gives in process 0, while the others wait and get None; if it fails there, all
    of them fail."""
    if jax.process_count() == 1:
        return action()
    result, error = None, None
    if jax.process_index() == 0:
        try:
            result = action()
        except LaconicError as caught:
            error = caught
    (failed,) = agreed(int(error is not None))
    if error is not None:
        raise error
    if failed:
        raise LaconicError("process 0 could not go on; it says why.")
    return result
