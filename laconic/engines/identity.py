"""What makes two processes workers of one run: the run's own id, its settings, its optimizer and
the code that computes them.

Each is a short text, so that a refusal can say which of them differs. The id is random, drawn when
a run begins and kept in its folder, so that two runs with the same settings are two.
"""

import functools
import hashlib
import importlib.metadata
import json
import re
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
DECIDING = ("jax", "jaxlib", "optax", "equinox")  # libraries whose version may change a number
WHAT_TO_DO = {
    "token": "has another token than {}: give it theirs, in LACONIC_TOKEN or with --token-file",
    "run": "belongs to another run than {}: give it another --out, or leave --out away",
    "settings": "was given other settings than {}: give all of them the same words after --",
    "optimizer": "has another optimizer than {}: give all of them the same optimizer, and the same "
    "file of it",
    "code": "runs other code than {}: install the same laconic, jax and optax on every machine",
    "structure": "runs another task or method than {}: install the same laconic and the same data",
}


@dataclass(frozen=True)
class Identity:
    """What the workers of a run have in common; an empty text fits any other.

    run: its id · settings: a hash of all that was asked for · optimizer: a hash of its name,
    options and contents · code: a hash of the package and of the libraries' versions
    """

    run: str = ""
    settings: str = ""
    optimizer: str = ""
    code: str = ""

    @property
    def text(self) -> str:
        """All of it, as one line."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, said: object) -> "Identity | None":
        """An identity from JSON; None if it is none."""
        names = {field.name for field in fields(cls)}
        if not isinstance(said, dict) or set(said) != names:
            return None
        if not all(isinstance(text, str) and len(text) <= 64 for text in said.values()):
            return None
        return cls(**said)

    def differs(self, other: "Identity") -> list[str]:
        """What of the other identity contradicts this one."""
        ours, theirs = asdict(self), asdict(other)
        return [n for n, text in ours.items() if text and theirs[n] and text != theirs[n]]


def new_run_id() -> str:
    """A random id for a run that begins."""
    return secrets.token_hex(8)


def is_run_id(text: str) -> bool:
    """Whether it has the form of one."""
    return re.fullmatch(r"[0-9a-f]{16}", text) is not None


def short_hash(text: str) -> str:
    """32 hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def code_version() -> str:
    """A hash of the package's sources, as they are on disk now, and of the libraries' versions."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0")
        found.update(hashlib.sha256(path.read_bytes()).digest())
    for name in DECIDING:
        found.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    return found.hexdigest()[:32]


def refusal(differing: list[str], whom: str) -> str:
    """What differs and what to do about it, in words, after the name of who differs."""
    words = [WHAT_TO_DO.get(name, f"differs from {{}} in its {name}") for name in differing]
    return "; it ".join(words).format(*[whom] * len(words))
