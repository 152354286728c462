"""The shelf of published optimizers: which there are, where their files lie, and copies of them for
others."""

import json
import os
from pathlib import Path

from laconic.errors import LaconicError, unknown
from laconic.store import atomic
from laconic.zoo.card import Card, to_json, to_markdown
from laconic.zoo.file import SUFFIX, read, read_meta

CARD_SUFFIXES = (".json", ".md")  # what `export` writes beside the weights
WEIGHTS = Path(__file__).parent / "weights"


def published() -> list[str]:
    """The names of the optimizers that come with the package."""
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


def locate(name_or_path: str | os.PathLike[str]) -> Path:
    """The file meant, which need not exist if it was given as a path."""
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
