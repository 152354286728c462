"""What does not fit in a device's memory at once, in smaller parts."""

from collections.abc import Callable
from typing import TypeVar

import jax

from laconic.errors import LaconicError

SIGN = "RESOURCE_EXHAUSTED"  # what XLA's message begins with
Found = TypeVar("Found")


def out_of_memory(error: Exception) -> bool:
    """Whether that is what went wrong."""
    return SIGN in str(error)


def in_parts(
    run: Callable[[int], Found], at_once: int, note: Callable[[int], None], refusal: str
) -> Found:
    """`run(at_once)`, again with about half as many whenever memory is too small; `note` is told
    how many these are.

    Where one is too many already, the error is `refusal` and what to do about it.
    """
    while True:
        try:
            return run(at_once)
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
        if at_once == 1:
            raise LaconicError(
                f"{refusal}, or a task's options that save memory, such as compute=bf16."
            )
        at_once = -(-at_once // 2)
        note(at_once)
