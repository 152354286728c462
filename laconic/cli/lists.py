"""`laconic tasks` and `laconic optimizers`: what there is, a line each."""

from collections.abc import Mapping, Sequence

from rich.markup import escape

from laconic.cli.console import out, say
from laconic.cli.zoo import warn_of_damage
from laconic.errors import LaconicError
from laconic.method import Definition
from laconic.methods import METHODS, own_methods, published_methods
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
    _methods({**METHODS, **own_methods()})
    trained = published_methods()
    warn_of_damage()
    if trained:
        say(
            "\nLearned optimizers that are trained already (more about one: laconic zoo show NAME):"
        )
        _methods(trained)
    say(
        "\nThe path of a .safetensors file, such as a meta-training's best.safetensors, works as a "
        "name too."
    )
    say(
        "Options follow a colon: slowmo:gamma=0.3,beta=0.9,compress=topk:0.01+ef. All take "
        "compress= and label=;"
    )
    say("those with local steps also clip= (gradient norm) and decay= (weight decay).")
    return 0


def _methods(definitions: Mapping[str, Definition]) -> None:
    for name, found in definitions.items():
        options = ", ".join(f"{key}={value}" for key, value in found.defaults.items())
        _line(name, found.summary, options)


def _line(name: str, summary: str, options: str) -> None:
    tail = f" [dim]({escape(options)})[/]" if options else ""
    out.print(f"[bold cyan]{name:<20}[/] {escape(summary)}{tail}", highlight=False, soft_wrap=True)


def _no_arguments(command: str, argv: Sequence[str]) -> None:
    if argv and argv[0] not in ("-h", "--help"):
        raise LaconicError(f"'laconic {command}' takes no arguments, got {' '.join(argv)!r}.")
