"""The command line: `laconic compare`, `train`, and the other `COMMANDS`."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from laconic.cli import compiled
from laconic.cli.terminal import err, out, say, say_examples
from laconic.errors import LaconicError, unknown
from laconic.version import __version__


class Command(NamedTuple):
    """A subcommand: what it does with its arguments, and one line about it."""

    run: Callable[[Sequence[str]], int]
    summary: str


def _from(module: str, name: str) -> Callable[[Sequence[str]], int]:
    """A command's function, whose module is imported (and with it JAX) once it is called."""
    return lambda argv: getattr(importlib.import_module(f"laconic.cli.{module}"), name)(argv)


COMMANDS: dict[str, Command] = {
    "compare": Command(
        _from("compare", "run_compare"),
        "run several optimizers on one task and report which needs fewer rounds",
    ),
    "train": Command(
        _from("train", "run_train"), "train one model, all its workers in this process"
    ),
    "launch": Command(
        _from("launch", "run_launch"),
        "train with real processes on this machine; dead workers are restarted",
    ),
    "worker": Command(
        _from("worker", "run_worker"),
        "train as one of several processes, from another machine or under SLURM or torchrun",
    ),
    "meta-train": Command(
        _from("meta_train", "run_meta_train"), "train a learned optimizer, by a recipe"
    ),
    "zoo": Command(_from("zoo", "run_zoo"), "list, show, publish, push or pull learned optimizers"),
    "sweep": Command(
        _from("compare", "run_sweep_command"),
        "find a method's best hyper-parameters on a grid, all points at once",
    ),
    "plan": Command(
        _from("plan", "run_plan"), "what a round costs over a link, and the H to choose"
    ),
    "reproduce": Command(
        _from("reproduce", "run_reproduce"),
        "repeat one of the paper's experiments and compare with its numbers",
    ),
    "report": Command(
        _from("report", "run_report"), "gather all records under a folder on one page"
    ),
    "bench": Command(
        _from("bench", "run_bench"),
        "measure server steps, their overhead, rounds and meta-training on this machine",
    ),
    "cache": Command(_from("compiled", "run_cache"), "show or delete kept compiled programs"),
    "tasks": Command(_from("zoo", "list_tasks"), "list what can be trained"),
    "optimizers": Command(_from("zoo", "list_optimizers"), "list what can be compared"),
}
READ_FIRST = ("compare", "sweep", "train", "meta-train", "plan")
EXAMPLES = {
    "laconic compare": "five optimizers and two learned ones on bundled data",
    "laconic compare --link 100Mbit/20ms": "… and what fewer rounds are worth on that network",
    "laconic compare fmnist-baselines --seeds 2": "a ready recipe, with one number changed",
    "laconic train digits": "one model, all its workers in this process",
    "laconic launch --workers 4 -- train digits": "… with four processes; dead ones are restarted",
    "laconic meta-train lopt-a-digits --minutes 5": "train a learned optimizer on bundled data",
    "laconic zoo list": "learned optimizers that are trained already",
    "laconic sweep slowmo-coarse --task digits-mlp --rounds 100": "80 settings of SlowMo, ranked",
    "laconic plan --parameters 1e9 --link 100Mbit/50ms": "which H to train so large a model with",
    "laconic COMMAND --help": "every flag of a command",
}


OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # what JAX's errors say


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: run a subcommand; errors become one line and a non-zero exit."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows only ASCII shows "?" for ×
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        if any("\udc80" <= letter <= "\udcff" for word in argv for letter in word):
            raise LaconicError(
                "an argument is not valid UTF-8; labels and paths are written to records as text."
            )
        sys.exit(dispatch(argv))
    except LaconicError as error:
        sys.exit(_refuse(error))
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and OUT_OF_MEMORY not in str(error):
            raise
        reason = " ".join(str(error).splitlines()[:1])
        sys.exit(_refuse(LaconicError(f"this does not fit in memory: make it smaller. {reason}")))
    except KeyboardInterrupt:  # nothing to save here: resumable runs handle signals themselves
        say("stopped.", err)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of a pipe has left; nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def dispatch(argv: Sequence[str]) -> int:
    """Find the subcommand and run it."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        _help()
        return 0
    if argv[0] in ("--version", "-V"):
        say(f"laconic {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    if argv[0] in READ_FIRST:  # what is wrong is said before JAX is imported
        importlib.import_module("laconic.cli.words").WORDS[argv[0]](argv[1:])
    if argv[0] in compiled.COMMANDS and not {"-h", "--help"} & set(argv):
        compiled.keep_compiled(os.environ)
    return COMMANDS[argv[0]].run(argv[1:])


def _refuse(error: LaconicError) -> int:
    """Show an error → the exit status."""
    err.print("[bold red]error:[/]", end=" ")
    say(str(error), err)
    return error.status


def _help() -> None:
    out.print("[bold]laconic[/] — distributed training that talks less\n")
    for name, command in COMMANDS.items():
        out.print(f"  [bold cyan]{name:<12}[/] {command.summary}", highlight=False)
    say_examples("Try first:", EXAMPLES)
