"""Tables and numbers for people.

- `number`, `with_error`, `rounds`, `times`, `signed`, `count`, `plural`, `percent`, `duration`:
  a value as text.
- `Table`: formatted cells under headers. `markdown()` gives its text, rich's `Console.print` shows
  it in a terminal, `groups()` gives one table for each value of the first column;
  `show.page.table` makes it HTML.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len

from laconic.show.curves import Style

if TYPE_CHECKING:
    import rich.table
    import rich.text
    from rich.console import Console, ConsoleOptions

MISSING = "–"
GAP = 2  # characters between two columns in a terminal
NAME = 24  # characters of a column of words that are not broken in a terminal
UNITS = (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))

# --- numbers --------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three significant digits; whole numbers with separators from 1,000."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if 999.5 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:#.3g}".replace(".e", "e").rstrip(".")


def with_error(value: float | None, error: float | None, unit: str = "") -> str:
    """The value ± its error in the same decimals; the value alone without an error."""
    text = number(value)
    if value is None:
        return text
    if not error:
        return text + unit
    shown = f"{error:.1e}" if "e" in text else f"{error:.{len(text.partition('.')[2])}f}"
    return f"{text}{unit} ± {shown if float(shown) else f'{error:.1g}'}"


def with_interval(
    value: str, interval: Sequence[float | None] | None, end: Callable[[float], str] = number
) -> str:
    """A value as text and its interval in brackets; an end that stands for "never" is –."""
    if interval is None:
        return value
    ends = [MISSING if not x or math.isinf(x) else end(x) for x in interval]
    return f"{value} [{', '.join(ends)}]"


def rounds(value: int | None, interval: Sequence[float | None] | None = None) -> str:
    """A number of rounds and its interval."""
    return with_interval(count(value), interval, lambda x: count(round(x)))


def times(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """How many times as fast, and its interval."""
    return with_interval(MISSING if value is None else f"{number(value)}×", interval)


def signed(value: float | None) -> str:
    """A difference, with its sign."""
    if value is None:
        return MISSING
    sign = "±" if value == 0 else "+" if value > 0 else "−"
    return f"{sign}{number(abs(value))}"


def count(value: int | None) -> str:
    """A whole number."""
    return MISSING if value is None else f"{value:,}"


def plural(value: int, noun: str) -> str:
    """So many of something: "1 seed", "10 seeds"."""
    return f"{count(value)} {noun}{'s' * (value != 1)}"


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def duration(seconds: float | None) -> str:
    """A time for people: 320 ms, 3.2 s, 4 min, 1.5 h, 2.4 d."""
    if seconds is None:
        return MISSING
    if seconds == 0:
        return "0 s"
    for (unit, size), (_, following) in itertools.pairwise(UNITS):
        text = f"{seconds / size:.2g}" if seconds < 9.95 * size else f"{seconds / size:.0f}"
        if float(text) * size < following:
            return f"{text} {unit}"
        seconds = max(seconds, following)  # 59.7 s is neither "60 s" nor "0.99 min"
    unit, size = UNITS[-1]
    return f"{seconds / size:,.1f} {unit}"


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Formatted cells under headers; the first cell of a row names it.

    `best` holds the (row, column) places in bold. The first `left` columns are words, flush left;
    the others are numbers. `code`: names are code. `grouped`: the first column repeats, and a page
    shows one table for each of its values. `styles`: a sample of each row's line, on a page.
    `words`: what each row's name is short for; `spare`: columns that a narrow terminal leaves out
    first, the last of them before the others.

    Example: `Table("Losses", ["method", "loss"], [["local-sgd", "0.224"]]).markdown()`.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    left: int = 1
    code: bool = False
    grouped: bool = False
    styles: Sequence[Style] = ()
    words: Sequence[str] = ()
    spare: Sequence[str] = ()

    def markdown(self, aligned: bool = True) -> str:
        """A Markdown table, best cells in bold, numbers flush right if `aligned`."""
        rules = [
            "---" if i < self.left or not aligned else "---:" for i in range(len(self.headers))
        ]
        lines = [[markdown_text(name) for name in self.headers], rules]
        for i, row in enumerate(self.rows):
            cells = [markdown_text(cell) for cell in row]
            if self.words and self.words[i] != row[0]:
                word = markdown_text(self.words[i]).replace('"', "&quot;")
                cells[0] = f'<abbr title="{word}">{cells[0]}</abbr>'
            elif self.code:
                name = " ".join(row[0].split()).replace("`", "'").replace("|", "\\|")
                cells[0] = f"`{name}`"
            lines.append([f"**{c}**" if (i, j) in self.best else c for j, c in enumerate(cells)])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[rich.table.Table | rich.text.Text]":
        """The table as wide as the terminal allows, best cells in bold, its note below.

        Headers and columns of words may be broken. Where that is not enough, whole columns are left
        out and named, never parts of a number.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        widths = self._widths(options.max_width)
        left_out = [name for j, name in enumerate(self.headers) if j not in widths]
        more = f"In a wider terminal also: {', '.join(left_out)}." if left_out else ""
        made = RichTable(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            show_edge=False,
        )
        for j, width in widths.items():
            justify = "left" if j < self.left else "right"
            made.add_column(Text(self.headers[j]), justify=justify, overflow="fold", width=width)
        for i, row in enumerate(self.rows):
            made.add_row(*(Text(row[j], "bold" * ((i, j) in self.best)) for j in widths))
        yield made
        yield Text(f"\n{self.note} {more}".rstrip(), "dim italic")

    def _widths(self, available: int) -> dict[int, int]:
        """The columns shown in so many characters, and the width of each.

        If not all fit, the `spare` ones go, then the last; the first two stay."""
        cells = [[row[j] for row in self.rows] for j in range(len(self.headers))]
        least, most = {}, {}
        for j, header in enumerate(self.headers):
            whole = [header, *cells[j]]
            words = " ".join(whole if j < self.left else [header]).split()
            pieces = [min(cell_len(word), NAME) for word in words]
            numbers = [cell_len(cell) for cell in cells[j] if j >= self.left]
            least[j] = max([*pieces, *numbers], default=1)
            most[j] = max(map(cell_len, whole))
        spare = [self.headers.index(name) for name in self.spare if name in self.headers]
        others = [j for j in list(least)[2:] if j not in spare]
        free = available - sum(width + GAP for width in least.values()) + GAP
        whole_names = min(most[0], NAME) - least[0] if self.left else 0
        for going, wanted in ((spare, whole_names), (others, 0)):
            while going and free < wanted:
                free += least.pop(going.pop()) + GAP
        for columns in (range(self.left), range(self.left, len(self.headers))):  # words first
            while free > 0 and (tight := [j for j in columns if least.get(j, most[j]) < most[j]]):
                for j in tight[:free]:
                    least[j] += 1
                free -= len(tight[:free])
        return least

    def groups(self) -> list["Table"]:
        """One table for each value of the first column, its title; itself if not grouped."""
        if not self.grouped:
            return [self]
        found = []
        for name in dict.fromkeys(row[0] for row in self.rows):
            own = [i for i, row in enumerate(self.rows) if row[0] == name]
            rows = [self.rows[i][1:] for i in own]
            best = frozenset((own.index(i), j - 1) for i, j in self.best if i in own)
            one = replace(self, title=name, headers=self.headers[1:], rows=rows, best=best)
            styles = [self.styles[i] for i in own] if self.styles else ()
            found.append(replace(one, styles=styles, left=max(self.left - 1, 1), grouped=False))
        return found


def markdown_text(text: str) -> str:
    """One line in which nothing is markup or ends a cell."""
    line = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return line.replace("<", "&lt;").replace("*", "\\*")
