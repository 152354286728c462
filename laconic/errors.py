"""The one exception users see: what is wrong, why it matters, what to do."""

import difflib
from collections.abc import Iterable, Sized


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


def require_examples(workers: int, local_steps: int, batch: int) -> None:
    """Raise unless the examples of a round can be counted in 32 bits."""
    require_counts(**{"workers × local steps × batch": workers * local_steps * batch})


def require_some(**values: Sized) -> None:
    """Raise unless every named list has something in it."""
    for name, value in values.items():
        if not len(value):
            raise LaconicError(
                f"{name} is empty, so there is nothing to do: give at least one, or leave it out."
            )


def require_seed(seed: int) -> None:
    """Raise unless a seed fits in 32 bits; larger ones would silently repeat smaller ones."""
    if not 0 <= seed < 2**32:
        raise LaconicError(f"a seed must be between 0 and {2**32 - 1}, got {seed}.")
