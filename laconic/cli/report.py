"""`laconic report`: all records under a folder on one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from laconic.cli.console import timing_bar
from laconic.cli.terminal import err, say
from laconic.reproduce.outcome import experiment_blocks
from laconic.show.report import report_folder

DESCRIPTION = """\
Gather every record under a folder (comparisons, sweeps, meta-training, experiments, benchmarks)
into one page that opens offline, each figure with its command, commit, device and time. Nothing is
run again."""


@dataclass(frozen=True)
class ReportConfig:
    """All records on one page."""

    results: Path = Path("results")
    """The folder that holds the records."""
    out: Path = Path("report.html")
    """The page to write; an older report of ours is replaced, any other file is left alone."""
    markdown: bool = False
    """Write a Markdown page beside it, with links to the pictures that lie with the records."""


def run_report(argv: Sequence[str]) -> int:
    """`laconic report [--results DIR] [--out FILE] [--markdown]`."""
    config = tyro.cli(ReportConfig, args=list(argv), prog="laconic report", description=DESCRIPTION)
    with timing_bar() as shown:

        def progress(name: str, total: int) -> None:
            if shown.tasks:
                shown.update(shown.tasks[0].id, advance=1, what=name)
            else:  # the first call: an error before it shows no empty bar
                shown.add_task("runs", total=total, what=name)

        paths, skipped = report_folder(
            config.results,
            config.out,
            markdown=config.markdown,
            progress=progress,
            renderers={"experiment": experiment_blocks},
        )
        shown.update(shown.tasks[0].id, advance=1, what="")
    for line in skipped:
        say(f"skipped: {line}", err)
    for path in paths:
        say(f"report: {path.resolve()}")
    return 0
