"""Drawing an experiment: a grid of axes with means ± standard errors, bars beside the paper's
numbers, one legend."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.reproduce import outcome
from laconic.reproduce.curves import Axes, Line, Look, all_axes, looks_of
from laconic.reproduce.draw_timings import timings_figure
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.mixes import mixes_figure
from laconic.show.curves import COLOURS, GRID, INK, round_values
from laconic.show.figures import CEILING, plot_style
from laconic.show.table import MISSING

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

Record = dict[str, Any]
COLUMNS, LEGEND_COLUMNS = 3, 4
SWEPT: dict[
    str, tuple[str, dict[str, Any]]
] = {  # of a sweep's row: what it is, and a look that shows it below another
    "loss": ("best point found here", {"marker": "o", "color": COLOURS[0], "markersize": 7}),
    "paper_loss": (
        "the paper's values, here",
        {"marker": "D", "color": COLOURS[1], "markersize": 3.5},
    ),
}


def experiment_figure(
    experiment: Experiment,
    panels: Mapping[str, Sequence[Record]],
    rows: Sequence[Record],
    note: str = "",
    columns: int = COLUMNS,
) -> "Figure":
    """Every axes of the experiment, in 3 columns or, for a phone, in 1; `note` is a line below its
    title.

    Where every panel has two axes there are two columns, so that they stand side by side.
    """
    from matplotlib.figure import Figure

    if experiment.timings:
        return timings_figure(experiment, rows, note, min(columns, 2))
    if experiment.mixes:
        return mixes_figure(experiment.title, rows, note, min(columns, 2))
    if experiment.sweeps:
        return _sweeps_figure(experiment, rows, note)
    if columns == COLUMNS and {len(panel.shown) for panel in experiment.panels} == {2}:
        columns = 2
    shown = all_axes(experiment, panels)
    bars = [across for across in experiment.across if across.kind == "bars"]
    across = min(columns, len(shown) + len(bars))
    down = math.ceil((len(shown) + len(bars)) / across)
    looks = looks_of(panels)
    least, entries, letters = (4.6, 2, 8.5) if columns == 1 else (6.4, LEGEND_COLUMNS, 11)
    with plot_style():
        size = (4.4 * across, 3.4 * down + 0.5 + 0.22 * math.ceil(len(looks) / entries))
        figure = Figure(
            figsize=(max(size[0], least), size[1]), layout="constrained", facecolor="white"
        )
        plots = figure.subplots(down, across, squeeze=False).ravel()
        for plot, axes in zip(plots, shown, strict=False):
            draw_axes(plot, axes)
        for plot, bar in zip(plots[len(shown) :], bars, strict=False):
            draw_bars(plot, bar.title, experiment, rows, looks)
        for plot in plots[len(shown) + len(bars) :]:
            plot.set_axis_off()
        _title(figure, experiment, note, letters)
        _legend(figure, looks, entries)
    return figure


def _title(figure: "Figure", experiment: Experiment, note: str, letters: float = 11) -> None:
    text = experiment.title + (f"\n{note}" if note else "")
    figure.suptitle(text, fontsize=letters, fontweight="bold", parse_math=False)


def _legend(figure: "Figure", looks: Mapping[str, Look], columns: int = LEGEND_COLUMNS) -> None:
    handles, where = _handles(looks.items()), "outside lower center"
    figure.legend(handles=handles, loc=where, ncols=columns, frameon=False, handlelength=3)


def _handles(looks: Iterable[tuple[str, Look]]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=(0, dashes) if dashes else "-",
            linewidth=1.9,
            label=label,
        )
        for label, (colour, dashes) in looks
    ]


# --- curves ---------------------------------------------------------------------------------------


def draw_axes(plot: "Plot", axes: Axes) -> None:
    """Curves with bands; a loss far above where training starts is off the chart."""
    top = _ceiling(axes)
    for line in axes.lines:
        _draw_line(plot, line, top)
    values = np.concatenate(
        [line.y[np.isfinite(line.y) & (line.y <= top)] for line in axes.lines] or [np.ones(0)]
    )
    if axes.log_y and values.size and values.min() > 0:
        plot.set_yscale("log")
        margin = max(values.max() / values.min(), 1.1) ** 0.04
        plot.set_ylim(values.min() / margin, values.max() * margin)
        _round_ticks(plot)
    plot.set_title(axes.title, loc="left", fontsize=10, fontweight="bold", parse_math=False)
    plot.set_xlabel(axes.x_label)
    plot.set_ylabel(axes.y_label)
    plot.grid(color=GRID, linewidth=0.7)
    plot.set_axisbelow(True)
    if axes.key:
        plot.legend(handles=_handles(axes.key), fontsize=7, frameon=False, handlelength=3.2)


def _draw_line(plot: "Plot", line: Line, top: float) -> None:
    y = np.where(line.y <= top, line.y, np.nan)
    style = (0, line.dashes) if line.dashes else "-"
    options = {"color": line.colour, "linewidth": 1.6, "linestyle": style, "label": line.label}
    marker = "o" if np.isfinite(y).sum() <= 3 else ""
    plot.plot(line.x, y, **options, marker=marker, markersize=3)
    drawn = (
        np.isfinite(y) & (line.error >= 0) & (line.error > 0).any()
    )  # thin where seeds agree for once, not gone
    low, high = (
        np.where(drawn, np.minimum(y + sign * line.error, top), np.nan) for sign in (-1, 1)
    )
    plot.fill_between(line.x, low, high, color=line.colour, alpha=0.16, linewidth=0)
    if line.level is not None and line.level <= top:
        plot.axhline(line.level, color=line.colour, linewidth=0.9, linestyle=":")
    _mark_ends(plot, line, y)


def _mark_ends(plot: "Plot", line: Line, y: np.ndarray) -> None:
    """A triangle where a curve first leaves the chart upwards, a cross where it stops being a
    number."""
    drawn = np.flatnonzero(np.isfinite(y))
    above = np.flatnonzero(np.isfinite(line.y) & ~np.isfinite(y))
    leaves = drawn[drawn < above[0]] if above.size else drawn[:0]
    for marker, before in (("^", leaves), ("x", drawn if line.diverged else drawn[:0])):
        if before.size:
            at = before[-1:]
            plot.plot(
                line.x[at], y[at], marker, color=line.colour, markersize=6, markeredgewidth=1.6
            )


def _ceiling(axes: Axes) -> float:
    finite = [line.y[np.isfinite(line.y)] for line in axes.lines]
    starts = [values[0] for values in finite if values.size]
    return CEILING * float(np.median(starts)) if axes.log_y and starts else math.inf


def _round_ticks(plot: "Plot") -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    plot.yaxis.set_major_locator(FixedLocator(round_values(*plot.get_ylim(), most=6)))
    plot.yaxis.set_minor_locator(NullLocator())
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


# --- bars -----------------------------------------------------------------------------------------


def draw_bars(
    plot: "Plot",
    title: str,
    experiment: Experiment,
    rows: Sequence[Record],
    looks: Mapping[str, Look],
) -> None:
    """The first metric of each panel as bars ± errors, the paper's number of the same as a diamond,
    – for never."""
    labels, metric = list(looks), experiment.panels[0].metrics[0]
    width = 0.8 / len(labels)
    for g, panel in enumerate(experiment.panels):
        for row in (r for r in rows if r["panel"] == panel.name and r["metric"] == metric):
            at = g + (labels.index(row["label"]) - (len(labels) - 1) / 2) * width
            if row["ours"] is None:
                plot.text(at, 0, MISSING, ha="center", va="bottom", fontsize=7)
            else:
                plot.bar(
                    at,
                    row["ours"],
                    width,
                    yerr=row["error"],
                    color=looks[row["label"]][0],
                    error_kw={"lw": 0.8},
                )
            if row["paper"] is not None and row.get("target") == row.get("paper_target"):
                mark = {"color": "white", "markeredgecolor": INK, "marker": "D", "markersize": 4}
                plot.errorbar(
                    at, row["paper"], yerr=row["paper_error"], ecolor=INK, elinewidth=0.6, **mark
                )
    plot.set_xticks(
        range(len(experiment.panels)), [_short(p.title) for p in experiment.panels], fontsize=6.5
    )
    plot.set_xlim(-0.5, len(experiment.panels) - 0.5)  # also where a bar is missing
    plot.set_title(f"{title} (◇ the paper)", loc="left", fontsize=10, fontweight="bold")
    plot.set_ylabel(outcome.COLUMNS[metric].title.format(target="the target loss"))
    plot.grid(color=GRID, linewidth=0.7, axis="y")
    plot.set_axisbelow(True)


def _short(title: str) -> str:
    return title.replace(", ", ",\n")


def _sweeps_figure(experiment: Experiment, rows: Sequence[Record], note: str) -> "Figure":
    """The loss at the best point of each sweep, and at the paper's values in the same sweep."""
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(
            figsize=(8.6, 1.4 + 0.2 * len(rows)), layout="constrained", facecolor="white"
        )
        plot = figure.subplots()
        for field, (label, look) in SWEPT.items():
            known = [i for i, row in enumerate(rows) if row[field] is not None]
            plot.plot([rows[i][field] for i in known], known, **look, linestyle="none", label=label)
        plot.set_yticks(range(len(rows)), [row["panel"] for row in rows], fontsize=7)
        plot.invert_yaxis()
        plot.set_xlabel("loss that the sweep ranks by")
        plot.grid(color=GRID, linewidth=0.7)
        _title(figure, experiment, note)
        figure.legend(loc="outside lower center", ncols=len(SWEPT), frameon=False)
    return figure
