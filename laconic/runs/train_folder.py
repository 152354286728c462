"""The folder of a training: what each process writes of it, and all of that as one.

A process that holds all workers writes `records.jsonl`; one worker of many writes `worker-N.jsonl`,
and what several of them wrote is put together into `records.jsonl`. Kinds of records: "run"
(settings and provenance), "start" (a process begins, or begins again), "rounds" (a column for each
thing told of a round), "end", and "summary".
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.recipes.trainings import TrainConfig, contents_of, from_json, run_name, to_json
from laconic.runs.compare import RECORDS, is_another
from laconic.runs.folder import describe, spelled
from laconic.show.training import Life, Row, of_lives, write_loss_curve
from laconic.store.runlog import RunLog, provenance, read, rewrite
from laconic.tasks.base import Task

CURVE, WEIGHTS = "loss.png", "weights.safetensors"
WORKER_LOGS = "worker-*.jsonl"
FLUSH_SECONDS = 5.0
KEPT = (
    "round",
    "loss",
    "losses",
    "quorum",
    "excluded",
    "sent",
    "received",
    "attempts",
    "healed",
    "seconds",
    "notes",
)
KEPT += ("digest", "committed_at")


def log_path(folder: Path, mine: Sequence[int], slots: int) -> Path:
    """Where a process that holds the workers `mine` of `slots` writes its records."""
    return folder / (RECORDS if len(mine) == slots else f"worker-{mine[0]}.jsonl")


def worker_folder(config: TrainConfig) -> Path:
    """Where a worker keeps its files if nothing else is said: the same place whenever it starts
    with these words."""
    name = hashlib.sha256(run_name(config).encode()).hexdigest()[:8]
    return config.out or Path("runs") / f"{spelled(config.task)}-{name}"


@dataclass
class Log:
    """A process's records, rounds gathered for a few seconds before they are written."""

    path: Path
    note: Callable[[str], None]
    waiting: list[Row] = field(default_factory=list)
    written_at: float = field(default_factory=time.monotonic)
    troubled: bool = False

    def begin(
        self, config: TrainConfig, task: Task, source: str, command: str, engine: str
    ) -> None:
        """The first time the run is described, later it must be the same run."""
        records = read(self.path) if self.path.exists() else []
        if records:
            check_same(records, config, self.path)
        else:
            about = {"task": describe(task, source), "command": command, "engine": engine}
            about["optimizer_sha256"] = contents_of(config)
            RunLog(self.path).append(
                "run", config=to_json(config), **about, provenance=provenance()
            )

    def start(self, worker: int, done: int) -> None:
        """This process begins after `done` rounds."""
        RunLog(self.path).append("start", worker=worker, round=done, at=time.time())

    def add(self, row: Row) -> None:
        """A round; written when it is time."""
        self.waiting.append({name: row[name] for name in KEPT})
        if time.monotonic() - self.written_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rounds that wait; if that fails they wait on, for a full disk must not stop
        training."""
        self.written_at = time.monotonic()
        if not self.waiting:
            return
        try:
            self._write()
        except LaconicError as error:
            if not self.troubled:
                self.note(f"{error} The rounds are kept in memory until it works again.")
            self.troubled = True

    def _write(self) -> None:
        RunLog(self.path).append(
            "rounds", **{name: [row[name] for row in self.waiting] for name in KEPT}
        )
        self.waiting, self.troubled = [], False

    def end(self, **facts: Any) -> None:
        """All rounds are done; now what cannot be written is an error."""
        if self.waiting:
            self._write()
        RunLog(self.path).append("end", **facts)


def check_same(records: Sequence[dict[str, Any]], config: TrainConfig, path: Path) -> None:
    """Refuse a folder that belongs to a run with other settings."""
    header = header_of(records, path)
    if run_name(from_json(header["config"], path.parent)) != run_name(
        replace(config, out=path.parent)
    ):
        raise LaconicError(
            f"{path.parent} belongs to a run with other settings; choose another --out."
        )
    if is_another(header, contents_of(config)):
        raise LaconicError(
            f"{path.parent} was begun with another {config.optimizer} than there is now; choose "
            "another --out, or go "
            "on with the laconic that has it."
        )


def header_of(records: Sequence[dict[str, Any]], path: Path) -> dict[str, Any]:
    """The first record, once it is known to be of a training."""
    shape = {"config": dict, "task": dict, "provenance": dict, "command": str, "engine": str}
    ours = bool(records) and records[0].get("kind") == "run"
    if not ours or not all(isinstance(records[0].get(key), kind) for key, kind in shape.items()):
        raise LaconicError(
            f"{path} holds no records of a training by this version; it cannot be resumed."
        )
    return records[0]


def read_header(folder: Path) -> dict[str, Any]:
    """What the run in a folder was begun with, whoever of its processes wrote it down."""
    paths = [folder / RECORDS] if (folder / RECORDS).is_file() else sorted(folder.glob(WORKER_LOGS))
    if not paths:
        raise LaconicError(
            f"{folder} holds no {RECORDS}, so there is nothing to resume; give the folder of a "
            "training."
        )
    return header_of(read(paths[0]), paths[0])


def forget_after(path: Path, done: int) -> None:
    """Drop the rounds after `done`: a run that was killed goes on from its checkpoint and writes
    them again."""
    kept = []
    for record in read(path):
        if record["kind"] == "rounds":
            rows = [row for row in rows_of(record) if row["round"] <= done]
            record = {"kind": "rounds", **{name: [row[name] for row in rows] for name in KEPT}}
        if record["kind"] not in ("end", "summary"):
            kept.append(record)
    rewrite(path, kept)


def rows_of(record: dict[str, Any]) -> list[Row]:
    """The rounds of a "rounds" record."""
    return [
        dict(zip(KEPT, values, strict=True))
        for values in zip(*(record[name] for name in KEPT), strict=True)
    ]


def lives_of(records: Sequence[dict[str, Any]]) -> list[Life]:
    """What each process that wrote into one file did, from its start to its end or death."""
    lives: list[Life] = []
    for record in records:
        if record["kind"] == "start":
            lives.append(Life(record["worker"], record["at"], [], {}))
        elif record["kind"] == "rounds":
            lives[-1].rows.extend(rows_of(record))
        elif record["kind"] == "end":
            lives[-1].end.update(record)
    return lives


def missing_ends(folder: Path) -> list[str]:
    """The workers' files in a folder whose last process has not come to its end."""
    return [log.name for log in sorted(folder.glob(WORKER_LOGS)) if read(log)[-1]["kind"] != "end"]


def finish(folder: Path, command: str) -> list[dict[str, Any]]:
    """The run as one: `records.jsonl` with a summary at its end, and the curve → its records."""
    path, logs = folder / RECORDS, sorted(folder.glob(WORKER_LOGS))
    if logs:
        written = [read(log) for log in logs]
        rounds, summary = of_lives([life for records in written for life in lives_of(records)])
        header = header_of([*itertools.chain(*written)], logs[0]) | {"command": command}
        rewrite(path, [header, {"kind": "rounds", **rounds}, {"kind": "summary", **summary}])
    else:
        records = read(path)
        if records[-1]["kind"] != "summary":
            RunLog(path).append("summary", **of_lives(lives_of(records))[1])
    records = read(path)
    write_loss_curve(records, folder / CURVE)
    return records
