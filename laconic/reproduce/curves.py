"""The curves of an experiment's figure, as numbers from its panels' records.

Legend: S seeds, T rounds, E looks at the test set.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laconic.reproduce.experiment import Across, Experiment
from laconic.show import metrics
from laconic.show.curves import COLOURS, DASHES, INK, of_kind

Record = dict[str, Any]
Look = tuple[
    str, tuple[float, ...]
]  # a colour, and dashes where there are more labels than colours
REFERENCE, BOUND = ("Local SGD", "FedAvg"), "small-batch-sgd"


@dataclass(frozen=True)
class Line:
    """A mean over seeds and its error at x (or deviation); NaN where nothing is drawn. `level`: a
    dotted line.

    `diverged`: a seed's loss or weights stopped being numbers.
    """

    label: str
    colour: str
    dashes: tuple[float, ...]
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray
    level: float | None = None
    diverged: bool = False


@dataclass(frozen=True)
class Axes:
    """One axes of curves, and what its axes say. `key` tells panels apart where it has curves of
    several."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_y: bool
    key: tuple[tuple[str, Look], ...] = ()


X_LABELS = {"bits": "log₂ of the bits sent per worker"}
Y_LABELS = {"test-accuracy": "test accuracy, %", "test-loss": "test loss"}
KINDS = ("train", "bits", "test-accuracy", "test-loss", "bars")


def all_axes(experiment: Experiment, panels: Mapping[str, Sequence[Record]]) -> list[Axes]:
    """The axes of each panel, then those across panels; bars are drawn elsewhere."""
    looks = looks_of(panels)
    found = []
    for panel in experiment.panels:
        for kind in panel.shown:
            methods = of_kind(panels[panel.name], "method")
            lines = [_line(m, kind, m["label"], *looks[m["label"]]) for m in methods]
            if panel.band == "standard deviation":
                lines = [_deviating(line, m) for line, m in zip(lines, methods, strict=True)]
            found.append(_axes(panel.title, kind, lines))
    found += [
        _across(experiment, across, panels, looks)
        for across in experiment.across
        if across.kind != "bars"
    ]
    return found


def _deviating(line: Line | None, method: Record) -> Line | None:
    """The line with the standard deviation over seeds for its band."""
    return (
        None if line is None else replace(line, error=line.error * math.sqrt(len(method["train"])))
    )


def looks_of(panels: Mapping[str, Sequence[Record]]) -> dict[str, Look]:
    """One colour and dashes a label in the whole figure, the yardstick in black."""
    labels = dict.fromkeys(
        m["label"] for records in panels.values() for m in of_kind(records, "method")
    )
    others = [label for label in labels if label not in REFERENCE]
    n = len(COLOURS)
    looks = {
        label: (COLOURS[i % n], DASHES[i // n % len(DASHES)]) for i, label in enumerate(others)
    }
    return {label: looks.get(label, (INK, ())) for label in labels}


def _across(
    experiment: Experiment,
    across: Across,
    panels: Mapping[str, Sequence[Record]],
    looks: dict[str, Look],
) -> Axes:
    """Several panels in one axes: dashes tell them apart, and colours too where there is one label
    only."""
    lines, key, alone = [], [], across.labels is not None and len(across.labels) == 1
    for i, panel in enumerate(experiment.panels):
        dashes = DASHES[i % len(DASHES)]
        key.append((panel.title, (COLOURS[i % len(COLOURS)] if alone else INK, dashes)))
        for method in of_kind(panels[panel.name], "method"):
            label = method["label"]
            if across.labels is None or label in across.labels:
                colour = key[-1][1][0] if alone else looks[label][0]
                lines.append(_line(method, across.kind, f"{label}, {panel.title}", colour, dashes))
    return replace(_axes(across.title, across.kind, lines), key=tuple(key))


def _axes(title: str, kind: str, lines: Sequence[Line | None]) -> Axes:
    y_label = Y_LABELS.get(kind, f"train loss (trailing {metrics.WINDOW}-round mean)")
    kept = tuple(line for line in lines if line is not None)
    return Axes(
        title, X_LABELS.get(kind, "communication rounds"), y_label, kept, kind != "test-accuracy"
    )


def _line(
    method: Record, kind: str, label: str, colour: str, dashes: tuple[float, ...]
) -> Line | None:
    """A method's curve; None where it has none of that kind (no test data, or nothing sent)."""
    if kind.startswith("test-"):
        return _heldout(method, kind.removeprefix("test-"), label, colour, dashes)
    curves_ST = metrics.checked_curves(method["train"])
    y_T = metrics.smoothed(metrics.mean_curve(curves_ST))
    error_T = metrics.standard_error([metrics.smoothed(curve_T) for curve_T in curves_ST])
    x_T = np.arange(1, y_T.size + 1).astype(float)
    if kind == "bits":
        sent = method["traffic"]["sent_bits"]
        if not sent:
            return None
        x_T = np.log2(x_T * sent)
    level = float(y_T[-1]) if method["method"] == BOUND else None
    return Line(label, colour, dashes, x_T, y_T, error_T, level, any(method["diverged"]))


def _heldout(
    method: Record, what: str, label: str, colour: str, dashes: tuple[float, ...]
) -> Line | None:
    if what not in method["heldout"]:
        return None
    scale = 100.0 if what == "accuracy" else 1.0
    values_SE = scale * metrics.checked_curves(method["heldout"][what])
    at_E = np.asarray(method["evaluated_at"])
    broken_T = ~np.isfinite(metrics.mean_curve(method["train"]))
    alive_E = np.array(
        [not broken_T[:at].any() for at in at_E]
    )  # weights of NaN have an accuracy that means nothing
    y_E = np.where(alive_E, metrics.mean_curve(values_SE), np.nan)
    error_E, bad = metrics.standard_error(values_SE), any(method["diverged"])
    return Line(label, colour, dashes, at_E.astype(float), y_E, error_E, diverged=bad)
