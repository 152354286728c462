"""The file of a published optimizer: φ, the architecture it belongs to and a card, sealed together.

The meta of the sealed file is {format, version, learned, card}. A file from someone else is read
safely or refused with a reason: every claim of its header is checked before anything is made from
it. Nothing here needs JAX, so that every adapter reads by these same checks.
"""

import contextlib
import hashlib
import json
import os
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laconic.architecture import RELATIVE, Architecture
from laconic.errors import LaconicError, unknown
from laconic.relative import RelativeArchitecture
from laconic.store import atomic, sealed
from laconic.zoo import hub, repository
from laconic.zoo.card import (
    ARCHITECTURE,
    NUMBER,
    TEXT,
    Card,
    Schema,
    fault,
    from_json,
    nullable,
    to_json,
    to_markdown,
    whole,
)

FORMAT = "laconic-optimizer"
# Version 1 had no `widest` and `deepest`, 2 no `deepest`: without them all take whole steps. Only
# lopt-r needs version 4, so that every laconic reads what it can use.
VERSION = 4
BEFORE_RELATIVE = 3
SUFFIX = ".safetensors"
LEARNED: dict[str, Schema] = {
    "architecture": ARCHITECTURE,
    "workers": nullable(whole(1, 4096)),
    "hidden": whole(1, 4096),
    "time": TEXT,
    "output_scale": NUMBER,
    "widest": whole(0, 2**31 - 1),
    "deepest": whole(0, 2**31 - 1),
}
LEARNED_RELATIVE: dict[str, Schema] = {
    "architecture": ARCHITECTURE,
    "rate": NUMBER,
    "momentum": NUMBER,
    "hidden": whole(1, 4096),
    "gates": whole(0, 4096),
    "inputs": [TEXT],
}
SINCE = {"widest": 2, "deepest": 3}  # the version that a field is there from; 0 before


AnyArchitecture = Architecture | RelativeArchitecture


class Opened(NamedTuple):
    """What a sound file holds; φ as read-only float32 NumPy arrays."""

    architecture: AnyArchitecture
    theta: dict[str, np.ndarray]
    card: Card


def read(path: Path) -> Opened:
    """The optimizer in a file, once every part of it is known to be sound."""
    contents = _unseal(path)
    architecture, card = _meta_of(contents.meta, path)
    return Opened(architecture, _weights_of(contents, architecture, path), card)


def digest_of(architecture: AnyArchitecture, theta: Mapping[str, Any]) -> str:
    """The sha256 of all that decides the steps: φ, and what differs from the defaults."""
    told = fields_of(architecture)
    if isinstance(architecture, Architecture):  # the defaults of lopt-r may change
        told = {f.name: told[f.name] for f in fields(Architecture) if told[f.name] != f.default}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for name in sorted(theta):
        digest.update(name.encode() + np.ascontiguousarray(theta[name]).tobytes())
    return digest.hexdigest()


def fields_of(architecture: AnyArchitecture) -> dict[str, Any]:
    """An architecture as JSON holds it."""
    if isinstance(architecture, Architecture):
        return {f.name: getattr(architecture, f.name) for f in fields(Architecture)}
    own = {f.name: getattr(architecture, f.name) for f in fields(architecture)}
    return {"architecture": RELATIVE, **own, "inputs": list(architecture.inputs)}


def read_meta(path: Path) -> tuple[AnyArchitecture, Card]:
    """The architecture and card of a file, once they are known to be sound and to agree."""
    return _meta_of(_unseal(path).meta, path)


def write(
    path: Path, architecture: AnyArchitecture, theta: Mapping[str, np.ndarray], card: Card
) -> None:
    """Write weights and card to one file, in one step; what `read` would refuse is refused here."""
    if path.suffix != SUFFIX:
        raise LaconicError(f"{path} must end in {SUFFIX}, or load would take it for a name.")
    card = from_json(to_json(card), str(path))
    learned = fields_of(architecture)
    _architecture_from(learned, card, path)
    architecture.check(theta)
    wrong = sorted(name for name, x in theta.items() if x.dtype != np.float32)
    if wrong:
        raise LaconicError(
            f"published weights are float32, but {', '.join(wrong)} is not: cast it first."
        )
    _require_finite("φ", theta)
    version = BEFORE_RELATIVE if isinstance(architecture, Architecture) else VERSION
    meta = {"format": FORMAT, "version": version, "learned": learned, "card": to_json(card)}
    sealed.write(path, sealed.Contents({_stored(name): x for name, x in theta.items()}, {}, meta))


def _stored(name: str) -> str:
    """The name of a tensor of φ in a file: that of a leaf of a checkpoint whose tree is φ."""
    return f"[{name!r}]"


def _unseal(path: Path) -> sealed.Contents:
    if not os.path.isfile(path):
        raise LaconicError(
            f"{path} is not a file: give a {SUFFIX} file, a folder that laconic zoo push made, or "
            "the name of a published optimizer."
        )
    size = path.stat().st_size
    if size > repository.LARGEST_WEIGHTS:
        raise LaconicError(
            f"{path} has {size} bytes, more than any learned optimizer: it must be something else."
        )
    with _refusing_nonsense(path):
        return sealed.read(path)


def _meta_of(meta: Any, path: Path) -> tuple[AnyArchitecture, Card]:
    kind = meta.get("format") if isinstance(meta, dict) else None
    if kind != FORMAT:
        raise LaconicError(
            f"{path} is a checkpoint, but not a published optimizer: its meta is not {FORMAT}."
        )
    version = meta.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise LaconicError(
            f"{path} is a {FORMAT} of version {version!r:.20}, and this laconic reads up to "
            f"version {VERSION}: "
            "install the laconic that wrote it or a later one."
        )
    if meta.get("card") is None:
        raise LaconicError(
            f"{path} holds weights without a card, so nobody can tell what they are: use another "
            "copy."
        )
    card = from_json(meta["card"], str(path))
    fields = meta.get("learned")
    if isinstance(fields, dict) and fields.get("architecture") != RELATIVE:
        fields = {**fields, **{name: 0 for name, since in SINCE.items() if version < since}}
    return _architecture_from(fields, card, path), card


def _architecture_from(fields: Any, card: Card, path: Path) -> AnyArchitecture:
    relative = isinstance(fields, dict) and fields.get("architecture") == RELATIVE
    wrong = fault(fields, LEARNED_RELATIVE if relative else LEARNED, "learned")
    if wrong:
        raise LaconicError(f"{path}: {wrong}.")
    try:
        architecture = _relative_from(**fields) if relative else Architecture(**fields)
    except LaconicError as error:
        raise LaconicError(f"{path}: {error}") from None
    for field in ("architecture", "workers"):
        ours, theirs = getattr(architecture, field), getattr(card, field)
        if ours != theirs:
            raise LaconicError(f"{path}: card.{field} is {theirs}, but the optimizer's is {ours}.")
    return architecture


def _relative_from(architecture: str, inputs: list[str], **sizes: Any) -> RelativeArchitecture:
    return RelativeArchitecture(inputs=tuple(inputs), **sizes)


def _weights_of(
    contents: sealed.Contents, architecture: AnyArchitecture, path: Path
) -> dict[str, np.ndarray]:
    """φ out of the file's arrays; refuse other tensors than the architecture's."""
    names = {_stored(name): name for name in architecture.shapes}
    kinds = {name: sealed.CODES[x.dtype] for name, x in contents.arrays.items()}
    wrong = [f"{reprlib.repr(name)} is {kind}" for name, kind in kinds.items() if kind != "F32"]
    wrong += [
        f"{reprlib.repr(name)} belongs to no {architecture.architecture}"
        for name in kinds
        if name not in names
    ]
    if not kinds:
        raise LaconicError(f"{path} holds a card but no weights: use another copy.")
    if wrong:
        raise LaconicError(
            f"{path}: weights must be w0, b0, … in float32 (F32), but {', '.join(wrong[:3])}."
        )
    if contents.keys != {}:  # a weight that calls itself a random key
        raise _nonsense(path)
    theta = {names[name]: x for name, x in sorted(contents.arrays.items())}
    try:
        architecture.check(theta)
    except LaconicError as error:
        raise LaconicError(f"{path}: {error}") from None
    _require_finite(str(path), theta)
    return theta


def _require_finite(what: str, theta: Mapping[str, np.ndarray]) -> None:
    wrong = sorted(name for name, x in theta.items() if not np.all(np.isfinite(x)))
    if wrong:
        raise LaconicError(
            f"{what}: the weights {', '.join(wrong)} are not all finite, so any step would be NaN."
        )


def _nonsense(path: Path) -> LaconicError:
    return LaconicError(f"{path} has a header that laconic never writes: use another copy.")


@contextlib.contextmanager
def _refusing_nonsense(path: Path) -> Iterator[None]:
    """A header may be whole and hash right, and still hold what laconic never writes."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _nonsense(path) from error


CARD_SUFFIXES = (".json", ".md")  # what `export` writes beside the weights
WEIGHTS = Path(__file__).parent / "weights"


def published() -> list[str]:
    """The names of the optimizers that come with the package.

    Returns:
        Names for `load`, sorted.

    Example:
        >>> from laconic import published
        >>> "lopt-r" in published()
        True
    """
    return sorted(path.stem for path in WEIGHTS.glob(f"*{SUFFIX}"))


def cards() -> dict[str, Card]:
    """Their cards by name; those of files that cannot be read are left out, and `faults` names
    them."""
    return {name: card for name, card in _survey().items() if isinstance(card, Card)}


def faults() -> dict[str, str]:
    """What is wrong with each file that cannot be read, by name; nothing, unless files were
    damaged."""
    return {
        name: str(error) for name, error in _survey().items() if isinstance(error, LaconicError)
    }


def export(name_or_path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Copy the weights into a folder and write the card beside them, as Markdown and as JSON;
    overwrite nothing."""
    source = locate(name_or_path)
    card = read(source).card
    weights, page, data = targets = [
        Path(folder) / f"{card.name}{end}" for end in (SUFFIX, ".md", ".json")
    ]
    present = [str(path) for path in targets if os.path.lexists(path)]
    if present:
        raise LaconicError(
            f"{', '.join(present)} exists already and would be overwritten: export to another "
            "folder."
        )
    atomic.write_bytes(weights, source.read_bytes())
    atomic.write_text(page, to_markdown(card))
    atomic.write_text(data, json.dumps(to_json(card), allow_nan=False, indent=2) + "\n")
    return targets


def _survey() -> dict[str, Card | LaconicError]:
    """Every name with its card, or with the error that reading it gave."""
    found: dict[str, Card | LaconicError] = {}
    for name in published():
        try:
            found[name] = read_meta(locate(name))[1]
        except LaconicError as error:
            found[name] = error
    return found


def locate(name_or_path: str | os.PathLike[str], sha256: str | None = None) -> Path:
    """The file meant, which need not exist if it was given as a path.

    A folder is one in the Hub's layout; user/repo, where nothing here has that path, is fetched.
    With a `sha256`, any other file than that one is refused.
    """
    path = _meant(name_or_path)
    if os.path.isdir(path) and repository.is_there(os.listdir(path)):
        path = _in_repository(path)
    elif not os.path.exists(path) and (repo := hub.repo_from(os.fspath(name_or_path))):
        try:
            folder = hub.download(repo, (repository.CONFIG, repository.WEIGHTS))
        except hub.Unreached as error:
            raise LaconicError(f"{repo} is no file or folder here, and {error}") from None
        path = _in_repository(folder)
    if sha256 is not None:
        if wrong := fault(sha256, repository.SHA256, "sha256"):
            raise LaconicError(f"{wrong}.")
        repository.check_sha256(path, sha256, "you")
    return path


def _in_repository(folder: Path) -> Path:
    """The weights in a folder, once they are those that its config tells of."""
    path, learned = repository.weights_in(folder)
    if fields_of(read_meta(path)[0]) != learned:
        raise LaconicError(
            f"{folder}: {repository.CONFIG} tells of another optimizer than {path.name} holds. Use "
            "another copy."
        )
    return path


def _meant(name_or_path: str | os.PathLike[str]) -> Path:
    """The file or folder that a name or path stands for, whether or not it exists."""
    text = os.fspath(name_or_path)
    separators = {"/", os.sep, os.altsep or os.sep}
    is_path = isinstance(name_or_path, os.PathLike) or text.endswith((SUFFIX, *CARD_SUFFIXES))
    if not is_path and not any(s in text for s in separators):
        names = published()
        if not names:
            raise LaconicError(
                f"no optimizer is published with this laconic: {text!r} needs the path of a "
                f"{SUFFIX} file."
            )
        if text not in names:
            raise unknown("published optimizer", text, names)
        return WEIGHTS / f"{text}{SUFFIX}"
    path = Path(text)
    if path.suffix in CARD_SUFFIXES and os.path.isfile(path):
        weights = path.with_suffix(SUFFIX)
        advice = (
            f"give {weights}"
            if os.path.isfile(weights)
            else f"{weights} is missing, and it is the one to load"
        )
        raise LaconicError(f"{path} is only a card, without weights: {advice}.")
    return path
