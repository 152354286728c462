"""A run folder: what every resumable run writes to, and the rules by which it is taken up again.

A comparison, a sweep, a training, a meta-training and an experiment each own one folder. It holds
`records.jsonl`, whose first record (the header) says what kind of run it is, its settings, its
command and what made it; the checkpoint of what is under way (`checkpoint.safetensors`; of a
training `worker-N.safetensors`); and what the run shows at its end. All of them go by the rules of
this file:

- One process writes to a file of records at a time: one to a folder, except where K workers train
  as processes, each with a `worker-N.jsonl` of its own. The kernel keeps the lock: a killed process
  leaves none.
- A setting that a record lacks is at its default. A whole number may stand where a decimal one is
  asked for. An unknown setting is refused.
- A run goes on with the task, the data and the learned optimizer it was begun with, or not at all.
  Another commit, other versions or another device are noted, and recorded with what they compute.
- A stopped run saves first; a killed one goes on from its checkpoint. Both end with the same bits.
"""

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import jax

from laconic.errors import CannotBegin, LaconicError
from laconic.runs.settings import Config, located, read_config, resume_command
from laconic.store import atomic, records
from laconic.store.archive import records_file
from laconic.store.records import RECORDS, provenance
from laconic.tasks.base import Task, count_parameters
from laconic.tasks.catalog import OWN_TASK, given_task, is_own
from laconic.tasks.own import fingerprint

CHECKPOINT = "checkpoint.safetensors"
COMMAND = "command.txt"
WORKER_LOGS = "worker-*.jsonl"
LAUNCHED = ("compiled", "token")  # what `laconic launch` keeps beside the logs of its workers
SIMULATED = "simulated"  # the engine of a training whose workers are in one process
DECISIVE = ("commit", "dirty", "versions", "device")  # what of a provenance may change results

# What is read of a header, by the kind of run; a header from before it named its kind is of the
# first kind that it has everything of.
HEADERS: dict[str, dict[str, type]] = {
    "compare": {"step_seconds": object, "config": dict, "task": dict, "provenance": dict},
    "sweep": {"grid_points": int, "config": dict, "task": dict, "provenance": dict},
    "train": {"engine": str, "command": str, "config": dict, "task": dict, "provenance": dict},
    "meta-train": {"sources": list, "config": dict, "provenance": dict},
    "experiment": {"name": str, "scale": str, "provenance": dict},
    "timing": {"config": dict, "command": str, "provenance": dict},
}
WORDS = {"compare": "comparison", "train": "training", "meta-train": "meta-training"}
# Records that stand for themselves: if one of them is lost, it is computed again.
INDEPENDENT = {"compare": {"method", "summary"}, "sweep": {"point", "ranking"}}
# What is read of a record when a run is taken up again, by the record's kind.
NEEDED = {
    "method": "label method compressor workers local_steps traffic step_seconds train heldout "
    "evaluated_at diverged",
    "point": "index label numbers seeds minimum final rounds_to_target valid diverged chunk "
    "seconds",
    "start": "worker round at",
    "rounds": "round loss losses quorum excluded sent received attempts healed seconds notes "
    "digest committed_at",
    "end": "round digest message_bits refused heldout",
    "progress": "begin end loss norm seconds",
    "judged": "step which score best",
}

Record = dict[str, Any]


class Interrupted(LaconicError):
    """Asked to stop; everything done so far is in `folder`.

    Example::

        try:
            laconic.compare(laconic.CompareConfig(rounds=40, seeds=1), stop=lambda: True)
        except laconic.Interrupted as interrupted:
            laconic.resume(interrupted.folder)
    """

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


class StopFlag:
    """The first Ctrl-C or SIGTERM asks a run to save and stop; the second ends the process.

    Example::

        with StopFlag() as stop:
            laconic.train(laconic.TrainConfig(), stop=stop)
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Self:
        self._old = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    def asked(self) -> None:
        """The first signal came; say so, if there is anyone to tell."""

    def leave(self) -> None:
        """The second signal came, and the process ends at once."""

    def _handle(self, number: int, frame: Any) -> None:
        if self.signal is not None:
            self.leave()
            os._exit(128 + number)
        self.signal = number
        self.asked()

    @property
    def status(self) -> int:
        """The exit status of a run that a signal stopped."""
        return 128 + (self.signal or signal.SIGINT)


class Observer:
    """Watches a run. This one ignores everything; override what you want to see.

    Example::

        class Printer(laconic.Observer):
            def progress(self, label, done, loss, norm=None):
                print(label, done, loss)

        laconic.compare(laconic.CompareConfig(), observer=Printer())
    """

    def opened(self, folder: Path, header: Mapping[str, Any]) -> None:
        """A run begins in that folder, or is taken up there."""

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """`label` starts, or goes on after `done` of `total` steps of `rounds_each` rounds each."""

    def progress(self, label: str, done: int, loss: float, norm: float | None = None) -> None:
        """Step `done` has that loss; in meta-training `norm` is that of the meta-gradient."""

    def numbers(self, label: str, done: int, values: Mapping[str, float]) -> None:
        """What a tracker shows of step `done`, by name; a training tells of it by `round`."""

    def round(self, row: Mapping[str, Any]) -> None:
        """A training has done a round, `row` is all about it: its loss as `progress`, its notes."""
        self.progress("training", row["round"], row["loss"])
        for text in row["notes"]:
            self.note(text)

    def judged(self, done: int, score: float, best: bool) -> None:
        """Meta-training has judged φ on held-out seeds after `done` outer steps."""

    def end(self, facts: Mapping[str, Any]) -> None:
        """A training has done all its rounds."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def closed(self) -> None:
        """The run is over, stopped or failed; nothing more comes."""


class RunFolder:
    """A folder with records, locked while a `with` block lasts.

    Begin a run with `create`, take one up with `open`, or share a folder with other processes with
    `join`. Then `append` records, keep the state under way in the file `checkpoint`, and leave by
    an exception at any time: whatever was appended or saved is on disk.

    Args:
        path: the folder.
        file: the name of its file of records. One worker of many has a file of its own, and then
            the file is locked instead of the folder.

    Example::

        with RunFolder.create("sweep", config.out, "sweep-adam", config, command) as folder:
            folder.append("point", index=0, minimum=0.25)

        with RunFolder.open(path, "sweep", observer) as folder:
            config = folder.config(SweepConfig)
            done = {record["index"] for record in folder.of_kind("point")}
    """

    def __init__(self, path: str | Path, file: str = RECORDS):
        self.path = Path(path)
        self.file = self.path / file
        self.checkpoint = self.path / CHECKPOINT
        self._lock: int | None = None
        self._made: list[Path] | None = None  # folders made for a run that begins here

    @classmethod
    def new(cls, out: Path | None, name: str) -> "RunFolder":
        """A new folder, locked and empty: `out`, or runs/NAME-TIME.

        It is refused if it holds anything but what a run left that was killed before its header was
        on disk.
        """
        folder = cls(out or Path("runs") / f"{spelled(name)}-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            folder._made = [at for at in (folder.path, *folder.path.parents) if not at.exists()]
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            folder._clear()
        except OSError as error:
            folder.close()
            raise LaconicError(
                f"cannot write to {folder.path}: {error.strerror}. Choose another folder with "
                "--out."
            ) from None
        except LaconicError:
            folder.close()
            raise
        return folder

    @classmethod
    def create(
        cls, kind: str, out: Path | None, name: str, config: Any, command: str, **facts: Any
    ) -> "RunFolder":
        """A `new` folder with its header.

        Args:
            kind: one of `HEADERS`.
            out: the folder, or None for runs/NAME-TIME.
            name: what the run is called there.
            config: its settings, a dataclass; None if it has none of its own.
            command: what it was started with; it is in `command.txt` too.
            facts: further fields of the header.
        """
        folder = cls.new(out, name)
        try:
            settings = {} if config is None else {"config": located(config, folder.path)}
            facts = {**settings, "command": command, **facts, "provenance": provenance()}
            folder.append("run", run=kind, **facts)
            atomic.write_text(folder.path / COMMAND, command + "\n")
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: str | Path, kind: str, observer: Observer | None = None) -> "RunFolder":
        """The folder of an earlier run of that kind, locked, its leftovers cleared away.

        A record that was lost is computed again where records stand for themselves, and the
        observer is told; of other runs the folder is refused.
        """
        folder = cls(path)
        read_header(folder.path, kind)
        folder.lock()
        try:
            folder._check(kind, observer or Observer())
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def join(cls, path: str | Path, file: str, kind: str, config: Any, **facts: Any) -> "RunFolder":
        """A folder with a file of records for this process alone, new or of an earlier process."""
        folder = cls(path, file)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.lock()
        if not folder.records():
            folder.append("run", run=kind, config=config, **facts, provenance=provenance())
        return folder

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and issubclass(kind, CannotBegin):
            self._leave_nothing()
        self.close()

    @contextlib.contextmanager
    def watched_by(self, observer: Observer) -> Iterator[None]:
        """Tell an observer when work in this folder begins and when it is over."""
        observer.opened(self.path, self.header)
        try:
            yield
        finally:
            observer.closed()

    def _leave_nothing(self) -> None:
        """Remove a run that was refused before it computed anything, and the folders made for
        it."""
        mine = {self.file.name, COMMAND}
        begun = {record["kind"] for record in self.records()} <= {"run", "start"}
        if self._made is None or not begun or {p.name for p in self.path.iterdir()} - mine:
            return
        for name in mine:
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # one of them holds another run by now
            for folder in self._made:
                folder.rmdir()

    def close(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def lock(self) -> None:
        """Keep other processes out until `close`; refused if one of them is in."""
        whole = self.file.name == RECORDS
        target, flags = (self.path, os.O_RDONLY) if whole else (self.file, os.O_RDWR | os.O_CREAT)
        handle = os.open(target, flags, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise LaconicError(
                f"{target} is in use: another process writes to it. Wait until that has ended, or "
                "choose another --out."
            ) from None
        except OSError:  # a file system without locks
            pass
        self._lock = handle
        atomic.clear(self.path)

    # --- what is in it ---

    def records(self) -> list[Record]:
        """All records, as they are on disk now."""
        return records.read(self.file) if records_file(self.file) else []

    def of_kind(self, kind: str) -> list[Record]:
        """The records of one kind."""
        return [record for record in self.records() if record["kind"] == kind]

    @cached_property
    def header(self) -> Record:
        """The first record."""
        return self.records()[0]

    def is_finished(self) -> bool:
        """Whether the last record is a summary."""
        return [record.get("kind") for record in self.records()][-1:] == ["summary"]

    def append(self, kind: str, **values: Any) -> None:
        """Add a record; it is on disk when this returns."""
        records.append(self.file, kind, **values)

    def rewrite(self, kept: Iterable[Mapping[str, Any]]) -> None:
        """Replace all records, in one step."""
        records.rewrite(self.file, kept)

    def config(self, cls: type[Config]) -> Config:
        """The settings that the run was begun with, its `out` where the folder lies now."""
        return located(read_config(cls, self.header["config"], str(self.path)), self.path)

    def changes(self) -> Record:
        """`{"provenance": now}` if commit, versions or device are no longer the same, else {}."""
        now, then = provenance(), self.header.get("provenance")
        same = then is None or all(now[what] == then.get(what) for what in DECISIVE)
        return {} if same else {"provenance": now}

    def same_task(self, task: Task | None, name: str, batch: int, observer: Observer) -> Task:
        """The task the run was begun with, by its name or given again; other data is refused."""
        require_own(self.path, [self.header["task"]], [task])
        task, source = given_task(task, name)
        check_task(self.path, self.header, self.header["task"], describe(task, source, batch))
        self.note_changes(observer)
        return task

    def note_changes(self, observer: Observer) -> None:
        """Tell the observer which commit, versions or device are no longer as the run began."""
        then = self.header["provenance"]
        for what, now in self.changes().get("provenance", {}).items():
            if what in DECISIVE and now != then.get(what):
                observer.note(
                    f"{what} was {then.get(what)} and is {now}: results may differ in the last "
                    "digits."
                )

    def _check(self, kind: str, observer: Observer) -> None:
        found = records.read(self.file, gaps=kind in INDEPENDENT)
        kinds = {record.get("kind") for record in found}
        if kind in INDEPENDENT and kinds - {"run", *INDEPENDENT[kind]}:
            raise _foreign(self.file, kind)
        check_records(self.file, found)
        if kind in INDEPENDENT:
            self._mend(found, observer)

    def _mend(self, found: list[Record], observer: Observer) -> None:
        """Number the records anew if one of them was lost."""
        try:
            records.read(self.file)
        except LaconicError:
            observer.note(f"{self.file} has lost a record; what it held is computed again.")
            self.rewrite(found)

    def _clear(self) -> None:
        """Remove what a run killed at its beginning left; refuse a folder with anything else."""
        left = self.leftovers()
        if left is None:
            try:
                command = _resumed_by(self.path, read_header(self.path))
            except LaconicError:
                command = None
            hint = f", or go on with: {command}" if command else "."
            raise LaconicError(
                f"{self.path} is already there and not empty; nothing is overwritten. Choose "
                f"another --out{hint}"
            )
        for path in left:
            if path.match(WORKER_LOGS):
                with RunFolder(self.path, path.name) as log:
                    log.lock()  # refused while its worker lives
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def leftovers(self) -> list[Path] | None:
        """What a run killed at its beginning left; None if there is anything else."""
        there = list(self.path.iterdir())
        command = self.path / COMMAND
        text = command.read_bytes() if command.is_file() else b""
        known = {RECORDS, COMMAND, f".{CHECKPOINT}.probe"}
        if text.startswith(b"laconic launch"):
            known |= set(LAUNCHED)
        logs = [path for path in there if path.match(WORKER_LOGS)]
        others = {p.name for p in there if not p.match(".laconic-*.tmp")} - {p.name for p in logs}
        foreign = command.exists() and not text.startswith((b"laconic", b"python -m laconic"))
        if others - known or foreign or any(map(_begun, [self.file, *logs])):
            return None
        return there


def _begun(file: Path) -> bool:
    """Whether a file of records is there and more than the beginning of a header."""
    text = file.read_bytes() if file.is_file() else b""
    starts = (b'{"line": 1, "kind": "run"', b'{"kind": "run"')
    return b"\n" in text or not any(start.startswith(text[: len(start)]) for start in starts)


# --- headers and settings -------------------------------------------------------------------------


def read_header(folder: Path, kind: str | None = None, file: str = RECORDS) -> Record:
    """The header of a folder, once it is known to be of that kind of run, or of any.

    Where several processes train and have not come to their end, that is the first worker's that is
    on disk.
    """
    folder = Path(folder)
    path = folder / file
    try:
        if records_file(path) is None:
            path = first_log(folder) or path
        found = records_file(path) is not None
    except OSError as error:
        raise LaconicError(f"cannot read {folder}: {error.strerror}.") from None
    what = WORDS.get(kind or "run", kind or "run")
    if not found:
        raise LaconicError(
            f"{folder} holds no {file}, so there is nothing to resume; give the folder of "
            f"{an(what)}."
        )
    first = records.read(path, gaps=True)[:1]
    if not first:
        free = RunFolder(folder).leftovers() is not None
        again = f"; --out {folder} is free." if free else " with another --out."
        raise LaconicError(
            f"{path} holds no whole record, so there is nothing to resume: the {what} was killed "
            f"as it began. Begin it again{again}"
        )
    if kind_of(first[0]) not in HEADERS.keys() & ({kind} if kind else HEADERS.keys()):
        raise _foreign(path, kind, first[0])
    return first[0]


def first_log(folder: Path) -> Path | None:
    """The first worker's file with a whole record, or the first if there is none."""
    logs = sorted(folder.glob(WORKER_LOGS))
    return next((log for log in logs if records.read(log, gaps=True)), next(iter(logs), None))


def kind_of(header: Mapping[str, Any]) -> str | None:
    """Which of `HEADERS` a record is; None if it is none of them."""
    said = header.get("run")
    for kind, shape in HEADERS.items():
        fits = all(name in header and isinstance(header[name], t) for name, t in shape.items())
        if header.get("kind") == "run" and fits and said in (None, kind):
            return kind
    return None


# --- what a run is of -----------------------------------------------------------------------------


def is_another(record: Mapping[str, Any], sha256: str | None) -> bool:
    """Whether a record, or a checkpoint's meta, is of another optimizer than this one; older ones
    do not say."""
    return record.get("optimizer_sha256") not in (None, sha256)


def describe(task: Task, source: str, batch: int) -> Record:
    """A task in a record: its name, size, classes, and where its data came from; of a user's own
    task also digests of its data and functions, once it is known that it can be trained."""
    digests = fingerprint(task, batch) if is_own(source) else {}
    params, _ = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    return {
        "name": task.name,
        "parameters": count_parameters(params),
        "classes": task.classes,
        "source": source,
        **digests,
    }


def digests_of(record: Record) -> str:
    """What tells a user's own task from another, of its description; "" for a named one."""
    return " ".join(record[name] for name in ("data_sha256", "functions_sha256") if name in record)


def require_own(folder: Path, then: Sequence[Record], given: Sequence[Task | None]) -> None:
    """Refuse to go on without a task that was begun with from Python."""
    for record, task in zip(then, given, strict=True):
        if task is None and record.get("source") == OWN_TASK:
            raise LaconicError(
                f"{folder} was begun from Python with a task of its own, {record['name']!r}: "
                f"give it again, laconic.resume({str(folder)!r}, task=…)."
            )


def check_task(folder: Path, header: Record, then: Record, now: Record) -> None:
    """Refuse another task or other data than the run of that header was begun with."""
    same_jax = header["provenance"].get("versions", {}).get("jax") == jax.__version__
    told = [name for name in then if same_jax or name != "functions_sha256"]
    changed = [f"{name} is {now.get(name)!r}" for name in told if then[name] != now.get(name)]
    if changed:
        own = "draw its data from a fixed seed and give the same task again, or "
        raise LaconicError(
            f"{folder} was begun on {then}, and now {', '.join(changed)}; "
            f"{own if is_own(now['source']) else ''}start anew."
        )


def check_records(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, by its line, a record without a kind or what is read of it, or a point that is there
    twice."""
    points = set()
    for line, record in enumerate(found, start=1):
        kind = record.get("kind")
        lost = [name for name in NEEDED.get(str(kind), "").split() if name not in record]
        if not isinstance(kind, str) or lost:
            what = ", ".join(lost) or "kind"
            raise LaconicError(
                f"line {line} of {path} is damaged, it has no {what}: repair or delete that line."
            )
        if kind == "point" and record["index"] in points:
            raise LaconicError(
                f"line {line} of {path} is point {record['index']} a second time: delete that line."
            )
        if kind == "point":
            points.add(record["index"])


# --- names ----------------------------------------------------------------------------------------


def spelled(name: str) -> str:
    """A name as part of a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def an(noun: str) -> str:
    """The noun after its article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _foreign(path: Path, kind: str | None, header: Record | None = None) -> LaconicError:
    what = WORDS.get(kind or "run", kind or "run")
    command = None if header is None else _resumed_by(path.parent, header)
    if header is None or command is None:
        return LaconicError(
            f"{path} holds no records of {an(what)} by this version; it cannot be resumed."
        )
    theirs = str(kind_of(header))
    return LaconicError(
        f"{path.parent} holds {an(WORDS.get(theirs, theirs))}, not {an(what)}. Go on with: "
        f"{command}"
    )


def _resumed_by(folder: Path, header: Record) -> str | None:
    """The command that resumes the run in a folder, by its header; None if there is none."""
    kind = kind_of(header)
    if kind == "train" and header["engine"] != SIMULATED:
        return shlex.join(["laconic", "launch", "--", "train", "--resume", str(folder)])
    if kind is None or kind == "timing":
        return None
    return resume_command({"experiment": "reproduce"}.get(kind, kind), folder)
