"""A sweep for people and what its points are ranked by.

- `Rule`, `RULES`, `ranked`, `point_record`: what is kept of a point, and which is best.
- `ranking_table`, `closing_sentence`, `ranking_text`: the best points, in words and as Markdown.
- `sweep_figure`, `write_figure`: the whole grid as a picture. `blocks`: all of it for a page.

Legend: S seeds, T rounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laconic.compress import DENSE
from laconic.errors import LaconicError, unknown
from laconic.show import figures, metrics
from laconic.show import page as html
from laconic.show.comparison import sizes_of
from laconic.show.curves import (
    COLOURS,
    INK,
    Panel,
    Record,
    Style,
    drawable,
    of_kind,
    plain_curve,
)
from laconic.show.table import Table, count, duration, number, percent, plural
from laconic.store import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

CURVE_VALUES = 100  # of a point's curve in its record
SHOWN = 10  # rows of the table
CEILING = 20.0  # a value that many times the best has the colour of the worst
MEANING = {
    "minimum": "lowest train loss (trailing 10-round mean)",
    "final": "final train loss (trailing 10-round mean)",
    "rounds": "rounds to a train loss of {target}",
    "valid": "validation loss after the last round",
}

# What a point's record is ranked by, smallest first: None is worse than any number.
RULES: dict[str, Callable[[Record], float | None]] = {
    "minimum": lambda point: point["minimum"],
    "final": lambda point: point["final"],
    "rounds": lambda point: point["rounds_to_target"],
    "valid": lambda point: point["valid"].get("loss"),
}


# --- ranking --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What the best point is best at: a key of `RULES`; "rounds" are those to `target_loss`."""

    by: str = "minimum"
    target_loss: float | None = None

    def __post_init__(self) -> None:
        if self.by not in RULES:
            raise unknown("rule to rank by", self.by, RULES)
        if self.target_loss is not None and not math.isfinite(self.target_loss):
            raise LaconicError(f"the target loss must be finite, got {self.target_loss}.")
        if self.by == "rounds" and self.target_loss is None:
            why = "the train loss to count the rounds to."
            raise LaconicError(f"ranking by rounds needs a target loss: {why}")


def ranked(points: Sequence[Record], by: str) -> list[Record]:
    """The records of points, best first; diverged ones last, however low their loss once was."""

    def key(point: Record) -> tuple[bool, bool, float, float, int]:
        value = RULES[by](point)
        lowest = math.inf if point["minimum"] is None else point["minimum"]
        return any(point["diverged"]), value is None, value or 0.0, lowest, point["index"]

    return sorted(points, key=key)


def kept_rounds(rounds: int) -> np.ndarray:
    """The rounds, from 1, whose smoothed loss a record keeps: every 10th, 100 at most, the last."""
    every = max(metrics.WINDOW, -(-rounds // CURVE_VALUES))
    return np.unique([*range(every, rounds + 1, every), rounds])


def point_record(
    curves_ST: np.ndarray, finite_S: np.ndarray, valid: Mapping[str, np.ndarray], rule: Rule
) -> Record:
    """What is kept of a point: its thinned curve, what ranks it, and which seeds diverged."""
    target = rule.target_loss
    smooth_T = metrics.smoothed(metrics.mean_curve(curves_ST))
    means = {name: float(np.mean(value_S, dtype=np.float64)) for name, value_S in valid.items()}
    return {
        "minimum": metrics.minimum_loss(curves_ST),
        "final": metrics.final_loss(curves_ST),
        "rounds_to_target": None if target is None else metrics.rounds_to_loss(curves_ST, target),
        "valid": means,
        "diverged": (metrics.diverged(curves_ST) | ~finite_S).tolist(),
        "curve": smooth_T[kept_rounds(smooth_T.size) - 1],
    }


def _best_first(records: Sequence[Record]) -> tuple[list[Record], Record]:
    points = {point["index"]: point for point in of_kind(records, "point")}
    ranking = of_kind(records, "ranking")
    if not ranking:
        why = "so there is nothing to report; finish the sweep first."
        raise LaconicError(f"these records hold no ranking, {why}")
    return [points[i] for i in ranking[-1]["order"]], ranking[-1]


# --- words ----------------------------------------------------------------------------------------


def ranking_table(records: Sequence[Record]) -> Table:
    """The best 10 points."""
    order, ranking = _best_first(records)
    shown = order[:SHOWN]
    columns = {"rank": [str(rank) for rank in range(1, len(shown) + 1)]}
    for name in order[0]["numbers"]:
        columns[name] = [f"{p['numbers'][name]:.4g}" for p in shown]
    columns["lowest train loss"] = [number(p["minimum"]) for p in shown]
    columns["final train loss"] = [number(p["final"]) for p in shown]
    if ranking["target_loss"] is not None:
        rounds = [count(p["rounds_to_target"]) for p in shown]
        columns[f"rounds to {number(ranking['target_loss'])}"] = rounds
    for metric, text in (("loss", number), ("accuracy", percent)):
        if metric in order[0]["valid"]:
            columns[f"valid {metric}"] = [text(p["valid"][metric]) for p in shown]
    if any(any(p["diverged"]) for p in shown):
        columns["diverged seeds"] = [count(sum(p["diverged"])) for p in shown]
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return Table(_title(records), list(columns), rows, left=0)


def closing_sentence(records: Sequence[Record]) -> str:
    """How many points diverged, what they are ranked by, and how to run the best one."""
    order, ranking = _best_first(records)
    bad = ranking["diverged"]
    tried = f"{plural(len(order), 'point')}, {count(bad)} diverged"
    ranked_by = f"ranked by {meaning(ranking)}; {duration(ranking['seconds'])}"
    text = f"{tried}; {plural(len(order[0]['seeds']), 'seed')}; {ranked_by}."
    if bad == len(order):
        return f"{text} Every point diverged: try lower rates."
    return f"{text} The best: `{ranking['best']}`."


def ranking_text(records: Sequence[Record]) -> str:
    """The table and the sentence as Markdown."""
    return f"{ranking_table(records).markdown()}\n{closing_sentence(records)}\n"


def meaning(ranking: Record) -> str:
    """What a sweep ranks its points by, in words."""
    return MEANING[ranking["by"]].format(target=number(ranking["target_loss"]))


def setting_of(config: Record) -> str:
    """K, H and B of a sweep's settings, then its population and compression, if there is any."""
    compress = config.get("compress", DENSE.name)  # absent from old records
    messages = "" if compress == DENSE.name else f", messages {compress}"
    return sizes_of(config) + messages


def _title(records: Sequence[Record]) -> str:
    run = of_kind(records, "run")[0]
    config = run["config"]
    where = f"{config['method']} on {run['task']['name']}"
    return drawable(f"{where}: {setting_of(config)}, {count(config['rounds'])} rounds")


def blocks(records: Sequence[Record]) -> list[html.Block]:
    """What a page shows of a sweep."""
    config = of_kind(records, "run")[0]["config"]
    run_for = f"{count(config['rounds'])} rounds, {plural(config['seeds'], 'seed')}"
    words = f"{config['method']} on {config['task']} · {setting_of(config)} · {run_for}"
    sentence = closing_sentence(records).replace("`", "")
    shown: list[html.Block] = [html.Text(words), ranking_table(records), html.Text(sentence)]
    panel = line_panel(records)
    if panel is None:
        described = f"{config['method']}: every point of the grid"
        draw = lambda: figures.webp_bytes(sweep_figure(records))
        return [*shown, html.Picture(draw, described)]
    note = "A loss far above that of the smallest value is off the chart."
    return [*shown, html.Panels([panel], notes=[(panel.name, note)])]


# --- pictures -------------------------------------------------------------------------------------


def line_panel(records: Sequence[Record]) -> Panel | None:
    """What a sweep of one hyper-parameter ranks its points by; None for any other sweep.

    A record keeps no spread over seeds, so there is no band. Diverged points are left out.
    """
    order, ranking = _best_first(records)
    names = list(order[0]["numbers"])
    if len(names) != 1:
        return None
    x, y = _line(order, names[0], ranking["by"])
    seeds, bad = len(order[0]["seeds"]), int(np.isnan(y).sum())
    of = "one seed" if seeds == 1 else f"mean over {seeds} seeds"
    label = f"{of_kind(records, 'run')[0]['config']['method']}, {of}"
    label += f" ({bad} diverged or never there: not drawn)" if bad else ""
    what = meaning(ranking).replace("trailing 10", "10")  # or it is longer than its axis
    curve = plain_curve(label, Style(COLOURS[0], (), "o"), x, y)
    return Panel("sweep", "Every point of the grid", names[0], what, (curve,), log_x=True)


def write_figure(records: Sequence[Record], path: str | Path) -> None:
    """Write `sweep_figure` as a PNG."""
    atomic.write_bytes(path, figures.png_bytes(sweep_figure(records)))


def sweep_figure(records: Sequence[Record]) -> "Figure":
    """A line for one hyper-parameter, else cells of the last two, a panel for each other value."""
    order, ranking = _best_first(records)
    names, size = list(order[0]["numbers"]), of_kind(records, "run")[0]["grid_points"]
    with figures.plot_style():
        if len(names) == 1:
            figure, (ax,) = figures.axes_grid(1, cell=(5.2, 3.9))
            _draw_line(ax, order, names[0], ranking)
        else:
            figure = _cells([p for p in order if p["index"] < size], names, ranking)
            off = [point for point in order if point["index"] >= size]
            if off:
                figure.supxlabel(_off_grid(off, ranking["by"]), fontsize=8, parse_math=False)
        figure.suptitle(_title(records), fontsize=10, fontweight="bold", parse_math=False)
    return figure


def _off_grid(points: Sequence[Record], by: str) -> str:
    texts = []
    for point in points:
        where = ", ".join(f"{name} {value:.4g}" for name, value in point["numbers"].items())
        texts.append(f"{where}: {_shown(point, by)}")
    return f"off the grid: {' · '.join(texts)}"


def _shown(point: Record, by: str) -> str:
    return "×" if any(point["diverged"]) else number(RULES[by](point))


def _value(point: Record, by: str) -> float:
    """What a point is ranked by; NaN if it diverged or never got there."""
    value = None if any(point["diverged"]) else RULES[by](point)
    return math.nan if value is None else float(value)


def _line(points: Sequence[Record], name: str, by: str) -> tuple[np.ndarray, np.ndarray]:
    points = sorted(points, key=lambda point: point["numbers"][name])
    x = np.array([point["numbers"][name] for point in points])
    return x, np.array([_value(point, by) for point in points])


def _draw_line(ax: "Axes", points: Sequence[Record], name: str, ranking: Record) -> None:
    x, y = _line(points, name, ranking["by"])
    good = np.isfinite(y)
    ax.plot(x[good], y[good], **figures.line_options(Style(COLOURS[0], (), "o")))
    ax.set_xscale("log")
    if good.any() and y[good].min() > 0:
        ax.set_yscale("log")
        figures.round_ticks(ax.yaxis, *ax.get_ylim())
    at_top = {"transform": ax.get_xaxis_transform(), "clip_on": False}
    cross = {"color": COLOURS[1], "markersize": 7, "markeredgewidth": 2}
    ax.plot(x[~good], np.full((~good).sum(), 0.97), "x", **cross, **at_top)
    ax.set_xlim(x.min() / 1.3, x.max() * 1.3)
    figures.round_ticks(ax.xaxis, *ax.get_xlim())
    name += "" if good.all() else " (×: diverged or never there)"
    figures.finish_axes(ax, name, meaning(ranking))


def _cells(grid: Sequence[Record], names: Sequence[str], ranking: Record) -> "Figure":
    from matplotlib.cm import ScalarMappable

    *outer, _, _ = names
    groups: dict[tuple[float, ...], list[Record]] = {}
    for point in sorted(grid, key=lambda point: point["index"]):
        groups.setdefault(tuple(point["numbers"][name] for name in outer), []).append(point)
    norm, capped = _scale([_value(point, ranking["by"]) for point in grid])
    columns = math.ceil(math.sqrt(len(groups)))
    figure, axes = figures.axes_grid(len(groups), columns, cell=(5.6, 4.4), extra=0.6)
    for ax, (at, points) in zip(axes, groups.items(), strict=True):
        _draw_cells(ax, points, names[-2:], ranking["by"], norm, best=grid[0]["index"])
        title = ", ".join(f"{name} = {value:g}" for name, value in zip(outer, at, strict=True))
        ax.set_title(title, loc="left", fontsize=10)
    beyond = "max" if capped else "neither"
    bar = figure.colorbar(ScalarMappable(norm, "viridis"), ax=list(axes), extend=beyond)
    figures.round_ticks(bar.ax.yaxis, *bar.ax.get_ylim())
    bad = any(any(point["diverged"]) for point in grid)
    bar.set_label(meaning(ranking) + (" (×: diverged)" if bad else ""))
    return figure


def _draw_cells(
    ax: "Axes",
    points: Sequence[Record],
    names: Sequence[str],
    by: str,
    norm: "Normalize",
    best: int,
) -> None:
    """Columns and rows are the values that occur in this panel, in order."""
    from matplotlib.patches import Rectangle

    xs, ys = (sorted({point["numbers"][name] for point in points}) for name in names)
    cells = np.full((len(ys), len(xs)), np.nan)
    for point in points:
        x, y = xs.index(point["numbers"][names[0]]), ys.index(point["numbers"][names[1]])
        value = _value(point, by)
        cells[y, x] = value
        ink = INK if math.isnan(value) or norm(value) > 0.6 else "white"
        ax.text(x, y, _shown(point, by), ha="center", va="center", fontsize=6, color=ink)
        if point["index"] == best:
            frame = {"fill": False, "edgecolor": COLOURS[1], "linewidth": 2.5}
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **frame))
    look = {"cmap": "viridis", "norm": norm, "interpolation": "nearest"}
    ax.imshow(cells, aspect="auto", origin="lower", **look)  # type: ignore[arg-type]
    ax.set_xticks(range(len(xs)), [f"{x:.3g}" for x in xs], rotation=45, ha="right", fontsize=7)
    ax.set_yticks(range(len(ys)), [f"{y:.3g}" for y in ys], fontsize=7)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])


def _scale(values: Sequence[float]) -> tuple["Normalize", bool]:
    """The scale of colours, from the best to `CEILING` times it, and whether values exceed it."""
    from matplotlib.colors import LogNorm, Normalize

    known = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = min(known), max(known)
    if low <= 0:
        return Normalize(low, max(high, low + 1e-6)), False
    return LogNorm(low, max(min(high, CEILING * low), 1.1 * low)), high > CEILING * low
