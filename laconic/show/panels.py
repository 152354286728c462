"""What the figures of a comparison show, as numbers from its records: loss over rounds, seconds and
megabytes.

Legend: S seeds, T rounds, E looks at the test set.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laconic.show import metrics
from laconic.show.timing import Traffic, parse_link, round_seconds

Record = dict[str, Any]

# Okabe and Ito's colours, the strong ones first; their yellow is left out (invisible on white) and
# black is kept for the reference. Dashes and markers tell the same lines apart in greyscale: 24
# pairs.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ((), (5, 1.6), (5, 1.6, 1.2, 1.6), (1.8, 1.4), (9, 2.4), (5, 1.6, 1.2, 1.6, 1.2, 1.6))
MARKERS = ("", "o", "s", "^")
INK, GRID = "#1b1e23", "#dfe2e7"
LONGEST = 44  # characters of a label in a legend
# in a page these four follow its light or dark theme
THEMED = {
    INK: "currentColor",
    GRID: "var(--line)",
    COLOURS[0]: "var(--blue)",
    COLOURS[5]: "var(--sky)",
}


@dataclass(frozen=True)
class Style:
    """How one method looks in every figure; no marker is ""."""

    colour: str
    dashes: tuple[float, ...]
    marker: str


@dataclass(frozen=True)
class Curve:
    """One method in one panel: y and its standard error at x, NaN where there is nothing to draw."""

    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray
    diverged: bool


@dataclass(frozen=True)
class Panel:
    """One axes: what it shows in words, its labels and scales, and a curve for each method that has
    one."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = True
    target: float | None = None


def themed(text: str) -> str:
    """Markup in fixed colours → in the page's."""
    for fixed, variable in THEMED.items():
        text = text.replace(fixed, variable)
    return text


def of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    """The records of one kind, in order."""
    return [record for record in records if record.get("kind") == kind]


def styles(records: Sequence[Record]) -> list[Style]:
    """One style a method: the reference in black, the others in colours; dashes and markers all
    differ."""
    reference = next((s["reference"] for s in of_kind(records, "summary")), None)
    result, used = [], 0
    for i, method in enumerate(of_kind(records, "method")):
        is_reference = method["label"] == reference
        colour = INK if is_reference else COLOURS[used % len(COLOURS)]
        used += not is_reference
        result.append(
            Style(colour, DASHES[i % len(DASHES)], MARKERS[i // len(DASHES) % len(MARKERS)])
        )
    return result


def legend_label(method: Record) -> str:
    """A method's label, shortened if need be, and how many of its seeds diverged."""
    label, seeds = drawable(method["label"]), len(method["diverged"])
    label = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
    bad = sum(method["diverged"])
    return label + (
        f" (diverged: {bad} of {seeds} seeds)" if 0 < bad < seeds else " (diverged)" if bad else ""
    )


def drawable(label: str) -> str:
    """The label without control characters, which neither XML nor a font can hold."""
    return "".join(character if character.isprintable() else " " for character in label)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Train loss against rounds, what was held out, and, where a link is given, train loss against
    seconds on it."""
    found = [rounds_panel(records), heldout_panel(records), seconds_panel(records)]
    return [panel for panel in found if panel is not None]


def rounds_panel(records: Sequence[Record]) -> Panel:
    """Smoothed train loss against communication rounds."""
    ones = [1.0 for _ in of_kind(records, "method")]
    return _train_panel(
        records, ("rounds", "Training loss", "communication rounds"), ones, log_x=False
    )


def seconds_panel(records: Sequence[Record]) -> Panel | None:
    """Smoothed train loss against seconds on the run's link; None without a link or any step time."""
    seconds = seconds_per_round(records)
    if not any(seconds):
        return None
    label = f"seconds on a {of_kind(records, 'run')[0]['config']['link']} link"
    return _train_panel(records, ("seconds", "Training loss over time", label), seconds, log_x=True)


def bits_panel(records: Sequence[Record]) -> Panel:
    """Smoothed train loss against megabytes sent; methods that send nothing have no place on its
    log axis."""
    megabytes = [method["traffic"]["sent_bits"] / 8e6 for method in of_kind(records, "method")]
    words = ("bits", "Training loss over traffic", "megabytes sent per worker")
    return _train_panel(records, words, megabytes, log_x=True)


def heldout_panel(records: Sequence[Record]) -> Panel | None:
    """Test accuracy, or test loss where there is none, against rounds; None without test data."""
    methods = of_kind(records, "method")
    key = next((k for k in ("accuracy", "loss") if any(k in m["heldout"] for m in methods)), None)
    if key is None:
        return None
    scale, curves = (100.0 if key == "accuracy" else 1.0), []
    for method, style in zip(methods, styles(records), strict=True):
        if key in method["heldout"]:
            values_SE = scale * metrics.checked_curves(method["heldout"][key])
            at_E = np.asarray(method["evaluated_at"])
            broken_T = ~np.isfinite(metrics.mean_curve(method["train"]))
            # a network of NaNs still has an accuracy, that of its first class: it means nothing
            alive_E = np.array([not broken_T[:at].any() for at in at_E])
            y_E = np.where(alive_E, metrics.mean_curve(values_SE), np.nan)
            error_E = metrics.standard_error(values_SE)
            curves.append(
                Curve(
                    method["label"],
                    style,
                    at_E.astype(float),
                    y_E,
                    error_E,
                    any(method["diverged"]),
                )
            )
    y_label = "test accuracy, %" if key == "accuracy" else "test loss"
    return Panel(
        "heldout",
        f"Test {key}",
        "communication rounds",
        y_label,
        tuple(curves),
        log_y=key == "loss",
    )


def _train_panel(
    records: Sequence[Record],
    words: tuple[str, str, str],
    per_round: Sequence[float | None],
    log_x: bool,
) -> Panel:
    """Smoothed loss at rounds × `per_round`, for the methods where that is neither 0 nor None.

    The band is the standard error over seeds of each seed's smoothed curve, like the error of the
    final loss.
    """
    curves, window = [], 1
    for method, style, cost in zip(
        of_kind(records, "method"), styles(records), per_round, strict=True
    ):
        curves_ST = metrics.checked_curves(method["train"])
        window = max(window, min(metrics.WINDOW, curves_ST.shape[1]))
        if cost:
            y_T = metrics.smoothed(metrics.mean_curve(curves_ST))
            error_T = metrics.standard_error([metrics.smoothed(curve_T) for curve_T in curves_ST])
            x_T = np.arange(1, y_T.size + 1) * cost
            curves.append(Curve(method["label"], style, x_T, y_T, error_T, any(method["diverged"])))
    target = next((s["target_loss"] for s in of_kind(records, "summary")), None)
    return Panel(
        *words,
        f"train loss (trailing {window}-round mean)",
        tuple(curves),
        log_x=log_x,
        target=target,
    )


def traffic_differs(records: Sequence[Record]) -> bool:
    """Whether the methods that send anything send different amounts, so that rounds alone mislead."""
    return len({m["traffic"]["sent_bits"] for m in of_kind(records, "method")} - {0}) > 1


def seconds_per_round(records: Sequence[Record]) -> list[float | None]:
    """Seconds of a round of each method on the run's link; None without a link or a step time."""
    text = of_kind(records, "run")[0]["config"]["link"]
    link = None if text is None else parse_link(text)
    return [
        None
        if link is None or m["step_seconds"] is None
        else round_seconds(link, Traffic(**m["traffic"]), m["local_steps"], m["step_seconds"])
        for m in of_kind(records, "method")
    ]


def round_values(low: float, high: float, most: int) -> list[float]:
    """Up to `most` round numbers in [low, high], both positive, ascending: the finest pattern that
    fits."""
    fine = [np.arange(100, 1000, step) / 100 for step in (1, 2, 5, 10, 20, 50, 100)]
    patterns = [(mantissas, 1) for mantissas in [*fine, (1, 2, 3, 5, 7), (1, 2, 5), (1, 3)]]
    patterns += [((1,), every) for every in range(1, 700)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values: list[float] = []
    for mantissas, every in patterns:
        candidates = (
            float(f"{m:.3g}e{decade}")
            for decade in decades
            if decade % every == 0
            for m in mantissas
        )
        values = [value for value in candidates if low <= value <= high]
        if len(values) <= most:
            break
    return values
