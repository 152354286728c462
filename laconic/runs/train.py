"""A training: one model, its rounds written down as they come, into a run folder.

`train` has all workers in this process, `work` is one process of many. Both run the same loop on
the same settings; only the engine differs. The folder holds the records, a checkpoint, and at the
end `weights.safetensors` and the loss curve. A stopped run saves first; a killed one resumes from
its last checkpoint.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from laconic.compress import parse_compressor
from laconic.engines.base import Engine, Refused, SimulatedEngine
from laconic.engines.devices import Devices, check_devices
from laconic.engines.fragments import FragmentPrograms
from laconic.engines.identity import Identity, code_version, short_hash
from laconic.engines.loop import (
    BEFORE_QUORUM,
    DROP,
    Loop,
    Report,
    check_late,
    check_whole,
    checkpoint_path,
    row_of,
)
from laconic.engines.machine import local_devices
from laconic.engines.topology import AUTO, check_exchange
from laconic.engines.wire import Seal
from laconic.errors import CannotBegin, LaconicError, require_positive
from laconic.fragments import Fragments
from laconic.means import MEAN, parse_aggregate
from laconic.method import Method, Setting, check_workers
from laconic.methods import optimizer_sha256, parse_method
from laconic.runs.configs import TrainConfig
from laconic.runs.early import Looks, check_patience, look, watched
from laconic.runs.estimate import Forecast, Outlook, TooLarge, compiled, seconds_of, step_operations
from laconic.runs.folder import (
    SIMULATED,
    WORKER_LOGS,
    Interrupted,
    Observer,
    RunFolder,
    check_task,
    describe,
    digests_of,
    first_log,
    is_another,
    read_header,
    spelled,
)
from laconic.runs.measure import as_numbers, broken_metric, heldout_metrics
from laconic.runs.settings import begun_with, read_config, require_same, settled
from laconic.runs.trackers import heldout_numbers
from laconic.runs.train_log import (
    LOOK,
    Log,
    check_checkpoint,
    finish,
    forget_after,
    log_name,
    looks_in,
)
from laconic.show.metrics import stopped_early
from laconic.store import checkpoint
from laconic.store.records import plain, read
from laconic.tasks.base import Task
from laconic.tasks.catalog import OWN_TASK, given_task, is_own

OWN = ("out", "checkpoint_every", "devices")  # each process may have its own
WEIGHTS = "weights.safetensors"
LOOK_EVERY = 10  # rounds, where a training may stop early
BEST = "best.safetensors"  # of a training that may stop early: after its best look


class Turn(Protocol):
    """Something that processes take one after the other."""

    def take(self) -> None:
        """Wait for it."""

    def give(self) -> None:
        """Let the next one have it; it may be given more than once."""


def train(
    config: TrainConfig,
    task: Task | None = None,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Train one model with K simulated workers.

    Args:
        config: what to train and how.
        task: a task of your own instead of the one that `config.task` names.
        observer: is told of every round.
        stop: is asked after each round; when it says True, one more round is done and saved, and
            `Interrupted` is raised.
        command: what the header says the run was started with.

    Returns:
        The run's folder, with `weights.safetensors` in it, and its records: "run", "start",
        "rounds", "end", "summary".

    Example::

        folder, records = laconic.train(laconic.TrainConfig(rounds=20))
        print(records[-1]["loss"], records[-1]["heldout"])
    """
    method, _ = parts_of(config)
    command = command or begun_with("train", config, own_task=task is not None)
    local_devices(config.devices, config.batch)  # before a folder is made
    task, source = given_task(task, config.task)
    config = replace(config, task=config.task if source != OWN_TASK else task.name)
    check_looks(config, task)
    about = _about(config, task, source, SIMULATED)
    with RunFolder.create("train", config.out, config.task, config, command, **about) as folder:
        _simulate(config, method, task, folder, observer or Observer(), stop)
        return folder.path, finish(folder.path, command)


def resume_train(
    folder: Path,
    task: Task | None = None,
    *,
    devices: Devices | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, list[dict[str, Any]]]:
    """Go on from a folder's checkpoint, with the settings it was begun with, on as many devices as
    then unless a number is given.

    A finished training is returned as it is.
    """
    observer = observer or Observer()
    header = read_header(folder, "train")
    if header["engine"] != SIMULATED:
        raise LaconicError(
            f"{folder} was trained by real processes: go on with laconic launch -- train --resume "
            f"{folder}"
        )
    with RunFolder.open(folder, "train") as opened:
        if opened.is_finished():
            observer.note(f"{folder} is finished: there is nothing left to do.")
            return folder, opened.records()
        config = on_devices(opened.config(TrainConfig), devices)
        method, _ = parts_of(config)
        local_devices(config.devices, config.batch)
        task = opened.same_task(task, config.task, config.batch, observer)
        check_same(opened, config)
        engine = SimulatedEngine(method.budget(config.workers, config.local_steps)[0])
        check_checkpoint(opened, checkpoint_path(folder, engine), config.checkpoint_every)
        forget_after(opened, _saved_rounds(folder, engine))
        _simulate(config, method, task, opened, observer, stop)
        return folder, finish(folder, header["command"])


def work(
    config: TrainConfig,
    connect: Callable[[], Engine],
    engine_name: str,
    seal: Seal,
    folder: Path,
    *,
    observer: Observer,
    stop: Callable[[], bool],
    command: str,
    turn: Turn | None = None,
) -> None:
    """Train as one process of many. `folder` may be one that an earlier process of this worker
    left.

    connect: gives the engine · seal: of the run that the engine is of
    turn: is taken to compile, and given up then
    """
    engine = connect()
    engine.counts.tell = observer.note
    local_devices(config.devices, config.batch)  # before a folder is made
    task, source = given_task(None, config.task)
    check_looks(config, task)
    config = replace(config, out=folder)
    about = {"command": command, **_about(config, task, source, engine_name)}
    about |= {"run_id": seal.identity.run}
    with RunFolder.join(folder, log_name(engine), "train", config, **about) as joined:
        check_same(joined, config)
        _check_same_run(joined, seal.identity.run)
        logs = folder.glob(WORKER_LOGS) if is_own(source) else [joined.file]
        for header in [header for log in logs for header in read(log, gaps=True)[:1]]:
            check_task(folder, header, header["task"], about["task"])
        joined.note_changes(observer)
        Part(config, task, engine, seal, joined, observer, turn).carry_out(stop)


def _simulate(
    config: TrainConfig,
    method: Method,
    task: Task,
    folder: RunFolder,
    observer: Observer,
    stop: Callable[[], bool],
) -> None:
    engine = SimulatedEngine(method.budget(config.workers, config.local_steps)[0])
    part = Part(
        replace(config, out=folder.path), task, engine, seal_of("alone", config), folder, observer
    )
    with folder.watched_by(observer):
        part.carry_out(stop)


# --- what a config stands for ---------------------------------------------------------------------


def parts_of(config: TrainConfig) -> tuple[Method, Setting]:
    """The method and the setting of a config; all that can be wrong with it but for its task is
    found here, before any data is read."""
    if config.checkpoint_every < 0:
        raise LaconicError(
            f"checkpoint_every counts rounds, or is 0 for none, got {config.checkpoint_every}."
        )
    every = _every(config)
    require_positive(norm_limit=config.norm_limit, evaluate_every=1 if every is None else every)
    if every is not None:
        check_patience(config.patience, config.rounds, every)
    check_devices(config.devices, config.batch)
    setting = Setting(
        config.workers,
        config.local_steps,
        config.batch,
        config.rounds,
        (config.seed,),
        config.rounds,
        fragments=_fragments(config),
    )
    compressor = parse_compressor(config.compress)
    aggregate = parse_aggregate(config.aggregate)
    check_late(config.late, setting.fragments)
    method = parse_method(config.optimizer, config.workers, compressor, "train", aggregate)
    K, H = method.budget(config.workers, config.local_steps)
    check_workers(method, K)
    check_exchange(config.exchange, method)
    check_whole(config.exchange, config.late)
    return method.told(K, H, config.rounds), setting


def _fragments(config: TrainConfig) -> Fragments:
    """The fragments that a config asks for."""
    return Fragments(config.fragments, config.delay, config.mix)


def _every(config: TrainConfig) -> int | None:
    """The rounds between two looks at held-out data, None if there are no looks."""
    if config.evaluate_every is not None:
        return config.evaluate_every
    return None if config.patience is None else LOOK_EVERY


def check_looks(config: TrainConfig, task: Task) -> None:
    """Refuse looks at held-out data that a task does not have."""
    if _every(config) is not None:
        watched(task)


def on_devices(config: TrainConfig, devices: Devices | None) -> TrainConfig:
    """The config with so many devices, if its minibatches can be split over them; None: as it
    says."""
    config = config if devices is None else replace(config, devices=devices)
    check_devices(config.devices, config.batch)
    return config


def run_name(config: TrainConfig) -> str:
    """What all workers of a run have in common, as text: each setting that changes a number.

    A learned optimizer counts by its contents: its file may lie elsewhere on another machine, and
    another laconic there may have another one of a published name.
    """
    without = OWN if config.patience is not None else (*OWN, "patience", "evaluate_every")
    if not _fragments(config).active:
        without = (*without, "fragments", "delay", "mix")
    if config.late == DROP:
        without = (*without, "late")
    said = {name: value for name, value in asdict(settled(config)).items() if name not in without}
    if config.aggregate == MEAN:
        del said["aggregate"]  # as in runs that were begun before there was another
    if config.exchange == AUTO:
        del said["exchange"]
    contents = contents_of(config)
    if contents is not None:
        _, colon, options = config.optimizer.partition(":")
        said["optimizer"] = contents + colon + options
    return json.dumps(said, sort_keys=True)


def contents_of(config: TrainConfig) -> str | None:
    """The sha256 of a learned optimizer, of the whole file if it is one; None for all others."""
    name = config.optimizer.partition(":")[0]
    if not name.endswith(".safetensors"):
        return optimizer_sha256(name)
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise LaconicError(f"cannot read the optimizer {name}: {error.strerror}.") from None


def read_train_config(folder: Path) -> tuple[TrainConfig, bool]:
    """The settings of the training in a folder, and whether all its workers were in one process."""
    header = read_header(folder, "train")
    config = read_config(TrainConfig, header["config"], str(folder))
    return replace(config, out=folder), header["engine"] == SIMULATED


def worker_folder(config: TrainConfig, run: str = "") -> Path:
    """Where a worker keeps its files of the run with that id by default: the same place whenever it
    starts with these settings."""
    name = hashlib.sha256(run_name(config).encode()).hexdigest()[:8]
    return config.out or Path("runs") / "-".join([spelled(config.task), name, *filter(None, [run])])


def begun_run(config: TrainConfig, worker: int) -> str:
    """The id of the run that this worker began here with these settings and has not finished; "" if
    there is none. A folder named by the settings counts even if its run is finished."""
    base = worker_folder(replace(config, out=None))
    there = [config.out] if config.out else sorted(base.parent.glob(f"{base.name}-*"))
    for folder in reversed(there):
        log = folder / f"worker-{worker}.jsonl"
        found = read(log, gaps=True) if log.exists() else []
        finished = bool(found) and found[-1]["kind"] == "end"
        if found and (config.out is not None or not finished):
            return str(found[0].get("run_id") or "")
    return ""


def begun_id(folder: Path) -> str:
    """The id of the run whose workers' records are in a folder; "" if there are none."""
    log = first_log(folder)
    found = read(log, gaps=True)[:1] if log is not None else []
    return str(found[0].get("run_id") or "") if found else ""


def _check_same_run(folder: RunFolder, run: str) -> None:
    """Refuse a folder of another run, even if it had the same settings: it may be finished."""
    theirs = folder.header.get("run_id") or run
    if theirs != run:
        raise Refused(
            f"{folder.path} is of the run {theirs}, and this is the run {run}: choose another "
            "--out, or leave --out away."
        )


def check_same(folder: RunFolder, config: TrainConfig) -> None:
    """Refuse a folder that belongs to a run with other settings or another optimizer."""
    theirs = folder.config(TrainConfig)
    if is_another(folder.header, contents_of(config)):
        raise LaconicError(
            f"{folder.path} was begun with another {config.optimizer} than there is now; choose "
            "another --out, or go on with the laconic that has it."
        )
    if run_name(theirs) != run_name(config):
        require_same(str(folder.path), plain(theirs), plain(settled(config)), besides=OWN)


def _about(config: TrainConfig, task: Task, source: str, engine: str) -> dict[str, Any]:
    about = {"task": describe(task, source, config.batch), "engine": engine}
    return {**about, "optimizer_sha256": contents_of(config)}


def seal_of(token: str, config: TrainConfig, run: str = "") -> Seal:
    """What the messages of a run are signed with; `run` is its id, if it is known already."""
    return Seal.by(token, identity_of(config, run))


def identity_of(config: TrainConfig, run: str = "") -> Identity:
    """What all workers of a run have in common, so that a refusal can say what differs."""
    said = json.loads(run_name(config))
    optimizer = said.pop("optimizer")
    settings = json.dumps(said, sort_keys=True)
    return Identity(run, short_hash(settings), short_hash(optimizer), code_version())


def _saved_rounds(folder: Path, engine: Engine) -> int:
    """After how many rounds a run in the folder goes on."""
    saved = checkpoint_path(folder, engine)
    return checkpoint.peek(saved)["round"] if saved.exists() else 0


# --- the rounds -----------------------------------------------------------------------------------


@dataclass
class Part:
    """What one process does in a training."""

    config: TrainConfig
    task: Task
    engine: Engine
    seal: Seal
    folder: RunFolder
    observer: Observer
    turn: Turn | None = None
    looks: dict[int, float] = field(default_factory=dict)  # held-out loss by round
    seen: dict[str, float] = field(default_factory=dict)  # what a look after this round found
    noted: set[str] = field(default_factory=set)  # what was said of metrics that are not finite

    def carry_out(self, stop: Callable[[], bool]) -> None:
        """All rounds, written down as they come, then the final weights and what they are worth."""
        method, setting = parts_of(self.config)
        log = Log(self.folder, self.observer.note)
        if self.config.patience is not None:
            self.looks = looks_in(self.folder.records(), watched(self.task))
        loop = Loop(
            self.task,
            method,
            setting,
            self.engine,
            self.seal,
            folder=self.folder.path,
            checkpoint_every=self.config.checkpoint_every,
            norm_limit=self.config.norm_limit,
            exchange=self.config.exchange,
            late=self.config.late,
            at=self._at,
            running=digests_of(self.folder.header["task"]),
            devices=local_devices(self.config.devices, self.config.batch),
            committed=lambda report, due: self._committed(loop, log, report, due),
            handing_on=log.flush,
        )
        done = _saved_rounds(self.folder.path, self.engine)
        if self._early().get("stopped"):  # killed between its last round and its end
            loop.last = done
        log.start(self.engine.mine[0], done)
        self.observer.begin("training", setting.rounds, done)
        if self.turn is not None:
            self.turn.take()
        try:
            self._rounds(loop, log, stop, done)
        finally:
            log.flush()
        self._finish(loop, log)

    def _committed(self, loop: Loop, log: Log, report: Report, due: bool) -> None:
        """Write a round down, before its checkpoint, with a look at held-out data if one is due."""
        row = row_of(report)
        self.seen = self._look(loop, report)
        if self.seen:
            row[LOOK] = self.seen
        if LOOK in row and self.config.patience is not None:
            self.looks[report.round] = row[LOOK][watched(self.task)]
            early = self._early()
            if early["best_round"] == report.round:
                about = {**early, "round": report.round, **row[LOOK], **self._names()}
                checkpoint.save(self.folder.path / BEST, report.shared, about)
            if early["stopped"]:
                loop.last = report.round
        log.add(row, at_once=due or report.round == loop.last)

    def _look(self, loop: Loop, report: Report) -> dict[str, float]:
        """What a look at held-out data after this round finds; nothing if none is due."""
        if not self._looks_after(report):
            return {}
        found = as_numbers(look, loop.programs.task, report.shared)
        broken = broken_metric(found)
        if broken and broken not in self.noted:
            self.noted.add(broken)
            self.observer.note(f"{broken} after round {report.round}; its curve has a gap there.")
        return found

    def _looks_after(self, report: Report) -> bool:
        """Whether this process looks at held-out data now: one of many does."""
        every = _every(self.config)
        if every is None or report.quorum.workers[0] not in self.engine.mine:
            return False
        return report.round % every == 0 or report.round == self.config.rounds

    def _early(self) -> dict[str, Any]:
        """What is to be said about early stopping; nothing if it was not asked for."""
        if self.config.patience is None or not self.looks:
            return {}
        looks = Looks(list(self.looks), list(self.looks.values()), self.config.patience)
        return looks.facts(watched(self.task))

    def _names(self) -> dict[str, str]:
        return {"task": self.config.task, "optimizer": self.config.optimizer}

    def _at(self, point: str, now: int) -> None:
        if point == BEFORE_QUORUM and self.turn is not None:
            self.turn.give()

    def _rounds(self, loop: Loop, log: Log, stop: Callable[[], bool], done: int) -> None:
        stopping = False
        last: float | None = None  # when the last round was done
        outlook = self._outlook(loop, done)

        def asked_to_stop() -> Interrupted:
            words = f"asked to stop after round {done} of {self.config.rounds}."
            return Interrupted(words, self.folder.path)

        def waits() -> None:
            if stop():  # the others may have left a round earlier, and are waited for in vain
                raise asked_to_stop()

        self.engine.counts.waits = waits
        with contextlib.closing(loop.rounds()) as reports:
            for report in reports:
                now = time.monotonic()
                if last is not None and outlook is not None:
                    outlook.took(1, now - last)
                last, done = now, report.round
                row = row_of(report)
                log.complete(row)
                self.observer.round({**row, LOOK: self.seen} if self.seen else row)
                if stopping and report.round < loop.last:
                    raise asked_to_stop()
                if stop():
                    stopping = True
                    loop.every = 1  # one more round, and that one is saved

    def _outlook(self, loop: Loop, done: int) -> Outlook | None:
        """Compile the local steps of a training in one process → what tells how long it takes."""
        if len(self.engine.mine) < self.engine.slots or isinstance(loop.programs, FragmentPrograms):
            return None
        steps, T = loop.programs.K * loop.programs.H, self.config.rounds
        outlook = Outlook(
            Forecast(self.observer, self.folder.header["command"], {"rounds": T}),
            lambda: steps * step_operations(self.task, self.config.batch),
            lambda done, per_round, _: (T - done) * per_round,
        )
        local, *given = loop.programs.local_program()
        try:
            program = compiled(local, *given)
        except TooLarge as error:
            raise CannotBegin(
                f"this training does not fit in memory: {error}. Use smaller batches or fewer "
                "workers, or a task's options that save memory, such as compute=bf16."
            ) from None
        outlook.ready(done, program, lambda: (seconds_of(local, *given), 0.0))
        return outlook

    def _finish(self, loop: Loop, log: Log) -> None:
        if loop.final is None:
            raise LaconicError("the training ended before all its rounds were done.")
        replica, digest = loop.final
        about = {"round": loop.done(replica), "digest": digest.hex()}
        self.observer.end(about)
        checkpoint.save(self.folder.path / WEIGHTS, replica.shared, {**self._names(), **about})
        early = self._early()
        if early.get("stopped"):
            self.observer.note(f"training {stopped_early(early)}.")
        counts = {
            "message_bits": loop.programs.message_bits,
            "refused": dict(self.engine.counts.refused),
        }
        metrics = heldout_metrics if _every(self.config) is None else look
        heldout = as_numbers(metrics, loop.programs.task, replica.shared)
        if broken := broken_metric(heldout):
            raise LaconicError(
                f"{broken} after the last round. The weights are saved in {self.folder.path}; mend "
                "the metric and resume the training."
            )
        if not self.seen:
            self.observer.numbers("training", about["round"], heldout_numbers(heldout))
        log.end(**about, **counts, heldout=heldout, **({"early": early} if early else {}))
