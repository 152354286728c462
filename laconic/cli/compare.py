"""`laconic compare`: several optimizers on one task."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from laconic.cli.console import (
    LiveBars,
    StopFlag,
    bars,
    err,
    go_on,
    out,
    recipes_text,
    say,
    table,
    wants_resume,
)
from laconic.errors import unknown
from laconic.federated.options import in_words
from laconic.recipes.comparisons import RECIPES, CompareConfig
from laconic.runs.compare import Interrupted
from laconic.runs.compare_run import compare, resume
from laconic.show.summary import table_rows

_RESUME = "Take up a comparison where it stopped; its settings come from the folder."


@dataclass(frozen=True)
class ResumeConfig:
    """Take up a comparison where it stopped."""

    resume: Path
    """The folder of the run."""
    on_nan: Literal["stop", "continue"] | None = None
    """What to do when a loss is NaN or infinite; by default as the run was begun."""


def run_compare(argv: Sequence[str]) -> int:
    """`laconic compare [RECIPE] [--flags]` or `laconic compare --resume DIR`."""
    if wants_resume(argv):
        arguments = tyro.cli(
            ResumeConfig, args=list(argv), prog="laconic compare", description=_RESUME
        )
    else:
        arguments = _config(argv)
    with StopFlag() as stop, bars() as shown:
        observer = LiveBars(shown)
        try:
            if isinstance(arguments, ResumeConfig):
                folder, records = resume(
                    arguments.resume, on_nan=arguments.on_nan, observer=observer, stop=stop
                )
            else:
                command = shlex.join(["laconic", "compare", *argv])
                folder, records = compare(arguments, observer=observer, stop=stop, command=command)
        except Interrupted as stopped:
            shown.stop()
            say(f"{stopped} Go on with: {go_on('compare', stopped.folder)}", err)
            return stop.status
    _print_summary(folder, records)
    return 0


def _config(argv: Sequence[str]) -> CompareConfig:
    base, rest = CompareConfig(), list(argv)
    if rest and not rest[0].startswith("-"):
        if rest[0] not in RECIPES:
            raise unknown("recipe", rest[0], RECIPES)
        base = RECIPES[rest.pop(0)][1]
    description = f"Compare outer optimizers on one task.\n\n{recipes_text(RECIPES)}"
    return tyro.cli(
        CompareConfig,
        args=rest,
        default=base,
        prog="laconic compare [RECIPE]",
        description=description,
    )


def _print_summary(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    header, summary = records[0], records[-1]
    config = header["config"]
    headers, rows = table_rows(summary, config["link"] is not None)
    title = (
        f"{header['task']['name']}: K = {config['workers']}, H = {config['local_steps']}, B = "
        f"{config['batch']}"
        f"{in_words(config)}, {config['rounds']} rounds, {config['seeds']} seeds"
    )
    out.print(table(headers, rows, title))
    if summary["target_loss"] is not None:
        say(
            f"target: train loss {summary['target_loss']:.4g}; speedup: against "
            f"{summary['reference'] or '–'}"
        )
    say(f"report: {(folder / 'report.html').resolve()}")
