"""A schema: what JSON from someone else must look like, and the first thing about it that is wrong,
in words."""

import reprlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

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
