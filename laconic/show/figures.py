"""Drawing the panels of a comparison, and writing them as PNG and SVG.

Matplotlib is imported on first use and only as Figure objects, so nothing global changes. Nothing
is ever drawn outside its axes, which is why no artist is clipped: inside a page the SVG then needs
no references among its parts.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.show.panels import (
    GRID,
    INK,
    Curve,
    Panel,
    Record,
    Style,
    bits_panel,
    legend_label,
    of_kind,
    panels,
    round_values,
    styles,
)
from laconic.show.summary import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CEILING = 3.0  # a loss that many times the one at the start is off the chart
TARGET_LINE = {"color": INK, "linewidth": 0.9, "linestyle": ":"}
RC = {
    "font.size": 9.0,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "path.simplify_threshold": 0.25,  # of a point: long runs keep their shape in fewer of them
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
    "svg.hashsalt": "laconic",  # the same records give the same bytes
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
}


def curves_figure(records: Sequence[Record]) -> "Figure":
    """All panels side by side, with one legend below them."""
    return _figure(records, panels(records))


def loss_against_bits_figure(records: Sequence[Record]) -> "Figure":
    """Train loss against megabytes sent per worker, with a legend below."""
    return _figure(records, [bits_panel(records)])


def panel_figure(panel: Panel) -> "Figure":
    """One panel alone on no background, without title or legend, at a size that still reads on a
    phone."""
    from matplotlib.figure import Figure

    with our_style():
        figure = Figure(figsize=(3.7, 2.85), layout="constrained", facecolor="none")
        _draw(figure.subplots(subplot_kw={"facecolor": "none"}), panel)
    return figure


def titled_figure(panel: Panel) -> "Figure":
    """One panel as a picture that stands alone, under its title."""
    from matplotlib.figure import Figure

    with our_style():
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        _draw(figure.subplots(), panel)
        figure.suptitle(panel.title, fontsize=10)
    return figure


def png_bytes(figure: "Figure") -> bytes:
    """The figure as PNG, 160 dots an inch."""
    return _saved(figure, "png", {"Software": None})


def svg_bytes(figure: "Figure") -> bytes:
    """The figure as an SVG file."""
    return _saved(figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None})


# --- figures --------------------------------------------------------------------------------------


@contextmanager
def our_style() -> Iterator[None]:
    """Our settings on top of matplotlib's own defaults, whatever the user has configured; undone on
    the way out."""
    import matplotlib.style

    with matplotlib.style.context(["default", RC]), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # a label may be in any script
        yield


def _saved(figure: "Figure", kind: str, metadata: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with our_style():
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def _figure(records: Sequence[Record], shown: Sequence[Panel]) -> "Figure":
    from matplotlib.figure import Figure

    labels = [legend_label(method) for method in of_kind(records, "method")]
    entries = [
        (_line_options(style), label) for style, label in zip(styles(records), labels, strict=True)
    ]
    target = shown[0].target
    if target is not None:
        entries.append((TARGET_LINE, f"target {number(target)}"))
    width = 4.6 * len(shown)
    columns = max(
        1, min(len(entries), int(width * 72 / (48 + 5.6 * max(len(label) for _, label in entries))))
    )
    with our_style():
        height = 3.7 + 0.2 * math.ceil(len(entries) / columns)
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr]
        for panel, ax in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
            _draw(ax, panel)
            ax.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", pad=10)
        _add_legend(figure, entries, columns)
    return figure


def _add_legend(
    figure: "Figure", entries: Sequence[tuple[dict[str, Any], str]], columns: int
) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **options) for options, _ in entries]
    names = [
        str(i) for i in range(len(entries))
    ]  # stand-ins: a legend drops a label such as "_x" and parses "$x$"
    legend = figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.6,
        columnspacing=1.8,
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def _line_options(style: Style) -> dict[str, Any]:
    line = (0, style.dashes) if style.dashes else "-"
    return {
        "color": style.colour,
        "linewidth": 1.7,
        "linestyle": line,
        "marker": style.marker,
        "markersize": 4,
    }


# --- axes -----------------------------------------------------------------------------------------


def _draw(ax: "Axes", panel: Panel) -> None:
    bottom, top, log_y = _limits(panel)
    for i, curve in enumerate(panel.curves):
        _draw_curve(ax, curve, f"{panel.name}-method-{i}", bottom, top)
    drawn = np.concatenate(
        [curve.x[np.isfinite(curve.y)] for curve in panel.curves] or [np.ones(1)]
    )
    left, right = (float(drawn.min()), float(drawn.max())) if drawn.size else (1.0, 10.0)
    if panel.log_x:
        ax.set_xscale("log")
        ax.set_xlim(left, max(right, 1.1 * left))
    else:
        ax.set_xlim(0, right)
    if log_y:
        ax.set_yscale("log")
    ax.set_ylim(bottom, top)
    _label_axes(ax, panel, log_y)
    if panel.target is not None and bottom <= panel.target <= top:
        line = ax.plot(ax.get_xlim(), (panel.target, panel.target), **TARGET_LINE, clip_on=False)
        line[0].set_gid(f"{panel.name}-target")


def _draw_curve(ax: "Axes", curve: Curve, name: str, bottom: float, top: float) -> None:
    y = np.where(curve.y <= top, curve.y, np.nan)
    line = ax.plot(curve.x, y, **_line_options(curve.style), clip_on=False, zorder=3)[0]
    line.set_gid(name)
    line.set_markevery(max(1, y.size // 8))
    finite = np.flatnonzero(np.isfinite(y))
    if not finite.size:
        return
    if finite.size == 1:  # a point has no line to be seen by
        line.set(marker="o", markersize=5, markevery=1)
    _draw_band(ax, curve, finite, bottom, top)
    if curve.diverged:
        breaks = np.flatnonzero(np.diff(finite) > 1)
        end = finite[breaks[0] if breaks.size else -1]
        options = {
            "color": curve.style.colour,
            "marker": "x",
            "markersize": 7,
            "markeredgewidth": 2,
        }
        ax.plot(curve.x[end], y[end], **options, clip_on=False, zorder=4)[0].set_gid(f"{name}-end")


def _draw_band(ax: "Axes", curve: Curve, finite: np.ndarray, bottom: float, top: float) -> None:
    """Mean ± standard error, at up to 300 of the points: a band needs no more, and the file stays
    small."""
    first, last = finite[0] + 1, finite[-1] + 1
    chosen = (
        np.r_[np.linspace(first, last, 150), np.geomspace(first, last, 150)].round().astype(int) - 1
    )
    spread = (
        curve.error[finite] > 0
    ).any()  # where seeds agree for once the band is thin, not gone; one seed has none
    at = np.intersect1d(chosen, finite[curve.error[finite] >= 0] if spread else finite[:0])
    low, high = (np.clip(curve.y[at] + sign * curve.error[at], bottom, top) for sign in (-1, 1))
    ax.fill_between(
        curve.x[at], low, high, color=curve.style.colour, alpha=0.16, linewidth=0, clip_on=False
    )


def _limits(panel: Panel) -> tuple[float, float, bool]:
    """(bottom, top, whether the axis is a log one): all finite values and the target, but no loss
    above a ceiling."""
    finite = [curve.y[np.isfinite(curve.y)] for curve in panel.curves]
    starts = [values[0] for values in finite if values.size]
    if not starts:
        return 0.1, 1.0, panel.log_y
    shown, start = np.concatenate(finite), float(np.median(starts))
    log_y = panel.log_y and shown.min() > 0
    if panel.log_y:
        shown = shown[shown <= start + (CEILING - 1) * max(abs(start), start - shown.min())]
    low, high = float(shown.min()), float(shown.max())
    if panel.target is not None and (
        not log_y or panel.target > low / 10
    ):  # a far one would squash the curves
        low = min(low, panel.target)
    if log_y:
        margin = max(high / low, 1.1) ** 0.04
        return low / margin, high * margin, True
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin, False


def _label_axes(ax: "Axes", panel: Panel, log_y: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    for axis, log, limits in (
        (ax.xaxis, panel.log_x, ax.get_xlim()),
        (ax.yaxis, log_y, ax.get_ylim()),
    ):
        if log:
            axis.set_major_locator(FixedLocator(round_values(*limits, most=6)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(
                FuncFormatter(lambda value, _: re.sub(r"e([+-])0?", r"e\1", f"{value:g}"))
            )
    ax.set_xlabel(panel.x_label, parse_math=False)
    ax.set_ylabel(panel.y_label)
    ax.grid(color=GRID, linewidth=0.7, clip_on=False)
    ax.set_axisbelow(True)
    ax.tick_params(length=3, width=0.8)
