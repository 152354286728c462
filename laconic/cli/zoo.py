"""`laconic zoo`: the learned optimizers that come with the package, or lie in a file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.markdown import Markdown

from laconic.cli.console import err, out, say, table
from laconic.errors import LaconicError, unknown
from laconic.zoo import cards, export, faults, load, to_markdown
from laconic.zoo.card import to_json

USAGE = """\
laconic zoo list                     the published optimizers, a line each
laconic zoo show NAME [--json]       what one is, how it was trained, what it reaches and where it fails
laconic zoo export NAME --out DIR    its weights and its card, as files

NAME may be the path of a .safetensors file instead, such as a meta-training's best.safetensors."""


@dataclass(frozen=True)
class Show:
    """Show the card of a published optimizer."""

    name: tyro.conf.Positional[str]
    """A name from `laconic zoo list`, or the path of a .safetensors file."""
    json: bool = False
    """Print it as JSON."""


@dataclass(frozen=True)
class Export:
    """Write a published optimizer's weights and card to a folder; nothing is overwritten."""

    name: tyro.conf.Positional[str]
    """A name from `laconic zoo list`, or the path of a .safetensors file."""
    out: Path
    """The folder to write to; it is made if missing."""


def run_zoo(argv: Sequence[str]) -> int:
    """`laconic zoo list | show NAME | export NAME --out DIR`."""
    if not argv or argv[0] in ("-h", "--help"):
        say(USAGE)
        return 0
    if argv[0] not in ACTIONS:
        raise unknown("zoo command", argv[0], ACTIONS)
    ACTIONS[argv[0]](argv[1:])
    return 0


def list_zoo(argv: Sequence[str]) -> None:
    """A line for each published optimizer."""
    if argv and argv[0] not in ("-h", "--help"):
        raise LaconicError(f"'laconic zoo list' takes no arguments, got {' '.join(argv)!r}.")
    found = cards()
    warn_of_damage()
    if not found:
        say(
            "No optimizer is published with this laconic; train one: laconic meta-train "
            "lopt-a-digits"
        )
        return
    rows = [
        (
            name,
            card.architecture,
            "any" if card.workers is None else str(card.workers),
            ", ".join(dict.fromkeys(row["task"] for row in card.trained_on)),
            card.summary,
        )
        for name, card in found.items()
    ]
    headers = ("name", "architecture", "K", "trained on", "summary")
    out.print(table(headers, rows, left=len(headers)))


def warn_of_damage() -> None:
    """A line on stderr for each published file that cannot be read."""
    for name, reason in faults().items():
        say(f"note: {name} is left out: {reason}", err)


def show_zoo(argv: Sequence[str]) -> None:
    """One card."""
    arguments = tyro.cli(Show, args=list(argv), prog="laconic zoo show")
    card = load(arguments.name).card
    if arguments.json:
        say(json.dumps(to_json(card), indent=2, ensure_ascii=False))
    else:
        out.print(Markdown(to_markdown(card)))


def export_zoo(argv: Sequence[str]) -> None:
    """The files of one, each path on a line."""
    arguments = tyro.cli(Export, args=list(argv), prog="laconic zoo export")
    for path in export(arguments.name, arguments.out):
        say(str(path.resolve()))


ACTIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": list_zoo,
    "show": show_zoo,
    "export": export_zoo,
}
