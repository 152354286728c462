"""`laconic tasks` and `laconic optimizers`: what there is, a line each."""

from collections.abc import Sequence

from rich.markup import escape

from laconic.cli.console import out
from laconic.errors import LaconicError
from laconic.recipes.methods import METHODS, options_of
from laconic.tasks.catalog import TASKS


def list_tasks(argv: Sequence[str]) -> int:
    """`laconic tasks`: one line each, with options."""
    _no_arguments("tasks", argv)
    for name, entry in TASKS.items():
        options = ", ".join(f"{key}={value}" for key, value in entry.options.items())
        _line(name, entry.description, options)
    return 0


def list_optimizers(argv: Sequence[str]) -> int:
    """`laconic optimizers`: one line each, with options."""
    _no_arguments("optimizers", argv)
    for name, entry in METHODS.items():
        _line(name, entry.summary, ", ".join(f"{key}={value}" for key, value in options_of(name).items()))
    out.print(
        "\nOptions follow a colon: slowmo:gamma=0.3,beta=0.9,compress=topk:0.01+ef. All take compress= and label=;"
    )
    out.print("those with local steps also clip= (gradient norm) and decay= (weight decay).")
    return 0


def _line(name: str, summary: str, options: str) -> None:
    tail = f" [dim]({escape(options)})[/]" if options else ""
    out.print(f"[bold cyan]{name:<17}[/] {escape(summary)}{tail}", highlight=False, soft_wrap=True)


def _no_arguments(command: str, argv: Sequence[str]) -> None:
    if argv and argv[0] not in ("-h", "--help"):
        raise LaconicError(f"'laconic {command}' takes no arguments, got {' '.join(argv)!r}.")
