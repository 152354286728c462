"""Grids as text: `parse_grid(["gamma=1,0.5", "alpha=1/gamma,0.5/gamma"])` gives the points of their
product."""

import itertools
from collections.abc import Sequence

from laconic.errors import LaconicError

Point = dict[str, float]


def parse_grid(texts: Sequence[str]) -> list[Point]:
    """All points of a grid given as `name=value,value` each; a value may be divided by an earlier
    name: `0.5/gamma`."""
    columns: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise LaconicError(f"the grid's {text!r} gives no values; write name=value,value.")
        if name in columns:
            raise LaconicError(f"the grid gives {name} twice; put all its values in one list.")
        columns[name] = values.split(",")
    if not columns:
        raise LaconicError(
            "the grid is empty; give every hyper-parameter its values, as name=value,value."
        )
    return [
        _point(dict(zip(columns, chosen, strict=True)))
        for chosen in itertools.product(*columns.values())
    ]


def _point(chosen: dict[str, str]) -> Point:
    point: Point = {}
    for name, text in chosen.items():
        value, slash, divisor = text.partition("/")
        if slash and divisor not in point:
            raise LaconicError(
                f"{name}={text}: {divisor!r} is not a hyper-parameter given before {name}."
            )
        try:
            point[name] = float(value) / (point[divisor] if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            raise LaconicError(f"{name} must be a number or number/name, got {text!r}.") from None
    return point


def without_repeats(points: Sequence[Point]) -> list[Point]:
    """The points, each at its first place only."""
    return [point for i, point in enumerate(points) if point not in points[:i]]
