"""`write_book`: all records under a folder as one page of HTML and, if asked for, one of Markdown."""

import os
from pathlib import Path

from laconic.errors import LaconicError
from laconic.show import book_page
from laconic.show.book_markdown import body_of
from laconic.show.book_panels import figures_of, meta_facts
from laconic.show.book_records import (
    KINDS,
    SMOKE_NOTE,
    Book,
    Run,
    Told,
    collect,
    rendered,
    untold,
)
from laconic.show.summary import markdown_table, verdict
from laconic.show.sweep_report import ranking_table
from laconic.show.training import training_facts
from laconic.store import atomic

MADE_BY = "<!-- written by laconic report -->"
PICTURES = ("curves.png", "ranking.png", "learning-curve.png", "loss.png", "figure.png")


def write_book(
    results: Path, out: Path, *, markdown: bool = False, tell: Told = untold
) -> tuple[list[Path], list[str]]:
    """Write the page, and with `markdown` a second one beside it → (paths, a line for each file
    that was skipped).

    Drawing takes its time: `tell` is told the name of each run before it is drawn, and how many
    there are. A report of ours is replaced by a newer one; any other file that lies there is left
    alone.
    """
    if out.suffix == ".md":
        raise LaconicError(
            f"{out} would be an HTML page: give a name that ends in .html, and --markdown for the "
            "other."
        )
    wanted = {out: book_page.MADE_BY} | ({out.with_suffix(".md"): MADE_BY} if markdown else {})
    for path, mark in wanted.items():
        _may_replace(path, mark)
    text, book = book_page.page(collect(results), tell)
    texts = [text, *([markdown_page(book, out.parent)] if markdown else [])]
    for path, content in zip(wanted, texts, strict=True):
        atomic.write_bytes(path, content.encode(errors="replace"))
    return list(wanted), list(book.skipped)


def _may_replace(path: Path, mark: str) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_file() or mark not in path.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise LaconicError(
            f"{path} exists and is no report of laconic's: it is left alone; choose another --out."
        )


# --- Markdown -------------------------------------------------------------------------------------


def markdown_page(book: Book, folder: Path) -> str:
    """The report as Markdown for a file in `folder`; pictures are links to those that lie beside
    the records."""
    shown, book = rendered(book, lambda run: _chapter(run, folder))
    parts = [MADE_BY, "# All results"]
    parts += [f"Skipped: {line}" for line in book.skipped]
    for kind, title in KINDS.items():
        texts = [text for run, text in shown if run.kind == kind]
        parts += [f"## {title}", *texts] if texts else []
    return "\n\n".join(parts) + "\n"


def _chapter(run: Run, folder: Path) -> str:
    smoke = [f"*{SMOKE_NOTE}*"] if run.smoke else []
    pictures = [run.path.with_name(name) for name in PICTURES if run.path.with_name(name).is_file()]
    links = [
        f"![{run.name}](<{Path(os.path.relpath(path, folder or '.')).as_posix()}>)"
        for path in pictures
    ]
    origin = run.origin
    about = {
        "commit": origin.commit,
        "device": origin.device,
        "started": origin.started,
        "took": origin.took,
    }
    made = "```\n" + origin.command.replace("```", "'''") + "\n```\n\n" + _list(about)
    return "\n\n".join([f"### {_plain(run.name)}", *smoke, _outcome(run), *links, made])


def _outcome(run: Run) -> str:
    if run.kind == "comparison":
        return f"{_plain(verdict(run.records))}\n\n{markdown_table(run.records).strip()}"
    if run.kind == "sweep":
        return ranking_table(run.records).strip()
    if run.kind in ("training", "meta-training"):
        return _list(dict((training_facts if run.kind == "training" else meta_facts)(run.records)))
    if run.kind == "experiment":
        table = run.path.with_name("table.md")
        return (
            body_of(table.read_text(encoding="utf-8"))
            if table.is_file()
            else "No table was written."
        )
    columns = [figures_of(record) for record in run.records]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [
        [_plain(name), *(_plain(column.get(name, "–")) for column in columns)] for name in names
    ]
    heads = ["what", *(f"run {i}" for i in range(1, len(columns) + 1))]
    lines = [heads, ["---", *("---:" for _ in columns)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(about: dict[str, str]) -> str:
    return "\n".join(f"- {_plain(name)}: {_plain(text)}" for name, text in about.items())


def _plain(text: str) -> str:
    """One line in which nothing is markup or ends a cell."""
    return (
        " ".join(text.split())
        .replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("*", "\\*")
    )
