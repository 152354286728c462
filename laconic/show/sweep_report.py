"""A sweep for people, made only from its records: the best points as a table, and the whole grid as
a picture."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.compress import DENSE
from laconic.errors import LaconicError
from laconic.federated.options import in_words
from laconic.show.figures import our_style, png_bytes
from laconic.show.panels import COLOURS, GRID, INK, drawable, of_kind, round_values
from laconic.show.ranking import RULES, Record
from laconic.show.summary import count, duration, number, percent
from laconic.store import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

SHOWN = 10  # rows of the table
CEILING = 20.0  # a value that many times the best has the colour of the worst
MEANING = {
    "minimum": "lowest train loss (trailing 10-round mean)",
    "final": "final train loss (trailing 10-round mean)",
    "rounds": "rounds to a train loss of {target}",
    "valid": "validation loss after the last round",
}


def ranking_table(records: Sequence[Record]) -> str:
    """The best 10 points as a Markdown table, then how many diverged and how to run the best one."""
    order, ranking = _best_first(records)
    shown, target = order[:SHOWN], ranking["target_loss"]
    names = list(order[0]["numbers"])
    headers = ["rank", *names, "lowest train loss", "final train loss"]
    columns = [[number(p["minimum"]) for p in shown], [number(p["final"]) for p in shown]]
    if target is not None:
        headers.append(f"rounds to {number(target)}")
        columns.append([count(p["rounds_to_target"]) for p in shown])
    for metric, header, text in (
        ("loss", "valid loss", number),
        ("accuracy", "valid accuracy", percent),
    ):
        if metric in order[0]["valid"]:
            headers.append(header)
            columns.append([text(p["valid"][metric]) for p in shown])
    if any(any(p["diverged"]) for p in shown):
        headers.append("diverged seeds")
        columns.append([count(sum(p["diverged"])) for p in shown])
    numbers = [[f"{p['numbers'][name]:.4g}" for p in shown] for name in names]
    rows = zip([str(r + 1) for r in range(len(shown))], *numbers, *columns, strict=True)
    lines = [headers, ["---:"] * len(headers), *rows]
    return (
        "".join(f"| {' | '.join(line)} |\n" for line in lines)
        + "\n"
        + _sentence(order, ranking)
        + "\n"
    )


def heat_map(records: Sequence[Record], path: str | Path) -> None:
    """Write the grid as a PNG: a line for one hyper-parameter, else cells of the last two, a panel
    for each first."""
    atomic.write_bytes(path, png_bytes(sweep_figure(records)))


def sweep_figure(records: Sequence[Record]) -> "Figure":
    """What `heat_map` writes."""
    from matplotlib.figure import Figure

    order, ranking = _best_first(records)
    names, run = list(order[0]["numbers"]), of_kind(records, "run")[0]
    grid = [point for point in order if point["index"] < run["grid_points"]]
    with our_style():
        if len(names) == 1:
            figure = Figure(figsize=(5.2, 3.9), layout="constrained", facecolor="white")
            _draw_line(figure.subplots(), order, names[0], ranking)
        else:
            figure = _cells(grid, names, ranking)
            off = [point for point in order if point["index"] >= run["grid_points"]]
            if off:
                figure.supxlabel(_off_grid(off, ranking["by"]), fontsize=8, parse_math=False)
        figure.suptitle(_title(run), fontsize=10, fontweight="bold", parse_math=False)
    return figure


# --- words ----------------------------------------------------------------------------------------


def _best_first(records: Sequence[Record]) -> tuple[list[Record], Record]:
    points, ranking = (
        {p["index"]: p for p in of_kind(records, "point")},
        of_kind(records, "ranking"),
    )
    if not ranking:
        raise LaconicError(
            "these records hold no ranking, so there is nothing to report; finish the sweep first."
        )
    return [points[i] for i in ranking[-1]["order"]], ranking[-1]


def _sentence(order: Sequence[Record], ranking: Record) -> str:
    seeds, bad = len(order[0]["seeds"]), ranking["diverged"]
    text = (
        f"{count(len(order))} point{'s' * (len(order) > 1)}, {count(bad)} diverged; {seeds} "
        f"seed{'s' * (seeds > 1)}; "
        f"ranked by {meaning(ranking)}; {duration(ranking['seconds'])}."
    )
    if bad == len(order):
        return f"{text} Every point diverged: try lower rates."
    return f"{text} The best: `{ranking['best']}`."


def meaning(ranking: Record) -> str:
    """What a sweep ranks its points by, in words."""
    return MEANING[ranking["by"]].format(target=number(ranking["target_loss"]))


def _title(run: Record) -> str:
    c = run["config"]
    return drawable(
        f"{c['method']} on {run['task']['name']}: {setting_of(c)}, {count(c['rounds'])} rounds"
    )


def setting_of(config: Record) -> str:
    """K, H and B of a sweep's settings, then its population and how messages are compressed, if
    there is any."""
    sizes = f"K = {config['workers']}, H = {config['local_steps']}, B = {config['batch']}"
    return f"{sizes}{in_words(config)}{messages_in_words(config)}"


def messages_in_words(config: Record) -> str:
    """How the messages of a record's settings are compressed, to follow on a line; nothing if they
    are not."""
    compress = config.get("compress", DENSE.name)  # older records do not say
    return "" if compress == DENSE.name else f", messages {compress}"


def _off_grid(points: Sequence[Record], by: str) -> str:
    def text(point: Record) -> str:
        where = ", ".join(f"{name} {value:.4g}" for name, value in point["numbers"].items())
        return f"{where}: {_shown(point, by)}"

    return "off the grid: " + " · ".join(map(text, points))


def _shown(point: Record, by: str) -> str:
    return "×" if any(point["diverged"]) else number(RULES[by](point))


# --- pictures -------------------------------------------------------------------------------------


def _value(point: Record, by: str) -> float:
    """What a point is ranked by; NaN if it diverged or never got there."""
    value = None if any(point["diverged"]) else RULES[by](point)
    return math.nan if value is None else float(value)


def _draw_line(ax: "Axes", points: Sequence[Record], name: str, ranking: Record) -> None:
    points = sorted(points, key=lambda point: point["numbers"][name])
    x = np.array([point["numbers"][name] for point in points])
    y = np.array([_value(point, ranking["by"]) for point in points])
    good = np.isfinite(y)
    ax.plot(x[good], y[good], color=COLOURS[0], marker="o", markersize=5, linewidth=1.7)
    ax.set_xscale("log")
    if good.any() and y[good].min() > 0:
        ax.set_yscale("log")
        _plain_ticks(ax.yaxis, *ax.get_ylim())
    top = {"transform": ax.get_xaxis_transform(), "clip_on": False}
    ax.plot(
        x[~good],
        np.full((~good).sum(), 0.97),
        "x",
        color=COLOURS[1],
        markersize=7,
        markeredgewidth=2,
        **top,
    )
    ax.set_xlim(x.min() / 1.3, x.max() * 1.3)
    _plain_ticks(ax.xaxis, *ax.get_xlim())
    ax.set_xlabel(name + (" (×: diverged or never there)" if not good.all() else ""))
    ax.set_ylabel(meaning(ranking))
    ax.grid(color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)


def _cells(grid: Sequence[Record], names: Sequence[str], ranking: Record) -> "Figure":
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    *panel, _, _ = names
    groups: dict[tuple[float, ...], list[Record]] = {}
    for point in sorted(grid, key=lambda point: point["index"]):
        groups.setdefault(tuple(point["numbers"][name] for name in panel), []).append(point)
    across = math.ceil(math.sqrt(len(groups)))
    down = math.ceil(len(groups) / across)
    norm, capped = _scale([_value(point, ranking["by"]) for point in grid])
    figure = Figure(
        figsize=(5.4 * across + 0.9, 4.4 * down + 0.6), layout="constrained", facecolor="white"
    )
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax, (at, points) in zip(axes, groups.items(), strict=False):
        _draw_cells(ax, points, names[-2:], ranking["by"], norm, best=grid[0]["index"])
        ax.set_title(
            ", ".join(f"{n} = {v:g}" for n, v in zip(panel, at, strict=True)),
            loc="left",
            fontsize=10,
        )
    for ax in axes[len(groups) :]:
        ax.set_axis_off()
    bar = figure.colorbar(
        ScalarMappable(norm, "viridis"), ax=list(axes), extend="max" if capped else "neither"
    )
    _plain_ticks(bar.ax.yaxis, *bar.ax.get_ylim())
    bar.set_label(
        meaning(ranking) + (" (×: diverged)" if any(any(p["diverged"]) for p in grid) else "")
    )
    return figure


def _draw_cells(
    ax: "Axes",
    points: Sequence[Record],
    names: Sequence[str],
    by: str,
    norm: "Normalize",
    best: int,
) -> None:
    """Columns and rows are the values that occur in this panel, in order; what was not run stays
    blank."""
    from matplotlib.patches import Rectangle

    xs, ys = (sorted({point["numbers"][name] for point in points}) for name in names)
    cells = np.full((len(ys), len(xs)), np.nan)
    for point in points:
        x, y = xs.index(point["numbers"][names[0]]), ys.index(point["numbers"][names[1]])
        cells[y, x] = value = _value(point, by)
        light = math.isnan(value) or norm(value) > 0.6
        options = {
            "ha": "center",
            "va": "center",
            "fontsize": 6,
            "color": INK if light else "white",
        }
        ax.text(x, y, _shown(point, by), **options)
        if point["index"] == best:
            ax.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=2.5)
            )
    ax.imshow(
        cells, norm=norm, cmap="viridis", aspect="auto", origin="lower", interpolation="nearest"
    )
    ax.set_xticks(range(len(xs)), [f"{x:.3g}" for x in xs], rotation=45, ha="right", fontsize=7)
    ax.set_yticks(range(len(ys)), [f"{y:.3g}" for y in ys], fontsize=7)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])


def _scale(values: Sequence[float]) -> tuple["Normalize", bool]:
    """The colours' scale, and whether some values lie beyond it: a log one from the best to
    `CEILING` times it."""
    from matplotlib.colors import LogNorm, Normalize

    known = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = min(known), max(known)
    if low <= 0:
        return Normalize(low, max(high, low + 1e-6)), False
    return LogNorm(low, max(min(high, CEILING * low), 1.1 * low)), high > CEILING * low


def _plain_ticks(axis: Any, low: float, high: float) -> None:
    """Round numbers, written plainly, on an axis that may be a log one."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if low <= 0:
        return
    axis.set_major_locator(FixedLocator(round_values(low, high, most=6)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
