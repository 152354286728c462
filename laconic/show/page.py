"""A page from blocks, as HTML or Markdown. Every piece escapes what it is given.

What is shown is a list of blocks: `Text`, `Verdict`, `Facts`, `Notes`, `Panels` (drawn as SVG),
`Picture` (PNG or WebP, with a narrow one for phones), `Command` and `show.table.Table`.

- `html(blocks)`: their HTML; a grouped table becomes one table a group, under headings of `level`.
- `markdown(blocks)`: their Markdown, without figures.
- `document(…)`: the whole page around it; `section(heading, body)`: a part of it.

One file, no scripts, nothing fetched: the content policy below forbids both, so a hostile label
stays text.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from laconic.show import figures
from laconic.show.curves import Panel, Record, Style, drawable, themed
from laconic.show.table import MISSING, Table, count, markdown_text, number

SHOWN_AT = 110  # dots an inch of the largest that pictures are shown at
TOO_NEAR = 0.7  # points of a plot: what is nearer to a line is not seen beside it
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
    """A PNG or WebP, or what draws it once a page needs it; `narrow` is the same for phones."""

    image: bytes | Callable[[], bytes]
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
        case Picture(image, description, narrow):
            wide, slim = (one() if callable(one) else one for one in (image, narrow))
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
    """An SVG file for inside a page: no ids or namespaces, in the page's own colours and font, and
    no more points than can be seen."""
    root = ElementTree.fromstring(file)
    shapes = {f"#{node.get('id')}": node.get("d", "") for node in root.iter()}
    drawn: dict[tuple[str, str], list[str]] = {}  # texts, and paths by their style: one each
    for node in _visible(root):
        style = re.sub(r"font(-size|-family)?: [^;]*;? ?", "", themed(node.get("style", "")))
        style = re.sub(r"([:;]) ", r"\1", style)
        if _bare(node.tag) == "text":
            at = "".join(f' {key}="{_short(float(node.get(key, 0)))}"' for key in ("x", "y"))
            turn = re.match(r"rotate\((-?[1-9][\d.]*)", node.get("transform", ""))
            if turn:
                at += f' transform="rotate({turn[1]} {node.get("x")} {node.get("y")})"'
            if "text-anchor" not in style:
                style = f"text-anchor:start;{style}"
            style = re.sub("text-anchor:middle;?|;?fill:currentColor", "", style)  # as the sheet
            look = f' style="{escape(style)}"' if style else ""
            text = f"<text{look}{at}>{escape(node.text or '')}</text>"
            drawn.setdefault(("text", str(len(drawn))), []).append(text)
            continue
        shape = node.get("d", "")
        x = y = 0.0
        if _bare(node.tag) == "use":  # a tick or marker: drawn out, so that no id is needed
            shape = shapes[node.attrib["{http://www.w3.org/1999/xlink}href"]]
            x, y = float(node.get("x", 0)), float(node.get("y", 0))
        drawn.setdefault(("path", style), []).append(_path(shape, x, y))
    parts = [
        "".join(texts)
        if kind == "text"
        else f'<path style="{escape(style)}" d="{"".join(texts)}"/>'
        for (kind, style), texts in drawn.items()
    ]
    box, told = root.get("viewBox", ""), escape(drawable(description))
    opening = f'<svg viewBox="{box}" role="img" aria-label="{told}" stroke-linejoin="round">'
    return f"{opening}{''.join(parts)}</svg>"


def _visible(node: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """What an SVG draws, in order: paths, markers and texts."""
    for child in node:
        tag = _bare(child.tag)
        if tag in ("path", "use", "text"):
            if tag == "text" or re.search(r"(fill|stroke): [^n]", child.get("style", "")):
                yield child
        elif tag not in ("defs", "metadata", "style"):
            yield from _visible(child)


def _path(shape: str, x: float, y: float) -> str:
    """A path moved by (x, y), in tenths of a point; straight pieces lose points too near to see."""
    moved = []
    for piece in re.findall(r"[MLCQz][^MLCQz]*", shape):
        numbers = [float(text) for text in piece[1:].split()]
        points = np.reshape(numbers, (-1, 2)) + np.array([x, y])
        if piece[0] == "L" and moved and moved[-1][0] in "ML":
            moved[-1] = (moved[-1][0], np.concatenate([moved[-1][1], points]))
        else:
            moved.append((piece[0], points))
    text = ""
    for command, points in moved:
        if command == "M":  # and all that is straight from there
            tenths = np.rint(10 * thinned(points)).astype(int)
            steps = np.diff(tenths, axis=0).ravel()
            text += "M" + _joined(tenths[0]) + ("l" + _joined(steps) if steps.size else "")
        else:
            text += command + _joined(np.rint(10 * points).astype(int).ravel())
    return text


def _joined(tenths: np.ndarray) -> str:
    """Numbers in as few characters as a path allows."""
    texts = (f"{number / 10:g}" for number in tenths.tolist())
    whole = " ".join(re.sub(r"^(-?)0\.", r"\1.", text) for text in texts)
    return whole.replace(" -", "-")


def thinned(points: np.ndarray, tolerance: float = TOO_NEAR) -> np.ndarray:
    """The points [N, 2] of a line without those within `tolerance` of the line through the others
    (Douglas and Peucker, 1973)."""
    kept = {0, len(points) - 1}
    pending = [(0, len(points) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        along = points[last] - points[first]
        there = points[first + 1 : last] - points[first]
        length = float(np.hypot(*along))
        away = np.hypot(*there.T)
        if length:
            away = np.abs(there[:, 0] * along[1] - there[:, 1] * along[0]) / length
        if away.max() > tolerance:
            middle = first + 1 + int(away.argmax())
            kept.add(middle)
            pending += [(first, middle), (middle, last)]
    return points[sorted(kept)]


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


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


def picture(image: bytes, description: str, narrow: bytes | None = None) -> str:
    """A picture inside the page, with `narrow` instead on a phone; a wide one scrolls sideways."""
    inches = _inches(image)
    least = inches * (NARROW if inches <= MANY_INCHES else WIDE)
    described = escape(description)
    kind = "scroll picture"
    source = ""
    if narrow is not None:
        kind = "scroll picture twice"
        source = f'<source media="(max-width: 46rem)" srcset="{data_address(narrow)}">'
    style = f"--least: {least:.0f}px; max-width: {inches * SHOWN_AT:.0f}px"
    shown = f'<img alt="{described}" style="{style}" src="{data_address(image)}">'
    box = f'<div class="{kind}" role="region" aria-label="{described}" tabindex="0">'
    return f'<div class="card">{box}<picture>{source}{shown}</picture></div></div>'


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


def _inches(image: bytes) -> float:
    """The width of a picture that `figures` wrote."""
    if _kind(image) == "png":
        return int.from_bytes(image[16:20], "big") / figures.PNG_DOTS
    return ((int.from_bytes(image[21:23], "little") & 0x3FFF) + 1) / figures.WEBP_DOTS


def _kind(image: bytes) -> str:
    if image[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if image[:4] == b"RIFF" and image[8:16] == b"WEBPVP8L":  # lossless
        return "webp"
    raise ValueError("the picture is neither a PNG nor a lossless WebP file")


def data_address(image: bytes) -> str:
    """A picture as the address of an image inside the page."""
    return f"data:image/{_kind(image)};base64,{base64.b64encode(image).decode()}"


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
