"""`laconic zoo`, `tasks` and `optimizers`: list what there is, and publish an optimizer."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.markdown import Markdown
from rich.markup import escape

from laconic.cli.terminal import err, out, say
from laconic.errors import LaconicError, unknown
from laconic.local import LOCAL_OPTIMIZERS
from laconic.method import REFUSALS, Definition
from laconic.methods import METHODS, definition_of, own_methods, published_methods
from laconic.runs.publish import results_of, ship
from laconic.show.table import Table
from laconic.tasks.catalog import TASKS
from laconic.zoo import cards, export, faults, load, pull, push, to_markdown
from laconic.zoo.card import NAME, fault, to_json
from laconic.zoo.file import SUFFIX

USAGE = """\
laconic zoo list                     the published optimizers, a line each
laconic zoo show NAME [--json]       how one was trained, what it reaches and where it fails
laconic zoo export NAME --out DIR    its weights and its card, as files
laconic zoo publish RUN --name NAME  a meta-training's best optimizer as a file, its card completed
laconic zoo push NAME USER/REPO      put one on the Hugging Face Hub, or into a folder (./FOLDER)
laconic zoo pull USER/REPO           fetch one from there, checked

NAME may be the path of a .safetensors file instead, such as a meta-training's best.safetensors, or
USER/REPO on the Hugging Face Hub.
Begin by training one: laconic meta-train lopt-a-digits --minutes 5"""
START = """\
Start here: lopt-r, for any model and any number of workers K. If one below was trained on \
a task like yours, take that: it is faster there. More about one: laconic zoo show NAME
"""
GOAL = """
Goal: the loss it was trained to lower. Those for train loss overfit small tasks: for the best \
test loss stop early, or compare with local SGD. H: local steps a round in its training; \
local rate: the workers' rate it was trained with."""
FOR_TEST_LOSS = "fedlopt-"  # FedLOpt is LOpt-A meta-trained for the validation loss
BEST = f"best{SUFFIX}"
PUBLISH = """\
Give the optimizer of a meta-training its final name, and complete its card with measured results
and known limits. Measure it first, on seeds that nothing was tuned on:

  laconic compare --first-seed 100 --out measured \\
    --optimizers local-sgd RUN/best.safetensors:label=my-optimizer
  laconic zoo publish RUN --name my-optimizer --results measured \\
    --limits "trained for at most 1000 rounds"

It writes my-optimizer.safetensors, which works wherever a name from `laconic zoo list` does."""


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


@dataclass(frozen=True)
class Publish:
    """Give the optimizer of a meta-training its name, results and limits."""

    run: tyro.conf.Positional[Path]
    """The folder of a meta-training, whose best.safetensors is taken, or a .safetensors file."""
    name: str | None = None
    """The name it gets: lower-case letters, digits, - and _; by default that of the folder."""
    out: Path = Path()
    """The folder for NAME.safetensors; nothing is overwritten."""
    summary: str | None = None
    """One line about it; by default what the run wrote."""
    results: tuple[Path, ...] = ()
    """Folders of comparisons that measured it; their numbers go on the card."""
    label: str | None = None
    """What it is called in those comparisons; by default NAME."""
    limits: tuple[str, ...] = ()
    """Known limits in plain words, each in quotes."""
    before: Path | None = None
    """The .safetensors file the run began from; its outer steps and seconds are added."""


@dataclass(frozen=True)
class Push:
    """Put a published optimizer on the Hugging Face Hub, or into a folder in its layout."""

    source: tyro.conf.Positional[str]
    """A name from `laconic zoo list`, or the path of a .safetensors file."""
    repo: tyro.conf.Positional[str]
    """USER/REPO or USER/REPO@BRANCH on the Hub, or a folder, written with a leading ./ or /."""
    private: bool = False
    """Make the repository private if it is made now."""
    message: str | None = None
    """The commit's message."""


@dataclass(frozen=True)
class Pull:
    """Fetch a published optimizer from the Hugging Face Hub; nothing is overwritten."""

    repo: tyro.conf.Positional[str]
    """USER/REPO or USER/REPO@REVISION."""
    out: Path | None = None
    """The folder to write to; by default one named REPO."""


def run_zoo(argv: Sequence[str]) -> int:
    """`laconic zoo ACTION …`, an action of `USAGE`."""
    if not argv or argv[0] in ("-h", "--help"):
        say(USAGE)
        return 0
    if argv[0] not in ACTIONS:
        raise unknown("zoo command", argv[0], ACTIONS)
    ACTIONS[argv[0]](argv[1:])
    return 0


def list_zoo(argv: Sequence[str]) -> None:
    """A line for each published optimizer."""
    _no_arguments("zoo list", argv)
    found = cards()
    warn_of_damage()
    if not found:
        train = "laconic meta-train lopt-a-digits"
        say(f"No optimizer is published with this laconic; train one: {train}")
        return
    out.print(START, markup=False, highlight=False)
    rows = []
    for name, card in found.items():
        workers = "any" if card.workers is None else str(card.workers)
        tasks = ", ".join(dict.fromkeys(row["task"].split(":")[0] for row in card.trained_on))
        steps = sorted({row["local_steps"] for row in card.trained_on})
        local = f"{card.local['learning_rate']:g}"
        goal = "test loss" if name.startswith(FOR_TEST_LOSS) else "train loss"
        H = ", ".join(map(str, steps))
        rows.append((name, workers, H, local, goal, tasks, card.summary))
    headers = ("name", "K", "H", "local rate", "goal", "trained on", "summary")
    out.print(Table("", headers, rows, left=len(headers), spare=("trained on", "summary")))
    out.print(GOAL, markup=False, highlight=False)


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


def publish_zoo(argv: Sequence[str]) -> None:
    """A run's optimizer under its final name."""
    given = tyro.cli(Publish, args=list(argv), prog="laconic zoo publish", description=PUBLISH)
    source = given.run if given.run.suffix == SUFFIX else given.run / BEST
    if not source.is_file():
        raise LaconicError(
            f"{source} is not a file: give the folder of a meta-training, or a {SUFFIX} file."
        )
    name = given.name or (given.run.stem if source == given.run else given.run.resolve().name)
    if wrong := fault(name, NAME, "--name"):
        raise LaconicError(f"{wrong}.")
    path = given.out / f"{name}{SUFFIX}"
    if os.path.lexists(path):
        raise LaconicError(f"{path} exists already: choose another --name or --out.")
    summary = load(source).card.summary if given.summary is None else given.summary
    measured = [row for folder in given.results for row in results_of(folder, given.label or name)]
    ship(source, path, summary, measured, list(given.limits), given.before)
    say(f"weights: {path.resolve()}")
    say(f"its card: laconic zoo show {path}")


def push_zoo(argv: Sequence[str]) -> None:
    """A repository with the optimizer in it, and how to load that."""
    given = tyro.cli(Push, args=list(argv), prog="laconic zoo push")
    where = push(given.source, given.repo, private=given.private, message=given.message)
    say(f"pushed to: {where}")
    say(f'in Python: laconic.load("{given.repo}")')


def pull_zoo(argv: Sequence[str]) -> None:
    """The files of a repository, each path on a line."""
    given = tyro.cli(Pull, args=list(argv), prog="laconic zoo pull")
    for path in pull(given.repo, given.out):
        say(str(path.resolve()))


ACTIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": list_zoo,
    "show": show_zoo,
    "export": export_zoo,
    "publish": publish_zoo,
    "push": push_zoo,
    "pull": pull_zoo,
}


# --- tasks and optimizers -------------------------------------------------------------------------


def list_tasks(argv: Sequence[str]) -> int:
    """`laconic tasks`: one line each, with options."""
    _no_arguments("tasks", argv)
    for name, entry in TASKS.items():
        _line(name, entry.description, entry.options)
    say(
        "\nA task of your own: --task mymodule:make_task, a Task or a function without arguments "
        "that returns one,\nin a module of the current directory or of Python's path."
    )
    return 0


def list_optimizers(argv: Sequence[str]) -> int:
    """`laconic optimizers`: one line each, with options; `laconic optimizers NAME`: one in full."""
    if len(argv) == 1 and not argv[0].startswith("-"):
        _describe(definition_of(argv[0]))
        return 0
    _no_arguments("optimizers", argv)
    _methods({**METHODS, **own_methods()})
    trained = published_methods()
    warn_of_damage()
    if trained:
        say("\nTrained learned optimizers (more about one: laconic zoo show NAME):")
        _methods(trained)
    say(
        "\nWhat the options of one mean: laconic optimizers NAME."
        "\nThe path of a .safetensors file, such as a meta-training's best.safetensors, works as a "
        "name too.\nOptions follow a colon: slowmo:gamma=0.3,beta=0.9,compress=topk:0.01+ef. All "
        "take compress=, aggregate= and label=;\nthose with local steps also local= (the workers' "
        "optimizer: "
        f"{', '.join(LOCAL_OPTIMIZERS)}), clip= (gradient norm)\nand decay= (weight decay; none "
        "unless given, AdamW included)."
    )
    return 0


def _methods(definitions: Mapping[str, Definition]) -> None:
    for name, found in definitions.items():
        _line(name, found.summary, found.defaults)


def _describe(found: Definition) -> None:
    """What a method does, what its options mean, and what it cannot be used for."""
    _line(found.name, found.summary, {})
    for name, option in {**found.options, **found.workers}.items():
        allowed = "" if isinstance(option.default, str) else f"; {option.range.words}"
        _line(f"  {name}={option.default}", option.help + allowed, {})
    for use, reason in found.cannot.items():
        out.print(escape(f"It {REFUSALS[use]}: {reason}."), highlight=False, soft_wrap=True)


def _line(name: str, summary: str, options: Mapping[str, object]) -> None:
    text = ", ".join(f"{key}={value}" for key, value in options.items())
    tail = f" [dim]({escape(text)})[/]" if text else ""
    out.print(f"[bold cyan]{name:<20}[/] {escape(summary)}{tail}", highlight=False, soft_wrap=True)


def _no_arguments(command: str, argv: Sequence[str]) -> None:
    if argv and argv[0] not in ("-h", "--help"):
        raise LaconicError(f"'laconic {command}' takes no arguments, got {' '.join(argv)!r}.")
