"""The folder of a published optimizer in the Hugging Face Hub's layout: the weights in
`model.safetensors`, their sha256 in `config.json`, and the card in `README.md`.

Only the first two are ever read. A folder from someone else is read safely or refused with a
reason, and nothing in it is executed.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.store import atomic
from laconic.zoo.card import Card, Rule, Schema, fault, to_markdown

FORMAT, VERSION = "laconic-repository", 1
CONFIG, WEIGHTS, README = "config.json", "model.safetensors", "README.md"
FILES = (WEIGHTS, README, CONFIG)  # the config is written last: it vouches for the weights
LARGEST_CONFIG = 1 << 16  # bytes; those that laconic writes have about 500
LARGEST_WEIGHTS = 2**28  # twice what the widest allowed φ takes
PICKLES = (".bin", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib")
SHA256 = Rule(
    "64 hexadecimal digits",
    lambda x: isinstance(x, str) and re.fullmatch("[0-9a-f]{64}", x) is not None,
)
SCHEMA: dict[str, Schema] = {
    "library_name": Rule("laconic", lambda x: x == "laconic"),
    "format": Rule(FORMAT, lambda x: x == FORMAT),
    "version": Rule(str(VERSION), lambda x: type(x) is int and x == VERSION),
    "sha256": SHA256,
    "learned": Rule("the optimizer's options", lambda x: isinstance(x, dict)),
}


def files_of(weights: bytes, learned: Mapping[str, Any], card: Card, repo: str) -> dict[str, bytes]:
    """Everything that a repository holds, by file name; `repo` is what `load` will be given."""
    config = {"library_name": "laconic", "format": FORMAT, "version": VERSION}
    config |= {"sha256": hashlib.sha256(weights).hexdigest(), "learned": dict(learned)}
    page = _front_matter(card) + to_markdown(card, repo)
    text = json.dumps(config, allow_nan=False, indent=2) + "\n"
    return {WEIGHTS: weights, README: page.encode(), CONFIG: text.encode()}


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write the files to a folder → their paths; nothing is overwritten."""
    check_free(folder)
    for name in FILES:
        atomic.write_bytes(folder / name, files[name])
    return [folder / name for name in FILES]


def check_free(folder: Path) -> None:
    """Raise where a repository cannot be written."""
    atomic.check_place(folder / WEIGHTS)
    present = [str(folder / name) for name in FILES if (folder / name).exists()]
    if present:
        raise LaconicError(
            f"{', '.join(present)} exists already and would be overwritten: choose another folder."
        )


def is_there(names: Iterable[str]) -> bool:
    """Whether files of these names are meant as a repository, sound or not."""
    return any(name in (CONFIG, WEIGHTS) or name.endswith(PICKLES) for name in names)


def weights_in(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The weights of a repository, once their hash is that of its config, and what that says of
    them."""
    check_names([path.name for path in folder.iterdir()], str(folder))
    config = _read_config(folder / CONFIG)
    check_sha256(folder / WEIGHTS, config["sha256"], CONFIG)
    return folder / WEIGHTS, config["learned"]


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse a repository without weights or config, by the names of its files."""
    found = sorted(names)
    missing = [name for name in (CONFIG, WEIGHTS) if name not in found]
    pickles = [name for name in found if name.endswith(PICKLES)]
    if WEIGHTS in missing and pickles:
        raise LaconicError(
            f"{where} holds {pickles[0]} and no {WEIGHTS}: a pickle can run code when it is read, "
            f"so laconic reads {WEIGHTS} only. Ask its owner for that."
        )
    if missing:
        raise LaconicError(
            f"{where} holds no {' and no '.join(missing)}, so it is no repository of a learned "
            "optimizer: give one that laconic zoo push made, or a .safetensors file."
        )


def check_sha256(path: Path, expected: str, source: str) -> None:
    """Refuse a file with another hash than the one that `source` says."""
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LaconicError(f"cannot read {path}: {error.strerror or error}.") from None
    if found != expected:
        raise LaconicError(
            f"{path} has the sha256 {found}, and {source} says {expected}: it was changed or "
            "damaged. Use another copy."
        )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_CONFIG + 1)
        config = json.loads(data) if len(data) <= LARGEST_CONFIG else None
    except OSError as error:
        raise LaconicError(f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise LaconicError(f"{path} is no JSON object that laconic wrote: use another copy.")
    version = config.get("version")
    if config.get("format") == FORMAT and type(version) is int and version > VERSION:
        raise LaconicError(
            f"{path} is a {FORMAT} of version {version!r:.20}, and this laconic reads version "
            f"{VERSION}: install the laconic that wrote it or a later one."
        )
    if wrong := fault(config, SCHEMA, "config"):
        raise LaconicError(f"{path}: {wrong}.")
    return config


def _front_matter(card: Card) -> str:
    """What the Hub reads of a README; JSON's strings are YAML's, whatever a card says."""
    tags = ["learned-optimizer", "distributed-training", card.architecture]
    lines = ["library_name: laconic", f"license: {json.dumps(card.license.lower())}"]
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    return "\n".join(["---", *lines, "---"]) + "\n\n"
