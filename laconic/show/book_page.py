"""The report of everything as one HTML page that needs nothing else: no scripts, no links to
anywhere outside it."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from laconic.federated.options import in_words
from laconic.show import figures, sweep_report
from laconic.show import report_page as html
from laconic.show.book_markdown import body_of, marked
from laconic.show.book_panels import figures_of, meta_facts, meta_panels, sweep_panel
from laconic.show.book_records import KINDS, SMOKE_NOTE, Book, Run, Told, rendered, untold
from laconic.show.panels import Panel
from laconic.show.report import curves_section, summary_section
from laconic.show.summary import count, notes, verdict
from laconic.show.training import loss_panel, training_facts

MADE_BY = '<meta name="generator" content="laconic report">'
SAVED_AT, SHOWN_AT = 160, 110  # dots an inch of our PNG files, and of the largest they are shown at
# Where the screen is narrower than this many dots an inch a picture scrolls sideways: small ones
# fit a phone, and in those of many cells the letters are small already.
NARROW, WIDE, MANY_INCHES = 62, 100, 6
META_NOTE = (
    "One run of meta-training. The band of the meta-loss is ± the standard deviation over the "
    "steps it is the mean of; "
    "of held-out seeds only the mean is on record."
)
CSS = """
code, li, p { overflow-wrap: anywhere; } li + li { margin-top: .2rem; }
article { margin: 1.2rem 0 3rem; min-width: 0; }
article > h3 { font-size: 1.3rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
article > h4, article > h5 { font-size: 1rem; margin: 1.4rem 0 0; overflow-wrap: anywhere; }
article > h4 + .card, article > h5 + .card { margin-top: .4rem; } article > .lead { font-weight: 600; }
article > * + * { margin-top: .9rem; }
article .verdict { margin-top: .8rem; } article .verdict p { font-size: 1.05rem; }
section > h2, nav > h2 { font-size: 1.6rem; }
nav > div { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14rem), 1fr)); }
nav p { font-weight: 600; }
nav ul { margin: .2rem 0 .9rem; padding-left: 1.1rem; } nav a { color: inherit; overflow-wrap: anywhere; }
.smoke { display: inline-block; padding: .1rem .5rem; border: 1px solid currentColor; border-radius: 4px;
  font-size: .8rem; }
.own .key { display: flex; } .picture { padding: .6rem; background: #ffffff; } .picture img { display: block;
  width: 100%; height: auto; min-width: var(--least); }
@media (max-width: 46rem) { .picture.twice { padding: .2rem; } .picture.twice img { min-width: 0; } }
"""


def page(book: Book, tell: Told = untold) -> tuple[str, Book]:
    """The page → (HTML, the book without what could not be shown); `tell` is told of each run
    before it is drawn."""
    shown, book = rendered(book, article, tell)
    body = [_contents(book.runs)]
    for kind, title in KINDS.items():
        texts = [text for run, text in shown if run.kind == kind]
        if texts:
            body.append(f"<section><h2>{escape(title)}</h2>\n" + "\n".join(texts) + "</section>")
    about = book.root / "README.md"
    if about.is_file():
        words = marked(about.read_text(encoding="utf-8", errors="replace"))
        body.append(f"<section><h2>About these records</h2>{words}</section>")
    body.append(
        "<section><h2>How the numbers are "
        f"defined</h2>{html.pairs(html.DEFINITIONS, 'terms')}</section>"
    )
    many = len(book.runs)
    found = f"{count(many)} run{'s' * (many > 1)} on record under {book.root.name or book.root}."
    lost = [f"Skipped: {line}" for line in book.skipped]
    whole = html.verdict(found, lost) + "\n".join(body)
    named = "laconic: all results", "laconic report", "All results"
    return html.document(*named, whole, css=CSS, meta=f"{MADE_BY}\n", pictures=True), book


def article(run: Run) -> str:
    """One run: what came out, its figures, and what made them."""
    badge = f'<p><span class="smoke">{escape(SMOKE_NOTE)}</span></p>' if run.smoke else ""
    heading = f'<article id="{_anchor(run)}"><h3>{html.label(run.name)}</h3>{badge}'
    return f"{heading}\n{BODIES[run.kind](run)}\n{_made(run)}</article>"


# --- what each kind of run shows ------------------------------------------------------------------


def _comparison(run: Run) -> str:
    config, task = run.records[0]["config"], run.records[0]["task"]
    words = f"{task['name']}, {count(task['parameters'])} parameters · {_setting(config)}"
    opening = html.verdict(verdict(run.records), notes(run.records))
    return f"<p>{escape(words)}</p>{opening}{summary_section(run.records)}\n{curves_section(run.records)}"


def _sweep(run: Run) -> str:
    config = run.records[0]["config"]
    words = (
        f"{config['method']} on {config['task']} · "
        f"{_setting(config)}{sweep_report.messages_in_words(config)}"
    )
    shown = f"<p>{escape(words)}</p>{marked(sweep_report.ranking_table(run.records))}"
    panel = sweep_panel(run.records)
    if panel is not None:
        note = "A loss far above that of the smallest value is off the chart."
        return f'{shown}<div class="figures single own">{_panel(panel, note)}</div>'
    kept = run.path.with_name("ranking.png")
    image = (
        kept.read_bytes()
        if kept.is_file()
        else figures.png_bytes(sweep_report.sweep_figure(run.records))
    )
    return shown + picture(image, f"{config['method']}: every point of the grid")


def _meta(run: Run) -> str:
    drawn = [_panel(panel) for panel in meta_panels(run.records)]
    note = f'<p class="muted">{escape(META_NOTE)}</p>'
    kind = "figures odd own" if len(drawn) % 2 else "figures own"
    return (
        html.pairs(meta_facts(run.records)) + note + f'<div class="{kind}">{"".join(drawn)}</div>'
    )


def _training(run: Run) -> str:
    return (
        html.pairs(training_facts(run.records))
        + f'<div class="figures single own">{_panel(loss_panel(run.records))}</div>'
    )


def _panel(panel: Panel, note: str = "") -> str:
    described = f"{panel.title}: {panel.y_label} against {panel.x_label}"
    svg = html.inline_svg(figures.svg_bytes(figures.panel_figure(panel)), described)
    return html.figure(
        panel.title, note, svg, html.key((curve.style, curve.label) for curve in panel.curves)
    )


def _experiment(run: Run) -> str:
    folder = run.path.parent
    last = [record for record in run.records if record["kind"] == "experiment"][-1]
    parts = [f'<p class="lead">{escape(str(last.get("title", last.get("name", run.name))))}</p>']
    table, image, narrow = folder / "table.md", folder / "figure.png", folder / "figure-narrow.png"
    if table.is_file():
        parts.append(marked(body_of(table.read_text(encoding="utf-8")), level=4))
    if image.is_file():
        slim = narrow.read_bytes() if narrow.is_file() else None
        parts.append(picture(image.read_bytes(), f"{run.name}: its figure", slim))
    return "\n".join(parts)


def _benchmark(run: Run) -> str:
    columns = [figures_of(record) for record in run.records]
    names = list(dict.fromkeys(name for column in columns for name in column))
    heads = ["measured"] if len(columns) == 1 else [f"run {i}" for i in range(1, len(columns) + 1)]
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    note = f"Benchmark {run.records[0]['benchmark']}, as its program wrote it."
    return html.table(html.Table(run.name, note, ["what", *heads], rows))


BODIES = {
    "comparison": _comparison,
    "experiment": _experiment,
    "sweep": _sweep,
    "training": _training,
    "meta-training": _meta,
    "benchmark": _benchmark,
}


# --- pieces ---------------------------------------------------------------------------------------


def _setting(config: dict[str, Any]) -> str:
    missing = f" ({config['missing']} missing from each round)" if config.get("missing") else ""
    sizes = (
        f"K = {config['workers']}{missing}, H = {config['local_steps']}, B = "
        f"{config['batch']}{in_words(config)}"
    )
    return (
        f"{sizes} · {count(config['rounds'])} rounds, {config['seeds']} "
        f"seed{'s' * (config['seeds'] != 1)}"
    )


def _made(run: Run) -> str:
    origin = run.origin
    about = [
        ("commit", origin.commit),
        ("device", origin.device),
        ("started", origin.started),
        ("took", origin.took),
    ]
    return html.command(origin.command) + html.pairs(about)


def _anchor(run: Run) -> str:
    return "run-" + re.sub(r"[^A-Za-z0-9_-]", lambda match: f".{ord(match[0]):x}", run.name)


def _contents(runs: Sequence[Run]) -> str:
    parts = []
    for kind, title in KINDS.items():
        entries = [
            f'<li><a href="#{_anchor(run)}">{escape(run.name)}</a>{" (smoke)" if run.smoke else ""}</li>'
            for run in runs
            if run.kind == kind
        ]
        if entries:
            parts.append(f"<div><p>{escape(title)}</p><ul>{''.join(entries)}</ul></div>")
    return f'<nav aria-label="Contents"><h2>Contents</h2><div>{"".join(parts)}</div></nav>'


def picture(png: bytes, description: str, narrow: bytes | None = None) -> str:
    """A PNG inside the page; where it is wider than the screen it scrolls instead of shrinking past
    reading.

    `narrow` is the same in one column, for a phone.
    """
    inches = _pixels(png) / SAVED_AT
    least = inches * (NARROW if inches <= MANY_INCHES else WIDE)
    described, kind, source = escape(description), "scroll picture", ""
    if narrow is not None:
        _pixels(narrow)
        kind, source = (
            f"{kind} twice",
            f'<source media="(max-width: 46rem)" srcset="{html.picture(narrow)}">',
        )
    return (
        f'<div class="card"><div class="{kind}" role="region" aria-label="{described}" tabindex="0"><picture>{source}'
        f'<img alt="{described}" style="--least: {least:.0f}px; max-width: {inches * SHOWN_AT:.0f}px" '
        f'src="{html.picture(png)}"></picture></div></div>'
    )


def _pixels(png: bytes) -> int:
    """The width of a PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("the picture is no PNG file")
    return int.from_bytes(png[16:20], "big")
