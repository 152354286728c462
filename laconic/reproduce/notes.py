"""What a reader of an experiment must know beside its numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from laconic.reproduce.experiment import Experiment
from laconic.reproduce.scale import SMOKE_LINE, SMOKE_SIZES, SMOKE_TIMES
from laconic.reproduce.timings import timing_notes
from laconic.reproduce.tuning import tuned_notes
from laconic.show.curves import of_kind
from laconic.show.page import provenances

Record = dict[str, Any]


def notes(
    experiment: Experiment,
    record: Record,
    panels: Mapping[str, Sequence[Record]],
    timed: Mapping[str, Sequence[Record]],
) -> list[str]:
    """What the paper says, what is left out, what diverged, and where the numbers come from."""
    sizes = SMOKE_TIMES if experiment.timings else SMOKE_SIZES
    found = [f"At this scale {sizes}."] if record["scale"] == "smoke" else []
    found += [*(f"The paper: {text}" for text in experiment.says), *experiment.leaves_out]
    found += left_line(record)
    found += tuned_notes(record["rows"])
    found += [
        text for panel in experiment.panels for text in diverged(panel.title, panels[panel.name])
    ]
    sources = dict.fromkeys(
        of_kind(records, "run")[0]["task"]["source"] for records in panels.values()
    )
    found += [f"Data: {source}." for source in sources]
    for name in sorted(
        name for name, file in record["optimizers"].items() if not file.endswith(".safetensors")
    ):
        found.append(f"{name} is the published {record['optimizers'][name]}.")
    found += timing_notes(timed)
    made = [
        origin for records in (*panels.values(), *timed.values()) for origin in provenances(records)
    ]
    return found + list(dict.fromkeys(map(_origin, made or [record["provenance"]])))


def _origin(provenance: Record) -> str:
    """Where and when something was measured; of one commit, device and day it is said once."""
    commit, device = provenance["commit"] or "unknown", provenance["device"]["kind"]
    changed = " with uncommitted changes" if provenance.get("dirty") else ""
    return f"Commit {commit}{changed}, {device}, {provenance['started'][:10]}."


def diverged(title: str, records: Sequence[Record]) -> list[str]:
    """A sentence for each method that lost a seed: how many, and when the first did."""
    found = []
    for method in of_kind(records, "method"):
        bad = sum(method["diverged"])
        if bad:
            broken_T = ~np.isfinite(np.array(method["train"], dtype=float)).all(axis=0)
            when = (
                f"first in round {int(np.argmax(broken_T)) + 1}"
                if broken_T.any()
                else "in its last rounds"
            )
            seeds = len(method["diverged"])
            found.append(f"Diverged: {method['label']} on {title}, {bad} of {seeds} seeds, {when}.")
    return found


def scale_line(record: Record) -> list[str]:
    """That a run only shows that things work, if so."""
    return [SMOKE_LINE] if record["scale"] == "smoke" else []


def left_line(record: Record) -> list[str]:
    """Which parts are yet to be carried out, if any are."""
    return [f"Not carried out yet: {', '.join(record['left'])}."] if record.get("left") else []
