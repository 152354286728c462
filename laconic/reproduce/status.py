"""How far each experiment has been run, by the records under a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from laconic.reproduce import EXPERIMENTS
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.panel import Panel
from laconic.reproduce.part import Part, Record
from laconic.reproduce.sweep_panel import SweepPanel, in_setting, sweeps_below
from laconic.store.archive import records_file
from laconic.store.records import RECORDS, read

RESULTS = Path("results")
Own = Mapping[str, set[str]]  # of each experiment, the parts in its own outcome


def statuses(root: Path = RESULTS) -> dict[str, str]:
    """Of every experiment: "full", "partial, n of m" (parts at full scale), "smoke" or "not run".

    A part counts as run where another experiment ran it: the curves behind a table are the table's.
    A sweep counts wherever one in its setting lies.
    """
    own = {name: _done_in(root, name, experiment) for name, experiment in EXPERIMENTS.items()}
    sweeps = [*sweeps_below(root / "sweeps")]
    return {name: _status(root, EXPERIMENTS[name], own, sweeps) for name in EXPERIMENTS}


def _status(root: Path, experiment: Experiment, own: Own, sweeps: Sequence[list[Record]]) -> str:
    names = experiment.names()
    done = [part.name for part in experiment.parts if _is_done(experiment, part, own, sweeps)]
    count = len(set(done))
    if count == len(names):
        return "full"
    if count:
        return f"partial, {count} of {len(names)}"
    return "smoke" if _last(root, experiment.name, "smoke") else "not run"


def _is_done(experiment: Experiment, part: Part, own: Own, sweeps: Sequence[list[Record]]) -> bool:
    if part.name in own[experiment.name]:
        return True
    if isinstance(part, SweepPanel):
        return any(in_setting(part.config, records) for records in sweeps)
    return isinstance(part, Panel) and any(
        isinstance(other, Panel)
        and other.name in own[name]
        and (other.config, other.learned, other.tuned) == (part.config, part.learned, part.tuned)
        for name, found in EXPERIMENTS.items()
        for other in found.parts
    )


def _done_in(root: Path, name: str, experiment: Experiment) -> set[str]:
    """The parts that the last outcome at full scale has."""
    last = _last(root, name, "full")
    return set() if last is None else set(experiment.names()) - set(last.get("left", []))


def _last(root: Path, name: str, scale: str) -> Record | None:
    """The last outcome of an experiment at a scale."""
    path = root / "reproduce" / f"{name}-{scale}" / RECORDS
    if not records_file(path):
        return None
    found = [record for record in read(path) if record["kind"] == "experiment"]
    return found[-1] if found else None
