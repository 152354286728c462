"""`laconic worker`: one process of many; flags, SLURM or torchrun say where the others are."""

import fcntl
import hashlib
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import tyro

from laconic.cli.compiled import TURN
from laconic.cli.console import LINE_SECONDS, LookLines, StopFlag
from laconic.cli.hosts import need_token
from laconic.cli.terminal import err, say
from laconic.cli.train import check_same_end, print_outcome, shared_config
from laconic.engines.address import (
    LAST_PORT,
    ProcessRank,
    free_port,
    is_loopback,
    rank_from,
    reached_at,
    split_address,
    with_port,
)
from laconic.engines.devices import Devices
from laconic.engines.identity import new_run_id
from laconic.engines.lighthouse import Lighthouse
from laconic.engines.registry import ENGINES, Seat, Waits, engine_entry
from laconic.engines.supervisor import end_with_stdin
from laconic.engines.tls import TlsFiles
from laconic.engines.waiting import majority
from laconic.engines.wire import Seal
from laconic.errors import LaconicError
from laconic.runs.folder import Interrupted, Observer
from laconic.runs.train import begun_run, on_devices, parts_of, seal_of, work, worker_folder
from laconic.runs.train_log import finish, missing_ends, worker_log
from laconic.store.atomic import check_place
from laconic.store.records import plain

END_SECONDS = 20.0  # to wait for the other workers' last records
DESCRIPTION = """\
Train as one worker of several processes, on this machine or many. Say after -- what all of them
train:

  laconic worker --join 10.0.0.1:29510 --worker 2 --bind 10.0.0.7 -- train fmnist --workers 4
  srun laconic worker --bind 0.0.0.0 -- train fmnist            (worker 0 hosts the Lighthouse)
  torchrun --nproc-per-node 4 --no-python laconic worker -- train digits

All of them need the same token, in $LACONIC_TOKEN or --token-file. A restarted worker resumes from
its checkpoint and catches up from a peer."""


@dataclass(frozen=True)
class Connection:
    """How the workers of a training are connected."""

    engine: str = "elastic"
    """What connects the workers: elastic, or jax-distributed, which is not fault tolerant."""
    token_file: Path | None = None
    """A file with the secret text that all workers share; by default the variable LACONIC_TOKEN;
    laconic launch makes a new one if that is not set."""
    bind: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every one of this machine."""
    host: str = ""
    """The address at which others reach this machine, if it is not --bind."""
    devices: Devices | None = None
    """Split a worker's minibatches over this many devices of its machine, or all of them; workers
    may differ. By default what is said after --, else 1."""
    min_workers: int | None = None
    """How many workers a round needs; fewer wait for the rest. By default more than half of them,
    so that of two workers both are needed; 1: go on even if a single one is left, alone."""
    grace: float | None = None
    """Seconds that a round waits for slower workers once --min-workers are ready; it then goes on
    without them; --late, after --, says what becomes of what they send late. By default it waits
    for all that live."""
    waits: tyro.conf.OmitArgPrefixes[Waits] = field(default_factory=Waits)
    tls: tyro.conf.OmitArgPrefixes[TlsFiles] = field(default_factory=TlsFiles)


@dataclass(frozen=True)
class WorkerConfig(Connection):
    """One process of a training."""

    join: str | None = None
    """HOST:PORT where the workers meet; by default what SLURM or torchrun say, and worker 0 hosts
    it."""
    worker: int | None = None
    """Which worker this is, from 0 on; by default what SLURM or torchrun say."""
    port: int | None = None
    """The port where the workers meet, instead of the one that SLURM or torchrun give."""
    run: str | None = None
    """The id of the run; by default the workers learn it from the one where they meet."""
    compiled: Path | None = None
    """A folder for compiled programs, shared by the workers of a machine: one compiles, the others
    wait for it."""
    json: bool = False
    """Write one JSON object a round to standard output."""
    until_eof: bool = False
    """Leave when standard input ends, as it does when the process at its other end dies."""


def run_worker(argv: Sequence[str]) -> int:
    """`laconic worker [--flags] -- train [RECIPE] [--flags]`."""
    own, words = split_words(argv)
    config = tyro.cli(WorkerConfig, args=own, prog="laconic worker", description=DESCRIPTION)
    if config.until_eof:
        end_with_stdin()
    token = need_token(config.token_file, os.environ)
    entry = engine_entry(config.engine)
    told = config.join is not None and config.worker is not None
    rank = None if told else rank_from(os.environ)
    train, _ = shared_config(words, None if rank is None else rank.workers)
    train = on_devices(train, config.devices)
    if config.compiled is not None:
        check_place(config.compiled / "turn")
    if entry.service:  # others must meet before JAX is used
        parts_of(train)  # what cannot be trained is refused before anybody is waited for
    seat = seat_of(config, rank, train.workers)
    hosts = config.join is None and seat.worker == 0
    run = config.run or (begun_run(train, seat.worker) or new_run_id() if hosts else "")
    seal = seal_of(token, train, run)
    lighthouse = host_lighthouse(seat, seal) if hosts and entry.service else None
    seal = entry.meet(seat, seal)
    turn = None
    # other engines compile together with the others, and would wait for ever
    if config.compiled is not None and entry.restarts:
        about = replace(seal.identity, run="").text  # another run may be of the same programs
        turn = CompileTurn(config.compiled, f"{about} {train.devices}")
    folder = worker_folder(train, seal.identity.run)
    seat = replace(seat, again=(folder / worker_log(seat.worker)).exists())
    command = shlex.join(["laconic", "worker", *argv])
    with StopFlag("this round and one more") as stop:
        try:
            work(
                train,
                lambda: entry.connect(seat, seal),
                config.engine,
                seal,
                folder,
                observer=Json() if config.json else Lines(seat.worker),
                stop=stop,
                command=command,
                turn=turn,
            )
        except Interrupted as stopped:
            say(f"{stopped} The same command goes on from there.", err)
            return stop.status
    if lighthouse is not None:
        lighthouse.shutdown()
    if hosts and not config.json:
        _wait(lambda: not missing_ends(folder), END_SECONDS)
        records = finish(folder, command)
        print_outcome(folder, records)
        check_same_end(records)
    return 0


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first -- and those after it."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


def seat_of(config: WorkerConfig, rank: ProcessRank | None, workers: int) -> Seat:
    """Which worker this is and where it meets the others: from flags, then the environment."""
    if config.join is None and rank is None:
        raise LaconicError(
            "a worker must know where the others are: give --join HOST:PORT and --worker N, or "
            "start it with srun or torchrun, which say so."
        )
    worker = config.worker
    if worker is None and rank is not None:
        worker = rank.worker
    if worker is None:
        raise LaconicError(f"say which worker this is: --worker 0 to --worker {workers - 1}.")
    if not 0 <= worker < workers:
        raise LaconicError(f"--worker counts from 0 to {workers - 1} here, got {worker}.")
    if config.join is not None:
        host, port = split_address(config.join)
        if config.port is not None:
            raise LaconicError("--join has the port already: leave out --port.")
    else:
        assert rank is not None
        host, port = rank.host, config.port or rank.port
    if not 0 < port <= LAST_PORT:
        raise LaconicError(f"the workers meet at a port from 1 to {LAST_PORT}, got {port}.")
    if is_loopback(config.bind) and not is_loopback(host):
        raise LaconicError(
            f"the workers meet at {host}, beyond this machine, but this one would listen at "
            f"{config.bind} only, where no other machine reaches it: give --bind with an address "
            "of this machine, or 0.0.0.0 for all of them."
        )
    reached = config.host or reached_at(config.bind, host)
    where = (with_port(host, port), config.bind, reached)
    # workers of the launcher, or beside the Lighthouse, have the run's own token
    yields = not config.until_eof and (config.join is not None or worker != 0)
    least = needed_workers(config, workers)
    if config.grace is not None and config.join is not None:
        raise LaconicError(
            "--grace is for the process that hosts the Lighthouse: give it to laconic launch, or "
            "to worker 0 without --join."
        )
    return Seat(
        worker, workers, *where, config.waits, yields, config.tls.load(), least, grace=config.grace
    )


def needed_workers(config: Connection, workers: int) -> int:
    """How many of them a round needs: --min-workers or, by default, a majority."""
    if config.grace is not None and not 0 <= config.grace < math.inf:
        raise LaconicError(f"--grace is a time in seconds, 0 or more, got {config.grace:g}.")
    if config.grace is not None and not ENGINES[config.engine].service:
        raise LaconicError(f"{config.engine} waits for all workers: leave out --grace.")
    if not ENGINES[config.engine].restarts:
        if config.min_workers not in (None, workers):
            raise LaconicError(
                f"{config.engine} needs all {workers} workers in every round, so --min-workers "
                f"{config.min_workers} cannot be had there."
            )
        return workers
    least = majority(workers) if config.min_workers is None else config.min_workers
    if not 1 <= least <= workers:
        raise LaconicError(
            f"--min-workers is how many of the {workers} workers a round needs, got {least}."
        )
    return least


def host_lighthouse(seat: Seat, seal: Seal) -> Lighthouse:
    """A Lighthouse in this process, which serves until it is shut down."""
    port = free_port(seat.bind, split_address(seat.address)[1])
    return Lighthouse(
        with_port(seat.bind, port),
        seal,
        silence=seat.waits.silence,
        workers=seat.workers,
        grace=seat.grace,
        least=seat.least or 1,
        tell=lambda line: say(f"lighthouse: {line}", err),
        tls=seat.tls,
    )


class CompileTurn:
    """A folder of compiled programs: one worker compiles at a time, the next finds the result.

    Compiling the same thing side by side takes that many times as long. A process that dies gives
    up its turn. Once one has compiled all that is run under a name nobody waits for a turn again:
    after a restart of the whole group all load it side by side.
    """

    def __init__(self, folder: Path, name: str):
        folder.mkdir(parents=True, exist_ok=True)
        self._done = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}{TURN}"
        self._held = False
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        self._file = open(folder / "turn", "w")  # noqa: SIM115  (held as long as this process lives)

    def take(self) -> None:
        """Wait for the turn, unless everything is compiled."""
        if not self._done.exists():
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._held = True

    def give(self) -> None:
        """Let the next ones go on: all is compiled."""
        if self._held:
            self._held = False
            self._done.touch()
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file."""
        self._file.close()


class Json(Observer):
    """Tells everything to standard output, a JSON object a line, at once."""

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """A "start"."""
        _print_json("start", {"round": done, "rounds": total})

    def round(self, row: Mapping[str, Any]) -> None:
        """A "round", with all there is to say about it."""
        _print_json("round", row)

    def numbers(self, label: str, done: int, values: Mapping[str, float]) -> None:
        """The "numbers" of the end, where there was no look after the last round."""
        _print_json("numbers", {"round": done, "values": values})

    def end(self, facts: Mapping[str, Any]) -> None:
        """An "end"."""
        _print_json("end", facts)

    def note(self, text: str) -> None:
        """A "note"."""
        _print_json("note", {"text": text})


def _print_json(kind: str, message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(plain({"kind": kind, **message}), allow_nan=False) + "\n")
    sys.stdout.flush()


class Lines(Observer):
    """Tells people, on standard error: every note, looks at held-out data, and a line about rounds
    every ten seconds."""

    def __init__(self, worker: int, clock: Callable[[], float] = time.monotonic):
        self._name = f"worker {worker}"
        self._clock = clock
        self._said = -float("inf")
        self._rounds = 0
        self._looks = LookLines(0)

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """A line."""
        self._rounds = total
        self._looks = LookLines(total)
        self.note(f"compiling; begins after round {done} of {total}")

    def round(self, row: Mapping[str, Any]) -> None:
        """Its notes, and the lines that are due."""
        for text in row["notes"]:
            self.note(text)
        for line in self._looks.of(row, f"{self._name}: "):
            self.note(line)
        if row["round"] == self._rounds or self._clock() - self._said >= LINE_SECONDS:
            self._said = self._clock()
            where = f"round {row['round']}/{self._rounds}, {len(row['quorum'])} workers"
            self.note(f"{where}, loss {row['loss']:.4f}")

    def note(self, text: str) -> None:
        """A line."""
        say(f"{self._name}: {text}", err)


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.1)
