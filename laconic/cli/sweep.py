"""`laconic sweep`: a grid of one method's hyper-parameters on one task."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from laconic.recipes.sweeps import SweepConfig, sweeps
from laconic.runs.compare import Interrupted
from laconic.runs.sweep_run import resume_sweep, sweep
from laconic.show.sweep_report import ranking_table, setting_of

_RESUME = "Take up a sweep where it stopped; its settings come from the folder."


@dataclass(frozen=True)
class SweepResumeConfig:
    """Take up a sweep where it stopped."""

    resume: Path
    """The folder of the sweep."""


def run_sweep_command(argv: Sequence[str]) -> int:
    """`laconic sweep [RECIPE] [--flags]` or `laconic sweep --resume DIR`."""
    if wants_resume(argv):
        arguments = tyro.cli(
            SweepResumeConfig, args=list(argv), prog="laconic sweep", description=_RESUME
        )
    else:
        arguments = _config(argv)
    with StopFlag() as stop, bars() as shown:
        observer = LiveBars(shown)
        try:
            if isinstance(arguments, SweepResumeConfig):
                folder, records = resume_sweep(arguments.resume, observer=observer, stop=stop)
            else:
                command = shlex.join(["laconic", "sweep", *argv])
                folder, records = sweep(arguments, observer=observer, stop=stop, command=command)
        except Interrupted as stopped:
            shown.stop()
            say(f"{stopped} Go on with: {go_on('sweep', stopped.folder)}", err)
            return stop.status
    _print_ranking(folder, records)
    return 0


def _config(argv: Sequence[str]) -> SweepConfig:
    base, rest, recipes = SweepConfig(), list(argv), sweeps()
    if rest and not rest[0].startswith("-"):
        if rest[0] not in recipes:
            raise unknown("recipe", rest[0], recipes)
        base = recipes[rest.pop(0)][1]
    description = (
        f"Try a grid of one method's hyper-parameters on one task.\n\n{recipes_text(recipes)}"
    )
    return tyro.cli(
        SweepConfig, args=rest, default=base, prog="laconic sweep [RECIPE]", description=description
    )


def _print_ranking(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """The Markdown table of the report as one for terminals, then its closing sentence and where
    all of it lies."""
    markdown, _, sentence = ranking_table(records).partition("\n\n")
    headers, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()
    ]
    config = records[0]["config"]
    where = f"{config['method']} on {records[0]['task']['name']}"
    title = f"{where}: {setting_of(config)}, {config['rounds']} rounds"
    out.print(table(headers, rows, title, left=0))
    say(sentence.strip().replace("`", ""))
    for what, name in (
        ("ranking", "ranking.md"),
        ("picture", "ranking.png"),
        ("records", "records.jsonl"),
    ):
        say(f"{what}: {(folder / name).resolve()}")
