"""Times of a round: measured part by part into a folder, as rows beside the paper's, in a table,
and drawn.

The folder holds `records.jsonl`: a "run" record, a "part" record for each part that has been timed,
and a "timing" that says what they come to. Stopped, it goes on with the part that was under way.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from laconic.bench.timing import Tick
from laconic.bench.overhead import METHODS, PARTS, OverheadConfig, measure
from laconic.errors import LaconicError
from laconic.reproduce.experiment import Experiment, TimingPanel
from laconic.runs.folder import Interrupted, command_line
from laconic.show.curves import of_kind
from laconic.show.table import MISSING, number
from laconic.store.records import RECORDS, append, provenance, read

Record = dict[str, Any]
LABELS = dict(zip(METHODS, ("Local SGD", "LOpt-A", "LAgg-A"), strict=True))
METRIC = "timing"
HEADERS = [
    "model",
    "H",
    "method",
    "forward and backward, s",
    "optimizer, s",
    "round, s",
    "the paper, s",
    "overhead",
    "the paper",
    "difference",
]


def begin_timing(folder: Path, config: OverheadConfig) -> None:
    """Write the first record of a new folder."""
    command = command_line("bench overhead", config)
    append(
        folder / RECORDS,
        "run",
        run="timing",
        config=asdict(config),
        command=command,
        provenance=provenance(),
    )


def run_timing(
    folder: Path, config: OverheadConfig, tick: Tick, stop: Callable[[], bool]
) -> list[Record]:
    """Time every part that the folder has no record of → all records."""
    records = read(folder / RECORDS)
    _check_device(folder, records[0]["provenance"]["device"]["kind"])
    known = {record["name"]: record["seconds"] for record in of_kind(records, "part")}
    for name in known:
        for _ in range(config.restarts):
            tick(name)
    began = time.monotonic()

    def keep(name: str, seconds: float) -> None:
        nonlocal began
        took, began = time.monotonic() - began, time.monotonic()
        append(folder / RECORDS, "part", name=name, seconds=seconds, took=round(took, 3))
        if stop() and name != PARTS[-1]:
            raise Interrupted(f"stopped after {name}.", folder)

    found = measure(config, tick, known, keep)
    total = sum(record["took"] for record in of_kind(read(folder / RECORDS), "part"))
    append(folder / RECORDS, METRIC, **found, seconds=round(total, 3))
    return read(folder / RECORDS)


def _check_device(folder: Path, begun_on: str) -> None:
    here = jax.devices()[0].device_kind
    if here != begun_on:
        raise LaconicError(
            f"{folder} was begun on {begun_on} and this is {here}: times of two devices do not "
            "mix; choose another "
            "--out, or go on where it was begun."
        )


# --- rows -----------------------------------------------------------------------------------------


def timing_rows(experiment: Experiment, timed: Mapping[str, Sequence[Record]]) -> list[Record]:
    """A row for each model, H and method: seconds of a round of H local steps, and how many times
    local SGD's."""
    return [row for panel in experiment.timings for row in _rows(panel, timed[panel.name][-1])]


def _rows(panel: TimingPanel, timing: Record) -> list[Record]:
    rows = []
    for H in panel.config.local_steps:
        for m, name in enumerate(METHODS):
            found = timing["figures"][f"H={H} {name}"]
            seconds, overhead = panel.paper[H][m] if H in panel.paper else (None, None)
            rows.append(
                {
                    "panel": panel.name,
                    "label": LABELS[name],
                    "metric": METRIC,
                    "H": H,
                    "forward_backward": H * found["forward_backward_seconds"],
                    "optimizer": H * found["optimizer_seconds"],
                    "ours": H * found["seconds"],
                    "paper": seconds,
                    "overhead": found["overhead"],
                    "paper_overhead": overhead,
                    "difference": None if overhead is None else found["overhead"] - overhead,
                }
            )
    return rows


def timing_lines(experiment: Experiment, rows: Sequence[Record]) -> list[list[str]]:
    """The rows as cells under `HEADERS`."""
    titles = {panel.name: panel.title for panel in experiment.timings}
    return [
        [
            titles[row["panel"]],
            str(row["H"]),
            row["label"],
            number(row["forward_backward"]),
            number(row["optimizer"]),
            number(row["ours"]),
            "" if row["paper"] is None else f"{row['paper']:.2f}",
            f"{row['overhead']:.3f}×",
            "" if row["paper_overhead"] is None else f"{row['paper_overhead']:.2f}×",
            "" if row["difference"] is None else f"{row['difference']:+.3f}".replace("-", "−"),
        ]
        for row in rows
    ]


def timing_notes(timed: Mapping[str, Sequence[Record]]) -> list[str]:
    """How large each model is, and what its parts took."""
    found = []
    for name, records in timed.items():
        timing = records[-1]
        parts = ", ".join(
            f"{part} {1e3 * seconds:.4g} ms" for part, seconds in timing["parts_seconds"].items()
        )
        device = records[0]["provenance"]["device"]["kind"] or MISSING
        found.append(f"{name}: {timing['parameters']:,} parameters on {device}; {parts}.")
    return found
