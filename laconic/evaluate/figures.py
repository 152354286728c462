"""Drawing the panels of a comparison, and writing them as PNG, as SVG, and as SVG for inside a page.

Matplotlib is imported on first use and only as Figure objects, so nothing global changes. Nothing is ever drawn
outside its axes, which is why no artist is clipped: an inline SVG then needs no references between its parts.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from laconic.evaluate.panels import INK, Curve, Panel, Record, Style, bits_panel, of_kind, panels, round_values, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = "#dfe2e7"
CEILING = 10.0  # a loss that many times the one at the start is off the chart
LONGEST = 44  # characters of a label in a legend
RC = {
    "font.size": 9.0,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
    "svg.hashsalt": "laconic",  # the same records give the same bytes
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def curves_figure(records: Sequence[Record]) -> "Figure":
    """All panels side by side, with one legend below them."""
    return _figure(records, panels(records))


def loss_against_bits_figure(records: Sequence[Record]) -> "Figure":
    """Train loss against megabytes sent per worker, with a legend below."""
    return _figure(records, [bits_panel(records)])


def panel_figure(panel: Panel) -> "Figure":
    """One panel alone, without title or legend, at a size that still reads on a phone."""
    from matplotlib.figure import Figure

    with _our_style():
        figure = Figure(figsize=(4.1, 3.1), layout="constrained")
        _draw(figure.subplots(), panel)
    return figure


def png_bytes(figure: "Figure") -> bytes:
    """The figure as PNG, 160 dots an inch."""
    return _saved(figure, "png", {"Software": None})


def svg_bytes(figure: "Figure") -> bytes:
    """The figure as an SVG file."""
    return _saved(figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None})


def inline_svg(figure: "Figure", description: str) -> str:
    """The figure as an `<svg>` for inside a page: no ids or namespaces, in the page's own ink, grid colour and font."""
    root = ElementTree.fromstring(svg_bytes(figure))
    shapes = {f"#{node.get('id')}": node.get("d", "") for node in root.iter() if "id" in node.attrib}
    for parent in root.iter():
        for child in [c for c in parent if _bare(c.tag) in ("defs", "metadata", "style")]:
            parent.remove(child)
    for node in root.iter():
        node.tag = _bare(node.tag)
        if node.tag == "use":  # ticks and markers: one shape moved about; drawn out, so that no id is needed
            node.tag, href = "path", node.attrib.pop("{http://www.w3.org/1999/xlink}href")
            x, y = float(node.attrib.pop("x", 0)), float(node.attrib.pop("y", 0))
            node.set("transform", f"translate({_short(x)} {_short(y)})")
            node.set("d", shapes[href])
        node.attrib.pop("id", None)
        if "d" in node.attrib:
            node.set(
                "d", re.sub(r"-?\d+\.\d+", lambda match: _short(float(match[0])), " ".join(node.attrib["d"].split()))
            )
        if "style" in node.attrib:
            style = node.attrib["style"].replace(INK, "currentColor").replace(GRID, "var(--line)")
            node.set("style", re.sub(r"font: ([\d.]+)px [^;]*", r"font-size: \1px", style))
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-label": description, "stroke-linejoin": "round"}
    return ElementTree.tostring(root, encoding="unicode")


def drawable(label: str) -> str:
    """The label without control characters, which neither XML nor a font can hold."""
    return "".join(character if character.isprintable() else " " for character in label)


# --- figures ----------------------------------------------------------------------------------------------------------


@contextmanager
def _our_style() -> Iterator[None]:
    """Our settings on top of matplotlib's own defaults, whatever the user has configured; undone on the way out."""
    import matplotlib.style

    with matplotlib.style.context(["default", RC]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a label may be in any script
        yield


def _saved(figure: "Figure", kind: str, metadata: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with _our_style():
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _figure(records: Sequence[Record], shown: Sequence[Panel]) -> "Figure":
    from matplotlib.figure import Figure

    entries = [*zip(styles(records), map(legend_label, of_kind(records, "method")), strict=True)]
    width = 4.6 * len(shown)
    columns = max(1, min(len(entries), int(width * 72 / (48 + 5.6 * max(len(label) for _, label in entries)))))
    with _our_style():
        height = 3.7 + 0.2 * math.ceil(len(entries) / columns)
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        for panel, ax in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
            _draw(ax, panel)
            ax.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", pad=10)
        _add_legend(figure, entries, columns)
    return figure


def legend_label(method: Record) -> str:
    """A method's label, shortened if need be, and how many of its seeds diverged."""
    label, seeds = drawable(method["label"]), len(method["diverged"])
    label = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
    bad = sum(method["diverged"])
    return label + (f" (diverged: {bad} of {seeds} seeds)" if 0 < bad < seeds else " (diverged)" if bad else "")


def _add_legend(figure: "Figure", entries: Sequence[tuple[Style, str]], columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_line_options(style)) for style, _ in entries]
    names = [str(i) for i in range(len(entries))]  # stand-ins: a legend drops a label such as "_x" and parses "$x$"
    legend = figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.6, columnspacing=1.8
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def _line_options(style: Style) -> dict[str, Any]:
    line = (0, style.dashes) if style.dashes else "-"
    return {"color": style.colour, "linewidth": 1.6, "linestyle": line, "marker": style.marker, "markersize": 4}


# --- axes -------------------------------------------------------------------------------------------------------------


def _draw(ax: "Axes", panel: Panel) -> None:
    bottom, top, log_y = _limits(panel)
    for i, curve in enumerate(panel.curves):
        _draw_curve(ax, curve, f"{panel.name}-method-{i}", bottom, top)
    drawn = np.concatenate([curve.x[np.isfinite(curve.y)] for curve in panel.curves] or [np.ones(1)])
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
        line = ax.plot(
            ax.get_xlim(), (panel.target, panel.target), color=INK, linewidth=0.9, linestyle=":", clip_on=False
        )
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
        options = {"color": curve.style.colour, "marker": "x", "markersize": 7, "markeredgewidth": 2}
        ax.plot(curve.x[end], y[end], **options, clip_on=False, zorder=4)[0].set_gid(f"{name}-end")


def _draw_band(ax: "Axes", curve: Curve, finite: np.ndarray, bottom: float, top: float) -> None:
    """Mean ± standard error, at up to 300 of the points: a band needs no more, and the file stays small."""
    first, last = finite[0] + 1, finite[-1] + 1
    chosen = np.r_[np.linspace(first, last, 150), np.geomspace(first, last, 150)].round().astype(int) - 1
    at = np.intersect1d(chosen, finite[curve.error[finite] > 0])
    low, high = (np.clip(curve.y[at] + sign * curve.error[at], bottom, top) for sign in (-1, 1))
    ax.fill_between(curve.x[at], low, high, color=curve.style.colour, alpha=0.16, linewidth=0, clip_on=False)


def _limits(panel: Panel) -> tuple[float, float, bool]:
    """(bottom, top, whether the axis is a log one): all finite values and the target, but no loss above a ceiling."""
    finite = [curve.y[np.isfinite(curve.y)] for curve in panel.curves]
    starts = [values[0] for values in finite if values.size]
    if not starts:
        return 0.1, 1.0, panel.log_y
    shown = np.concatenate(finite)
    log_y = panel.log_y and shown.min() > 0
    if log_y:
        shown = shown[shown <= CEILING * np.median(starts)]
    low = min(shown.min(), panel.target or shown.min())
    if log_y:
        margin = max(shown.max() / low, 1.1) ** 0.04
        return float(low / margin), float(shown.max() * margin), True
    margin = 0.04 * (shown.max() - low) or 0.5
    return float(low - margin), float(shown.max() + margin), False


def _label_axes(ax: "Axes", panel: Panel, log_y: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    for axis, log, limits in ((ax.xaxis, panel.log_x, ax.get_xlim()), (ax.yaxis, log_y, ax.get_ylim())):
        if log:
            axis.set_major_locator(FixedLocator(round_values(*limits, most=6)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: re.sub(r"e([+-])0?", r"e\1", f"{value:g}")))
    ax.set_xlabel(panel.x_label, parse_math=False)
    ax.set_ylabel(panel.y_label)
    ax.grid(color=GRID, linewidth=0.7, clip_on=False)
    ax.set_axisbelow(True)
    ax.tick_params(length=3, width=0.8)
