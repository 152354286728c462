"""A card: what a published optimizer is, how it was meta-trained, what it reaches, where it fails.

A schema says what the JSON of a card or a file must look like; the first fault is told in words.
"""

import json
import re
import reprlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from laconic.architecture import ARCHITECTURES, RELATIVE
from laconic.errors import LaconicError
from laconic.local import LocalOptimizer

LARGEST = 2**53  # above it JSON readers of other languages round whole numbers


class Rule(NamedTuple):
    """What one value must be, in words and as a test."""

    says: str
    holds: Callable[[Any], bool]


Schema = (
    Rule | list["Schema"] | dict[str, "Schema"]
)  # [schema]: a list of such; {key: schema}: exactly these keys


def whole(least: int, most: int = LARGEST) -> Rule:
    """A whole number within bounds; true and false are none."""
    says = f"a whole number from {least}" + ("" if most == LARGEST else f" to {most}")
    return Rule(says, lambda x: type(x) is int and least <= x <= most)


def nullable(rule: Rule) -> Rule:
    """The same, or null."""
    return Rule(f"{rule.says} or null", lambda x: x is None or rule.holds(x))


def fault(value: Any, schema: Schema, where: str) -> str | None:
    """The first thing about `value` that the schema does not allow, or None."""
    if isinstance(schema, Rule):
        return (
            None
            if schema.holds(value)
            else f"{where} must be {schema.says}, got {reprlib.repr(value)}"
        )
    if isinstance(schema, list):
        if not isinstance(value, list):
            return f"{where} must be a list, got {reprlib.repr(value)}"
        found = (fault(item, schema[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    if not isinstance(value, dict):
        return f"{where} must be a dictionary, got {reprlib.repr(value)}"
    for key in [*schema, *value]:
        if key not in value:
            return f"{where} lacks the field {key}"
        if key not in schema:
            return f"{where} has the unknown field {reprlib.repr(key)}"
    found = (fault(value[key], part, f"{where}.{key}") for key, part in schema.items())
    return next((wrong for wrong in found if wrong), None)


def _is_text(value: Any) -> bool:
    # printable: a card is shown in terminals and on pages, where control characters would do more
    # than be read
    return isinstance(value, str) and value.isprintable() and value.strip() != ""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


TEXT = Rule("one line of text", _is_text)
NUMBER = Rule("a finite number", _is_number)
AMOUNT = Rule("a finite number of at least 0", lambda x: _is_number(x) and x >= 0)
SHARE = Rule("a number from 0 to below 1", lambda x: _is_number(x) and 0 <= x < 1)


def _is_horizon(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(map(whole(1).holds, value))
        and value[0] <= value[1]
    )


def _is_record(value: Any) -> bool:
    if not TEXT.holds(value) or "\\" in value:
        return False
    path = PurePosixPath(value)
    plain = path.as_posix() == value and not path.is_absolute()
    return plain and path.parts[:1] not in ((), ("results",)) and ".." not in path.parts


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_versions(value: Any) -> bool:
    return isinstance(value, dict) and all(
        TEXT.holds(k) and nullable(TEXT).holds(v) for k, v in value.items()
    )


KNOWN = (*ARCHITECTURES, RELATIVE)
ARCHITECTURE = Rule(f"one of {', '.join(KNOWN)}", lambda x: isinstance(x, str) and x in KNOWN)
NAME = Rule(  # it becomes file names, so it must be no path, and no name that looks like a file
    "a name of lower-case letters, digits, - and _, at most 64",
    lambda x: isinstance(x, str) and re.fullmatch("[a-z0-9][a-z0-9_-]{0,63}", x) is not None,
)
LOCAL: dict[str, Schema] = {
    "name": TEXT,
    "learning_rate": AMOUNT,
    "weight_decay": AMOUNT,
    "clip": AMOUNT,
    "decay_steps": whole(0),
}
TRAINED_ON: dict[str, Schema] = {
    "task": TEXT,
    "workers": whole(1),
    "local_steps": whole(1),
    "batch": whole(1),
    "compress": TEXT,
    "dropout": SHARE,
}
RESULT: dict[str, Schema] = {
    "task": TEXT,
    "setting": TEXT,
    "metric": TEXT,
    "value": nullable(NUMBER),
    "record": Rule("a path relative to the results folder, with / and no ..", _is_record),
}
CARD: dict[str, Schema] = {
    "name": NAME,
    "summary": TEXT,
    "architecture": ARCHITECTURE,
    "workers": nullable(whole(1)),
    "local": LOCAL,
    "trained_on": [TRAINED_ON],
    "estimator": TEXT,
    "outer_steps": whole(0),
    "pairs": whole(1),
    "truncation": whole(1),
    "horizon": Rule("[min, max], two whole numbers from 1 with min ≤ max", _is_horizon),
    "meta_seed": whole(0, 2**32 - 1),
    "seconds": AMOUNT,
    "device": TEXT,
    "commit": TEXT,
    "versions": Rule("a dictionary of versions, each one line of text or null", _is_versions),
    "results": [RESULT],
    "limits": [TEXT],
    "license": TEXT,
    "created": Rule("a date as YYYY-MM-DD", _is_date),
}


@dataclass(frozen=True)
class Card:
    """Everything known about a published optimizer, as JSON can hold it; a wrong value is refused
    at once.

    workers:    K, for lagg-a and lagg only
    local:      the fields of the recommended `LocalOptimizer`
    trained_on: {task, workers, local_steps, batch, compress, dropout} for each task of
    meta-training
    horizon:    [min, max] rounds of an unroll in meta-training
    seconds:    wall time of meta-training
    results:    {task, setting, metric, value, record}: value is null if the metric was never
                reached, record a path relative to `results/`
    limits:     for which K and H it is meant, and known failures
    """

    name: str
    summary: str
    architecture: str
    workers: int | None
    local: dict[str, Any]
    trained_on: list[dict[str, Any]]
    estimator: str
    outer_steps: int
    pairs: int
    truncation: int
    horizon: list[int]
    meta_seed: int
    seconds: float
    device: str
    commit: str
    versions: dict[str, str | None]
    results: list[dict[str, Any]]
    limits: list[str]
    license: str
    created: str

    def __post_init__(self) -> None:
        wrong = fault(vars(self), CARD, "card")
        if wrong:
            raise LaconicError(f"{wrong}.")
        try:
            LocalOptimizer(**self.local)
        except LaconicError as error:
            raise LaconicError(f"card.local: {error}") from None


def to_json(card: Card) -> dict[str, Any]:
    """The card as a dictionary that JSON can write, sharing nothing with the card."""
    return asdict(card)


def from_json(data: Any, source: str) -> Card:
    """The card that `to_json` wrote; errors name `source` and the field."""
    wrong = fault(data, CARD, "card")
    if wrong:
        raise LaconicError(f"{source}: {wrong}.")
    try:
        return Card(**data)
    except LaconicError as error:
        raise LaconicError(f"{source}: {error}") from None


def to_markdown(card: Card, source: str | None = None) -> str:
    """The card as a page: how to use it, how it was trained, what it reaches, its limits.

    `source` is what `load` is given there; by default the optimizer's name.
    """
    facts = [
        (
            "architecture",
            card.architecture
            if card.workers is None
            else f"{card.architecture}, K = {card.workers}",
        ),
        (
            "recommended local optimizer",
            ", ".join(f"{key} {value}" for key, value in card.local.items()),
        ),
        ("estimator", card.estimator),
        ("outer steps", card.outer_steps),
        ("antithetic pairs", card.pairs),
        ("truncation (rounds)", card.truncation),
        ("horizon (rounds)", f"{card.horizon[0]} to {card.horizon[1]}"),
        ("seed", card.meta_seed),
        ("wall time (s)", card.seconds),
        ("device", card.device),
        ("commit", card.commit),
        (
            "versions",
            ", ".join(f"{key} {value or 'unknown'}" for key, value in card.versions.items()),
        ),
        ("license", card.license),
        ("created", card.created),
    ]
    parts = [
        f"# {card.name}",
        _prose(card.summary),
        _usage(card, source or card.name),
        "## Training",
        _table(("what", "value"), facts),
    ]
    parts += [
        _table(TRAINED_ON, [tuple(row[key] for key in TRAINED_ON) for row in card.trained_on])
    ]
    parts += [
        "## Results",
        _table(RESULT, [tuple(row[key] for key in RESULT) for row in card.results]),
    ]
    parts += ["## Limits", "\n".join(f"- {_prose(limit)}" for limit in card.limits)]
    return "\n\n".join(parts) + "\n"


def _usage(card: Card, source: str) -> str:
    more = "" if card.workers is None else f", worker_deltas=leaves [{card.workers}, …]"
    lines = [
        "import laconic",
        f"published = laconic.load({json.dumps(source, ensure_ascii=False)})",
        f"tx = published.optax()  # tx.update(mean_delta, state, params{more}), as any optax "
        "optimizer",
    ]
    return "\n".join(["```python", *lines, "```"])


def _table(headers: Iterable[str], rows: list[tuple]) -> str:
    names = tuple(headers)
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(
        f"| {' | '.join('–' if x is None else _prose(str(x)) for x in line)} |" for line in lines
    )


def _prose(text: str) -> str:
    """Text as Markdown that shows it: no HTML, and no end of a table's cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
