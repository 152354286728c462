"""The records of a training: what each process writes of it, and all of that as one.

A process that holds all workers writes `records.jsonl`; one worker of many writes `worker-N.jsonl`,
and what several of them wrote is put together into `records.jsonl`. Kinds of records: "run"
(settings and provenance), "start" (a process begins, or begins again), "rounds" (a column for each
thing told of a round), "end", and "summary".
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laconic.engines.base import Engine
from laconic.errors import LaconicError
from laconic.runs.folder import (
    NEEDED,
    WORKER_LOGS,
    RunFolder,
    check_records,
    first_log,
    read_header,
)
from laconic.show.training import LOOK, Life, Row, of_lives, write_curves
from laconic.store.records import RECORDS, read

CURVE = "loss.png"
FLUSH_SECONDS = 5.0
KEPT = tuple(NEEDED["rounds"].split())


def log_name(engine: Engine) -> str:
    """The name of the file that the process with this engine writes its records to."""
    return RECORDS if len(engine.mine) == engine.slots else worker_log(engine.mine[0])


def worker_log(worker: int) -> str:
    """The name of the file that one worker of many writes its records to."""
    return f"worker-{worker}.jsonl"


@dataclass
class Log:
    """A process's records, rounds gathered for a few seconds before they are written.

    A round that only one process committed lives on in the states that others take over from it. If
    it died before it wrote the round down, no record would tell of it: so it writes first.
    """

    folder: RunFolder
    note: Callable[[str], None]
    waiting: list[Row] = field(default_factory=list)
    written_at: float = field(default_factory=time.monotonic)
    troubled: bool = False

    def start(self, worker: int, done: int) -> None:
        """This process begins after `done` rounds; if commit, versions or device have changed
        since the header, that is recorded too."""
        since = self.folder.changes()
        self.folder.append("start", worker=worker, round=done, at=time.time(), **since)

    def add(self, row: Row, at_once: bool) -> None:
        """A committed round, written `at_once` before its checkpoint, so that none is lost."""
        self.waiting.append({name: row[name] for name in (*KEPT, LOOK) if name in row})
        if at_once or time.monotonic() - self.written_at > FLUSH_SECONDS:
            self.flush()

    def complete(self, row: Row) -> None:
        """The same round once its checkpoint is there too, with the time and the notes of that."""
        if self.waiting and self.waiting[-1]["round"] == row["round"]:
            self.waiting[-1] |= {name: row[name] for name in KEPT}

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

    def end(self, **facts: Any) -> None:
        """All rounds are done; now what cannot be written is an error."""
        if self.waiting:
            self._write()
        self.folder.append("end", **facts)

    def _write(self) -> None:
        self.folder.append("rounds", **_columns(self.waiting))
        self.waiting = []
        self.troubled = False


def forget_after(folder: RunFolder, done: int) -> None:
    """Drop the rounds after `done`: a resumed run goes on from its checkpoint and writes them
    again."""
    kept = []
    for record in folder.records():
        if record["kind"] == "rounds":
            rows = [row for row in rows_of(record) if row["round"] <= done]
            record = {"kind": "rounds", **_columns(rows)}
        if record["kind"] not in ("end", "summary"):
            kept.append(record)
    folder.rewrite(kept)


def check_checkpoint(folder: RunFolder, saved: Path, every: int) -> None:
    """Refuse to train again from round 0 over rounds whose checkpoint got lost.

    A run killed before its first checkpoint has at most `every` rounds on record; that begins anew.
    """
    if saved.exists():
        return
    found = folder.records()
    resumed = any(record["kind"] == "start" and record["round"] for record in found)
    ended = any(record["kind"] == "end" for record in found)
    done = [done for record in found if record["kind"] == "rounds" for done in record["round"]]
    if resumed or ended or (every and max(done, default=0) > every):
        raise LaconicError(
            f"{folder.path} has no {saved.name}, the checkpoint after round {max(done, default=0)} "
            "of its records, so it cannot go on from there; nothing was changed. Put the file "
            "back, or begin anew with another --out."
        )


def rows_of(record: dict[str, Any]) -> list[Row]:
    """The rounds of a "rounds" record."""
    names = [name for name in (*KEPT, LOOK) if name in record]
    columns = zip(*(record[name] for name in names), strict=True)
    return [dict(zip(names, values, strict=True)) for values in columns]


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    columns = {name: [row[name] for row in rows] for name in KEPT}
    looks = [row.get(LOOK) for row in rows]
    return {**columns, LOOK: looks} if any(looks) else columns


def looks_in(records: Sequence[dict[str, Any]], metric: str) -> dict[int, float]:
    """A held-out metric by the round it was looked at; NaN where it was not finite."""
    rows = [row for record in records if record["kind"] == "rounds" for row in rows_of(record)]
    found = {row["round"]: row[LOOK][metric] for row in rows if row.get(LOOK)}
    return {at: math.nan if value is None else value for at, value in found.items()}


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
    logs = {path.name: _read_log(path) for path in sorted(folder.glob(WORKER_LOGS))}
    return [name for name, found in logs.items() if not found or found[-1]["kind"] != "end"]


def _read_log(path: Path) -> list[dict[str, Any]]:
    found = read(path)
    check_records(path, found)
    return found


def finish(path: Path, command: str) -> list[dict[str, Any]]:
    """The run as one: `records.jsonl` with a summary at its end, and the curve → its records."""
    folder, logs = RunFolder(path), sorted(path.glob(WORKER_LOGS))
    first = first_log(path)
    if first is not None:
        lives = [life for log in logs for life in lives_of(_read_log(log))]
        rounds, summary = of_lives(lives)
        header = read_header(path, "train", first.name) | {"command": command}
        folder.rewrite([header, {"kind": "rounds", **rounds}, {"kind": "summary", **summary}])
    elif not folder.is_finished():
        folder.append("summary", **of_lives(lives_of(folder.records()))[1])
    write_curves(folder.records(), path / CURVE)
    return folder.records()
