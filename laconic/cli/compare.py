"""`laconic compare` and `laconic sweep`: several optimizers, or a grid of one, on one task."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from laconic.cli.console import (
    ResumeConfig,
    recipe_words,
    resume_words,
    say_facts,
    wants_resume,
    with_bars,
)
from laconic.cli.terminal import out, say
from laconic.recipes.comparisons import RECIPES
from laconic.recipes.sweeps import sweeps
from laconic.runs.compare import CompareConfig, compare, resume_compare
from laconic.runs.settings import program
from laconic.runs.sweep import SweepConfig, resume_sweep, sweep
from laconic.show.advice import advice
from laconic.show.comparison import setting_of
from laconic.show.summary import summary_table
from laconic.show.sweep import closing_sentence, ranking_table
from laconic.show.verdict import verdict

COMPARE = "Compare outer optimizers on one task."
SWEEP = "Try a grid of one method's hyper-parameters on one task."


@dataclass(frozen=True)
class CompareResumeConfig:
    """Resume a comparison."""

    resume: Path
    """The folder of the run."""
    on_nan: Literal["stop", "continue"] | None = None
    """What to do when a loss is NaN or infinite; by default as the run was begun."""


def run_compare(argv: Sequence[str]) -> int:
    """`laconic compare [RECIPE] [--flags]` or `laconic compare --resume DIR`."""
    if wants_resume(argv):
        words = resume_words("compare", argv, CompareResumeConfig)
        old = words.config
        run = lambda bars, stop: resume_compare(
            old.resume, on_nan=old.on_nan, observer=bars, stop=stop
        )
    else:
        words = recipe_words("compare", argv, CompareConfig(), RECIPES, COMPARE)
        config = words.config
        command = shlex.join([*program("compare"), *argv])
        run = lambda bars, stop: compare(config, observer=bars, stop=stop, command=command)
    return with_bars("compare", words.track, run, _print_comparison)


def run_sweep_command(argv: Sequence[str]) -> int:
    """`laconic sweep [RECIPE] [--flags]` or `laconic sweep --resume DIR`."""
    if wants_resume(argv):
        words = resume_words("sweep", argv, ResumeConfig)
        old = words.config
        run = lambda bars, stop: resume_sweep(old.resume, observer=bars, stop=stop)
    else:
        words = recipe_words("sweep", argv, SweepConfig(), sweeps(), SWEEP)
        config = words.config
        command = shlex.join([*program("sweep"), *argv])
        run = lambda bars, stop: sweep(config, observer=bars, stop=stop, command=command)
    return with_bars("sweep", words.track, run, _print_ranking)


def _print_comparison(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    out.print(replace(summary_table(records), title=setting_of(records)))
    found = advice(records)
    if found is not None:
        out.print("", found)
    out.print(f"\n{verdict(records)}", markup=False, highlight=False)
    say(f"report: {(folder / 'report.html').resolve()}")


def _print_ranking(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """The best points, what they are ranked by, and where all of it is."""
    out.print(ranking_table(records))
    say(closing_sentence(records).replace("`", ""))
    names = {"ranking": "ranking.md", "picture": "ranking.png", "records": "records.jsonl"}
    say_facts({what: (folder / name).resolve() for what, name in names.items()})
