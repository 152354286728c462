"""The folder of an experiment: its first and last record, and what the runs inside it have come to."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from laconic.bench.overhead import OverheadConfig
from laconic.errors import LaconicError
from laconic.reproduce.experiment import Experiment
from laconic.runs.compare import CompareConfig
from laconic.runs.folder import CHECKPOINT, check_records
from laconic.runs.meta_config import MetaConfig
from laconic.runs.sweep import SweepConfig
from laconic.store.archive import records_file
from laconic.store.records import RECORDS, append, plain, provenance, read

Record = dict[str, Any]
Config = CompareConfig | MetaConfig | SweepConfig | OverheadConfig


def read_header(folder: Path) -> Record | None:
    """The "run" record that an experiment's folder begins with; None if there is no whole record."""
    records = read(folder / RECORDS) if records_file(folder / RECORDS) else []
    if not records:
        return None
    first, wanted = records[0], {"name": str, "scale": str, "provenance": dict}
    if first.get("kind") != "run" or not all(
        isinstance(first.get(key), kind) for key, kind in wanted.items()
    ):
        raise LaconicError(
            f"{folder} holds records of something else than an experiment; choose another --out."
        )
    return first


def begin(experiment: Experiment, scale: str, folder: Path) -> None:
    """Write the first record of a new folder; one of anything else than this experiment is refused."""
    try:
        header = read_header(folder)
        others = (
            [path.name for path in folder.iterdir() if path.name not in (RECORDS, f"{RECORDS}.xz")]
            if folder.exists()
            else []
        )
    except OSError as error:
        raise LaconicError(
            f"cannot write to {folder}: {error.strerror}. Choose another folder with --out."
        ) from None
    if header is None and others:
        raise LaconicError(
            f"{folder} is not empty and no experiment's; nothing is overwritten. Choose another "
            "--out."
        )
    if header is None:
        words = ["laconic", "reproduce", experiment.name, "--scale", scale, "--out", str(folder)]
        values = {
            "name": experiment.name,
            "scale": scale,
            "command": shlex.join(words),
            "provenance": provenance(),
        }
        append(folder / RECORDS, "run", run="experiment", **values)
    elif (header["name"], header["scale"]) != (experiment.name, scale):
        raise LaconicError(
            f"{folder} is of {header['name']} at scale {header['scale']}, not of {experiment.name} "
            f"at scale {scale}; "
            "choose another --out."
        )


def conclude(
    folder: Path,
    experiment: Experiment,
    scale: str,
    files: dict[str, str],
    rows: list[Record],
    left: Sequence[str],
) -> Record:
    """The "experiment" record: the one that is there if it says the same, else a new one; `left` is
    yet to be done."""
    values = plain(
        {
            "name": experiment.name,
            "scale": scale,
            "title": experiment.title,
            "panels": {panel.name: f"panels/{panel.name}" for panel in experiment.panels},
            "optimizers": files,
            "rows": rows,
            **({"left": left} if left else {}),
        }
    )
    last = _records(folder)[-1]
    said = {key: value for key, value in last.items() if key in values or key == "left"}
    if last["kind"] != "experiment" or said != values:
        append(folder / RECORDS, "experiment", **values, provenance=provenance())
    return read(folder / RECORDS)[-1]


# --- the runs inside ------------------------------------------------------------------------------


def finished(folder: Path, kind: str, file: str) -> bool:
    """Whether a run has its last record, of that kind, all that it is made of, and the file that is
    written after."""
    records = _records(folder)
    if not records or records[-1]["kind"] != kind or not (folder / file).is_file():
        return False
    for last, listed, each in (("summary", "rows", "method"), ("ranking", "order", "point")):
        if kind == last and listed in records[-1]:  # a line that was damaged may have been deleted
            return len(records[-1][listed]) == sum(record["kind"] == each for record in records)
    return True


def done_parts(experiment: Experiment, folder: Path) -> list[str]:
    """The parts of an experiment whose runs have their last record, and those that the last outcome
    has without a run.

    These are partitions, which are counted and not run, and sweeps that others on record stood in
    for.
    """
    last = {"panels": "summary", "sweeps": "ranking", "timings": "timing"}
    found = [
        path
        for kind in last
        for path in sorted(folder.glob(f"{kind}/*"))
        if _kinds(path)[-1:] == [last[kind]]
    ]
    outcomes = [record for record in _records(folder) if record["kind"] == "experiment"]
    shown = {row["panel"] for row in (outcomes[-1].get("rows", []) if outcomes else [])}
    counted = [mix.name for mix in experiment.mixes if mix.title in shown]
    return (
        [path.name for path in found]
        + counted
        + [row.sweep for row in experiment.sweeps if row.title in shown]
    )


def begun(folder: Path, config: Config, besides: Collection[str] = ()) -> bool:
    """Whether a run was begun in `folder`; with other settings than these, but for those of
    `besides`, it is refused.

    What a run that was killed while it made its folder left behind is cleared away.
    """
    if not _kinds(folder):
        for name in (RECORDS, f".{CHECKPOINT}.probe"):
            (folder / name).unlink(missing_ok=True)
        return False
    first = _records(folder)[0]
    if first["kind"] != "run" or not isinstance(first.get("config"), dict):
        raise LaconicError(
            f"{folder} has lost the record of its settings; move it away to have it run anew."
        )
    theirs, ours = with_defaults(first["config"], config), plain(config)
    decided = {"out", *besides} | decided_by_data(config)
    different = sorted(
        key for key in ours if key not in decided and bare(theirs[key]) != bare(ours[key])
    )
    if different:
        raise LaconicError(
            f"{folder} was begun with another {', '.join(different)}; move it away to have it run "
            "anew, or choose "
            "another --out."
        )
    return True


def with_defaults(values: Record, config: Config) -> Record:
    """A record's settings; those that there were none of when it was written are at what they are
    by default."""
    return {**plain(type(config)()), **values}


def decided_by_data(config: Config) -> set[str]:
    """The settings that are not the config's to decide: with a population, H."""
    populated = not isinstance(config, OverheadConfig) and config.federated.active
    return {"local_steps"} if populated else set()


def bare(value: Any) -> Any:
    """A setting without the folder that optimizers lie in, which may be spelled in several ways."""
    if isinstance(value, list):
        return [bare(item) for item in value]
    return value.rpartition("optimizers/")[2] if isinstance(value, str) else value


def _records(folder: Path) -> list[Record]:
    records = read(folder / RECORDS, gaps=True) if records_file(folder / RECORDS) else []
    check_records(folder / RECORDS, records)
    return records


def _kinds(folder: Path) -> list[str]:
    return [record["kind"] for record in _records(folder)]
