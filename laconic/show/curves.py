"""Curves as numbers, and how they look.

- `Style`, `Curve`, `Panel`: a line's look, a line, one axes with its lines.
- `method_styles`: all lines differ in greyscale; `label_styles`: colours first, solid lines.
- `train_curve`, `heldout_curve`: a method record's curve; what diverged is NaN from there on.
- `of_kind`: the records of one kind. `round_values`: round numbers for ticks.

Legend: S seeds, T rounds, E evaluations on the test set.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laconic.show import metrics

Record = dict[str, Any]

# Okabe and Ito's colours, the strong ones first; their yellow is left out (invisible on white) and
# black is kept for the reference. Dashes and markers tell the same lines apart in greyscale: 24
# pairs.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ((), (5, 1.6), (5, 1.6, 1.2, 1.6), (1.8, 1.4), (9, 2.4), (5, 1.6, 1.2, 1.6, 1.2, 1.6))
MARKERS = ("", "o", "s", "^")
INK, GRID = "#1b1e23", "#dfe2e7"
# in a page these four follow its light or dark theme
THEMED = {
    INK: "currentColor",
    GRID: "var(--line)",
    COLOURS[0]: "var(--blue)",
    COLOURS[5]: "var(--sky)",
}


@dataclass(frozen=True)
class Style:
    """How a line looks; no dashes: solid, no marker: ""."""

    colour: str
    dashes: tuple[float, ...] = ()
    marker: str = ""


@dataclass(frozen=True)
class Curve:
    """One line: y and its error at x, NaN where nothing is drawn.

    `diverged`: a cross marks its end. `level`: a dotted line at this height besides.
    """

    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray
    diverged: bool = False
    level: float | None = None


@dataclass(frozen=True)
class Panel:
    """One axes: its words, its scales and its curves.

    `target`: a dotted line. `from_zero`: a linear x axis begins at 0. `ceiling`: losses far above
    the start are off the chart. `key`: a small legend inside.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = True
    target: float | None = None
    from_zero: bool = True
    ceiling: bool = True
    key: tuple[tuple[Style, str], ...] = ()


# --- styles ---------------------------------------------------------------------------------------


def style(i: int, colour: str | None = None) -> Style:
    """The i-th of 24 styles that differ without their colours."""
    marker = MARKERS[i // len(DASHES) % len(MARKERS)]
    return Style(colour or COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], marker)


def method_styles(labels: Sequence[str], reference: str | None = None) -> list[Style]:
    """One style a label: the reference in black, all different in greyscale."""
    found = []
    others = 0
    for i, label in enumerate(labels):
        colour = INK if label == reference else COLOURS[others % len(COLOURS)]
        others += label != reference
        found.append(style(i, colour))
    return found


def label_styles(labels: Iterable[str], black: Collection[str] = ()) -> dict[str, Style]:
    """One colour a label, solid for the first six and dashed after; those in `black` are black."""
    found = {}
    others = 0
    for label in dict.fromkeys(labels):
        dashes = DASHES[others // len(COLOURS) % len(DASHES)]
        found[label] = Style(INK) if label in black else Style(COLOURS[others % 6], dashes)
        others += label not in black
    return found


def themed(text: str) -> str:
    """Markup in fixed colours → in the page's."""
    for fixed, variable in THEMED.items():
        text = text.replace(fixed, variable)
    return text


# --- curves of records ----------------------------------------------------------------------------


def of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    """The records of one kind, in order."""
    return [record for record in records if record.get("kind") == kind]


def plain_curve(label: str, look: Style, x: Any, y: Any, error: Any = None) -> Curve:
    """A curve of any numbers; None is NaN."""
    y = np.asarray(y, float)
    known = np.zeros_like(y) if error is None else np.asarray(error, float)
    return Curve(label, look, np.asarray(x, float), y, known)


def train_curve(method: Record, look: Style, label: str | None = None) -> Curve:
    """A method's smoothed train loss at rounds 1 … T: mean over seeds, standard error."""
    curves_ST = metrics.checked_curves(method["train"])
    y_T = metrics.smoothed(metrics.mean_curve(curves_ST))
    error_T = metrics.standard_error([metrics.smoothed(curve_T) for curve_T in curves_ST])
    x_T = np.arange(1, y_T.size + 1).astype(float)
    return Curve(label or method["label"], look, x_T, y_T, error_T, any(method["diverged"]))


def heldout_curve(
    method: Record, metric: str, look: Style, label: str | None = None
) -> Curve | None:
    """A method's test metric (accuracy in %) at its evaluations; None without any."""
    if metric not in method["heldout"]:
        return None
    scale = 100.0 if metric == "accuracy" else 1.0
    values_SE = scale * metrics.checked_curves(method["heldout"][metric])
    at_E = np.asarray(method["evaluated_at"])
    broken_T = ~np.isfinite(metrics.mean_curve(method["train"]))
    # a network of NaNs still has an accuracy, that of its first class: it means nothing
    alive_E = np.array([not broken_T[:at].any() for at in at_E])
    y_E = np.where(alive_E, metrics.mean_curve(values_SE), np.nan)
    error_E = metrics.standard_error(values_SE)
    diverged = any(method["diverged"])
    return Curve(label or method["label"], look, at_E.astype(float), y_E, error_E, diverged)


# --- words and numbers on axes --------------------------------------------------------------------


def drawable(label: str) -> str:
    """The label without control characters, which neither XML nor a font can hold."""
    return "".join(character if character.isprintable() else " " for character in label)


def round_values(low: float, high: float, most: int) -> list[float]:
    """Up to `most` round numbers in [low, high], both positive, ascending: the finest that fit."""
    fine = [np.arange(100, 1000, step) / 100 for step in (1, 2, 5, 10, 20, 50, 100)]
    patterns = [(mantissas, 1) for mantissas in [*fine, (1, 2, 3, 5, 7), (1, 2, 5), (1, 3)]]
    patterns += [((1,), every) for every in range(1, 700)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values: list[float] = []
    for mantissas, every in patterns:
        kept = [decade for decade in decades if decade % every == 0]
        candidates = (float(f"{m:.3g}e{decade}") for decade in kept for m in mantissas)
        values = [value for value in candidates if low <= value <= high]
        if len(values) <= most:
            break
    return values
