"""`laconic plan`: what a round costs over a link, and the H to choose."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from laconic.cli.console import timing_bar
from laconic.cli.terminal import err, out, say
from laconic.cli.words import plan_words
from laconic.runs.configs import PlanConfig
from laconic.runs.plan import check, plan
from laconic.show.table import Table, duration, number, percent
from laconic.store.atomic import check_place
from laconic.store.records import provenance, write_json

NOTE = (
    "A cell is the time of a round and the share of it that is local steps. Rounds needed for a "
    "loss are not assumed: they depend on H, compressor and optimizer (laconic compare)."
)


def run_plan(argv: Sequence[str]) -> int:
    """`laconic plan [--flags]`."""
    config = plan_words(argv)
    check(config)  # before a bar is shown
    if config.out is not None:
        check_place(config.out)
    with timing_bar() as shown:
        total = len(config.optimizers) + len(config.compress)
        line = shown.add_task("measuring", total=total, what="")
        found = plan(config, lambda what: shown.update(line, advance=1, what=what))
    out.print(table(config, found))
    say(choice(config, found))
    if config.out is not None:
        write_json(config.out, {"plan": asdict(config), **found, **provenance()})
        say(f"record: {config.out.resolve()}", err)
    return 0


def table(config: PlanConfig, found: dict[str, Any]) -> Table:
    """A row for each way to train, a column for each H."""
    rows = [
        [
            row["compress"],
            row["optimizer"],
            row["topology"],
            f"{number(row['sent_bits'] / 8e6)} MB",
            f"{row['least_local_steps']:,}",
            duration(row["run_seconds"]),
            *(
                f"{duration(row['rounds'][str(H)])} {percent(row['shares'][str(H)])}"
                for H in config.local_steps
            ),
        ]
        for row in found["rows"]
    ]
    heads = [f"H = {H}" for H in config.local_steps]
    title = (
        f"{number(found['parameters'])} parameters, {config.workers} workers, {config.link}, "
        f"{config.step_time} a local step"
    )
    least = f"H for {percent(config.share)}"
    headers = ["compress", "optimizer", "topology", "sent a round", least, "whole run", *heads]
    return Table(title, headers, rows, note=NOTE, left=3, spare=heads)


def choice(config: PlanConfig, found: dict[str, Any]) -> str:
    """The way that is chosen, and why."""
    row = found["chosen"]
    H = row["least_local_steps"]
    run = f"{config.rounds:,} rounds" if config.rounds else f"{config.steps:,} local steps"
    others = f"encoding {duration(row['encode'])}, combining {duration(row['combine'])}"
    return (
        f"Choose H = {H:,} with {row['compress']} messages by {row['topology']} and "
        f"{row['optimizer']}: a round takes {duration(row['round_seconds'])}, of which the link "
        f"{duration(row['exchange'])}, {others}, the outer step {duration(row['outer'])}; "
        f"{run} take {duration(row['run_seconds'])}.\n"
        "It has the smallest H; compressed messages and more local steps may need more rounds. "
        "The engine exchanges by all-gather."
    )
