"""Numbers as pages print them: where they stand, and whether one agrees with a value."""

import math
import re

NEVER = "–"
PATTERN = r"[-+−±]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
# a number by itself: not within a name (H200, 2-layer, lopt-a-h16) and not a part of a date
NUMBER = re.compile(rf"(?<![\w./#-])(?<!\d[-–:])({PATTERN})(?![\w]|-[a-zA-Z]|\.\d|-\d\d-)")
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def value_of(printed: str) -> float:
    """The number that a text stands for."""
    return float(printed.replace(",", "").replace("−", "-").lstrip("+±"))


def half_a_digit(printed: str) -> float:
    """How far a value may be from what its rounding prints."""
    mantissa, _, exponent = printed.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)


def agrees(printed: str, value: float) -> bool:
    """Whether a printed number is this value, rounded; – is NaN."""
    if printed == NEVER or math.isnan(value):
        return printed == NEVER and math.isnan(value)
    near = half_a_digit(printed) * (1 + 1e-6) + 1e-9 * abs(value)
    return abs(value_of(printed) - value) <= near


def significant(value: float) -> str:
    """A computed value for a message."""
    return NEVER if math.isnan(value) else f"{value:.6g}"
