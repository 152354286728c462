"""What panels show: rows from their records, the table, curves and bars.

Legend: S seeds, T rounds, E looks at the test set.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from laconic.fragments import fragments_of
from laconic.reproduce.part import Outcome, Record
from laconic.show import metrics
from laconic.show.curves import (
    COLOURS,
    DASHES,
    INK,
    Curve,
    Style,
    heldout_curve,
    label_styles,
    of_kind,
    train_curve,
)
from laconic.show.curves import Panel as Axes
from laconic.show.figures import Bar, Bars, grid_figure
from laconic.show.summary import best_heldout, with_intervals
from laconic.show.table import Table, number, percent, rounds, signed, times, with_error
from laconic.show.timing import (
    Link,
    Traffic,
    all_gather_traffic,
    ring_all_reduce_traffic,
    streamed_seconds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laconic.reproduce.experiment import Across
    from laconic.reproduce.panel import Panel

AVERAGE = "average"  # the panel of rows that are means over panels

# --- rows -----------------------------------------------------------------------------------------


class Metric(NamedTuple):
    """A number of a comparison's summary: its name, its fields there, and how it is written beside
    an error or an interval."""

    title: str
    field: str
    spread: str | None
    text: Callable[[Any, Any], str]

    def measure(self, found: Record, records: Sequence[Record]) -> tuple[float | None, Any]:
        """The number and its error or interval, of a row of the summary."""
        return found[self.field], None if self.spread is None else found[self.spread]


class Span(NamedTuple):
    """Mean test accuracy over a span of rounds, from a method's own record."""

    title: str
    first: int
    last: int
    text: Callable[[Any, Any], str]

    def measure(
        self, found: Record, records: Sequence[Record]
    ) -> tuple[float | None, float | None]:
        """The mean and its error; weights that are no longer numbers have no accuracy."""
        method = next(m for m in of_kind(records, "method") if m["label"] == found["label"])
        values = method["heldout"].get("accuracy")
        if values is None or any(method["diverged"]):
            return None, None
        return metrics.mean_over_rounds(values, method["evaluated_at"], self.first, self.last)


class Best(NamedTuple):
    """The best of a test metric's mean over seeds, or the round it is reached in, from a method's
    own record."""

    title: str
    metric: str
    text: Callable[[Any, Any], str]
    when: bool = False

    def measure(self, found: Record, records: Sequence[Record]) -> tuple[float | None, None]:
        """The number or the round."""
        method = next(m for m in of_kind(records, "method") if m["label"] == found["label"])
        best = best_heldout(method, self.metric)
        return (None if best is None else best[self.when]), None


class Priced(NamedTuple):
    """Seconds that all rounds take over a link, from a method's own record: through a server, or
    between peers, a ring if messages are dense and to everyone if not."""

    title: str
    link: Link
    peers: bool
    text: Callable[[Any, Any], str] = lambda x, e: number(x)

    def measure(
        self, found: Record, records: Sequence[Record]
    ) -> tuple[float | None, float | None]:
        """The seconds; none where the setting does not say how long a local step takes."""
        config = records[0]["config"]
        method = next(m for m in of_kind(records, "method") if m["label"] == found["label"])
        step = method["step_seconds"]
        if step is None:
            return None, None
        traffic = Traffic(**method["traffic"])
        if self.peers:
            dense = method["compressor"] == "dense"
            way = ring_all_reduce_traffic if dense else all_gather_traffic
            traffic = way(traffic.sent_bits, config["workers"])
        fragments = fragments_of(config)
        given = (self.link, traffic, config["local_steps"], step)
        one = streamed_seconds(*given, fragments.count, fragments.delay)
        return config["rounds"] * one, None


def _percent_with_error(value: float | None, error: float | None) -> str:
    if value is None or not error:
        return percent(value)
    return f"{100 * value:.2f} ± {100 * error:.2f} %"


def _times(value: float | None, spread: Any) -> str:
    """Ours has an interval, the paper's an error."""
    return with_error(value, spread, "×") if isinstance(spread, float) else times(value, spread)


METRICS: dict[str, Metric] = {
    "speedup": Metric("speedup", "speedup", "speedup_interval", _times),
    "rounds": Metric("rounds to {target}", "rounds_to_target", "rounds_interval", rounds),
    "final_train": Metric("final train loss", "final_train", "final_train_error", with_error),
    "test_loss": Metric("test loss", "test_loss", None, lambda x, e: number(x)),
    "test_accuracy": Metric("test accuracy", "test_accuracy", None, lambda x, e: percent(x)),
    "diverged": Metric("diverged seeds", "diverged", None, lambda x, e: str(x)),
    "sent_megabytes": Metric("MB sent", "sent_megabytes", None, lambda x, e: number(x)),
}
SLOW, FAST = Link(100e6), Link(1e9)
COLUMNS: dict[str, Metric | Span | Best | Priced] = {  # whatever may be a column of a table
    **METRICS,
    "best_test_loss": Best("best test loss", "loss", lambda x, e: number(x)),
    "best_test_loss_round": Best("in round", "loss", lambda x, e: number(x), True),
    "best_test_accuracy": Best("best accuracy", "accuracy", lambda x, e: percent(x)),
    "best_test_accuracy_round": Best("its round", "accuracy", lambda x, e: number(x), True),
    "accuracy_181_200": Span("test accuracy, rounds 181–200", 181, 200, _percent_with_error),
    "accuracy_951_1000": Span("test accuracy, rounds 951–1000", 951, 1000, _percent_with_error),
    "server_100mbit": Priced("s, server, 100 Mbit", SLOW, peers=False),
    "server_1gbit": Priced("s, server, 1 Gbit", FAST, peers=False),
    "peers_100mbit": Priced("s, peers, 100 Mbit", SLOW, peers=True),
    "peers_1gbit": Priced("s, peers, 1 Gbit", FAST, peers=True),
}


def _row(panel: str, label: str, metric: str, ours: float | None, spread: Any) -> Record:
    between = spread is not None and not isinstance(spread, float)
    row = {"panel": panel, "label": label, "metric": metric, "ours": ours}
    row |= {"error": None, "interval": spread} if between else {"error": spread}
    return row | {"in_paper": False, "paper": None, "paper_error": None, "difference": None}


def _beside(row: Record, paper: float | None, error: float | None) -> Record:
    """The paper's number; a difference only where both are numbers of the same thing."""
    same = row.get("target") == row.get("paper_target")
    known = row["ours"] is not None and paper is not None and same
    difference = row["ours"] - paper if known else None  # type: ignore[operator]
    return {"in_paper": True, "paper": paper, "paper_error": error, "difference": difference}


def panel_rows(panel: "Panel", records: Sequence[Record]) -> list[Record]:
    """A row for each method and metric, from the comparison's records."""
    summary = with_intervals(records)
    rows = []
    for found in summary["rows"]:
        label = found["label"]
        for metric in panel.metrics:
            row = _row(panel.name, label, metric, *COLUMNS[metric].measure(found, records))
            if metric == "rounds":
                row |= {"target": summary["target_loss"], "paper_target": panel.paper_target}
            if metric == panel.paper_metric and label in panel.paper:
                paper = panel.paper[label]
                row |= _beside(row, paper.value, paper.error)
            rows.append(row)
    return rows


def averages(panels: "Sequence[Panel]", rows: Sequence[Record]) -> list[Record]:
    """Means over panels of each method that all of them have; as in the paper, without hyphens."""
    if not panels:
        return []
    metric = panels[0].paper_metric
    names = [panel.name for panel in panels]
    chosen = [row for row in rows if row["metric"] == metric and row["panel"] in names]
    averages = []
    for label in dict.fromkeys(row["label"] for row in chosen):
        same = [row for row in chosen if row["label"] == label]
        if len(same) == len(panels):
            row = _row(AVERAGE, label, metric, _mean([r["ours"] for r in same]), None)
            if all(r["in_paper"] for r in same):
                row |= _beside(row, _mean([r["paper"] for r in same]), None)
                if any((r["ours"] is None) != (r["paper"] is None) for r in same):
                    row["difference"] = None  # means over different columns
            averages.append(row)
    return averages


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


# --- their table ----------------------------------------------------------------------------------


def panels_table(title: str, panels: Mapping[str, str], rows: Sequence[Record]) -> Table:
    """A line for each method of each panel: our numbers, the paper's and the difference."""
    rows = [row for row in rows if row["metric"] in COLUMNS]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    beside = {row["metric"] for row in rows if row["in_paper"]}
    headers = ["panel", "method"]
    for metric in metrics:
        headers.append(_heading(metric, rows))
        headers += ["the paper" + _paper_target(rows), "difference"] if metric in beside else []
    titles = {**panels, AVERAGE: "average of the columns here"}
    by_place = {(row["panel"], row["label"], row["metric"]): row for row in rows}
    lines = []
    for panel, label in dict.fromkeys((row["panel"], row["label"]) for row in rows):
        line = [titles[panel], label]
        for metric in metrics:
            line += _cells(by_place.get((panel, label, metric)), metric, metric in beside)
        lines.append(line)
    return Table(title, headers, lines, left=2, grouped=True)


def _heading(metric: str, rows: Sequence[Record]) -> str:
    targets = {row["target"] for row in rows if row.get("target") is not None}
    target = " or ".join(number(t) for t in sorted(targets)) or "the target loss"
    return COLUMNS[metric].title.format(target=target)


def _paper_target(rows: Sequence[Record]) -> str:
    """Which loss the paper's rounds are to, where ours are to another."""
    targets = {r["paper_target"] for r in rows if r.get("paper_target") != r.get("target")}
    other = " or ".join(number(target) for target in sorted(targets - {None}))
    return f" (to {other})" if other else ""


def _cells(row: Record | None, metric: str, beside: bool) -> list[str]:
    if row is None:
        return ["", "", ""] if beside else [""]
    text = COLUMNS[metric].text
    cells = [text(row["ours"], row.get("interval", row["error"]))]
    if beside and not row["in_paper"]:
        return [*cells, "", ""]
    if beside:
        cells += [text(row["paper"], row["paper_error"]), signed(row["difference"])]
    return cells


# --- the figure -----------------------------------------------------------------------------------


class View(NamedTuple):
    """What an axes of curves shows. `heldout`: what of the test set, None for the train loss."""

    x_label: str
    y_label: str
    heldout: str | None = None
    log_y: bool = True
    per_bit: bool = False


_ROUNDS = "communication rounds"
_TRAIN = f"train loss (trailing {metrics.WINDOW}-round mean)"
VIEWS = {
    "train": View(_ROUNDS, _TRAIN),
    "bits": View("log₂ of the bits sent per worker", _TRAIN, per_bit=True),
    "test-accuracy": View(_ROUNDS, "test accuracy, %", "accuracy", log_y=False),
    "test-loss": View(_ROUNDS, "test loss", "loss"),
}
BARS = "bars"
BLACK = ("Local SGD", "FedAvg")  # labels of the yardsticks
BOUND = "small-batch-sgd"  # the method whose last loss is drawn on as a level


def panels_figure(
    outcome: Outcome,
    panels: "Sequence[Panel]",
    records: Mapping[str, Sequence[Record]],
    note: str,
    columns: int,
) -> "Figure":
    """Curves of each panel, curves across panels, and bars; pairs of axes stand side by side."""
    across = outcome.experiment.across
    styles = styles_of(records)
    rows = outcome.rows(panels[0].paper_metric)
    shown: list[Axes | Bars] = [*all_axes(panels, across, records)]
    shown += [bars_of(x.title, panels, rows, styles) for x in across if x.view == BARS]
    if {len(panel.shown) for panel in panels} == {2}:
        columns = min(columns, 2)
    legend = [(style, label) for label, style in styles.items()]
    return grid_figure(shown, legend, outcome.experiment.title, note, columns)


def styles_of(records: Mapping[str, Sequence[Record]]) -> dict[str, Style]:
    """One style a label in the whole figure."""
    methods = [method for found in records.values() for method in of_kind(found, "method")]
    return label_styles([method["label"] for method in methods], black=BLACK)


def all_axes(
    panels: "Sequence[Panel]", across: "Sequence[Across]", records: Mapping[str, Sequence[Record]]
) -> list[Axes]:
    """The axes of each panel, then those across panels; bars come after them."""
    styles = styles_of(records)
    found = []
    for panel in panels:
        methods = of_kind(records[panel.name], "method")
        for name in panel.shown:
            curves = [_curve(m, VIEWS[name], m["label"], styles[m["label"]]) for m in methods]
            if panel.band == "standard deviation":
                curves = [_deviating(curve, m) for curve, m in zip(curves, methods, strict=True)]
            found.append(_axes(f"{panel.name}-{name}", panel.title, VIEWS[name], curves))
    return found + [_across(panels, x, records, styles) for x in across if x.view != BARS]


def _across(
    panels: "Sequence[Panel]",
    across: "Across",
    records: Mapping[str, Sequence[Record]],
    styles: Mapping[str, Style],
) -> Axes:
    """Several panels in one axes: dashes tell them apart, and colours too if there is one label."""
    view = VIEWS[across.view]
    alone = across.labels is not None and len(across.labels) == 1
    curves = []
    key = []
    for i, panel in enumerate(panels):
        dashes = DASHES[i % len(DASHES)]
        own = COLOURS[i % len(COLOURS)] if alone else INK
        key.append((Style(own, dashes), panel.title))
        for method in of_kind(records[panel.name], "method"):
            label = method["label"]
            if across.labels is None or label in across.labels:
                style = Style(own if alone else styles[label].colour, dashes)
                curves.append(_curve(method, view, f"{label}, {panel.title}", style))
    return replace(_axes(across.view, across.title, view, curves), key=tuple(key))


def _axes(name: str, title: str, view: View, curves: Sequence[Curve | None]) -> Axes:
    known = tuple(curve for curve in curves if curve is not None)
    made = Axes(name, title, view.x_label, view.y_label, known, log_y=view.log_y)
    return replace(made, from_zero=not view.per_bit)


def _curve(method: Record, view: View, label: str, style: Style) -> Curve | None:
    """A method's curve; None where it has none (no test data, or nothing sent)."""
    if view.heldout is not None:
        return heldout_curve(method, view.heldout, style, label)
    curve = train_curve(method, style, label)
    if method["method"] == BOUND:
        curve = replace(curve, level=float(curve.y[-1]))
    if not view.per_bit:
        return curve
    sent = method["traffic"]["sent_bits"]
    return replace(curve, x=np.log2(curve.x * sent)) if sent else None


def _deviating(curve: Curve | None, method: Record) -> Curve | None:
    """The curve with the standard deviation over seeds for its band."""
    if curve is None:
        return None
    return replace(curve, error=curve.error * math.sqrt(len(method["train"])))


def _reach(row: Record) -> float | tuple[float, float] | None:
    """How far a bar's error reaches: to both sides, or down and up to the ends of its interval."""
    if row["ours"] is None or "interval" not in row:
        return row["error"]
    low, high = (end or row["ours"] for end in row["interval"])
    return row["ours"] - low, (row["ours"] if math.isinf(high) else high) - row["ours"]


def bars_of(
    title: str, panels: "Sequence[Panel]", rows: Sequence[Record], styles: Mapping[str, Style]
) -> Bars:
    """The metric that the paper has numbers of, as bars; its own of the same thing as diamonds."""
    metric = panels[0].paper_metric
    groups = {panel.name: i for i, panel in enumerate(panels)}
    bars = []
    for row in rows:
        if row["metric"] == metric and row["panel"] in groups:
            same = row.get("target") == row.get("paper_target")
            paper = (row["paper"], row["paper_error"]) if same else (None, None)
            ours = (row["ours"], _reach(row))
            bars.append(Bar(groups[row["panel"]], row["label"], *ours, *paper))
    y_label = COLUMNS[metric].title.format(target="the target loss")
    names = [panel.title for panel in panels]
    return Bars(f"{title} (◇ the paper)", y_label, names, bars, styles)
