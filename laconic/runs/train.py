"""Carrying a training out: `train` with all workers in this process, `work` as one process of many.

Both run the same loop on the same settings; only the engine differs. The folder holds the records,
a checkpoint, and at the end `weights.safetensors` and the loss curve. Who is stopped saves first;
who is killed goes on from the last checkpoint.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from laconic.engines.base import Engine, SimulatedEngine
from laconic.engines.loop import AFTER_COMMIT, BEFORE_QUORUM, Loop, Report, checkpoint_path, row_of
from laconic.engines.wire import Seal
from laconic.errors import LaconicError
from laconic.recipes.trainings import TrainConfig, from_json, parts_of, run_name, train_command
from laconic.runs import train_folder
from laconic.runs.compare import RECORDS, Interrupted
from laconic.runs.folder import check_task, new_folder, note_changes
from laconic.runs.measure import final_metrics
from laconic.runs.train_folder import Log
from laconic.store import atomic, checkpoint
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task_and_source

Tell = Callable[
    [dict[str, Any]], None
]  # is told of {"kind": "start" | "round" | "note" | "end", …}
SIMULATED = "simulated"


class Turn(Protocol):
    """Something that processes take one after the other."""

    def take(self) -> None:
        """Wait for it."""

    def give(self) -> None:
        """Let the next one have it; it may be given more than once."""


def train(
    config: TrainConfig,
    *,
    tell: Tell = lambda message: None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Train with K simulated workers → (its folder, its records)."""
    method, _ = parts_of(config)
    task, source = make_task_and_source(config.task)
    folder = new_folder(config.out, config.task)
    command = command or train_command(config)
    atomic.write_text(folder / "command.txt", command + "\n")
    engine = SimulatedEngine(method.budget(config.workers, config.local_steps)[0])
    part = Part(
        replace(config, out=folder),
        task,
        source,
        engine,
        _seal("alone", config),
        SIMULATED,
        command,
    )
    part.carry_out(folder, tell, stop)
    return folder, train_folder.finish(folder, command)


def resume_train(
    folder: Path, *, tell: Tell = lambda message: None, stop: Callable[[], bool] = lambda: False
) -> tuple[Path, list[dict[str, Any]]]:
    """Go on from a folder's checkpoint, with the settings it was begun with."""
    header = train_folder.read_header(folder)
    config = from_json(header["config"], folder)
    if header["engine"] != SIMULATED:
        raise LaconicError(
            f"{folder} was trained by real processes: go on with laconic launch -- train --resume "
            f"{folder}"
        )
    method, _ = parts_of(config)
    task, source = make_task_and_source(config.task)
    check_task(folder, header, task, source)
    note_changes(header, lambda text: tell({"kind": "note", "text": text}))
    engine = SimulatedEngine(method.budget(config.workers, config.local_steps)[0])
    train_folder.forget_after(folder / RECORDS, _saved_rounds(folder, engine))
    part = Part(config, task, source, engine, _seal("alone", config), SIMULATED, header["command"])
    part.carry_out(folder, tell, stop)
    return folder, train_folder.finish(folder, header["command"])


def work(
    config: TrainConfig,
    connect: Callable[[Seal], Engine],
    engine_name: str,
    token: str,
    folder: Path,
    *,
    tell: Tell,
    stop: Callable[[], bool],
    command: str,
    pace: Callable[[], None] = lambda: None,
    turn: Turn | None = None,
) -> None:
    """Train as one process of many. `folder` may be one that an earlier process of this worker
    left.

    connect: gives the engine, before JAX is used for anything · pace: is called before each quorum
    turn: is taken to compile, and given up then
    """
    seal = _seal(token, config)
    engine = connect(seal)
    task, source = make_task_and_source(config.task)
    part = Part(
        replace(config, out=folder), task, source, engine, seal, engine_name, command, pace, turn
    )
    part.carry_out(folder, tell, stop)


def _seal(token: str, config: TrainConfig) -> Seal:
    return Seal.of(token, run_name(config))


def _saved_rounds(folder: Path, engine: Engine) -> int:
    """After how many rounds a run in the folder goes on."""
    saved = checkpoint_path(folder, engine)
    return checkpoint.peek(saved)["round"] if saved.exists() else 0


@dataclass
class Part:
    """What one process does in a training."""

    config: TrainConfig
    task: Task
    source: str
    engine: Engine
    seal: Seal
    engine_name: str
    command: str
    pace: Callable[[], None] = lambda: None
    turn: Turn | None = None

    def carry_out(self, folder: Path, tell: Tell, stop: Callable[[], bool]) -> None:
        """All rounds, written down as they come, then the final weights and what they are worth."""
        method, setting = parts_of(self.config)
        path = train_folder.log_path(folder, self.engine.mine, self.engine.slots)
        log = Log(path, lambda text: tell({"kind": "note", "text": text}))
        log.begin(self.config, self.task, self.source, self.command, self.engine_name)
        run = Loop(
            self.task,
            method,
            setting,
            self.engine,
            self.seal,
            folder=folder,
            checkpoint_every=self.config.checkpoint_every,
            norm_limit=self.config.norm_limit,
            at=self._at(log),
        )
        done = _saved_rounds(folder, self.engine)
        log.start(self.engine.mine[0], done)
        tell(
            {
                "kind": "start",
                "worker": self.engine.mine[0],
                "round": done,
                "rounds": setting.rounds,
            }
        )
        if self.turn is not None:
            self.turn.take()
        try:
            self._rounds(run, log, folder, tell, stop)
        finally:
            log.flush()
        self._finish(run, log, folder, tell)

    def _at(self, log: Log) -> Callable[[str, int], None]:
        """Rounds are written down before the checkpoint that contains them, so that none is missing
        after a death."""

        def at(point: str, now: int) -> None:
            every = self.config.checkpoint_every
            if point == AFTER_COMMIT and every and (now + 1) % every == 0:
                log.flush()
            if point == BEFORE_QUORUM:
                if self.turn is not None:
                    self.turn.give()
                self.pace()

        return at

    def _rounds(
        self, run: Loop, log: Log, folder: Path, tell: Tell, stop: Callable[[], bool]
    ) -> None:
        stopping = first = False
        with contextlib.closing(run.rounds()) as reports:
            for report in reports:
                if not first:
                    first = True
                    self._check_company(report)
                row = row_of(report)
                log.add(row)
                tell({"kind": "round", **row})
                if stopping and report.round < self.config.rounds:
                    raise Interrupted(
                        f"asked to stop after round {report.round} of {self.config.rounds}.", folder
                    )
                if stop():
                    stopping, run.every = True, 1  # one more round, and that one is saved

    def _check_company(self, report: Report) -> None:
        """A worker that begins all by itself is not among those it was meant to join."""
        if len(self.engine.mine) == self.engine.slots or len(report.quorum.workers) > len(
            self.engine.mine
        ):
            return
        others = ", ".join(f"{n} × {reason}" for reason, n in report.refused.items())
        why = (
            f"those who came were refused ({others}): give all workers the same token and the same "
            "words after --"
            if others
            else "start them, or give them more --patience"
        )
        raise LaconicError(
            f"worker {self.engine.mine[0]} found none of the other {self.engine.slots - 1}: {why}."
        )

    def _finish(self, run: Loop, log: Log, folder: Path, tell: Tell) -> None:
        if run.final is None:
            raise LaconicError("the training ended before all its rounds were done.")
        replica, digest = run.final
        about = {"round": int(replica.round), "digest": digest.hex()}
        tell({"kind": "end", **about})
        named = {"task": self.config.task, "optimizer": self.config.optimizer, **about}
        checkpoint.save(folder / train_folder.WEIGHTS, replica.shared, named)
        counts = {
            "message_bits": run.programs.message_bits,
            "refused": dict(self.engine.counts.refused),
        }
        log.end(**about, **counts, heldout=final_metrics(run.programs.task, replica.shared))
