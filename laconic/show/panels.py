"""What the figures of a comparison show, as numbers from its records: loss over rounds, seconds and
megabytes.

Legend: S seeds, T rounds, E looks at the test set.
"""

# ruff: noqa: F401
from collections.abc import Sequence

import numpy as np

from laconic.show import metrics
from laconic.show.curves import (
    COLOURS,
    DASHES,
    GRID,
    INK,
    MARKERS,
    Curve,
    Panel,
    Record,
    Style,
    drawable,
    of_kind,
    round_values,
    themed,
)
from laconic.show.timing import Traffic, parse_link, round_seconds


LONGEST = 44  # characters of a label in a legend


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
