"""`laconic compare` and `laconic sweep`: several optimizers, or a grid of one, on one task."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from laconic.cli.console import say_facts, with_bars
from laconic.cli.terminal import out, say
from laconic.cli.words import CompareResumeConfig, ResumeConfig, compare_words, sweep_words
from laconic.runs.compare import compare, resume_compare
from laconic.runs.settings import program
from laconic.runs.sweep import resume_sweep, sweep
from laconic.show.advice import advice
from laconic.show.comparison import setting_of
from laconic.show.summary import summary_table
from laconic.show.sweep import closing_sentence, ranking_table
from laconic.show.verdict import verdict


def run_compare(argv: Sequence[str]) -> int:
    """`laconic compare [RECIPE] [--flags]` or `laconic compare --resume DIR`."""
    given, trackers = compare_words(argv)
    if isinstance(given, CompareResumeConfig):
        run = lambda bars, stop: resume_compare(
            given.resume, on_nan=given.on_nan, observer=bars, stop=stop
        )
    else:
        command = shlex.join([*program("compare"), *argv])
        run = lambda bars, stop: compare(given, observer=bars, stop=stop, command=command)
    return with_bars("compare", trackers, run, _print_comparison)


def run_sweep_command(argv: Sequence[str]) -> int:
    """`laconic sweep [RECIPE] [--flags]` or `laconic sweep --resume DIR`."""
    given, trackers = sweep_words(argv)
    if isinstance(given, ResumeConfig):
        run = lambda bars, stop: resume_sweep(given.resume, observer=bars, stop=stop)
    else:
        command = shlex.join([*program("sweep"), *argv])
        run = lambda bars, stop: sweep(given, observer=bars, stop=stop, command=command)
    return with_bars("sweep", trackers, run, _print_ranking)


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
