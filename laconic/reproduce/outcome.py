"""What an experiment comes to: rows, tables, notes and a figure, as Markdown and HTML."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.reproduce.experiment import Experiment
from laconic.reproduce.part import Record, Runs
from laconic.reproduce.scale import SMOKE_LINE
from laconic.show.figures import png_bytes, svg_bytes
from laconic.show.page import (
    Block,
    Notes,
    Picture,
    Text,
    Verdict,
    document,
    html,
    provenances,
    section,
)
from laconic.show.table import Table
from laconic.store import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3


def rows_of(experiment: Experiment, runs: Mapping[str, Runs]) -> list[Record]:
    """The rows of all parts, from the records of their runs."""
    return [row for kind in experiment.kinds() for row in kind.rows(experiment, runs)]


def tables(experiment: Experiment, rows: Sequence[Record]) -> list[Table]:
    """The tables of all parts, then what the paper lists besides."""
    found = [table for kind in experiment.kinds() for table in kind.tables(experiment, rows)]
    listed = [Table(x.title, list(x.headers), list(map(list, x.rows))) for x in experiment.listings]
    return found + listed


def notes(experiment: Experiment, record: Record, runs: Mapping[str, Runs]) -> list[str]:
    """What the paper says, what is left out, what diverged, and where the numbers come from."""
    kinds = experiment.kinds()
    smoke = record["scale"] == "smoke"
    found = [f"At this scale {kind.SMALL}." for kind in kinds if smoke]
    found += [*(f"The paper: {text}" for text in experiment.says), *experiment.leaves_out]
    found += left_line(record)
    found += [text for kind in kinds for text in kind.notes(experiment, record, runs)]
    records = [found for part in runs.values() for found in part.values()]
    made = [origin for run in records for origin in provenances(run)]
    return found + list(dict.fromkeys(map(_origin, made or [record["provenance"]])))


def _origin(provenance: Record) -> str:
    """Where and when something was measured."""
    commit = provenance["commit"] or "unknown"
    changed = " with uncommitted changes" if provenance.get("dirty") else ""
    device = provenance["device"]["kind"]
    return f"Commit {commit}{changed}, {device}, {provenance['started'][:10]}."


def scale_line(record: Record) -> list[str]:
    """That a run only shows that things work, if so."""
    return [SMOKE_LINE] if record["scale"] == "smoke" else []


def left_line(record: Record) -> list[str]:
    """Which parts are yet to be carried out, if any are."""
    return [f"Not carried out yet: {', '.join(record['left'])}."] if record.get("left") else []


# --- documents ------------------------------------------------------------------------------------


def write_outcome(
    folder: Path, experiment: Experiment, record: Record, runs: Mapping[str, Runs]
) -> list[Path]:
    """Write the figure and the tables of an "experiment" record → their paths."""
    told = notes(experiment, record, runs)
    note = "".join(scale_line(record))
    figure = experiment_figure(experiment, runs, record["rows"], note)
    narrow = experiment_figure(experiment, runs, record["rows"], note, columns=1)
    png = png_bytes(figure)
    contents = {
        "figure.png": png,
        "figure.svg": svg_bytes(figure),
        "figure-narrow.png": png_bytes(narrow),
        "table.md": markdown(experiment, record, told).encode(),
        "table.html": page(experiment, record, told, png).encode(),
    }
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]


def experiment_figure(
    experiment: Experiment,
    runs: Mapping[str, Runs],
    rows: Sequence[Record],
    note: str = "",
    columns: int = COLUMNS,
) -> "Figure":
    """The figure of its first kind of part, in 3 columns or, for a phone, in 1."""
    return experiment.kinds()[0].draw(experiment, runs, rows, note, columns)


def blocks(experiment: Experiment, record: Record, runs: Mapping[str, Runs]) -> list[Block]:
    """What a report of all records shows of an experiment: tables, notes and figure."""
    rows = record["rows"]
    draw = lambda columns: png_bytes(experiment_figure(experiment, runs, rows, columns=columns))
    found: list[Block] = [Text(experiment.title, "lead"), Text(_sentence(experiment))]
    for i, table in enumerate(tables(experiment, rows)):
        found += [Text(table.title, "lead"), table] if i else [table]
    figure = Picture(lambda: draw(COLUMNS), f"{experiment.title}: its figure", lambda: draw(1))
    return [*found, Notes(notes(experiment, record, runs)), figure]


def _sentence(experiment: Experiment) -> str:
    return f"{experiment.what[0].upper()}{experiment.what[1:]}."


def markdown(experiment: Experiment, record: Record, told: Sequence[str]) -> str:
    """The experiment as Markdown, with its notes."""
    parts = [f"# {experiment.title}", _sentence(experiment)]
    parts += [f"**{line}**" for line in scale_line(record)]
    for i, table in enumerate(tables(experiment, record["rows"])):
        parts += [f"## {table.title}"] if i else []
        parts.append(table.markdown(aligned=False).strip())
    parts.append("\n".join(f"- {note}" for note in told))
    parts.append(f"![{experiment.title}](figure.png)")
    return "\n\n".join(parts) + "\n"


def page(experiment: Experiment, record: Record, told: Sequence[str], png: bytes) -> str:
    """The experiment as one HTML file that needs nothing else."""
    opening = Verdict(_sentence(experiment), [*scale_line(record), *told])
    body = [html([opening])]
    body += [section(x.title, html([x])) for x in tables(experiment, record["rows"])]
    body.append(section("Figure", html([Picture(png, experiment.title)])))
    by = f"laconic reproduce {experiment.name} --scale {record['scale']}"
    title = f"{experiment.title} – laconic reproduce"
    return document(title, by, experiment.title, "\n".join(body))
