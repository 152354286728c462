"""What an experiment comes to: rows, tables, notes and a figure, as Markdown and HTML."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.reproduce import EXPERIMENTS, named_experiment
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.part import Outcome, Record, Runs
from laconic.reproduce.scale import SMOKE_LINE
from laconic.show.curves import of_kind
from laconic.show.figures import png_bytes, svg_bytes, webp_bytes
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


def notes(outcome: Outcome) -> list[str]:
    """What the paper says, what is left out, what diverged, and which data."""
    experiment, _, record = outcome
    small = [f"At this scale {kind.SMALL}." for kind in experiment.kinds()]
    found = small if record["scale"] == "smoke" else []
    found += [*(f"The paper: {text}" for text in experiment.says), *experiment.leaves_out]
    found += left_line(record)
    return found + [text for kind in experiment.kinds() for text in kind.notes(outcome)]


def origins(outcome: Outcome) -> list[str]:
    """Where and when the numbers were measured."""
    runs = [records for part in outcome.runs.values() for records in part.values()]
    made = [origin for records in runs for origin in provenances(records)]
    found = []
    for origin in made or [outcome.record["provenance"]]:
        commit = origin["commit"] or "unknown"
        changed = " with uncommitted changes" if origin.get("dirty") else ""
        device = origin["device"]["kind"]
        found.append(f"Commit {commit}{changed}, {device}, {origin['started'][:10]}.")
    return list(dict.fromkeys(found))


def scale_line(record: Record) -> list[str]:
    """That a run only shows that things work, if so."""
    return [SMOKE_LINE] if record["scale"] == "smoke" else []


def left_line(record: Record) -> list[str]:
    """Which parts are yet to be carried out, if any are."""
    return [f"Not carried out yet: {', '.join(record['left'])}."] if record.get("left") else []


# --- documents ------------------------------------------------------------------------------------


def write_outcome(folder: Path, outcome: Outcome) -> list[Path]:
    """Write the figure and the tables of an "experiment" record → their paths."""
    figure = experiment_figure(outcome)
    contents = {
        "figure.png": png_bytes(figure),
        "figure.svg": svg_bytes(figure),
        "figure-narrow.png": png_bytes(experiment_figure(outcome, columns=1)),
        "table.md": markdown(outcome).encode(),
    }
    contents["table.html"] = page(outcome, contents["figure.png"]).encode()
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]


def experiment_figure(outcome: Outcome, columns: int = COLUMNS) -> "Figure":
    """The figure of its first kind of part, in 3 columns or, for a phone, in 1."""
    note = "".join(scale_line(outcome.record))
    return outcome.experiment.kinds()[0].draw(outcome, note, columns)


def _sentence(experiment: Experiment) -> str:
    return f"{experiment.what[0].upper()}{experiment.what[1:]}."


def markdown(outcome: Outcome) -> str:
    """The experiment as Markdown, with its notes."""
    experiment, _, record = outcome
    parts = [f"# {experiment.title}", _sentence(experiment)]
    parts += [f"**{line}**" for line in scale_line(record)]
    for i, table in enumerate(tables(experiment, record["rows"])):
        parts += [f"## {table.title}"] if i else []
        parts.append(table.markdown(aligned=False).strip())
    parts.append("\n".join(f"- {note}" for note in (*notes(outcome), *origins(outcome))))
    parts.append(f"![{experiment.title}](figure.png)")
    return "\n\n".join(parts) + "\n"


def page(outcome: Outcome, png: bytes) -> str:
    """The experiment as one HTML file that needs nothing else."""
    experiment, _, record = outcome
    told = [*scale_line(record), *notes(outcome), *origins(outcome)]
    body = [html([Verdict(_sentence(experiment), told)])]
    body += [section(x.title, html([x], level=3)) for x in tables(experiment, record["rows"])]
    body.append(section("Figure", html([Picture(png, experiment.title)])))
    by = f"laconic reproduce {experiment.name} --scale {record['scale']}"
    title = f"{experiment.title} – laconic reproduce"
    return document(title, by, experiment.title, "\n".join(body))


# --- in a report ----------------------------------------------------------------------------------


def experiment_blocks(records: Sequence[Record], folder: Path) -> list[Block]:
    """What `laconic report` shows of an experiment's folder: its last outcome.

    An experiment of the registry is shown from the records of its parts, any other by the tables
    and notes of its own record.
    """
    record = of_kind(records, "experiment")[-1]
    if record["name"] not in EXPERIMENTS:
        kept = [Table(**table) for table in record["tables"]]
        return [Text(record["title"], "lead"), *kept, Notes(record["notes"])]
    outcome = read_outcome(folder, record)
    experiment = outcome.experiment
    found: list[Block] = [Text(experiment.title, "lead"), Text(_sentence(experiment))]
    for i, table in enumerate(tables(experiment, outcome.record["rows"])):
        found += [Text(table.title, "lead"), table] if i else [table]
    draw = lambda columns: webp_bytes(experiment_figure(outcome, columns))
    figure = Picture(lambda: draw(COLUMNS), f"{experiment.title}: its figure", lambda: draw(1))
    return [*found, Notes([*notes(outcome), *origins(outcome)]), figure]


def read_outcome(folder: Path, record: Record) -> Outcome:
    """The outcome of an "experiment" record in a folder, with the records of its parts, and rows
    made of those: an old record's have other errors."""
    whole = named_experiment(record["name"]).at_scale(record["scale"])
    done = whole.narrowed(set(whole.names()) - set(record.get("left", [])))
    runs = {part.name: part.read(folder) for part in done.parts}
    return Outcome(done, runs, {**record, "rows": rows_of(done, runs)})
