"""Drawing panels and bars, and writing figures as PNG and SVG.

- `grid_figure`: panels and bars in columns under a title, with one legend; `columns=1` for a phone.
- `panel_figure`: one panel for inside a page.
- `png_bytes`, `svg_bytes`: a figure as a file; `webp_bytes`: small, for a page of many.
- For drawings of your own, inside `with plot_style():` — `axes_grid` (figure and axes under a
  title), `draw_panel`, `draw_bars`, `finish_axes`, `round_ticks`, `add_legend`.

Matplotlib is imported on first use and only as Figure objects, so nothing global changes. Nothing
is ever drawn outside its axes, which is why no artist is clipped: inside a page the SVG then needs
no references among its parts.
"""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.show.curves import GRID, INK, Curve, Panel, Style, round_values
from laconic.show.table import MISSING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PNG_DOTS, WEBP_DOTS = 160, 88  # an inch
WEBP_COLOURS = 64  # enough for letters and lines; few colours pack smaller than blurring would
CEILING = 3.0  # a loss that many times the one at the start is off the chart
CELL = (4.6, 3.4)  # inches of one axes of a grid
WIDEST = 46  # letters of a title's line above it
DOTTED = {"linewidth": 0.9, "linestyle": ":", "clip_on": False}
TARGET = Style(INK, (1.0, 1.65))
DIAMOND = {"color": "white", "markeredgecolor": INK, "marker": "D", "markersize": 4}
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


@dataclass(frozen=True)
class Bar:
    """A value ± its error beside a reference value ± its own; no value is drawn as "–". An error
    may be two numbers, down and up."""

    group: int
    label: str
    value: float | None
    error: float | tuple[float, float] | None = None
    reference: float | None = None
    reference_error: float | None = None


@dataclass(frozen=True)
class Bars:
    """One axes of bars in groups, coloured by label; reference values are diamonds."""

    title: str
    y_label: str
    groups: Sequence[str]
    bars: Sequence[Bar]
    styles: Mapping[str, Style]


# --- figures --------------------------------------------------------------------------------------


def grid_figure(
    shown: Sequence[Panel | Bars],
    legend: Sequence[tuple[Style, str]] = (),
    title: str = "",
    note: str = "",
    columns: int = 3,
) -> "Figure":
    """Panels and bars in `columns`, under a title with a line of `note` below, and one legend."""
    width = CELL[0] * min(columns, len(shown))
    across = _legend_columns(legend, width)
    with plot_style():
        below = 0.3 + 0.2 * math.ceil(len(legend) / across)
        figure, axes = axes_grid(len(shown), columns, title=title, note=note, extra=below)
        for ax, one in zip(axes, shown, strict=True):
            if isinstance(one, Bars):
                draw_bars(ax, one)
            else:
                draw_panel(ax, one)
                _title(ax, one.title)
        if legend:
            add_legend(figure, legend, across)
    return figure


def panel_figure(panel: Panel) -> "Figure":
    """One panel without title, legend or background, at a size that still reads on a phone."""
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(figsize=(3.7, 2.85), layout="constrained", facecolor="none")
        draw_panel(figure.subplots(subplot_kw={"facecolor": "none"}), panel)
    return figure


def axes_grid(
    count: int,
    columns: int = 3,
    cell: tuple[float, float] = CELL,
    title: str = "",
    note: str = "",
    extra: float = 0.0,
) -> tuple["Figure", list["Axes"]]:
    """A figure of `count` axes in `columns`, `extra` inches higher; call it inside `plot_style`."""
    from matplotlib.figure import Figure

    across = min(columns, count)
    down = math.ceil(count / across)
    least = 0.0
    if title:
        least = 4.6 if columns == 1 else 6.4
        extra += 0.4
    size = (max(cell[0] * across, least), cell[1] * down + extra)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr]
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for ax in axes[count:]:
        ax.set_axis_off()
    if title:
        letters = 8.5 if columns == 1 else 11
        text = f"{title}\n{note}" if note else title
        figure.suptitle(text, fontsize=letters, fontweight="bold", parse_math=False)
    return figure, axes[:count]


@contextmanager
def plot_style() -> Iterator[None]:
    """Our settings over matplotlib's defaults, whatever the user configured; undone afterwards."""
    import matplotlib.style

    with matplotlib.style.context(["default", RC]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # labels in any script
        yield


def png_bytes(figure: "Figure") -> bytes:
    """The figure as PNG."""
    return _saved(figure, "png", dpi=PNG_DOTS, metadata={"Software": None})


def webp_bytes(figure: "Figure") -> bytes:
    """The figure as a small lossless WebP of a few colours, for a page of many."""
    from PIL import Image

    drawn = Image.open(io.BytesIO(_saved(figure, "png", dpi=WEBP_DOTS))).convert("RGB")
    few = drawn.quantize(WEBP_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few.convert("RGB").save(buffer, "webp", lossless=True, quality=100, method=6)
    return buffer.getvalue()


def svg_bytes(figure: "Figure") -> bytes:
    """The figure as an SVG file."""
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    return _saved(figure, "svg", dpi=PNG_DOTS, metadata=metadata)


def _saved(figure: "Figure", kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with plot_style():
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def add_legend(
    figure: "Figure", entries: Sequence[tuple[Style, str]], columns: int | None = None
) -> None:
    """A legend below the figure: a sample of each line and its label, as it is written."""
    columns = columns or _legend_columns(entries, figure.get_figwidth())
    where = {"loc": "outside lower center", "ncols": columns, "columnspacing": 1.8}
    _legend(figure, entries, where)


def _legend_columns(entries: Sequence[tuple[Style, str]], width: float) -> int:
    longest = max((len(label) for _, label in entries), default=1)
    return max(1, min(len(entries), int(width * 72 / (48 + 5.6 * longest))))


def _legend(owner: Any, entries: Sequence[tuple[Style, str]], options: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **line_options(style)) for style, _ in entries]
    stand_ins = [str(i) for i in range(len(entries))]  # a legend drops "_x" and parses "$x$"
    legend = owner.legend(handles, stand_ins, frameon=False, handlelength=3.6, **options)
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def line_options(style: Style) -> dict[str, Any]:
    """What matplotlib calls a style."""
    if style == TARGET:
        return {"color": INK, "linewidth": 0.9, "linestyle": ":"}
    line = (0, style.dashes) if style.dashes else "-"
    look = {"color": style.colour, "linewidth": 1.7, "linestyle": line}
    return look | {"marker": style.marker, "markersize": 4}


# --- axes -----------------------------------------------------------------------------------------


def draw_panel(ax: "Axes", panel: Panel) -> None:
    """The panel's curves, bands, marks, target, ticks and labels, but not its title."""
    bottom, top, log_y = _limits(panel)
    for i, curve in enumerate(panel.curves):
        _draw_curve(ax, curve, f"{panel.name}-method-{i}", bottom, top)
    drawn = np.concatenate([c.x[np.isfinite(c.y)] for c in panel.curves] or [np.ones(1)])
    left = float(drawn.min()) if drawn.size else 1.0
    right = float(drawn.max()) if drawn.size else 10.0
    if panel.log_x:
        ax.set_xscale("log")
    elif panel.from_zero:
        left = 0.0
    ax.set_xlim(left, max(right, 1.1 * left))
    if log_y:
        ax.set_yscale("log")
    ax.set_ylim(bottom, top)
    if panel.log_x:
        round_ticks(ax.xaxis, *ax.get_xlim())
    if log_y:
        round_ticks(ax.yaxis, bottom, top)
    if panel.target is not None and bottom <= panel.target <= top:
        _dotted(ax, panel.target, INK).set_gid(f"{panel.name}-target")
    for curve in panel.curves:
        if curve.level is not None and bottom <= curve.level <= top:
            _dotted(ax, curve.level, curve.style.colour)
    if panel.key:
        _legend(ax, panel.key, {"fontsize": 7})
    finish_axes(ax, panel.x_label, panel.y_label)


def draw_bars(ax: "Axes", bars: Bars) -> None:
    """Bars ± errors, reference values as diamonds, "–" where there is no value."""
    labels = list(bars.styles)
    width = 0.8 / len(labels)
    for bar in bars.bars:
        at = bar.group + (labels.index(bar.label) - (len(labels) - 1) / 2) * width
        if bar.value is None:
            ax.text(at, 0, MISSING, ha="center", va="bottom", fontsize=7)
        else:
            look = {"color": bars.styles[bar.label].colour, "error_kw": {"lw": 0.8}}
            error = np.reshape(bar.error, (2, 1)) if isinstance(bar.error, tuple) else bar.error
            ax.bar(at, bar.value, width, yerr=error, **look)
        if bar.reference is not None:
            look = {"ecolor": INK, "elinewidth": 0.6, **DIAMOND}
            ax.errorbar(at, bar.reference, yerr=bar.reference_error, **look)
    names = [name.replace(", ", ",\n") for name in bars.groups]
    ax.set_xticks(range(len(names)), names, fontsize=6.5)
    ax.set_xlim(-0.5, len(names) - 0.5)  # also where a bar is missing
    _title(ax, bars.title)
    finish_axes(ax, "", bars.y_label, grid="y")


def finish_axes(
    ax: "Axes", x_label: str, y_label: str, title: str = "", grid: str = "both"
) -> None:
    """Labels, a title flush left, and a faint grid behind everything."""
    ax.set_xlabel(x_label, parse_math=False)
    ax.set_ylabel(y_label, parse_math=False)
    if title:
        _title(ax, title)
    ax.grid(color=GRID, linewidth=0.7, clip_on=False, axis=grid)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    ax.tick_params(length=3, width=0.8)


def round_ticks(axis: Any, low: float, high: float) -> None:
    """Up to six round numbers, written plainly, on a log axis."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if low <= 0:
        return
    plainly = FuncFormatter(lambda value, _: re.sub(r"e([+-])0?", r"e\1", f"{value:g}"))
    axis.set_major_locator(FixedLocator(round_values(low, high, most=6)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(plainly)


def _title(ax: "Axes", text: str) -> None:
    broken = "\n".join(textwrap.wrap(text, WIDEST))
    ax.set_title(broken, loc="left", fontsize=10, fontweight="bold", pad=10, parse_math=False)


def _dotted(ax: "Axes", height: float, colour: str) -> Any:
    return ax.plot(ax.get_xlim(), (height, height), color=colour, **DOTTED)[0]


def _draw_curve(ax: "Axes", curve: Curve, name: str, bottom: float, top: float) -> None:
    y = np.where(curve.y <= top, curve.y, np.nan)
    line = ax.plot(curve.x, y, **line_options(curve.style), clip_on=False, zorder=3)[0]
    line.set_gid(name)
    line.set_markevery(max(1, y.size // 8))
    finite = np.flatnonzero(np.isfinite(y))
    if not finite.size:
        return
    if finite.size <= 3:  # so few points have hardly a line to be seen by
        line.set(marker="o", markersize=5, markevery=1)
    _draw_band(ax, curve, finite, bottom, top)
    _mark_ends(ax, curve, y, name)


def _mark_ends(ax: "Axes", curve: Curve, y: np.ndarray, name: str) -> None:
    """A triangle where a curve first leaves the chart upwards, a cross where it diverged."""
    drawn = np.flatnonzero(np.isfinite(y))
    above = np.flatnonzero(np.isfinite(curve.y) & ~np.isfinite(y))
    leaves = drawn[drawn < above[0]][-1:] if above.size else drawn[:0]
    ends = drawn[-1:] if curve.diverged else drawn[:0]
    for marker, at in (("^", np.setdiff1d(leaves, ends)), ("x", ends)):
        if at.size:
            look = {"color": curve.style.colour, "marker": marker, "markersize": 7}
            mark = ax.plot(curve.x[at], y[at], **look, markeredgewidth=2, clip_on=False, zorder=4)
            mark[0].set_gid(f"{name}-end")


def _draw_band(ax: "Axes", curve: Curve, finite: np.ndarray, bottom: float, top: float) -> None:
    """Mean ± error at up to 300 of the points: a band needs no more, and the file stays small."""
    if not (curve.error[finite] > 0).any():
        return  # one seed has no band; where seeds agree for once it is thin, not gone
    ends = (finite[0] + 1, finite[-1] + 1)
    spaced = np.r_[np.linspace(*ends, 150), np.geomspace(*ends, 150)].round().astype(int) - 1
    at = np.intersect1d(spaced, finite[curve.error[finite] >= 0])
    low, high = (np.clip(curve.y[at] + sign * curve.error[at], bottom, top) for sign in (-1, 1))
    look = {"color": curve.style.colour, "alpha": 0.16, "linewidth": 0, "clip_on": False}
    ax.fill_between(curve.x[at], low, high, **look)


def _limits(panel: Panel) -> tuple[float, float, bool]:
    """(bottom, top, is y a log axis): all values and the target, no loss above a ceiling."""
    finite = [curve.y[np.isfinite(curve.y)] for curve in panel.curves]
    starts = [values[0] for values in finite if values.size]
    if not starts:
        return 0.1, 1.0, panel.log_y
    shown = np.concatenate(finite)
    start = float(np.median(starts))
    log_y = panel.log_y and bool(shown.min() > 0)
    if panel.log_y and panel.ceiling:
        shown = shown[shown <= start + (CEILING - 1) * max(abs(start), start - shown.min())]
    elif not panel.log_y:  # the band is shown whole
        bands = [c.y + sign * c.error for c in panel.curves for sign in (-1, 1)]
        shown = np.concatenate([shown, *(band[np.isfinite(band)] for band in bands)])
    low, high = float(shown.min()), float(shown.max())
    far = log_y and panel.target is not None and panel.target <= low / 10
    if panel.target is not None and not far:  # a far one would squash the curves
        low = min(low, panel.target)
    if log_y:
        margin = max(high / low, 1.1) ** 0.04
        return low / margin, high * margin, True
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin, False
