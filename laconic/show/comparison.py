"""A comparison for people, made only from its records: curves, figures, report page.

- `panels`, `curves_figure`: its curves.
- `blocks`: all of it for a page; `write_report`: curves.png, curves.svg and report.html.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.options import in_words, read_federated
from laconic.fragments import fragments_in_words
from laconic.show import figures, metrics
from laconic.show import page as html
from laconic.show.curves import (
    Curve,
    Panel,
    Record,
    Style,
    drawable,
    heldout_curve,
    of_kind,
    round_values,
    train_curve,
)
from laconic.show.summary import (
    USUAL,
    bounds,
    left_out_in_words,
    methods_of,
    rivals_of,
    styled_methods,
    summary_of,
    summary_table,
)
from laconic.show.table import (
    MISSING,
    Table,
    count,
    duration,
    number,
    plural,
)
from laconic.show.timing import Traffic, parse_link, round_seconds
from laconic.show.verdict import notes, verdict
from laconic.store import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LADDER = 5  # round losses in the table of times, beside the target
LONGEST = 44  # characters of a label in a legend


# --- curves ---------------------------------------------------------------------------------------


def legend(records: Sequence[Record]) -> list[tuple[Style, str]]:
    """Each method's style and label, shortened if need be, with how many seeds diverged."""
    found = []
    for method, look in zip(*styled_methods(records), strict=True):
        label, bad, seeds = drawable(method["label"]), sum(method["diverged"]), len(method["train"])
        if len(label) > LONGEST:
            label = label[: LONGEST - 1] + "…"
        if bad:
            label += " (diverged)" if bad == seeds else f" (diverged: {bad} of {seeds} seeds)"
        found.append((look, label))
    return found


def panels(records: Sequence[Record]) -> list[Panel]:
    """Train loss against rounds, the test metric, and train loss against seconds on a link."""
    methods = methods_of(records)
    labels = "Training loss", "communication rounds"
    found = [_train_panel(records, "rounds", labels, [1.0] * len(methods), log_x=False)]
    found += _heldout_panels(records)
    seconds = seconds_per_round(records)
    if any(seconds):
        link = of_kind(records, "run")[0]["config"]["link"]
        labels = "Training loss over time", f"seconds on a {link} link"
        found.append(_train_panel(records, "seconds", labels, seconds))
    return found


def bits_panel(records: Sequence[Record]) -> Panel:
    """Train loss against megabytes sent; a method that sends nothing has no place on a log axis."""
    megabytes = [method["traffic"]["sent_bits"] / 8e6 for method in methods_of(records)]
    labels = "Training loss over traffic", "megabytes sent per worker"
    return _train_panel(records, "bits", labels, megabytes)


def traffic_differs(records: Sequence[Record]) -> bool:
    """Whether methods that send anything send different amounts, so that rounds alone mislead."""
    return len({m["traffic"]["sent_bits"] for m in methods_of(records)} - {0}) > 1


def seconds_per_round(records: Sequence[Record]) -> list[float | None]:
    """Seconds of a round of each method on the run's link; None without a link or a step time."""
    methods, text = methods_of(records), of_kind(records, "run")[0]["config"]["link"]
    if text is None:
        return [None] * len(methods)
    link = parse_link(text)
    found: list[float | None] = []
    for m in methods:
        costs = Traffic(**m["traffic"]), m["local_steps"], m["step_seconds"]
        found.append(None if costs[-1] is None else round_seconds(link, *costs))
    return found


def _train_panel(
    records: Sequence[Record],
    name: str,
    labels: tuple[str, str],
    per_round: Sequence[float | None],
    log_x: bool = True,
) -> Panel:
    """Smoothed loss at rounds × `per_round`, for the methods where that is neither 0 nor None."""
    curves: list[Curve] = []
    methods, looks = styled_methods(records)
    for method, look, cost in zip(methods, looks, per_round, strict=True):
        if cost:
            curve = train_curve(method, look)
            curves.append(replace(curve, x=curve.x * cost))
    window = min(metrics.WINDOW, max(len(method["train"][0]) for method in methods))
    target = summary_of(records)["target_loss"]
    y_label = f"train loss (trailing {window}-round mean)"
    return Panel(name, *labels, y_label, tuple(curves), log_x=log_x, target=target)


def _heldout_panels(records: Sequence[Record]) -> list[Panel]:
    """Against rounds: test accuracy, or test loss where there is none, and a user's own metrics."""
    methods, looks = styled_methods(records)
    names = dict.fromkeys(name for method in methods for name in method["heldout"])
    found = []
    for metric in [*[name for name in USUAL if name in names][:1], *sorted({*names} - {*USUAL})]:
        made = [heldout_curve(m, metric, look) for m, look in zip(methods, looks, strict=True)]
        curves = tuple(curve for curve in made if curve is not None)
        title = f"Test {drawable(metric)}"
        y_label = "test accuracy, %" if metric == "accuracy" else title.lower()
        name = "heldout" if metric in USUAL else f"heldout {metric}"
        words = name, title, "communication rounds", y_label
        found.append(Panel(*words, curves, log_y=metric == "loss", ceiling=metric in USUAL))
    return found


def curves_figure(records: Sequence[Record]) -> "Figure":
    """All panels, three side by side, with one legend below them."""
    shown = panels(records)
    entries = legend(records)
    target = shown[0].target
    if target is not None:
        entries.append((figures.TARGET, f"target {number(target)}"))
    return figures.grid_figure(shown, entries)


# --- pages ----------------------------------------------------------------------------------------


def sizes_of(config: Record) -> str:
    """Workers, local steps and batch, then missing workers, fragments and the population, if there
    are any."""
    missing = f" ({config['missing']} missing from each round)" if config.get("missing") else ""
    sizes = f"K = {config['workers']}{missing}, H = {config['local_steps']}, B = {config['batch']}"
    return sizes + fragments_in_words(config) + in_words(config)


def setting_of(records: Sequence[Record]) -> str:
    """The task and the sizes of a comparison, on one line."""
    run = of_kind(records, "run")[0]
    config = run["config"]
    task = run["task"]
    run_for = f"{count(config['rounds'])} rounds, {plural(config['seeds'], 'seed')}"
    if config.get("patience"):
        run_for = f"at most {run_for}, patience {config['patience']}"
    return (
        f"{task['name']}, {count(task['parameters'])} parameters · {sizes_of(config)} · {run_for}"
    )


def blocks(records: Sequence[Record]) -> list[html.Block]:
    """What a page shows of a comparison."""
    opening = html.Verdict(verdict(records), notes(records))
    return [html.Text(setting_of(records)), opening, summary_table(records), _curves(records)]


def _curves(records: Sequence[Record]) -> html.Panels:
    methods, target = methods_of(records), summary_of(records)["target_loss"]
    shown = panels(records)
    if traffic_differs(records):
        shown.append(bits_panel(records))
    seeds = len(methods[0]["train"])
    how = "Lines are one seed's."
    if seeds > 1:
        how = f"Lines are means over {seeds} seeds, bands ± the standard error."
    if target is not None:
        how += f" The dotted line is the target, {number(target)}."
    if any(any(m["diverged"]) for m in methods):
        how += " A cross is where a method diverged."
    lacking = []
    for panel in shown:
        there = {curve.label for curve in panel.curves}
        absent = [m["label"] for m in methods if m["label"] not in there]
        if absent:
            lacking.append((panel.name, f"Without a value here: {', '.join(absent)}."))
    return html.Panels(shown, how, legend(records), lacking)


def write_report(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Write curves.png, curves.svg and report.html into `folder` → their paths."""
    for kind in ("run", "method", "summary"):
        if not of_kind(records, kind):
            why = "so there is nothing to report; finish the run first."
            raise LaconicError(f"these records hold no {kind!r}, {why}")
    curves = curves_figure(records)
    contents = {
        "curves.png": figures.png_bytes(curves),
        "curves.svg": figures.svg_bytes(curves),
        "report.html": report_page(records).encode(errors="replace"),
    }
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]


def report_page(records: Sequence[Record]) -> str:
    """The whole report as one HTML file that needs nothing else."""
    run = of_kind(records, "run")[0]
    times = _times(records)
    priced = []
    if times is not None:
        heading = f"What fewer rounds are worth on a {run['config']['link']} link"
        priced = [html.section(heading, html.table(times))]
    parts = [
        html.verdict(verdict(records), notes(records)),
        html.section("Summary", html.table(summary_table(records))),
        html.section("Curves", html.html([_curves(records)])),
        *priced,
        html.section("How the numbers are defined", html.pairs(metrics.DEFINITIONS, "terms")),
        html.section("The command", html.command(run["command"])),
        html.section("How each method was run", html.table(_costs(records))),
        html.section("Settings, data and machine", _provenance(records)),
    ]
    name = run["task"]["name"]
    by = "laconic compare"
    return html.document(f"{name} – {by}", by, name, "\n".join(parts), setting_of(records))


def _times(records: Sequence[Record]) -> Table | None:
    """Time to each of a few losses for every method; None without a link and step times."""
    (methods, looks), per_round = styled_methods(records), seconds_per_round(records)
    if not any(per_round):
        return None
    summary = summary_of(records)
    target = summary["target_loss"]
    marks = [*_ladder(methods), *([] if target is None else [float(target)])]
    losses = sorted(set(marks), reverse=True)
    names = [f"to {number(x)} (target)" if x == target else f"to {x:g}" for x in losses]
    seconds: list[list[float | None]] = []
    for method, cost in zip(methods, per_round, strict=True):
        rounds = [metrics.rounds_to_loss(method["train"], loss) for loss in losses]
        seconds.append([None if n is None or cost is None else n * cost for n in rounds])
    able = {row["label"] for row in rivals_of(summary["rows"], bounds(records))}
    rivals = [i for i, method in enumerate(methods) if method["label"] in able]
    best = set()
    for j in range(len(losses)):
        known = {i: s for i in rivals if (s := seconds[i][j]) is not None}
        if known and len(rivals) > 1:
            best |= {(i, j + 2) for i, s in known.items() if s == min(known.values())}
    found = zip(methods, per_round, seconds, strict=True)
    rows = [[m["label"], duration(cost), *map(duration, taken)] for m, cost, taken in found]
    note = "Time until the smoothed training loss is at most each of these; "
    note += f"bold marks the fastest{left_out_in_words(records)}."
    headers = ["method", "one round", *names]
    return Table("Time to each loss", headers, rows, note, frozenset(best), styles=looks)


def _ladder(methods: Sequence[Record]) -> list[float]:
    """Round losses between the start of training and the lowest of any method, if positive."""
    smooth = [metrics.smoothed(metrics.mean_curve(method["train"])) for method in methods]
    finite = [values[np.isfinite(values)] for values in smooth if np.isfinite(values).any()]
    if not finite:
        return []
    low = float(min(values.min() for values in finite))
    high = float(np.median([values[0] for values in finite]))
    return round_values(low, high, most=LADDER) if 0 < low < high else []


def _costs(records: Sequence[Record]) -> Table:
    """What each method used: workers, steps, traffic a round, and the time it took here."""
    methods, looks = styled_methods(records)
    columns: dict[str, Callable[[Record], str]] = {
        "method": lambda m: m["label"],
        "given as": lambda m: m["word"],
        "workers": lambda m: count(m["workers"]),
        "local steps": lambda m: count(m["local_steps"]),
        "MB sent a round": lambda m: number(m["traffic"]["sent_bits"] / 8e6),
        "MB received a round": lambda m: number(m["traffic"]["received_bits"] / 8e6),
        "topology": lambda m: m["traffic"]["topology"],
        "local step": lambda m: duration(m["step_seconds"]),
        "wall time": lambda m: duration(m["seconds"]),
        "rounds a second": lambda m: number(m["rounds_per_second"]),
    }
    rows = [[cell(method) for cell in columns.values()] for method in methods]
    note = "Wall time and rounds a second are of the simulation here, all seeds together."
    return Table("Cost of each method", list(columns), rows, note, left=2, styles=looks)


def _provenance(records: Sequence[Record]) -> str:
    run = of_kind(records, "run")[0]
    about = [("data", run["task"]["source"]), ("classes", count(run["task"]["classes"]))]
    about += html.provenance_facts(html.provenances(records))
    seconds = sum(method["seconds"] for method in methods_of(records))
    about.append(("wall time", duration(seconds)))
    shown = {**run["config"], "federated": _population(run["config"])}
    if not shown["federated"]:
        del shown["federated"]
    settings = [(name.replace("_", " "), _setting(value)) for name, value in shown.items()]
    return f'<div class="columns">{html.pairs(settings)}{html.pairs(about)}</div>'


def _population(config: Record) -> str:
    """Every option of the population that is not at its default; "" without one."""
    options = read_federated(config, "the record")["federated"]
    dropout = f", dropout={options.dropout:g}" if options.dropout else ""
    return options.words().replace(",", ", ") + dropout


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return MISSING if value is None else str(value)
