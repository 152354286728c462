"""An experiment for people, made only from records: figure.png and .svg, figure-narrow.png,
table.md and table.html."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from laconic.reproduce import timings, tuning
from laconic.reproduce.draw import experiment_figure
from laconic.reproduce.experiment import AVERAGE, Experiment
from laconic.reproduce.mixes import HEADERS, mix_lines
from laconic.reproduce.notes import notes, scale_line
from laconic.reproduce.outcome import COLUMNS
from laconic.reproduce.timings import timing_lines
from laconic.show import page as html
from laconic.show.figures import png_bytes, svg_bytes
from laconic.show.table import MISSING, number
from laconic.store import atomic

Record = dict[str, Any]


class Table(NamedTuple):
    """Formatted cells under a title."""

    title: str
    headers: list[str]
    rows: list[list[str]]


def write_outcome(
    folder: Path,
    experiment: Experiment,
    record: Record,
    panels: Mapping[str, Sequence[Record]],
    timed: Mapping[str, Sequence[Record]] | None = None,
) -> list[Path]:
    """Write the figure and the table of an "experiment" record, each file in one step → their
    paths."""
    note, told = "".join(scale_line(record)), notes(experiment, record, panels, timed or {})
    figure = experiment_figure(experiment, panels, record["rows"], note)
    png = png_bytes(figure)
    contents = {
        "figure.png": png,
        "figure.svg": svg_bytes(figure),
        "table.md": markdown(experiment, record, told).encode(),
        "table.html": page(experiment, record, told, png).encode(),
    }
    if (
        experiment.panels or experiment.mixes or experiment.timings
    ):  # the same in one column, for the report on a phone
        slim = experiment_figure(experiment, panels, record["rows"], note, columns=1)
        contents["figure-narrow.png"] = png_bytes(slim)
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]


# --- tables ---------------------------------------------------------------------------------------


def tables(experiment: Experiment, rows: Sequence[Record]) -> list[Table]:
    """The experiment's own table, or that of its tuned values or class mixes, then what the paper
    lists besides."""
    of = lambda metric: [row for row in rows if row["metric"] == metric]
    found = [hparams_table(of("hparams"))] if experiment.sweeps else []
    found += [Table(experiment.title, HEADERS, mix_lines(of("mix")))] if experiment.mixes else []
    if experiment.timings:
        found.append(
            Table(experiment.title, timings.HEADERS, timing_lines(experiment, of(timings.METRIC)))
        )
    if experiment.panels or not found:
        found.append(panels_table(experiment, [row for row in rows if row["metric"] in COLUMNS]))
    if of(tuning.METRIC):
        found.append(
            Table(tuning.TITLE, tuning.HEADERS, tuning.tuned_lines(experiment, of(tuning.METRIC)))
        )
    found += [
        Table(x.title, list(x.headers), [list(row) for row in x.rows]) for x in experiment.listings
    ]
    return found


def panels_table(experiment: Experiment, rows: Sequence[Record]) -> Table:
    """A line for each method of each panel: our numbers, and beside the first metric the paper's
    and the difference."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    beside = {
        metric for metric in metrics if any(r["metric"] == metric and r["in_paper"] for r in rows)
    }
    headers = ["panel", "method"]
    for metric in metrics:
        headers.append(_heading(metric, rows))
        headers += ["the paper" + _paper_target(rows), "difference"] if metric in beside else []
    titles = {panel.name: panel.title for panel in experiment.panels} | {
        AVERAGE: "average of the columns here"
    }
    lines, by_place = [], {(row["panel"], row["label"], row["metric"]): row for row in rows}
    for panel, label in dict.fromkeys((row["panel"], row["label"]) for row in rows):
        line = [titles[panel], label]
        for metric in metrics:
            line += _cells(by_place.get((panel, label, metric)), metric, metric in beside)
        lines.append(line)
    return Table(experiment.title, headers, lines)


def _heading(metric: str, rows: Sequence[Record]) -> str:
    targets = {row["target"] for row in rows if row.get("target") is not None}
    return COLUMNS[metric].title.format(
        target=" or ".join(number(t) for t in sorted(targets)) or "the target loss"
    )


def _paper_target(rows: Sequence[Record]) -> str:
    """Which loss the paper's rounds are to, where ours are to another."""
    other = {
        r["paper_target"] for r in rows if r.get("paper_target") not in (None, r.get("target"))
    }
    return f" (to {' or '.join(number(t) for t in sorted(other))})" if other else ""


def _cells(row: Record | None, metric: str, beside: bool) -> list[str]:
    if row is None:
        return ["", "", ""] if beside else [""]
    text = COLUMNS[metric].text
    cells = [text(row["ours"], row["error"])]
    if beside:
        shown = text(row["paper"], row["paper_error"]) if row["in_paper"] else ""
        cells += [shown, "" if not row["in_paper"] else difference(row["difference"])]
    return cells


def difference(value: float | None) -> str:
    """With its sign."""
    return (
        MISSING
        if value is None
        else f"{'+' if value > 0 else '−' if value < 0 else '±'}{number(abs(value))}"
    )


def hparams_table(rows: Sequence[Record]) -> Table:
    """A line for each tuned method: the paper's values, the best here, and the loss at both in the
    same sweep."""
    headers = [
        "configuration",
        "the paper",
        "best here",
        "loss there",
        "loss at the paper's",
        "difference",
        "on record",
    ]
    lines = [
        [
            row["panel"],
            _point(row["paper"]),
            _point(row["ours"]),
            number(row["loss"]),
            number(row["paper_loss"]),
            difference(row["difference"]),
            MISSING if row["recorded"] is None else _point(row["recorded"]),
        ]
        for row in rows
    ]
    return Table("Best hyper-parameters", headers, lines)


def _point(numbers: Mapping[str, float]) -> str:
    return " / ".join(f"{value:.4g}" for value in numbers.values())


# --- documents ------------------------------------------------------------------------------------


def _sentence(experiment: Experiment) -> str:
    return f"{experiment.what[0].upper()}{experiment.what[1:]}."


def markdown(experiment: Experiment, record: Record, told: Sequence[str]) -> str:
    """The experiment as Markdown, with what there is to tell about it."""
    parts = [
        f"# {experiment.title}",
        _sentence(experiment),
        *(f"**{line}**" for line in scale_line(record)),
    ]
    for i, table in enumerate(tables(experiment, record["rows"])):
        parts += [f"## {table.title}"] if i else []
        lines = [table.headers, ["---"] * len(table.headers), *table.rows]
        parts.append(
            "\n".join(
                f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
                for line in lines
            )
        )
    parts.append("\n".join(f"- {note}" for note in told))
    parts.append(f"![{experiment.title}](figure.png)")
    return "\n\n".join(parts) + "\n"


def page(experiment: Experiment, record: Record, told: Sequence[str], png: bytes) -> str:
    """The experiment as one HTML file that needs nothing else."""
    body = []
    for table in tables(experiment, record["rows"]):
        body.append(f"<section><h2>{escape(table.title)}</h2>")
        body.append(html.table(html.Table(table.title, table.headers, table.rows)) + "</section>")
    body.append(
        f'<section><h2>Figure</h2><figure><img style="max-width:100%" alt="{escape(experiment.title)}" '
        f'src="{html.data_address(png)}"></figure></section>'
    )
    opening = html.verdict(_sentence(experiment), [*scale_line(record), *told])
    by = f"laconic reproduce {experiment.name} --scale {record['scale']}"
    named = f"{experiment.title} – laconic reproduce", by, experiment.title
    return html.document(*named, "\n".join([opening, *body]))
