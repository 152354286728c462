"""The report of a comparison, made only from its records: figures, and a page that says what came
out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.options import in_words
from laconic.show import figures, metrics
from laconic.show import report_page as html
from laconic.show.origin import commits, devices, origins, started, versions
from laconic.show.panels import (
    Panel,
    Record,
    bits_panel,
    legend_label,
    of_kind,
    panels,
    round_values,
    seconds_per_round,
    styles,
    traffic_differs,
)
from laconic.show.summary import (
    MISSING,
    best_cells,
    bounds,
    count,
    duration,
    markdown_table,
    notes,
    number,
    table_rows,
    verdict,
    workers_of,
)
from laconic.store import atomic

__all__ = [
    "curves_section",
    "markdown_table",
    "page",
    "summary_section",
    "table_rows",
    "write_report",
]

LADDER = 5  # round losses in the table of times, beside the target


def write_report(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Write curves.png, curves.svg and report.html into `folder`, each in one step → their paths."""
    for kind in ("run", "method", "summary"):
        if not of_kind(records, kind):
            raise LaconicError(
                f"these records hold no {kind!r}, so there is nothing to report; finish the run "
                "first."
            )
    curves = figures.curves_figure(records)
    contents = {
        "curves.png": figures.png_bytes(curves),
        "curves.svg": figures.svg_bytes(curves),
        "report.html": page(records).encode(errors="replace"),
    }
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]


def page(records: Sequence[Record]) -> str:
    """The whole report as one HTML file that needs nothing else."""
    run, config = of_kind(records, "run")[0], of_kind(records, "run")[0]["config"]
    seeds = len(of_kind(records, "method")[0]["train"])
    subtitle = (
        f"{count(run['task']['parameters'])} parameters · {workers_of(config)} · "
        f"{config['local_steps']} local "
        f"steps · batch {config['batch']}{in_words(config)} · {count(config['rounds'])} rounds · "
        f"{seeds} seed{'s' * (seeds > 1)}"
    )
    sections = [("Summary", summary_section(records)), ("Curves", curves_section(records))]
    times = _times(records)
    if times is not None:
        sections.append(
            (f"What fewer rounds are worth on a {config['link']} link", html.table(times))
        )
    sections += [
        ("How the numbers are defined", html.pairs(html.DEFINITIONS, "terms")),
        ("The command", html.command(run["command"])),
        ("How each method was run", html.table(_costs(records))),
        ("Settings, data and machine", _origins(records)),
    ]
    return html.page(
        run["task"]["name"], subtitle, html.verdict(verdict(records), notes(records)), sections
    )


# --- sections -------------------------------------------------------------------------------------


def summary_section(records: Sequence[Record]) -> str:
    """The table of methods, the best values marked."""
    summary, link_given = (
        of_kind(records, "summary")[-1],
        of_kind(records, "run")[0]["config"]["link"] is not None,
    )
    headers, rows = table_rows(summary, link_given)
    best = best_cells(summary, link_given, bounds(records))
    by_label = dict(
        zip((m["label"] for m in of_kind(records, "method")), styles(records), strict=True)
    )
    looks = [by_label[row["label"]] for row in summary["rows"]]
    reference = summary["reference"]
    against = (
        "" if reference is None else f" Speedup: against {reference}, to its best training loss."
    )
    note = (
        f"Bold marks the best of a column{_but(records)}; MB are per worker for the whole "
        f"run.{against}"
    )
    return html.table(html.Table("Summary of the methods", note, headers, rows, best, looks))


def _but(records: Sequence[Record]) -> str:
    """Who is left out when the best is marked."""
    return f" ({', '.join(sorted(bounds(records)))} left out)" if bounds(records) else ""


def curves_section(records: Sequence[Record]) -> str:
    """Every panel of curves under one legend."""
    shown = [*panels(records), *([bits_panel(records)] if traffic_differs(records) else [])]
    labels = [legend_label(method) for method in of_kind(records, "method")]
    legend = html.key(zip(styles(records), labels, strict=True))
    drawn = [_figure(panel, records, legend) for panel in shown]
    return html.figures(_how_to_read(records), legend, drawn)


def _how_to_read(records: Sequence[Record]) -> str:
    methods, target = of_kind(records, "method"), of_kind(records, "summary")[-1]["target_loss"]
    seeds = len(methods[0]["train"])
    text = (
        f"Lines are means over {seeds} seeds, bands ± the standard error."
        if seeds > 1
        else "Lines are one seed's."
    )
    if target is not None:
        text += f" The dotted line is the target, {number(target)}."
    return text + (
        " A cross is where a method diverged." if any(any(m["diverged"]) for m in methods) else ""
    )


def _figure(panel: Panel, records: Sequence[Record], legend: str) -> str:
    missing = [
        m["label"]
        for m in of_kind(records, "method")
        if m["label"] not in {c.label for c in panel.curves}
    ]
    text = f"Without a value here: {', '.join(missing)}." if missing else ""
    ends = []
    for curve in panel.curves:
        finite = curve.y[np.isfinite(curve.y)]
        ends.append(
            f"{curve.label} "
            f"{'diverges' if curve.diverged else number(finite[-1]) if finite.size else MISSING}"
        )
    described = (
        f"{panel.title}: {panel.y_label} against {panel.x_label}. At the end: {'; '.join(ends)}."
    )
    svg = html.inline_svg(figures.svg_bytes(figures.panel_figure(panel)), described)
    return html.figure(panel.title, text, svg, legend)


def _times(records: Sequence[Record]) -> html.Table | None:
    """Time to each of a few losses for every method; None without a link and step times."""
    methods, per_round = of_kind(records, "method"), seconds_per_round(records)
    if not any(per_round):
        return None
    target = of_kind(records, "summary")[-1]["target_loss"]
    losses: list[float] = sorted(
        {*_ladder(methods), *([] if target is None else [target])}, reverse=True
    )
    headers = [
        "method",
        "one round",
        *(f"to {number(x)} (target)" if x == target else f"to {x:g}" for x in losses),
    ]
    seconds: list[list[float | None]] = []
    for method, cost in zip(methods, per_round, strict=True):
        rounds = [metrics.rounds_to_loss(method["train"], loss) for loss in losses]
        seconds.append([None if n is None or cost is None else n * cost for n in rounds])
    best = set()
    rivals = [i for i, method in enumerate(methods) if method["label"] not in bounds(records)]
    for j in range(len(losses)):
        fastest = min((s for s in (seconds[i][j] for i in rivals) if s is not None), default=None)
        best |= {
            (i, j + 2)
            for i in rivals
            if len(rivals) > 1 and fastest is not None and seconds[i][j] == fastest
        }
    rows = [
        [m["label"], duration(c), *map(duration, s)]
        for m, c, s in zip(methods, per_round, seconds, strict=True)
    ]
    note = (
        "Time until the smoothed training loss is at most each of these; bold marks the "
        f"fastest{_but(records)}."
    )
    return html.Table("Time to each loss", note, headers, rows, frozenset(best), styles(records))


def _ladder(methods: Sequence[Record]) -> list[float]:
    """Round losses between where training starts and the lowest that any method reaches; none if
    not positive."""
    smooth = [metrics.smoothed(metrics.mean_curve(method["train"])) for method in methods]
    finite = [values[np.isfinite(values)] for values in smooth if np.isfinite(values).any()]
    if not finite:
        return []
    low, high = (
        min(values.min() for values in finite),
        float(np.median([values[0] for values in finite])),
    )
    return round_values(float(low), high, most=LADDER) if 0 < low < high else []


def _costs(records: Sequence[Record]) -> html.Table:
    """What each method used: workers, steps, traffic a round, and the time it took here."""
    headers = [
        "method",
        "workers",
        "local steps",
        "MB sent a round",
        "MB received a round",
        "topology",
    ]
    headers += ["local step", "wall time", "rounds a second"]
    rows = []
    for m in of_kind(records, "method"):
        sent, received = (number(m["traffic"][f"{way}_bits"] / 8e6) for way in ("sent", "received"))
        row = [
            m["label"],
            count(m["workers"]),
            count(m["local_steps"]),
            sent,
            received,
            m["traffic"]["topology"],
        ]
        rows.append(
            [
                *row,
                duration(m["step_seconds"]),
                duration(m["seconds"]),
                number(m["rounds_per_second"]),
            ]
        )
    note = (
        "Wall time and rounds a second are of the simulation on this machine, all seeds together."
    )
    return html.Table("Cost of each method", note, headers, rows, styles=styles(records))


def _origins(records: Sequence[Record]) -> str:
    run = of_kind(records, "run")[0]
    found = origins(records)
    about = [
        ("data", run["task"]["source"]),
        ("classes", count(run["task"]["classes"])),
        ("device", devices(found)),
        ("commit", commits(found)),
        ("versions", versions(found)),
        ("started", started(found)),
        ("wall time", duration(sum(method["seconds"] for method in of_kind(records, "method")))),
    ]
    settings = [(name.replace("_", " "), _setting(value)) for name, value in run["config"].items()]
    return f'<div class="columns">{html.pairs(settings)}{html.pairs(about)}</div>'


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return MISSING if value is None else str(value)
