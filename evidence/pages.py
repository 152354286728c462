"""What stands on a page: its tables row by row, its prose, and every number in them.

Code, commands, links' targets, comments and the titles of abbreviations are no claims: they are
blanked, so that places on the page stay what they are.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from evidence.numbers import NEVER, NUMBER, PATTERN
from evidence.records import ROOT

BLANKED = (
    r"^```.*?^```",
    r"<!--.*?-->",
    r"<[^>]*>",
    r"`[^`\n]*`",
    r"(?<=\])\([^)]*\)",
    r"^#+ .*?$",
    r"https?://\S+",
)
TOKEN = re.compile(rf"{PATTERN}|{NEVER}")


class Row(NamedTuple):
    """A row of a table: where it begins on the page, the headings above it, and its cells."""

    start: int
    heading: str
    table: int
    headers: list[str]
    cells: list[str]
    raw: list[str]
    starts: list[int]

    @property
    def name(self) -> str:
        """What the row is called: its abbreviation's title, else its first cell."""
        title = re.search(r'<abbr title="([^"]*)"', self.raw[0])
        return title[1].replace("&quot;", '"') if title else self.cells[0]


class Page:
    """A page and which of its numbers were checked."""

    def __init__(self, path: Path, raw: str | None = None):
        self.name = path.relative_to(ROOT).as_posix()
        self.raw = path.read_text() if raw is None else raw
        self.text = self.raw
        for pattern in BLANKED:
            blank = lambda found: re.sub(r"[^\n]", " ", found[0])
            self.text = re.sub(pattern, blank, self.text, flags=re.MULTILINE | re.DOTALL)
        self.numbers = [found.start(1) for found in NUMBER.finditer(self.text)]
        self.checked: set[int] = set()

    def cover(self, start: int, end: int) -> None:
        """Count the numbers between two places as checked."""
        self.checked |= {at for at in self.numbers if start <= at < end}

    def line(self, at: int) -> int:
        """The number of the line of a place."""
        return self.raw.count("\n", 0, at) + 1

    def left(self) -> list[tuple[int, str]]:
        """The lines with numbers that were not checked, and those numbers."""
        found: dict[int, list[str]] = {}
        for at in self.numbers:
            if at not in self.checked:
                number = NUMBER.match(self.text, at)
                found.setdefault(self.line(at), []).append(number[1] if number else "?")
        return [(line, " ".join(numbers)) for line, numbers in found.items()]

    def rows(self) -> Iterator[Row]:
        """Every row below a table's rule, in order."""
        heading, table, headers, at = "", -1, [], 0
        before: list[str] = []
        for line in self.raw.splitlines(keepends=True):
            if line.startswith("#"):
                heading = line.lstrip("# ").strip()
            if not line.startswith("|"):
                headers = []
            elif re.fullmatch(r"[|\s:-]+", line):
                headers, table = before, table + 1
            else:
                bounds = [m.start() for m in re.finditer(r"(?<!\\)\|", line)]
                pieces = [line[a + 1 : b] for a, b in itertools.pairwise(bounds)]
                cells = [plain(piece) for piece in pieces]
                starts = [at + place + 1 for place in bounds]
                if headers:
                    yield Row(at, heading, table, headers, cells, pieces, starts)
                before = cells
            at += len(line)


def plain(cell: str) -> str:
    """A cell without emphasis, code marks, links and tags."""
    text = re.sub(r"<[^>]*>|[*`]", "", cell).replace("\\|", "|").replace("\\", "")
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())


def tokens(cell: str) -> list[str]:
    """The numbers and dashes of a cell, in order."""
    return TOKEN.findall(cell)
