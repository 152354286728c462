"""A page from blocks, as HTML or Markdown. Every piece escapes what it is given.

What is shown is a list of blocks: `Text`, `Verdict`, `Facts`, `Notes`, `Panels` (drawn as SVG),
`Picture` (PNG, with a narrow one for phones), `Command` and `show.table.Table`.

- `html(blocks)`: their HTML; a grouped table becomes one table a group, under headings of `level`.
- `markdown(blocks)`: their Markdown, without figures.
- `document(…)`: the whole page around it; `section(heading, body)`: a part of it.

One file, no scripts, nothing fetched: the content policy below forbids both, so a hostile label
stays text.
"""

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from laconic.show import figures
from laconic.show.curves import Panel, Record, Style, drawable, themed
from laconic.show.table import MISSING, Table, count, markdown_text, number

SAVED_AT, SHOWN_AT = 160, 110  # dots an inch of our PNG files, and of the largest they are shown at
# Where the screen is narrower than this many dots an inch a picture scrolls sideways: small ones
# fit a phone, and in those of many cells the letters are small already.
NARROW, WIDE, MANY_INCHES = 62, 100, 6

CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")

# --- blocks ---------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A paragraph; `lead` makes it bold, `muted` small and grey."""

    text: str
    kind: str = ""


class Verdict(NamedTuple):
    """The box at the top: one sentence, and what a reader must know besides."""

    sentence: str
    notes: Sequence[str] = ()


class Facts(NamedTuple):
    """Names and what they stand for."""

    items: Sequence[tuple[str, str]]


class Notes(NamedTuple):
    """A list of sentences."""

    items: Sequence[str]


class Command(NamedTuple):
    """A command to copy."""

    text: str


class Panels(NamedTuple):
    """Panels side by side: with one legend above all of them if given, else each with its own.

    `note` says how to read them; `notes` are of single panels, by name.
    """

    panels: Sequence[Panel]
    note: str = ""
    legend: Sequence[tuple[Style, str]] = ()
    notes: Sequence[tuple[str, str]] = ()


class Picture(NamedTuple):
    """A PNG, or what draws it once a page needs it; `narrow` is the same for phones."""

    png: bytes | Callable[[], bytes]
    description: str
    narrow: bytes | Callable[[], bytes] | None = None


Block = Text | Verdict | Facts | Notes | Command | Panels | Picture | Table


def html(blocks: Iterable[Block], level: int = 5) -> str:
    """The blocks as HTML; groups of a table stand under headings of that level."""
    return "\n".join(_html(block, level) for block in blocks)


def _html(block: Block, level: int) -> str:
    match block:
        case Text(text, kind):
            name = f' class="{kind}"' if kind else ""
            return f"<p{name}>{escape(text)}</p>"
        case Verdict(sentence, notes):
            return verdict(sentence, notes)
        case Facts(items):
            return pairs(items)
        case Notes(items):
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Command(text):
            return command(text)
        case Panels():
            return _panels(block)
        case Picture(png, description, narrow):
            wide, slim = (image() if callable(image) else image for image in (png, narrow))
            return picture(wide, description, slim)  # type: ignore[arg-type]
        case Table(grouped=True):
            heading = f"<h{level}>{{}}</h{level}>".format
            return "\n".join(heading(label(t.title)) + table(t) for t in block.groups())
        case Table():
            return table(block)


def markdown(blocks: Iterable[Block], aligned: bool = True) -> str:
    """The blocks as Markdown, without figures; `aligned` puts numbers flush right."""
    parts = (_markdown(block, aligned) for block in blocks)
    return "\n\n".join(part for part in parts if part)


def _markdown(block: Block, aligned: bool) -> str:
    match block:
        case Text(text):
            return markdown_text(text)
        case Verdict(sentence, notes):
            return "\n\n".join([markdown_text(sentence), *_listed(notes)])
        case Facts(items):
            return "".join(_listed(f"{name}: {text}" for name, text in items))
        case Notes(items):
            return "".join(_listed(items))
        case Command(text):
            return "```\n" + text.replace("```", "'''") + "\n```"
        case Table():
            return block.markdown(aligned).strip()
    return ""


def _listed(items: Iterable[str]) -> list[str]:
    """One Markdown list; nothing for no items."""
    lines = [f"- {markdown_text(item)}" for item in items]
    return ["\n".join(lines)] if lines else []


def section(heading: str, body: str) -> str:
    """A part of a page under its heading; `body` is HTML already."""
    return f"<section><h2>{escape(heading)}</h2>\n{body}</section>"


# --- pieces ---------------------------------------------------------------------------------------


def label(text: str) -> str:
    """A method's label, which may break after its punctuation and nowhere else."""
    return re.sub(r"([:,/])", r"\1<wbr>", escape(text))


def swatch(style: Style) -> str:
    """A short sample of a method's line."""
    colour = themed(style.colour)
    dashes = ",".join(f"{1.6 * length:g}" for length in style.dashes) or "none"
    marks = {
        "": "",
        "o": '<circle cx="15" cy="5" r="3"/>',
        "s": '<path d="M12 2h6v6h-6z"/>',
        "^": '<path d="M15 1.5l3.5 6h-7z"/>',
    }
    line = f'<path d="M0 5H30" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
    mark = f'<g fill="{colour}">{marks[style.marker]}</g>'
    return f'<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true">{line}{mark}</svg>'


def table(content: Table) -> str:
    """A table in a box of its own that scrolls sideways."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in content.headers)
    body = []
    for i, (name, *cells) in enumerate(content.rows):
        sample = swatch(content.styles[i]) if content.styles else ""
        word = content.words[i] if content.words else name
        told = f' title="{escape(word)}"' if word != name else ""
        row = (
            f'<th scope="row"><div class="name"{told}>{sample}<span>{label(name)}</span></div></th>'
        )
        for j, cell in enumerate(cells, start=1):
            kind = ' class="best"' if (i, j) in content.best else ""
            row += f"<td{kind}>{escape(cell)}</td>"
        body.append(f"<tr>{row}</tr>")
    title = escape(content.title)
    rows = "\n".join(body)
    note = f'<p class="note">{escape(content.note)}</p>' if content.note else ""
    box = f'<div class="scroll" role="region" aria-label="{title}" tabindex="0">'
    inside = f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
    return f'<div class="card">{box}<table aria-label="{title}">{inside}</table></div>{note}</div>'


def key(entries: Iterable[tuple[Style, str]]) -> str:
    """A legend: each method's line beside its label."""
    items = (f"<li>{swatch(s)}<span>{label(name)}</span></li>" for s, name in entries)
    return f'<ul class="key">{"".join(items)}</ul>'


def _panels(block: Panels) -> str:
    """On a desk side by side; on a phone one below the other, each with its legend."""
    shared = key(block.legend) if block.legend else ""
    notes = dict(block.notes)
    drawn = []
    for panel in block.panels:
        legend = shared or key((curve.style, curve.label) for curve in panel.curves)
        drawn.append(_figure(panel, notes.get(panel.name, ""), legend))
    kind = "figures" if shared else "figures own"
    if len(drawn) % 2:
        kind = kind.replace("figures", "figures single" if len(drawn) == 1 else "figures odd")
    note = f'<p class="muted">{escape(block.note)}</p>' if block.note else ""
    joined = "\n".join(drawn)
    return f'{note}{shared}<div class="{kind}">{joined}</div>'


def _figure(panel: Panel, note: str, legend: str) -> str:
    ends = []
    for curve in panel.curves:
        finite = curve.y[np.isfinite(curve.y)]
        last = number(finite[-1]) if finite.size else MISSING
        ends.append(f"{curve.label} {'diverges' if curve.diverged else last}")
    axes = f"{panel.title}: {panel.y_label} against {panel.x_label}"
    drawn = figures.svg_bytes(figures.panel_figure(panel))
    svg = inline_svg(drawn, f"{axes}. At the end: {'; '.join(ends)}.")
    small = f'<p class="muted">{escape(note)}</p>' if note else ""
    caption = f"<figcaption><h3>{escape(panel.title)}</h3>{small}{legend}</figcaption>"
    return f"<figure>{caption}{svg}</figure>"


def inline_svg(file: bytes, description: str) -> str:
    """An SVG file for inside a page: no ids or namespaces, in the page's own colours and font."""
    root = ElementTree.fromstring(file)
    shapes = {f"#{node.get('id')}": node.get("d", "") for node in root.iter()}
    for parent in root.iter():
        for child in [c for c in parent if _bare(c.tag) in ("defs", "metadata", "style")]:
            parent.remove(child)
    for node in root.iter():
        node.tag = _bare(node.tag)
        if node.tag == "use":  # a tick or marker: its shape is drawn out, so that no id is needed
            node.tag = "path"
            href = node.attrib.pop("{http://www.w3.org/1999/xlink}href")
            x, y = float(node.attrib.pop("x", 0)), float(node.attrib.pop("y", 0))
            node.set("transform", f"translate({_short(x)} {_short(y)})")
            node.set("d", shapes[href])
        node.attrib.pop("id", None)
        if "d" in node.attrib:
            shape = " ".join(node.attrib["d"].split())
            node.set("d", re.sub(r"-?\d+\.\d+", lambda match: _short(float(match[0])), shape))
        if "style" in node.attrib:
            node.set(
                "style",
                re.sub(r"font(-size|-family)?: [^;]*;? ?", "", themed(node.attrib["style"])),
            )
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {
        "viewBox": box,
        "role": "img",
        "aria-label": drawable(description),
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def pairs(items: Iterable[tuple[str, str]], kind: str = "pairs") -> str:
    """A list of names and what they stand for."""
    listed = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in items)
    return f'<dl class="{kind}">{listed}</dl>'


def verdict(sentence: str, notes: Sequence[str]) -> str:
    """The box at the top."""
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    whole = escape(sentence).replace(" %", "&nbsp;%")  # no line begins with the sign
    more = f"<ul>{listed}</ul>" if notes else ""
    return f'<div class="verdict"><p>{whole}</p>{more}</div>'


def command(text: str) -> str:
    """A command to copy: a click selects all of it, and no line breaks inside an option."""
    whole = re.sub(r"(?<!\S)--[\w-]+", r'<span class="whole">\g<0></span>', escape(text))
    return f"<pre>{whole}</pre>"


def picture(png: bytes, description: str, narrow: bytes | None = None) -> str:
    """A PNG inside the page, with `narrow` instead on a phone; a wide one scrolls sideways."""
    inches = _pixels(png) / SAVED_AT
    least = inches * (NARROW if inches <= MANY_INCHES else WIDE)
    described = escape(description)
    kind = "scroll picture"
    source = ""
    if narrow is not None:
        _pixels(narrow)
        kind = "scroll picture twice"
        source = f'<source media="(max-width: 46rem)" srcset="{data_address(narrow)}">'
    style = f"--least: {least:.0f}px; max-width: {inches * SHOWN_AT:.0f}px"
    image = f'<img alt="{described}" style="{style}" src="{data_address(png)}">'
    box = f'<div class="{kind}" role="region" aria-label="{described}" tabindex="0">'
    return f'<div class="card">{box}<picture>{source}{image}</picture></div></div>'


def provenances(records: Sequence[Record]) -> list[Record]:
    """The provenance of a run, and those of methods that were run elsewhere or later."""
    kept = [record for record in records if record["kind"] in ("run", "method")]
    return [record["provenance"] for record in kept if "provenance" in record]


def provenance_facts(found: Sequence[Record]) -> list[tuple[str, str]]:
    """Devices, commits, versions and start times, each once, in words."""
    facts: dict[str, list[str]] = {"device": [], "commit": [], "versions": [], "started": []}
    for made in found:
        device = made["device"]
        what = f"{device['count']} × {device['kind']} ({device['platform']})"
        facts["device"].append(f"{what}, {count(made['host_cpus'])} CPU cores")
        commit = made["commit"] or MISSING
        facts["commit"].append(commit + (", with uncommitted changes" if made["dirty"] else ""))
        versions = [f"{name} {version or MISSING}" for name, version in made["versions"].items()]
        facts["versions"].append(", ".join(versions))
        facts["started"].append(made["started"])
    return [(name, "; ".join(dict.fromkeys(texts))) for name, texts in facts.items()]


def _pixels(png: bytes) -> int:
    """The width of a PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("the picture is no PNG file")
    return int.from_bytes(png[16:20], "big")


def data_address(png: bytes) -> str:
    """A PNG as the address of an image inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def document(
    title: str,
    by: str,
    heading: str,
    body: str,
    subtitle: str = "",
    meta: str = "",
) -> str:
    """A page that needs nothing else and may fetch nothing; pictures are inside it, as data.

    `by` is the command that made it; `body` and `meta`, more for the head, are HTML already.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    below = f'\n<p class="muted">{escape(subtitle)}</p>' if subtitle else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{meta}<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header><p class="eyebrow">{escape(by)}</p>
<h1>{escape(heading)}</h1>{below}</header>
{body}
</main>
</body>
</html>
"""
