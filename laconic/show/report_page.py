"""The report's page: its style sheet, its fixed texts, and small pieces of HTML that escape
whatever they are given.

One file, no scripts, nothing fetched: the content policy below forbids both, so a hostile label
stays text.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from xml.etree import ElementTree

from laconic.show.panels import Style, drawable, themed

CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1b1e23; --muted: #59616d; --line: #dfe2e7;
  --best: #e3f3ea; --mark: #0072b2; --blue: #0072b2; --sky: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --page: #111317; --card: #191c21; --ink: #e7e9ec; --muted: #a3abb7;
  --line: #343a43; --best: #173a2c; --mark: #56b4e9; --blue: #2f93d6; --sky: #9bd6f7; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.75rem 1rem 3rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .15rem; }
p { margin: .4rem 0; }
.eyebrow { margin: 0 0 .2rem; color: var(--muted); font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; }
.muted, .note { color: var(--muted); font-size: .875rem; }
.verdict { margin: 1.4rem 0 0; padding: 1rem 1.15rem; background: var(--card); border: 1px solid var(--line);
  border-left: 4px solid var(--mark); border-radius: 6px; overflow-wrap: anywhere; }
.verdict p { font-size: 1.2rem; line-height: 1.4; margin: 0; text-wrap: pretty; }
.verdict ul { margin: .6rem 0 0; padding-left: 1.1rem; color: var(--muted); font-size: .925rem; }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: 6px; min-width: 0; }
.scroll { overflow-x: auto; border-radius: 6px; /* the shade at the right goes once the end is in view */
  background: linear-gradient(to left, var(--card) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll; }
.note { margin: 0; padding: .55rem .8rem; border-top: 1px solid var(--line); }
.scroll:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .925rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .8rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
thead th { color: var(--muted); font-size: .8rem; line-height: 1.25; white-space: normal; vertical-align: bottom;
  min-width: 4.5rem; }
tbody th, tbody td { border-top: 1px solid var(--line); }
th:first-child { position: sticky; left: 0; z-index: 1; text-align: left; background: var(--card); min-width: 9rem;
  max-width: 22rem; white-space: normal; overflow-wrap: break-word; box-shadow: 1px 0 0 var(--line); }
.name { display: flex; align-items: center; }
.name span { min-width: 0; max-width: 100%; }
td.best { background: var(--best); font-weight: 700; }
.swatch { display: inline-block; width: 30px; height: 10px; margin-right: .5rem; vertical-align: middle; flex: none; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(2, minmax(0, 1fr)); }
.figures.odd { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.figures.single { grid-template-columns: minmax(0, 42rem); }
figure { margin: 0; padding: .9rem .9rem .6rem; }
figure > svg { display: block; width: 100%; height: auto; margin-top: .5rem; font-size: 7px; }
.odd > figure > svg { font-size: 8.5px; }
figure > svg path { vector-effect: non-scaling-stroke; }
.key { list-style: none; margin: 0 0 .8rem; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  font-size: .875rem; }
.key li { display: flex; align-items: center; overflow-wrap: anywhere; min-width: 0; }
figure .key { display: none; margin: .3rem 0 0; font-size: .8rem; gap: .1rem .9rem; }
pre { margin: 0; padding: .85rem 1rem; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; user-select: all; -webkit-user-select: all; }
.whole { white-space: nowrap; }
dl { margin: 0; font-size: .925rem; display: grid; gap: .2rem 1.2rem;
  grid-template-columns: minmax(7rem, max-content) minmax(0, 1fr); align-content: start; }
dt { color: var(--muted); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
.columns { display: grid; gap: 0 3rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
@media (max-width: 62rem) { .figures.odd { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  figure > svg { font-size: 8.5px; } }
@media (max-width: 46rem) { .figures, .figures.odd { grid-template-columns: minmax(0, 1fr); } .key { display: none; }
  figure .key { display: flex; } figure > svg, .odd > figure > svg { font-size: 9px; }
  table { font-size: .875rem; } th, td { padding: .45rem .55rem; } thead th { min-width: 3.8rem; font-size: .75rem; }
  th:first-child { min-width: 6.5rem; max-width: 8.5rem; font-size: .8rem; }
  .name { flex-direction: column; align-items: flex-start; }
  dl.terms { grid-template-columns: minmax(0, 1fr); } dl.terms dd { margin-bottom: .5rem; } }
@media print { body { background: none; } .scroll { overflow: visible; } figure, .verdict { break-inside: avoid; } }
"""

DEFINITIONS = (
    ("train loss", "The mean of the K·H minibatch losses of a round, taken before the outer step."),
    (
        "mean curve",
        "The mean over seeds at each round; from where any seed is not finite, neither is the mean.",
    ),
    (
        "smoothed",
        "The trailing mean over the last 10 rounds, given to the round at the window's end.",
    ),
    (
        "rounds to a loss",
        "The first round whose smoothed mean curve is at most that loss; – if none is.",
    ),
    (
        "speedup",
        "Rounds the reference needs to reach its own lowest smoothed loss ÷ rounds the method "
        "needs to reach that "
        "same loss; – if it never does. Its ± is a jackknife over seeds: the same seed left out of "
        "both.",
    ),
    (
        "final train loss",
        "The mean over seeds of each seed's last smoothed loss, ± the standard error over seeds.",
    ),
    ("test loss, accuracy", "Means over seeds on the whole test set after the last round."),
    (
        "sent, received",
        "Megabytes (10⁶ bytes) each worker moves in the whole run, counted from the messages' bits.",
    ),
    (
        "time on a link",
        "Rounds × (local steps × step time + 2 × latency + bits sent ÷ bandwidth + bits received ÷ "
        "bandwidth); "
        "the server's own time is left out.",
    ),
)


@dataclass(frozen=True)
class Table:
    """Formatted cells; the first of each row names it. `best` holds the (row, column) places to
    mark."""

    title: str
    note: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()
    styles: Sequence[Style] = ()


def label(text: str) -> str:
    """A method's label, which may break after its punctuation and nowhere else."""
    return re.sub(r"([:,/])", r"\1<wbr>", escape(text))


def swatch(style: Style) -> str:
    """A short sample of a method's line."""
    colour = themed(style.colour)
    dashes = ",".join(f"{1.6 * length:g}" for length in style.dashes)
    marks = {
        "": "",
        "o": '<circle cx="15" cy="5" r="3"/>',
        "s": '<path d="M12 2h6v6h-6z"/>',
        "^": '<path d="M15 1.5l3.5 6h-7z"/>',
    }
    line = f'<path d="M0 5H30" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes or "none"}"/>'
    mark = f'<g fill="{colour}">{marks[style.marker]}</g>'
    return f'<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true">{line}{mark}</svg>'


def table(content: Table) -> str:
    """A table in a box of its own that scrolls sideways."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in content.headers)
    body = []
    for i, (name, *cells) in enumerate(content.rows):
        sample = swatch(content.styles[i]) if content.styles else ""
        row = f'<th scope="row"><div class="name">{sample}<span>{label(name)}</span></div></th>'
        for j, cell in enumerate(cells, start=1):
            row += (
                f'<td class="best">{escape(cell)}</td>'
                if (i, j) in content.best
                else f"<td>{escape(cell)}</td>"
            )
        body.append(f"<tr>{row}</tr>")
    title, rows = escape(content.title), "\n".join(body)
    note = f'<p class="note">{escape(content.note)}</p>' if content.note else ""
    return (
        f'<div class="card"><div class="scroll" role="region" aria-label="{title}" tabindex="0">'
        f'<table aria-label="{title}"><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>{note}</div>'
    )


def key(entries: Iterable[tuple[Style, str]]) -> str:
    """A legend: each method's line beside its label."""
    return (
        '<ul class="key">'
        + "".join(f"<li>{swatch(s)}<span>{label(name)}</span></li>" for s, name in entries)
        + "</ul>"
    )


def figure(title: str, text: str, svg: str, legend: str) -> str:
    """A figure under its title; `svg` and `legend` are HTML already."""
    small = f'<p class="muted">{escape(text)}</p>' if text else ""
    caption = f"<figcaption><h3>{escape(title)}</h3>{small}{legend}</figcaption>"
    return f"<figure>{caption}{svg}</figure>"


def figures(text: str, legend: str, drawn: Sequence[str]) -> str:
    """Figures side by side under one legend; on a phone one below the other, each with its own."""
    kind = "figures single" if len(drawn) == 1 else "figures odd" if len(drawn) % 2 else "figures"
    return (
        f'<p class="muted">{escape(text)}</p>{legend}<div class="{kind}">'
        + "\n".join(drawn)
        + "</div>"
    )


def inline_svg(file: bytes, description: str) -> str:
    """An SVG file as an `<svg>` for inside a page: no ids or namespaces, in the page's own colours
    and font."""
    root = ElementTree.fromstring(file)
    shapes = {
        f"#{node.get('id')}": node.get("d", "") for node in root.iter() if "id" in node.attrib
    }
    for parent in root.iter():
        for child in [c for c in parent if _bare(c.tag) in ("defs", "metadata", "style")]:
            parent.remove(child)
    for node in root.iter():
        node.tag = _bare(node.tag)
        if (
            node.tag == "use"
        ):  # ticks and markers: one shape moved about; drawn out, so that no id is needed
            node.tag, href = "path", node.attrib.pop("{http://www.w3.org/1999/xlink}href")
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
    return (
        f'<dl class="{kind}">'
        + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in items)
        + "</dl>"
    )


def verdict(sentence: str, notes: Sequence[str]) -> str:
    """The box at the top."""
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    whole = escape(sentence).replace(" %", "&nbsp;%")  # no line begins with the sign
    return (
        f'<div class="verdict"><p>{whole}</p>' + (f"<ul>{listed}</ul>" if notes else "") + "</div>"
    )


def command(text: str) -> str:
    """A command to copy: one click selects all of it, and no line breaks inside an option's name."""
    return (
        "<pre>"
        + re.sub(r"(?<!\S)--[\w-]+", r'<span class="whole">\g<0></span>', escape(text))
        + "</pre>"
    )


def page(title: str, subtitle: str, opening: str, sections: Iterable[tuple[str, str]]) -> str:
    """The whole page; `opening` and the bodies of the sections, each with its heading, are HTML
    already."""
    body = "\n".join(
        f"<section><h2>{escape(heading)}</h2>\n{content}</section>" for heading, content in sections
    )
    by = "laconic compare"
    return document(f"{title} – {by}", by, title, f"{opening}\n{body}", subtitle=subtitle)


def picture(png: bytes) -> str:
    """A PNG as the address of an image inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def document(
    title: str,
    by: str,
    heading: str,
    body: str,
    *,
    subtitle: str = "",
    css: str = "",
    meta: str = "",
    pictures: bool = False,
) -> str:
    """A page that needs nothing else and may fetch nothing; `pictures` lets it hold some as data.

    `by` is the command that made it; `body` and `meta`, more for the head, are HTML already; `css`
    comes after what all pages share.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'" + (
        "; img-src data:" if pictures else ""
    )
    below = f'\n<p class="muted">{escape(subtitle)}</p>' if subtitle else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{meta}<title>{escape(title)}</title>
<style>{CSS}{css}</style>
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
