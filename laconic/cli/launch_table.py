"""A launch as a person sees it: one live table in a terminal with the workers' logs above it; lines
in a log."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from laconic.cli.console import err, say
from laconic.engines.supervisor import Line

RECENT = 20  # rounds that times are a mean of
LINE_SECONDS = 10.0
HEADS = (
    "worker",
    "state",
    "round",
    "quo-\nrum",
    "loss",
    "MB\nout",
    "MB\nin",
    "com-\npute",
    "talk",
    "outer",
)
HEADS += ("left\nout", "refu-\nsed", "re-\nstarts")  # so narrow that all fit into 80 columns
LEGEND = "compute, talk (waiting, moving bytes), outer step: ms a round"


@dataclass
class Seen:
    """What is known of a worker."""

    state: str = "starts"
    round: int = 0
    quorum: list[int] = field(default_factory=list)
    loss: float | None = None
    sent: int = 0
    received: int = 0
    left_out: int = 0
    refused: int = 0
    restarts: int = 0
    ended: bool = False
    seconds: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take(self, row: dict[str, Any]) -> None:
        """One more round."""
        self.state, self.round, self.quorum, self.loss = (
            "trains",
            row["round"],
            row["quorum"],
            row["loss"],
        )
        self.sent, self.received = self.sent + row["sent"], self.received + row["received"]
        self.left_out += len(row["excluded"])
        self.refused = sum(row["refused"].values())
        self.seconds.append(row["seconds"])

    def ms(self, *parts: str) -> str:
        """The mean of some parts of a round."""
        if not self.seconds:
            return "–"
        found = 1000 * mean(sum(s[p] for p in parts) for s in self.seconds)
        return f"{found:.1f}" if found < 100 else f"{found:.0f}"

    def cells(self) -> list[str]:
        """The row, without its name."""
        return [
            self.state,
            str(self.round),
            str(len(self.quorum)) if self.quorum else "–",
            "–" if self.loss is None else f"{self.loss:.4f}",
            megabytes(self.sent),
            megabytes(self.received),
            self.ms("compute"),
            self.ms("quorum", "gather"),
            self.ms("outer"),
            str(self.left_out),
            str(self.refused),
            str(self.restarts),
        ]


def megabytes(count: int) -> str:
    """So many bytes, in five letters."""
    return f"{count / 1e6:.2f}" if count < 1e8 else f"{count / 1e6:.0f}"


class LaunchDisplay:
    """Takes in what the children write and what happens to them, and shows it on `console`."""

    def __init__(
        self,
        workers: Iterable[str],
        rounds: int,
        title: str,
        console: Console = err,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.workers, self.rounds, self.title = {name: Seen() for name in workers}, rounds, title
        self.console, self._clock, self._said_at = console, clock, clock()
        self._live = (
            Live(console=console, get_renderable=self.render) if console.is_terminal else None
        )

    def __enter__(self) -> "LaunchDisplay":
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the table as it is; what is printed next comes below it."""
        if self._live is not None:
            self._live.stop()

    # --- what happens

    def take(self, line: Line) -> None:
        """A line of a child: a worker's JSON is news for the table, anything else a line of its
        log."""
        message = None if line.error or line.name not in self.workers else _message(line.text)
        if message is None:
            self.tell(line.name, line.text)
            return
        seen = self.workers[line.name]
        if message["kind"] == "start":
            seen.state = "compiles"
        elif message["kind"] == "round":
            seen.take(message)
            for note in message["notes"]:
                self.tell(line.name, f"round {message['round']}: {note}")
        elif message["kind"] == "note":
            self.tell(line.name, message["text"])
        elif message["kind"] == "end":
            seen.state, seen.ended, seen.round = "done", True, message["round"]

    def died(self, name: str, deaths: int) -> None:
        """How often a worker has died so far."""
        seen = self.workers[name]
        if deaths > seen.restarts:
            seen.restarts, seen.state = deaths, "died"

    def tell(self, name: str, text: str) -> None:
        """A line above the table, under a child's name."""
        say(f"{name} | {text}", self.console)

    # --- what is shown

    @property
    def round(self) -> int:
        """How far the furthest is."""
        return max(seen.round for seen in self.workers.values())

    def render(self) -> RenderableType:
        """The table."""
        table = Table(
            title=escape(self.title),
            caption=LEGEND,
            title_justify="left",
            caption_justify="left",
            box=None,
        )
        table.padding, table.pad_edge = (0, 1, 0, 0), False
        for i, head in enumerate(HEADS):
            table.add_column(head, justify="left" if i < 2 else "right", no_wrap=True)
        for name, seen in self.workers.items():
            style = {"died": "yellow", "done": "green"}.get(seen.state, "")
            table.add_row(
                escape(name.removeprefix("worker ")), *map(escape, seen.cells()), style=style
            )
        return table

    def summary(self) -> str:
        """The state of affairs on one line."""
        ahead = max(self.workers.values(), key=lambda seen: seen.round)
        if not ahead.round:
            return "; ".join(f"{name} {seen.state}" for name, seen in self.workers.items())
        loss = "" if ahead.loss is None else f", loss {ahead.loss:.4f}"
        quorum = f", quorum {len(ahead.quorum)}" if ahead.quorum else ""
        restarts = sum(seen.restarts for seen in self.workers.values())
        return f"round {ahead.round}/{self.rounds}{quorum}{loss}, restarts {restarts}"

    def tick(self) -> None:
        """In a log, a line now and then."""
        if self._live is None and self._clock() - self._said_at >= LINE_SECONDS:
            self._said_at = self._clock()
            self.console.print(Text(self.summary()))


def _message(text: str) -> dict[str, Any] | None:
    """A worker's message; None if the line is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "kind" in found else None
