"""All records under a folder as one report: what there is, where it came from, and what could not
be read.

A run is a folder with `records.jsonl`, or a file in `benchmarks/`. What kind it is follows from its
records, not from where it lies. Runs inside a run (the panels of an experiment) belong to it.
Nothing is run again, and nothing that cannot be shown is passed over in silence.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError
from laconic.runs.compare import RECORDS
from laconic.show.origin import commits, devices, origins, started
from laconic.show.panels import Record, of_kind
from laconic.show.summary import MISSING, duration
from laconic.store.archive import record_files
from laconic.store.runlog import read

KINDS = {
    "comparison": "Comparisons",
    "experiment": "The paper's experiments",
    "sweep": "Hyper-parameter sweeps",
    "training": "Training",
    "meta-training": "Meta-training",
    "benchmark": "Speed",
}
NO_SCRIPT = ("server-step", "overhead")  # benchmarks that only `laconic bench` runs
SMOKE = "-smoke"  # how the name of a folder ends whose run only shows that it works
SMOKE_NOTE = "smoke records: they show that it runs, not what it reaches"
# What making sense of somebody's records may raise: one bad run must not hide the others.
UNREADABLE = (
    LaconicError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    OSError,
)


@dataclass(frozen=True)
class Origin:
    """What made a run, in words."""

    command: str
    commit: str
    device: str
    started: str
    took: str


@dataclass(frozen=True)
class Run:
    """One run: its path below the folder of results, one of `KINDS`, its records and where they
    came from."""

    name: str
    kind: str
    path: Path
    records: list[Record]
    origin: Origin

    @property
    def smoke(self) -> bool:
        """Whether it only shows that things work."""
        return self.name.endswith(SMOKE) or self.records[0].get("scale") == "smoke"


@dataclass(frozen=True)
class Book:
    """Every run that could be read, in the order of `KINDS`, and a line for each file that could
    not."""

    root: Path
    runs: tuple[Run, ...]
    skipped: tuple[str, ...] = ()


def collect(root: str | Path) -> Book:
    """Read all records under a folder."""
    root = Path(root)
    if not root.is_dir():
        raise LaconicError(
            f"there is no folder {root} to report on: give the one that holds the records."
        )
    runs, skipped = [], []
    for path in _files(root):
        try:
            runs.append(_run(path, root))
        except UNREADABLE as error:
            skipped.append(reason(path.relative_to(root), error))
    if not runs:
        why = f" ({'; '.join(skipped)})" if skipped else ""
        raise LaconicError(
            f"{root} holds no records to report{why}: run something first, such as laconic compare."
        )
    order = list(KINDS)
    return Book(
        root, tuple(sorted(runs, key=lambda run: (order.index(run.kind), run.name))), tuple(skipped)
    )


Told = Callable[[str, int], None]  # the name of the run that is shown next, and how many there are


def untold(name: str, total: int) -> None:
    """Nobody watches."""


def rendered(
    book: Book, show: Callable[[Run], str], tell: Told = untold
) -> tuple[list[tuple[Run, str]], Book]:
    """Each run as `show` puts it → (run, text) pairs, and the book without those that could not be
    shown."""
    shown, skipped = [], list(book.skipped)
    for run in book.runs:
        tell(run.name, len(book.runs))
        try:
            shown.append((run, show(run)))
        except UNREADABLE as error:
            skipped.append(reason(run.path.relative_to(book.root), error))
    if not shown:
        raise LaconicError(f"no record under {book.root} can be shown: {'; '.join(skipped)}.")
    return shown, Book(book.root, tuple(run for run, _ in shown), tuple(skipped))


def reason(path: Path, error: Exception) -> str:
    """Why a file was left out, on one line."""
    text = (
        str(error)
        if isinstance(error, LaconicError)
        else f"its records are not in order ({error!r})"
    )
    return " ".join(f"{path}: {text}".split())


# --- finding them ---------------------------------------------------------------------------------


def _files(root: Path) -> Iterator[Path]:
    """Files of records, and of benchmarks; below a folder with records nothing is looked for."""
    for folder, below, files in os.walk(root):
        below.sort()
        if {RECORDS, f"{RECORDS}.xz"} & set(files):
            below.clear()
            yield Path(folder) / RECORDS
        elif Path(folder).name == "benchmarks":
            yield from (
                Path(folder) / name for name in sorted(files) if name.endswith((".json", ".jsonl"))
            )


def _run(path: Path, root: Path) -> Run:
    if path.name != RECORDS:
        records = _benchmarks(path)
        return Run(
            path.relative_to(root).with_suffix("").as_posix(),
            "benchmark",
            path,
            records,
            _measured(records),
        )
    records = read(path)
    kind = _kind(records)
    name = path.parent.relative_to(root).as_posix()
    name = path.parent.resolve().name if name == "." else name
    seconds = _seconds_inside(path.parent) if kind == "experiment" else _seconds(kind, records)
    return Run(name, kind, path, records, _origin(records, seconds))


def _kind(records: Sequence[Record]) -> str:
    if "run" not in {record.get("kind") for record in records}:
        raise LaconicError("it holds no run: no record says what was run, where and when")
    kind = _finished_kind(records)
    if kind is None:
        raise LaconicError("the run is not finished, so there is nothing to show yet")
    return kind


def _finished_kind(records: Sequence[Record]) -> str | None:
    """Which of `KINDS` a run is by the record it ends with; None if it has not got there."""
    kinds = {record.get("kind") for record in records}
    for ends, kind in (("experiment", "experiment"), ("ranking", "sweep"), ("timing", "benchmark")):
        if ends in kinds:
            return kind
    if {"summary", "rounds"} <= kinds:
        return "training"
    if "summary" in kinds and kinds & {"method", "progress", "judged"}:
        return "comparison" if "method" in kinds else "meta-training"
    return None


def _benchmarks(path: Path) -> list[Record]:
    records = (
        read(path) if path.suffix == ".jsonl" else [json.loads(path.read_text(encoding="utf-8"))]
    )
    if not records or not all(isinstance(record, dict) for record in records):
        raise LaconicError("it holds no measurements")
    return records


# --- where they came from -------------------------------------------------------------------------


def _seconds(kind: str, records: Sequence[Record]) -> float:
    if kind == "comparison":
        return sum(method["seconds"] for method in of_kind(records, "method"))
    return records[-1]["seconds"]


def _seconds_inside(folder: Path) -> float | None:
    """The time of the finished runs inside an experiment; None where none is kept beside its
    records."""
    inside = [read(path) for path in record_files(folder) if path.parent != folder]
    # what of it is still under way is no part of its outcome yet, nor a reason to hide what is done
    done = [(kind, records) for records in inside if (kind := _finished_kind(records)) is not None]
    return sum(_seconds(kind, records) for kind, records in done) if done else None


def _origin(records: Sequence[Record], seconds: float | None) -> Origin:
    return _words(records[0]["command"], origins(records), duration(seconds))


def _measured(records: Sequence[Record]) -> Origin:
    """Of a benchmark, whose record may name no command: the script's is known from its name, if
    there is one."""
    name = records[0]["benchmark"]
    known = (
        f"laconic bench {name}"
        if name in NO_SCRIPT
        else f"python benchmarks/{name.replace('-', '_')}.py"
    )
    commands = dict.fromkeys(record.get("command", known) for record in records)
    return _words(
        "\n".join(commands), [record.get("provenance", record) for record in records], MISSING
    )


def _words(command: str, found: Sequence[Record], took: str) -> Origin:
    return Origin(command, commits(found), devices(found), started(found), took)
