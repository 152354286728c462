"""The little Markdown that our own tables and notes use, as HTML: headings, lists, paragraphs and
tables."""

import re
from collections.abc import Sequence
from html import escape

from laconic.show import report_page as html

# The first columns that say what several rows have in common. On a phone such a column would take
# the place of the one that tells rows apart, so each group becomes a table of its own:
# "configuration" ends in a method after a colon.
GROUPED = {"panel": "", "configuration": ": "}


def body_of(text: str) -> str:
    """An experiment's page without what a report says itself: its title, that it is a smoke run,
    its picture."""
    blocks = re.split(r"\n\s*\n", text.strip())
    said = re.compile(r"# .*|\*\*smoke scale.*\*\*|!\[.*\]\(.*\)")
    return "\n\n".join(block for block in blocks if not said.fullmatch(block.strip()))


def marked(text: str, level: int = 3) -> str:
    """Markdown → HTML with its headings at that level."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            parts.append(_tables(lines, level + 1))
        elif lines and lines[0].startswith("#"):
            parts.append(f"<h{level}>{escape(lines[0].lstrip('# '))}</h{level}>")
        elif lines and lines[0].startswith("- "):
            items = re.split(r"(?:^|\n)- ", "\n".join(lines))[1:]
            parts.append("<ul>" + "".join(f"<li>{_words(item)}</li>" for item in items) + "</ul>")
        elif lines:
            parts.append(f"<p>{_words(' '.join(lines))}</p>")
    return "\n".join(parts)


def _tables(lines: Sequence[str], level: int) -> str:
    """A Markdown table, or one for each group of its rows."""
    headers, _, *rows = [_cells(line) for line in lines]
    if headers[0] not in GROUPED:
        return _table(headers[0] or "table", headers, rows)
    groups: dict[str, list[list[str]]] = {}
    for first, *rest in rows:
        group, _, name = (
            first.rpartition(GROUPED[headers[0]]) if GROUPED[headers[0]] else (first, "", None)
        )
        groups.setdefault(group, []).append(rest if name is None else [name, *rest])
    names = headers[1:] if headers[0] == "panel" else ["method", *headers[1:]]
    parts = [
        f"<h{level}>{escape(_plain(name))}</h{level}>{_table(name, names, g)}"
        for name, g in groups.items()
    ]
    return "\n".join(parts)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Bold cells are the best ones."""
    best = frozenset(
        (i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell.startswith("**")
    )
    note = "Bold marks the best of a column." if best else ""
    return html.table(
        html.Table(
            _plain(title), note, headers, [[_plain(cell) for cell in row] for row in rows], best
        )
    )


def _plain(cell: str) -> str:
    return re.sub(r"\*\*|`", "", cell).replace("\\|", "|")


def _words(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text)).replace("**", "")
