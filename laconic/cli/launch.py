"""`laconic launch`: real worker processes on this machine, the Lighthouse that connects them, and a
live table of what they do."""

import json
import math
import os
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import jax
import tyro
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from laconic.cli import gpus
from laconic.cli.console import LiveDisplay, LookLines, StopFlag
from laconic.cli.exposition import Metrics, exposition
from laconic.cli.hosts import VARIABLE, find_token, new_token, write_token
from laconic.cli.terminal import err, out, say
from laconic.cli.train import check_same_end, print_outcome, shared_config
from laconic.cli.words import Track
from laconic.cli.worker import Connection, needed_workers, split_words
from laconic.engines.address import free_port, is_loopback, reached_at, split_address, with_port
from laconic.engines.identity import Identity, new_run_id
from laconic.engines.registry import EngineEntry, engine_entry
from laconic.engines.supervisor import HASTE, Line, Supervisor
from laconic.errors import LaconicError
from laconic.runs.configs import TrainConfig
from laconic.runs.folder import WORKER_LOGS, Observer, RunFolder
from laconic.runs.settings import command_line
from laconic.runs.trackers import heldout_numbers, numbers_of, track
from laconic.runs.train import begun_id, check_looks, identity_of, on_devices, parts_of
from laconic.runs.train_log import finish
from laconic.show.training import LOOK
from laconic.store import atomic
from laconic.store.records import plain
from laconic.tasks.catalog import make_task

LIGHTHOUSE, COMPILED = "lighthouse", "compiled"
PYTHON: tuple[str, ...] = (sys.executable, "-m")
RESTARTS = 3
LATE = 10.0  # seconds that a worker may be behind the first to finish
TOO_LATE = "too late"  # the state of one that is no longer waited for
UNDER_WAY = "this round and one more, once all workers have saved"
RECENT = 20  # rounds that times are a mean of
HEADS = ("worker", "state", "round", "quo-\nrum", "loss", "MB\nout", "MB\nin", "com-\npute", "talk")
HEADS += ("outer", "left\nout", "refu-\nsed", "re-\nstarts")  # narrow: all fit into 80 columns
LEGEND = "compute, talk (waiting, moving bytes), outer step: ms a round"
DESCRIPTION = """\
Train with real worker processes on this machine, connected by a Lighthouse. Dead workers are
restarted, with growing waits, up to --restarts times. A round needs more than half of the workers;
fewer wait for the rest. So of two workers both are needed, unless --min-workers 1 says that one
goes on alone. Say after -- what they train:

  laconic launch --workers 4 -- train digits
  laconic launch -- train --resume runs/digits-mlp-…

Two workers here, and two more that join from elsewhere with laconic worker:

  laconic launch --workers 4 --here 2 --bind 10.0.0.1 --port 29510 -- train fmnist

Nothing listens beyond this machine unless --bind says so."""


@dataclass(frozen=True)
class LaunchConfig(Connection):
    """Workers as processes."""

    workers: int | None = None
    """K, how many workers there are; by default as many as the training asks for."""
    here: int | None = None
    """How many of them to start on this machine; the others join with `laconic worker`. By default
    all."""
    port: int = 0
    """The port where the workers meet; 0: any free one."""
    restarts: int | None = None
    """How often in a row each worker is restarted after it died; one that ran for two minutes gets
    them all back. By default 3, and 0 with jax-distributed."""
    track: Track = ()
    """Where the training's numbers are written as they come: csv (track.csv in the run's folder),
    tensorboard, trackio, wandb; may be given several times."""
    metrics_port: int | None = None
    """Serve the workers' state as OpenMetrics text at http://127.0.0.1:PORT/metrics; 0: any
    port."""
    metrics_file: Path | None = None
    """Write the same text to this file, every second."""


@dataclass(frozen=True)
class Launch:
    """A launch with everything decided; its folder `run` is locked."""

    config: LaunchConfig
    train: TrainConfig
    entry: EngineEntry
    run: RunFolder
    address: str
    token: str
    token_at: str
    restarts: int
    gpus: list[list[str]]  # that each worker here sees; none if no GPU is handed out
    least: int
    identity: Identity

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return self.run.path

    @property
    def names(self) -> list[str]:
        """The workers started here."""
        return [f"worker {k}" for k in range(self.config.here or self.train.workers)]


def run_launch(argv: Sequence[str]) -> int:
    """`laconic launch [--flags] -- train [RECIPE] [--flags]`."""
    own, words = split_words(argv)
    config = tyro.cli(LaunchConfig, args=own, prog="laconic launch", description=DESCRIPTION)
    jax.config.update("jax_platforms", "cpu")  # accelerators are for the workers
    watcher, command = track(*config.track), shlex.join(["laconic", "launch", *argv])
    with Metrics(config.metrics_port, config.metrics_file) as shown:
        plan = _plan(config, words)
        with plan.run:  # locked; the workers lock files of their own
            return _carry_out(plan, own, command, watcher, shown)


def _carry_out(
    plan: Launch, own: Sequence[str], command: str, watcher: Observer, shown: Metrics
) -> int:
    """Train; `own` are the words before -- → the exit status."""
    folder, train = plan.folder, plan.train
    if plan.run.is_finished():
        say(f"{folder} is finished: there is nothing left to do.", err)
        print_outcome(folder, plan.run.records())
        check_same_end(plan.run.records())
        return 0
    atomic.write_text(folder / "command.txt", command + "\n")
    _greet(plan)
    title = f"{train.task}, {train.optimizer}, {train.rounds} rounds"
    again = shlex.join(["laconic", "launch", *own, "--", "train", "--resume", str(folder)])
    if shown.address is not None:
        say(f"metrics: {shown.address}", err)
    display = LaunchDisplay(plan.names, train.rounds, title, watcher=watcher, metrics=shown)
    watcher.opened(folder, {"config": plain(train)})
    try:
        with StopFlag(UNDER_WAY) as stop, display:
            ended = _watch(plan, display, stop)
    except LaconicError as error:
        if not any(folder.glob(WORKER_LOGS)):
            raise
        raise LaconicError(f"{error} What was done is kept; go on with: {again}") from error
    finally:
        watcher.closed()
        shutil.rmtree(folder / COMPILED, ignore_errors=True)
    if stop() and not ended:
        say(f"stopped after round {display.round} of {train.rounds}. Go on with: {again}", err)
        return stop.status
    records = finish(folder, command)
    if not err.is_terminal:  # in a terminal the table is there already
        out.print(display.render())
    print_outcome(folder, records)
    check_same_end(records)
    return 0


def _plan(config: LaunchConfig, words: Sequence[str]) -> Launch:
    """Decide everything and check it, before anything is started."""
    if config.workers is not None and config.workers < 1:
        raise LaconicError(f"workers must be positive, got {config.workers}.")
    train, resumed = shared_config(words, config.workers)
    train = on_devices(train, config.devices)
    method, setting = parts_of(train)
    if method.budget(setting.workers, setting.local_steps)[0] != train.workers:
        raise LaconicError(
            f"{train.optimizer} is one worker by its nature: train it alone, with laconic train."
        )
    if config.here is not None and not 1 <= config.here <= train.workers:
        raise LaconicError(
            f"--here is how many of the {train.workers} workers start on this machine, got "
            f"{config.here}."
        )
    entry = engine_entry(config.engine)
    config.tls.load()  # so that a wrong file is found here
    least = needed_workers(config, train.workers)
    restarts = config.restarts
    if restarts is None:
        restarts = RESTARTS if entry.restarts else 0
    if restarts < 0:
        raise LaconicError(f"--restarts counts restarts of a worker, from 0 on, got {restarts}.")
    if restarts and not entry.restarts:
        raise LaconicError(
            f"{config.engine} cannot restart a worker {restarts} times: --restarts must be 0 there."
        )
    here = config.here or train.workers
    devices, handed = gpus.hand_out(train.devices, train.batch, here, os.environ)
    token, token_at = find_token(config.token_file, os.environ), "the same token"
    port = free_port(config.bind, config.port)
    host = config.host or reached_at(config.bind, "127.0.0.1")
    check_looks(train, make_task(train.task))  # missing data is found, or fetched, once
    if resumed and train.out is not None:
        run = RunFolder(train.out)
        run.lock()
    else:
        run = RunFolder.new(train.out, train.task)
    if token is None:
        token, token_at = new_token(), f"the token in {run.path / 'token'}"
        if here < train.workers:
            write_token(run.path / "token", token)
    train = replace(train, out=run.path, devices=devices)
    identity = identity_of(train, begun_id(run.path) or new_run_id())
    where, secret = with_port(host, port), (token, token_at)
    return Launch(config, train, entry, run, where, *secret, restarts, handed, least, identity)


def _greet(plan: Launch) -> None:
    say(f"the workers meet at {plan.address}; folder: {plan.folder}", err)
    bind, here, workers = plan.config.bind, len(plan.names), plan.train.workers
    if plan.gpus:
        say(gpus.told(plan.gpus), err)
    if not is_loopback(bind):
        say(f"listening at {bind}, beyond this machine: without the token nobody gets in", err)
    if plan.entry.restarts and workers > 1:
        say(_needed(plan.least, workers), err)
    if here < workers:
        joins = f"--join {plan.address} --worker N --bind ADDRESS --engine {plan.config.engine}"
        if plan.config.min_workers is not None:
            joins += f" --min-workers {plan.least}"
        there = command_line("train", replace(plan.train, out=None, devices=1))
        there = there.removeprefix("laconic ")
        who = f"join from elsewhere, with {plan.token_at}, N from {here} to {workers - 1}"
        say(f"{who}: laconic worker {joins} -- {there}", err)


def _needed(least: int, workers: int) -> str:
    """What happens to a minority."""
    if least == 1:
        return (
            "one worker is enough to go on, alone: if the network splits, whoever reaches the "
            "Lighthouse goes on and the others take over its state"
        )
    if least == workers == 2:
        return (
            "both workers are needed: if one is lost the other waits for it; --min-workers 1 lets "
            "it go on alone"
        )
    return f"{least} of {workers} workers are needed: fewer wait for the rest (--min-workers)"


def _commands(plan: Launch) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The command lines of the Lighthouse and of the workers."""
    config, waits = plan.config, plan.config.waits
    host, port = split_address(plan.address)
    tls = {name.replace("_", "-"): file for name, file in vars(config.tls).items() if file}
    services = {}
    if plan.entry.service:
        listen = {"bind": with_port(config.bind, port), "heartbeat-timeout": waits.silence}
        listen |= {"identity": plan.identity.text, "workers": plan.train.workers, **tls}
        if config.grace is not None:
            listen |= {"grace": config.grace, "min-workers": plan.least}
        module = "laconic.engines.lighthouse"
        services[LIGHTHOUSE] = [*PYTHON, module, *_flags(listen), "--until-eof"]
    flags: dict[str, Any] = {"join": plan.address, "engine": config.engine}
    flags |= {"bind": config.bind, "host": host, "run": plan.identity.run, **tls}
    flags |= {"min-workers": plan.least, **vars(waits)}
    flags["compiled"] = os.environ.get("JAX_COMPILATION_CACHE_DIR") or plan.folder / COMPILED
    train = shlex.split(command_line("train", plan.train))[1:]
    given = [*_flags(flags), "--json", "--until-eof", "--", *train]
    workers = {
        name: [*PYTHON, "laconic", "worker", "--worker", str(k), *given]
        for k, name in enumerate(plan.names)
    }
    return services, workers


def _flags(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def _watch(plan: Launch, display: "LaunchDisplay", stop: StopFlag) -> bool:
    """Keep all going until all are done, a signal comes or one has died too often → whether all
    came to the end of the training.

    After a signal the workers save, however long their rounds take; a second one ends them.
    """
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, VARIABLE: plan.token}
    tell, take = display.tell, display.take
    own = {
        name: {gpus.VISIBLE: ",".join(seen)}
        for name, seen in zip(plan.names, plan.gpus, strict=False)
    }
    first_end: float | None = None
    with Supervisor(*_commands(plan), environment, plan.restarts, tell, take, own) as group:
        while not stop() and not all(member.over for member in group.workers.values()):
            group.step(0.1)
            for name, member in group.workers.items():
                display.died(name, member.deaths)
            display.tick()
            if any(row.ended for row in display.workers.values()):
                first_end = first_end or time.monotonic()
                _release(group, display, late=time.monotonic() - first_end > LATE)
        if stop():
            # in a mesh that cannot lose a worker, the first to leave may block the others for ever
            _let_save(
                group, display, math.inf if plan.entry.restarts else plan.config.waits.timeout
            )
        group.end()
        display.publish()
        late = {name for name, row in display.workers.items() if row.state == TOO_LATE}
        return all(member.done or name in late for name, member in group.workers.items())


def _let_save(group: Supervisor, display: "LaunchDisplay", grace: float) -> None:
    """Ask the workers to save and end, and wait until they have, at most `grace` seconds."""
    for name, member in group.workers.items():
        if member.until is None:
            group.dismiss(name, grace)
    while any(member.child for member in group.workers.values()):
        group.step(0.1)
        display.tick()


def _release(group: Supervisor, display: "LaunchDisplay", late: bool) -> None:
    """Once a worker has finished, do not wait for those that are dead, or, if late, for any."""
    for name, member in group.workers.items():
        wanted = member.until is None and not member.done and not display.workers[name].ended
        if wanted and (late or member.child is None):
            display.tell(name, "no longer needed: the others have finished")
            display.workers[name].state = TOO_LATE
            group.dismiss(name, HASTE)


# --- the table ------------------------------------------------------------------------------------


@dataclass
class WorkerRow:
    """What is known of a worker."""

    state: str = "starts"
    round: int = 0
    quorum: list[int] = field(default_factory=list)
    loss: float | None = None
    sent: int = 0
    received: int = 0
    left_out: int = 0
    refused: int = 0
    restarts: int = 0
    ended: bool = False
    seconds: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take(self, row: dict[str, Any]) -> None:
        """Add one more round."""
        self.state = "trains"
        self.round = row["round"]
        self.quorum = row["quorum"]
        self.loss = row["loss"]
        self.sent += row["sent"]
        self.received += row["received"]
        self.left_out += len(row["excluded"])
        self.refused = sum(row["refused"].values())
        self.seconds.append(row["seconds"])

    def ms(self, *parts: str) -> str:
        """The mean time of some parts of a round."""
        if not self.seconds:
            return "–"
        found = 1000 * mean(sum(s[p] for p in parts) for s in self.seconds)
        return f"{found:.1f}" if found < 100 else f"{found:.0f}"

    def cells(self) -> list[str]:
        """The row, without its name."""
        return [
            self.state,
            str(self.round),
            str(len(self.quorum)) if self.quorum else "–",
            "–" if self.loss is None else f"{self.loss:.4f}",
            megabytes(self.sent),
            megabytes(self.received),
            self.ms("compute"),
            self.ms("quorum", "gather"),
            self.ms("outer"),
            str(self.left_out),
            str(self.refused),
            str(self.restarts),
        ]


def megabytes(count: int) -> str:
    """A number of bytes, in five letters."""
    return f"{count / 1e6:.2f}" if count < 1e8 else f"{count / 1e6:.0f}"


class LaunchDisplay(LiveDisplay):
    """Shows what the workers write: in a terminal a live table below their logs, else lines."""

    def __init__(
        self,
        workers: Iterable[str],
        rounds: int,
        title: str,
        console: Console = err,
        clock: Callable[[], float] = time.monotonic,
        watcher: Observer | None = None,
        metrics: Metrics | None = None,
    ):
        super().__init__(console, clock)
        self.watcher = watcher or Observer()
        self.metrics = metrics
        self.published_at = -math.inf
        self.watched = -1  # the last round that the watcher was told of
        self.seen = -1  # the last round whose held-out metrics it was told
        self.looks = LookLines(rounds)
        self.workers = {name: WorkerRow() for name in workers}
        self.rounds = rounds
        self.title = title

    def take(self, line: Line) -> None:
        """Take in a line: a worker's JSON is for the table, anything else is shown as it is."""
        message = None if line.error or line.name not in self.workers else _message(line.text)
        if message is None:
            self.tell(line.name, line.text)
            return
        row = self.workers[line.name]
        if message["kind"] == "start":
            row.state = "compiles"
        elif message["kind"] == "round":
            row.take(message)
            self._watch(message)
            self._show(message["round"], heldout_numbers(message.get(LOOK) or {}))
            for said in self.looks.of(message, f"{line.name} | "):
                self.tell(line.name, said)
            for note in message["notes"]:
                self.tell(line.name, f"round {message['round']}: {note}")
        elif message["kind"] == "numbers":
            self._show(message["round"], numbers_of(message["values"]))
        elif message["kind"] == "note":
            self.tell(line.name, message["text"])
        elif message["kind"] == "end":
            row.state = "done"
            row.ended = True
            row.round = message["round"]

    def _watch(self, message: dict[str, Any]) -> None:
        """Tell the watcher of a round once, by whoever tells of it first."""
        if self.watched < 0:
            self.watched = message["round"] - 1
            self.watcher.begin("training", self.rounds, self.watched)
        if message["round"] > self.watched:
            self.watched = message["round"]
            self.watcher.round({**message, "notes": (), LOOK: None})

    def _show(self, done: int, numbers: Mapping[str, float]) -> None:
        """Tell the watcher once what was found on held-out data after a round: by one worker, which
        has seldom been the first to tell of that round."""
        if numbers and done > self.seen:
            self.seen = done
            self.watcher.numbers("training", done, numbers)

    def publish(self) -> None:
        """Show the metrics as they are now."""
        if self.metrics is not None:
            self.published_at = self.clock()
            try:
                self.metrics.publish(exposition(self.workers, self.rounds))
            except LaconicError as error:  # a full disk must not stop training
                self.metrics.file = None
                self.tell("metrics", str(error))

    def died(self, name: str, deaths: int) -> None:
        """Note how often a worker has died so far."""
        row = self.workers[name]
        if deaths > row.restarts:
            row.restarts = deaths
            row.state = "died"

    def tell(self, name: str, text: str) -> None:
        """Print a line above the table, under a process's name."""
        say(f"{name} | {text}", self.console)

    @property
    def round(self) -> int:
        """The last round of the worker furthest ahead."""
        return max(row.round for row in self.workers.values())

    def render(self) -> RenderableType:
        """The table."""
        table = Table(title=Text(self.title), caption=LEGEND, box=None, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        table.padding = (0, 1, 0, 0)
        for i, head in enumerate(HEADS):
            table.add_column(head, justify="left" if i < 2 else "right", no_wrap=True)
        for name, row in self.workers.items():
            style = {"died": "yellow", "done": "green"}.get(row.state, "")
            cells = [name.removeprefix("worker "), *row.cells()]
            table.add_row(*map(Text, cells), style=style)
        return table

    def summary(self) -> str:
        """All of it on one line."""
        ahead = max(self.workers.values(), key=lambda row: row.round)
        if not ahead.round:
            return "; ".join(f"{name} {row.state}" for name, row in self.workers.items())
        loss = "" if ahead.loss is None else f", loss {ahead.loss:.4f}"
        quorum = f", quorum {len(ahead.quorum)}" if ahead.quorum else ""
        restarts = sum(row.restarts for row in self.workers.values())
        return f"round {ahead.round}/{self.rounds}{quorum}{loss}, restarts {restarts}"

    def tick(self) -> None:
        """Publish metrics every second; in a log, print the summary every ten seconds."""
        if self.clock() - self.published_at >= 1.0:
            self.publish()
        if self.due():
            self.said_at = self.clock()
            self.console.print(Text(self.summary()))


def _message(text: str) -> dict[str, Any] | None:
    """A worker's message; None if the line is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "kind" in found else None
