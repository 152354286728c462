"""The two consoles. Light to import, so that help and errors in words come at once."""

import sys
from collections.abc import Mapping

from rich.console import Console

# A pipe or a log has no width of its own; 140 columns hold every table.
out = Console(width=None if sys.stdout.isatty() else 140, emoji=False)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 140, emoji=False)


def say(text: str, console: Console = out) -> None:
    """Print a line as it is: no markup, no colours, not broken."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_examples(title: str, examples: Mapping[str, str]) -> None:
    """Print commands and what each does."""
    say(f"\n{title}")
    width = max(map(len, examples))
    for example, what in examples.items():
        say(f"  {example:<{width}}  {what}")
