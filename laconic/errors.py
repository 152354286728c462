"""The one exception users see: what is wrong, why it matters, what to do."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any


class LaconicError(Exception):
    """Bad input or an impossible request; the command line prints it as one line and exits with its
    `status`.

    Example:
        >>> import laconic
        >>> try:
        ...     laconic.make_task("digist-mlp")
        ... except laconic.LaconicError as error:
        ...     print(str(error)[:42])
        unknown task 'digist-mlp'. Did you mean 'd
    """

    status = 1


class CannotBegin(LaconicError):
    """A run cannot begin here: nothing is computed, and nothing is left behind."""


def unknown(kind: str, name: str, known: Iterable[str]) -> LaconicError:
    """The error for a name that no registry holds, with the nearest known name as a suggestion."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return LaconicError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")


def require_positive(**values: int | float) -> None:
    """Raise unless every named value is at least 1 (counts) or above 0 (rates)."""
    for name, value in values.items():
        if not value > 0:
            raise LaconicError(f"{name} must be positive, got {value}.")


def require_counts(**values: int) -> None:
    """Raise unless every named value can be counted in 32 bits, as indices and rounds are."""
    for name, value in values.items():
        if value >= 2**31:
            raise LaconicError(f"{name} can be at most {2**31 - 1:,}, got {value:,}.")


def require_parameters(parameters: float) -> None:
    """Raise unless a model can have so many."""
    if not 1 <= parameters <= 1e12:
        raise LaconicError(f"parameters are from 1 to 10^12, got {parameters:g}.")


def require_examples(workers: int, local_steps: int, batch: int) -> None:
    """Raise unless the examples of a round can be counted in 32 bits."""
    require_counts(**{"workers × local steps × batch": workers * local_steps * batch})


def require_some(**values: Collection[Any]) -> None:
    """Raise unless every named list has something in it, and nothing twice."""
    for name, value in values.items():
        if not value:
            raise LaconicError(
                f"{name} is empty, so there is nothing to do: give at least one, or leave it out."
            )
        seen = list(value)
        again = next((one for i, one in enumerate(seen) if one in seen[:i]), None)
        if again is not None:
            raise LaconicError(f"{name} has {again} twice: leave one of them out.")


def require_seed(seed: int) -> None:
    """Raise unless a seed fits in 32 bits; larger ones would silently repeat smaller ones."""
    if not 0 <= seed < 2**32:
        raise LaconicError(f"a seed must be between 0 and {2**32 - 1}, got {seed}.")
