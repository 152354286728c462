"""The secret that the workers of a run share: from a file or the environment, never from the
command line.

Whoever may list processes sees their arguments, but not their environment.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from laconic.errors import LaconicError

VARIABLE = "LACONIC_TOKEN"


def find_token(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The text of the file, else of $LACONIC_TOKEN, else None."""
    if file is None:
        return environment.get(VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LaconicError(
            f"cannot read the token in {file}: {getattr(error, 'strerror', 'it is no text')}."
        ) from None
    if not token:
        raise LaconicError(
            f"{file} holds no token; put the same secret text into it on every machine."
        )
    return token


def need_token(file: Path | None, environment: Mapping[str, str]) -> str:
    """The same, and an error if there is none."""
    token = find_token(file, environment)
    if token is None:
        raise LaconicError(
            f"a worker needs the token that all of them share: set {VARIABLE}, or give "
            "--token-file. "
            "laconic launch makes one and says where it is."
        )
    return token


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_hex(16)


def write_token(path: Path, token: str) -> None:
    """Put a token where only this user can read it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(token + "\n")
