"""`laconic report`: all records under a folder as one page of HTML and, if asked for, of Markdown.

- `collect`: every run under a folder, and a line for each file that cannot be read.
- `html_page`, `markdown_page`: the report of these runs. `report_folder`: both, written to files.

A run is a folder with `records.jsonl`, or a file in `benchmarks/`. Its kind follows from its
records, not from where it lies. Runs inside a run (the panels of an experiment) belong to it.
Nothing is run again, and whatever cannot be shown is named.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.show import comparison, meta, metrics, page, sweep, training
from laconic.show.curves import Record, of_kind
from laconic.show.table import MISSING, Table, count, duration, markdown_text, plural
from laconic.store import atomic
from laconic.store.archive import record_files
from laconic.store.records import read

RECORDS = "records.jsonl"
KINDS = {
    "comparison": "Comparisons",
    "experiment": "The paper's experiments",
    "sweep": "Hyper-parameter sweeps",
    "training": "Training",
    "meta-training": "Meta-training",
    "benchmark": "Speed",
}
NO_SCRIPT = ("server-step", "overhead")  # benchmarks that only `laconic bench` runs
ABOUT = ("benchmark", "command", "commit", "dirty", "versions", "device", "host_cpus", "started")
SMOKE = "-smoke"  # how the name of a folder ends whose run only shows that it works
SMOKE_NOTE = "smoke records: they show that it runs, not what it reaches"
GENERATOR = '<meta name="generator" content="laconic report">'
MADE_BY = "<!-- written by laconic report -->"
PICTURES = ("curves.png", "ranking.png", "learning-curve.png", "loss.png", "figure.png")

# Given the name of the run that is drawn next, and how many there are.
Progress = Callable[[str, int], None]
# What a page shows of one kind of run, from its records and the folder they lie in.
Renderer = Callable[[Sequence[Record], Path], Sequence[page.Block]]


@dataclass(frozen=True)
class ReportedRun:
    """One run: its path below the folder of results, one of `KINDS`, its records, what made it."""

    name: str
    kind: str
    path: Path
    records: list[Record]
    command: str
    about: dict[str, str]

    @property
    def smoke(self) -> bool:
        """Whether it only shows that things work."""
        return self.name.endswith(SMOKE) or self.records[0].get("scale") == "smoke"


@dataclass(frozen=True)
class Report:
    """The runs that could be read, by kind and name, and a line for each file that could not."""

    root: Path
    runs: tuple[ReportedRun, ...]
    skipped: tuple[str, ...] = ()


def report_folder(
    results: Path,
    out: Path,
    *,
    markdown: bool = False,
    progress: Progress = lambda name, total: None,
    renderers: Mapping[str, Renderer] | None = None,
) -> tuple[list[Path], list[str]]:
    """Write the report of a folder → (its files, a line for each record file that was skipped).

    With `markdown` a second page lies beside the first. `progress` is called before each run is
    drawn. `renderers` adds kinds of runs that show does not know, such as experiments. An older
    report is replaced; any other file is left alone.
    """
    if out.suffix == ".md":
        why = "give a name that ends in .html, and --markdown for the other."
        raise LaconicError(f"{out} would be an HTML page: {why}")
    wanted = {out: GENERATOR} | ({out.with_suffix(".md"): MADE_BY} if markdown else {})
    for path, mark in wanted.items():
        _may_replace(path, mark)
    text, report = html_page(collect(results), progress, renderers)
    texts = [text, *([markdown_page(report, out.parent, renderers)] if markdown else [])]
    for path, content in zip(wanted, texts, strict=True):
        atomic.write_bytes(path, content.encode(errors="replace"))
    return list(wanted), list(report.skipped)


def _may_replace(path: Path, mark: str) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_file() or mark not in path.read_text(encoding="utf-8", errors="replace")[:2000]:
        why = "it is left alone; choose another --out."
        raise LaconicError(f"{path} exists and is no report of laconic's: {why}")


# --- finding runs ---------------------------------------------------------------------------------


def collect(root: str | Path) -> Report:
    """Read all records under a folder."""
    root = Path(root)
    if not root.is_dir():
        why = "give the one that holds the records."
        raise LaconicError(f"there is no folder {root} to report on: {why}")
    runs: list[ReportedRun] = []
    skipped: list[str] = []
    for path in _files(root):
        try:
            runs.append(_run(path, root))
        except Exception as error:  # one bad file must not hide the others
            skipped.append(_reason(path.relative_to(root), error))
    if not runs:
        why = f" ({'; '.join(skipped)})" if skipped else ""
        advice = "run something first, such as laconic compare."
        raise LaconicError(f"{root} holds no records to report{why}: {advice}")
    order = list(KINDS)
    runs.sort(key=lambda run: (order.index(run.kind), run.name))
    return Report(root, tuple(runs), tuple(skipped))


def _files(root: Path) -> Iterator[Path]:
    """Files of records, and of benchmarks; below a folder with records nothing is looked for."""
    for folder, below, files in os.walk(root):
        below.sort()
        if {RECORDS, f"{RECORDS}.xz"} & set(files):
            below.clear()
            yield Path(folder) / RECORDS
        elif Path(folder).name == "benchmarks":
            kept = [name for name in sorted(files) if name.endswith((".json", ".jsonl"))]
            yield from (Path(folder) / name for name in kept)


def _run(path: Path, root: Path) -> ReportedRun:
    if path.name != RECORDS:
        return _benchmark_run(path, path.relative_to(root).with_suffix("").as_posix())
    records = read(path)
    kind = _kind(records)
    name = path.parent.relative_to(root).as_posix()
    if name == ".":
        name = path.parent.resolve().name
    seconds = _seconds_inside(path.parent) if kind == "experiment" else _seconds(kind, records)
    about = _about(page.provenances(records), duration(seconds))
    return ReportedRun(name, kind, path, records, records[0]["command"], about)


def _benchmark_run(path: Path, name: str) -> ReportedRun:
    """A file of measurements; where it names no command, that follows from the benchmark's name."""
    lines = path.suffix == ".jsonl"
    records = read(path) if lines else [json.loads(path.read_text(encoding="utf-8"))]
    if not records or not all(isinstance(record, dict) for record in records):
        raise LaconicError("it holds no measurements")
    benchmark = records[0]["benchmark"]
    known = f"python benchmarks/{benchmark.replace('-', '_')}.py"
    if benchmark in NO_SCRIPT:
        known = f"laconic bench {benchmark}"
    commands = dict.fromkeys(record.get("command", known) for record in records)
    about = _about([record.get("provenance", record) for record in records], MISSING)
    return ReportedRun(name, "benchmark", path, records, "\n".join(commands), about)


def _about(found: Sequence[Record], took: str) -> dict[str, str]:
    facts = dict(page.provenance_facts(found))
    return {name: facts[name] for name in ("commit", "device", "started")} | {"took": took}


def _kind(records: Sequence[Record]) -> str:
    if "run" not in {record.get("kind") for record in records}:
        raise LaconicError("it holds no run: no record says what was run, where and when")
    kind = _finished_kind(records)
    if kind is None:
        raise LaconicError("the run is not finished, so there is nothing to show yet")
    return kind


def _finished_kind(records: Sequence[Record]) -> str | None:
    """Which of `KINDS` a run is by the record it ends with; None if it is not finished."""
    kinds = {record.get("kind") for record in records}
    for ends, kind in (("experiment", "experiment"), ("ranking", "sweep"), ("timing", "benchmark")):
        if ends in kinds:
            return kind
    if {"summary", "rounds"} <= kinds:
        return "training"
    if "summary" in kinds and kinds & {"method", "progress", "judged"}:
        return "comparison" if "method" in kinds else "meta-training"
    return None


def _seconds(kind: str, records: Sequence[Record]) -> float:
    if kind == "comparison":
        return sum(method["seconds"] for method in of_kind(records, "method"))
    return records[-1]["seconds"]


def _seconds_inside(folder: Path) -> float | None:
    """The time of the finished runs inside an experiment; None without any."""
    inside = [read(path) for path in record_files(folder) if path.parent != folder]
    done = [(kind, records) for records in inside if (kind := _finished_kind(records)) is not None]
    return sum(_seconds(kind, records) for kind, records in done) if done else None


# --- showing them ---------------------------------------------------------------------------------


def _blocks(run: ReportedRun, renderers: Mapping[str, Renderer] | None) -> Sequence[page.Block]:
    if renderers and run.kind in renderers:
        return renderers[run.kind](run.records, run.path.parent)
    return BLOCKS[run.kind](run.records)


def _experiment(records: Sequence[Record]) -> list[page.Block]:
    return [page.Text(str(records[-1]["title"]), "lead")]


def _measurements(records: Sequence[Record]) -> list[page.Block]:
    """A benchmark's numbers by name; what it says about its origin is left out."""
    columns = [dict(_flat({k: v for k, v in r.items() if k not in ABOUT})) for r in records]
    names = list(dict.fromkeys(name for column in columns for name in column))
    heads = ["measured"] if len(columns) == 1 else [f"run {i + 1}" for i in range(len(columns))]
    rows = [[name, *(column.get(name, MISSING) for column in columns)] for name in names]
    name = f"Benchmark {records[0]['benchmark']}"
    return [Table(name, ["what", *heads], rows, f"{name}, as its program wrote it.")]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != "provenance":
                yield from _flat(inner, f"{name} · {key}" if name else key)
        return
    text = str(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        text = f"{count(len(value))} entries"  # in the file itself
    elif isinstance(value, float):
        text = f"{value:,.6g}"
    elif type(value) is int:
        text = count(value)
    yield name.replace("_", " "), text


BLOCKS: dict[str, Callable[[Sequence[Record]], Sequence[page.Block]]] = {
    "comparison": comparison.blocks,
    "experiment": _experiment,
    "sweep": sweep.blocks,
    "training": training.blocks,
    "meta-training": meta.blocks,
    "benchmark": _measurements,
}


def _rendered(
    report: Report,
    show: Callable[[ReportedRun], str],
    progress: Progress = lambda name, total: None,
) -> tuple[list[tuple[ReportedRun, str]], Report]:
    """Each run as text → (run and text, each; the report without runs that could not be shown)."""
    shown: list[tuple[ReportedRun, str]] = []
    skipped = list(report.skipped)
    for run in report.runs:
        progress(run.name, len(report.runs))
        try:
            shown.append((run, show(run)))
        except Exception as error:
            skipped.append(_reason(run.path.relative_to(report.root), error))
    if not shown:
        raise LaconicError(f"no record under {report.root} can be shown: {'; '.join(skipped)}.")
    return shown, replace(report, runs=tuple(run for run, _ in shown), skipped=tuple(skipped))


def _reason(path: Path, error: Exception) -> str:
    """Why a file was left out, on one line."""
    text = f"its records are not in order ({error!r})"
    if isinstance(error, LaconicError):
        text = str(error)
    if isinstance(error, RecursionError):
        text = "its records are nested too deeply"
    return " ".join(f"{path}: {text}".split())


def html_page(
    report: Report,
    progress: Progress = lambda name, total: None,
    renderers: Mapping[str, Renderer] | None = None,
) -> tuple[str, Report]:
    """The page → (HTML, the report without runs that could not be shown)."""
    lines: dict[str, str] = {}

    def show(run: ReportedRun) -> str:
        blocks = _blocks(run, renderers)
        lines[run.name] = _line(blocks)
        return _article(run, blocks)

    shown, report = _rendered(report, show, progress)
    texts = {run.name: text for run, text in shown}
    first = [run for run in headline(report) if run.name in texts]
    body = [page.section("Headline", "\n".join(texts[run.name] for run in first))]
    for kind, title in KINDS.items():
        runs = [run for run in report.runs if run.kind == kind and run not in first]
        folded = "\n".join(_folded(run, lines[run.name], texts[run.name]) for run in runs)
        if runs:
            body.append(page.section(f"{title} ({len(runs)})", folded))
    readme = report.root / "README.md"
    if readme.is_file():
        text = readme.read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
        paragraphs = [page.Text(p, "plain") for p in re.split(r"\n\s*\n", text) if p.strip()]
        body.append(page.section("About these records", page.html(paragraphs)))
    terms = page.pairs(metrics.DEFINITIONS, "terms")
    body.append(page.section("How the numbers are defined", terms))
    name = report.root.name or report.root
    found = f"{plural(len(report.runs), 'run')} on record under {name}; a click on a name opens it."
    left_out = []
    if report.skipped:
        left_out = [f"{plural(len(report.skipped), 'file')} skipped: why is said at the end."]
        body.append(page.section("Skipped", page.html([page.Notes(report.skipped)])))
    whole = page.verdict(found, left_out) + "\n".join(body)
    names = "laconic: all results", "laconic report", "All results"
    return page.document(*names, whole, meta=f"{GENERATOR}\n"), report


def _article(run: ReportedRun, blocks: Sequence[page.Block]) -> str:
    badge = f'<p><span class="smoke">{escape(SMOKE_NOTE)}</span></p>' if run.smoke else ""
    heading = f"<article><h3>{page.label(run.name)}</h3>{badge}"
    made = page.html([page.Command(run.command), page.Facts(list(run.about.items()))])
    return f"{heading}\n{page.html(blocks)}\n{made}</article>"


def headline(report: Report) -> list[ReportedRun]:
    """The runs a page opens with: those its README.md names in `<!-- headline: NAME NAME -->`, else
    the newest comparison and the newest experiment, else the first run."""
    readme = report.root / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    named = " ".join(re.findall(r"<!-- headline: (.*?) -->", text)).split()
    found = [run for name in named for run in report.runs if run.name == name]
    for kind in () if found else ("comparison", "experiment"):
        same = [run for run in report.runs if run.kind == kind and not run.smoke]
        found += sorted(same, key=lambda run: run.about["started"])[-1:]
    return found or list(report.runs[:1])


def _line(blocks: Sequence[page.Block]) -> str:
    """What a run comes to in one line: its verdict, else its first text."""
    verdicts = [block.sentence for block in blocks if isinstance(block, page.Verdict)]
    texts = [block.text for block in blocks if isinstance(block, page.Text)]
    return (verdicts + texts + [""])[0]


def _folded(run: ReportedRun, line: str, article: str) -> str:
    """A run behind its name; a browser lays it out once it is opened."""
    smoke = " (smoke)" if run.smoke else ""
    named = f"<b>{page.label(run.name)}</b>{smoke} <span>{escape(line)}</span>"
    return f"<details><summary>{named}</summary>\n{article}</details>"


def markdown_page(
    report: Report, folder: Path, renderers: Mapping[str, Renderer] | None = None
) -> str:
    """The report as Markdown for a file in `folder`, with links to figures beside the records."""
    show = lambda run: _chapter(run, _blocks(run, renderers), folder)
    shown, report = _rendered(report, show)
    parts = [MADE_BY, "# All results", *(f"Skipped: {line}" for line in report.skipped)]
    for kind, title in KINDS.items():
        texts = [text for run, text in shown if run.kind == kind]
        parts += [f"## {title}", *texts] if texts else []
    return "\n\n".join(parts) + "\n"


def _chapter(run: ReportedRun, blocks: Sequence[page.Block], folder: Path) -> str:
    smoke = [f"*{SMOKE_NOTE}*"] if run.smoke else []
    links = []
    for path in (run.path.with_name(name) for name in PICTURES):
        if path.is_file():
            address = Path(os.path.relpath(path, folder or ".")).as_posix()
            links.append(f"![{run.name}](<{address}>)")
    made = page.markdown([page.Command(run.command), page.Facts(list(run.about.items()))])
    name = f"### {markdown_text(run.name)}"
    return "\n\n".join([name, *smoke, page.markdown(blocks), *links, made])
