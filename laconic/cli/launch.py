"""`laconic launch`: real worker processes on this machine, and the Lighthouse that keeps them
together."""

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import jax
import tyro

from laconic.cli.console import StopFlag, err, out, say
from laconic.cli.launch_table import LaunchDisplay
from laconic.cli.token import VARIABLE, find_token, new_token, write_token
from laconic.cli.train import print_outcome, shared_config
from laconic.cli.worker import split_words
from laconic.engines.address import free_port, is_loopback, reached_at, split_address, with_port
from laconic.engines.registry import EngineEntry, Waits, engine_entry
from laconic.engines.supervisor import HASTE, Supervisor
from laconic.errors import LaconicError
from laconic.recipes.trainings import TrainConfig, parts_of, train_command
from laconic.runs.folder import new_folder
from laconic.runs.train_folder import WORKER_LOGS, finish
from laconic.store import atomic
from laconic.tasks.catalog import make_task

LIGHTHOUSE, COMPILED = "lighthouse", "compiled"
PYTHON: tuple[str, ...] = (sys.executable, "-m")
RESTARTS = 3
LATE = 10.0  # seconds that a worker may be behind the first to finish
DESCRIPTION = """\
Start workers on this machine as processes of their own, and a Lighthouse where they meet; watch them, and start again
who dies. Say after -- what they train:

  laconic launch --workers 4 -- train digits
  laconic launch --workers 4 --here 2 --bind 10.0.0.1 --port 29510 -- train fmnist     (two more join from elsewhere)
  laconic launch -- train --resume runs/digits-mlp-…

Nothing listens beyond this machine unless --bind says so."""


@dataclass(frozen=True)
class LaunchConfig:
    """Workers as processes."""

    workers: int | None = None
    """K, how many workers there are; by default as many as the training asks for."""
    here: int | None = None
    """How many of them to start on this machine; the others join with `laconic worker`. By default
    all."""
    engine: str = "torchft"
    """What connects the workers: torchft, or jax-distributed, which is not fault tolerant."""
    bind: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every one of this machine."""
    port: int = 0
    """The port where the workers meet; 0: any free one."""
    host: str = ""
    """The address at which other machines reach this one, if it is not --bind."""
    waits: tyro.conf.OmitArgPrefixes[Waits] = field(default_factory=Waits)
    restarts: int | None = None
    """How often each worker is started again after it died; by default 3, and 0 with
    jax-distributed."""
    token_file: Path | None = None
    """A file with the secret text that all workers share; by default the variable LACONIC_TOKEN, or
    a new one."""
    pace: float = 0.0
    """Seconds that a round takes at least, to try out how a larger model would do."""
    kill_one_at: int | None = None
    """Kill the last worker once it has done this round, to see the others go on and it come back.
    """


@dataclass(frozen=True)
class Plan:
    """A launch with everything decided."""

    config: LaunchConfig
    train: TrainConfig
    entry: EngineEntry
    folder: Path
    address: str
    token: str
    token_at: str
    restarts: int

    @property
    def names(self) -> list[str]:
        """The workers started here."""
        return [f"worker {k}" for k in range(self.config.here or self.train.workers)]


def run_launch(argv: Sequence[str]) -> int:
    """`laconic launch [--flags] -- train [RECIPE] [--flags]`."""
    own, words = split_words(argv)
    config = tyro.cli(LaunchConfig, args=own, prog="laconic launch", description=DESCRIPTION)
    jax.config.update(
        "jax_platforms", "cpu"
    )  # this process computes nothing; accelerators are for the workers
    plan = _plan(config, words)
    command = shlex.join(["laconic", "launch", *argv])
    atomic.write_text(plan.folder / "command.txt", command + "\n")
    _greet(plan)
    title = f"{plan.train.task}, {plan.train.optimizer}, {plan.train.rounds} rounds"
    again = (
        f"laconic launch --workers {plan.train.workers} -- train --resume "
        f"{shlex.quote(str(plan.folder))}"
    )
    try:
        with (
            StopFlag("this round and one more") as stop,
            LaunchDisplay(plan.names, plan.train.rounds, title) as shown,
        ):
            _watch(plan, shown, stop)
    except LaconicError as error:
        hint = (
            f" What was done is kept; go on with: {again}"
            if any(plan.folder.glob(WORKER_LOGS))
            else ""
        )
        raise LaconicError(f"{error}{hint}") from error
    finally:
        shutil.rmtree(plan.folder / COMPILED, ignore_errors=True)
    if stop():
        say(f"stopped after round {shown.round} of {plan.train.rounds}. Go on with: {again}", err)
        return stop.status
    records = finish(plan.folder, command)
    if not err.is_terminal:  # where it is, the table stands there already
        out.print(shown.render())
    print_outcome(plan.folder, records)
    if len(records[-1]["final_digests"]) != 1:
        raise LaconicError(
            "the workers did not end with the same state; their records say after which round."
        )
    return 0


def check_real_workers(config: TrainConfig) -> None:
    """Everything that can be wrong with a training between processes, found before any of them
    starts."""
    method, setting = parts_of(config)
    K, _ = method.budget(setting.workers, setting.local_steps)
    if K != config.workers:
        raise LaconicError(
            f"{config.optimizer} is one worker by its nature: train it alone, with laconic train."
        )


def _plan(config: LaunchConfig, words: Sequence[str]) -> Plan:
    """Everything that can be wrong, found before anything is started."""
    if config.workers is not None and config.workers < 1:
        raise LaconicError(f"workers must be positive, got {config.workers}.")
    train, resumed = shared_config(words, config.workers)
    check_real_workers(train)
    if config.here is not None and not 1 <= config.here <= train.workers:
        raise LaconicError(
            f"--here is how many of the {train.workers} workers start on this machine, got "
            f"{config.here}."
        )
    entry = engine_entry(config.engine)
    restarts = config.restarts if config.restarts is not None else RESTARTS if entry.restarts else 0
    if restarts < 0 or (restarts and not entry.restarts):
        raise LaconicError(
            f"{config.engine} cannot start a worker {restarts} times again: --restarts must be 0 "
            "there."
        )
    token, token_at = find_token(config.token_file, os.environ), "the same token"
    port = free_port(config.bind, config.port)
    host = config.host or reached_at(config.bind, "127.0.0.1")
    make_task(train.task)  # so that missing data is found, or fetched, once
    folder = train.out if resumed and train.out is not None else new_folder(train.out, train.task)
    if token is None:
        token, token_at = new_token(), f"the token in {folder / 'token'}"
        if (config.here or train.workers) < train.workers:
            write_token(folder / "token", token)
    train = replace(train, out=folder)
    return Plan(config, train, entry, folder, with_port(host, port), token, token_at, restarts)


def _greet(plan: Plan) -> None:
    say(f"the workers meet at {plan.address}; folder: {plan.folder}", err)
    if not is_loopback(plan.config.bind):
        say(
            f"listening at {plan.config.bind}, beyond this machine: without the token nobody gets "
            "in",
            err,
        )
    if len(plan.names) < plan.train.workers:
        joins = f"--join {plan.address} --worker N --bind ADDRESS --engine {plan.config.engine}"
        there = train_command(replace(plan.train, out=None)).removeprefix("laconic ")
        others = f"N from {len(plan.names)} to {plan.train.workers - 1}"
        say(
            f"join from elsewhere, with {plan.token_at}, {others}: laconic worker {joins} -- "
            f"{there}",
            err,
        )


def _commands(plan: Plan) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The command lines of the Lighthouse and of the workers."""
    config, waits = plan.config, plan.config.waits
    host, port = split_address(plan.address)
    seen = [
        "--bind",
        with_port(config.bind, port),
        "--heartbeat-timeout",
        str(waits.silence),
        "--until-eof",
    ]
    services = (
        {LIGHTHOUSE: [*PYTHON, "laconic.engines.lighthouse", *seen]} if plan.entry.service else {}
    )
    flags = {"join": plan.address, "engine": config.engine, "bind": config.bind, "host": host}
    flags |= {f.name: str(getattr(waits, f.name)) for f in fields(waits)}
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(plan.folder / COMPILED)
    flags |= {"pace": str(config.pace), "compiled": compiled}
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    train = shlex.split(train_command(plan.train))[1:]
    workers = {
        name: [
            *PYTHON,
            "laconic",
            "worker",
            "--worker",
            str(k),
            *given,
            "--json",
            "--until-eof",
            "--",
            *train,
        ]
        for k, name in enumerate(plan.names)
    }
    return services, workers


def _watch(plan: Plan, shown: LaunchDisplay, stop: StopFlag) -> None:
    """Keep all going until all are done, a signal comes or one has died too often."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, VARIABLE: plan.token}
    victim = plan.names[-1] if plan.config.kill_one_at is not None else None
    first_end: float | None = None
    with Supervisor(*_commands(plan), environment, plan.restarts, shown.tell, shown.take) as group:
        while not stop() and not all(member.over for member in group.workers.values()):
            group.step(0.1)
            for name, member in group.workers.items():
                shown.died(name, member.deaths)
            shown.tick()
            child = group.members[victim].child if victim is not None else None
            if victim and child and shown.workers[victim].round >= (plan.config.kill_one_at or 0):
                shown.tell(victim, f"killed on purpose after round {shown.workers[victim].round}")
                child.signal(signal.SIGKILL)
                victim = None
            if any(seen.ended for seen in shown.workers.values()):
                first_end = first_end or time.monotonic()
                _release(group, shown, late=time.monotonic() - first_end > LATE)
        group.end(LATE + plan.config.waits.silence)


def _release(group: Supervisor, shown: LaunchDisplay, late: bool) -> None:
    """The training is over for those who took part: who is dead then, or still starting later on,
    is not waited for."""
    for name, member in group.workers.items():
        wanted = member.until is None and not member.done and not shown.workers[name].ended
        if wanted and (late or member.child is None):
            shown.tell(name, "not needed any more: the others have finished")
            shown.workers[name].state = "too late"
            group.dismiss(name, HASTE)
