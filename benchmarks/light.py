"""Light workers: threads of one process that take rounds over the engine's own links, with a
Lighthouse, the guard and the outer step of real ones, and made-up messages in the place of local
steps. They share their compiled programs.
"""

import contextlib
import hashlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from benchmarks.fleet import Spec, free_address, lighthouse_at, method_of, task_of
from laconic.engines.base import Interrupted
from laconic.engines.elastic import ElasticEngine, Timeouts
from laconic.engines.gather import AllGather, Call
from laconic.engines.local_workers import Seconds, Signed, sign_whole
from laconic.engines.reduce import ReduceScatter
from laconic.engines.replica import Programs
from laconic.engines.topology import REDUCE
from laconic.engines.wire import Header, Seal, fill_frame, new_frame

CALM = {"silence": 60.0, "gather": 300.0, "patience": 300.0, "ask": 300.0, "heartbeat": 2.0}
LIMIT = 100.0
TOKEN = "benchmark"


@dataclass
class Done:
    """One round of one worker."""

    round: int
    digest: bytes
    counted: tuple[int, ...]
    excluded: dict[int, str]
    healed: bool
    attempts: int


@dataclass
class LightWorker:
    """A thread that takes rounds; `notes` are its interruptions."""

    engine: ElasticEngine
    programs: Programs
    seal: Seal
    rounds: int
    done: list[Done] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replica: Any = None
    error: BaseException | None = None

    def __post_init__(self):
        self.worker = self.engine.worker
        self.whole = AllGather(self.programs, self.engine, self.seal)
        reduce = ReduceScatter(self.programs, self.engine, self.seal, self.whole)
        in_pieces = self.programs.topology.kind == REDUCE
        self.topology: Any = reduce if in_pieces else self.whole
        self.sent: list[int] = []
        self.about = b""  # for tests: what names the exchange that it is in

    def message(self, now: int, origin: bytes, empty: bool = False) -> Signed:
        """What this worker sends in a round: numbers that only it and the round decide."""
        programs, layout = self.programs, self.programs.layout
        rng = np.random.default_rng((self.worker, now))
        zeros = jax.tree.unflatten(
            layout.treedef, [np.zeros(x.shape, x.dtype) for x in layout.leaves]
        )
        tree = jax.tree.map(lambda x: 0.01 * rng.standard_normal(x.shape, np.float32), zeros)
        size = 0 if empty else layout.size
        room = new_frame(programs.room)
        about = self.seal.run, layout.structure, origin, now, self.worker, 1.0, 0.5, size
        fill_frame(
            layout, Header(int(empty), *about), None if empty else tree, room[: layout.frame]
        )
        if self.topology is self.whole:
            return Signed(room, sign_whole(self.seal, programs, room).measured)
        return Signed(
            room, None, programs.card.empty() if empty else programs.facts(self.seal, room)
        )

    def run(self, replica, digest):
        """All rounds."""
        held, message, attempts = {digest: replica}, None, 0
        layout = self.programs.replica_layout

        def snapshot(now, wanted):
            body = new_frame(layout.size)
            return None if wanted not in held else layout.write(body, held[wanted]) or body

        self.engine.open(self.programs.frame, hashlib.sha256(b"light").digest(), snapshot)
        try:
            while int(replica.round) < self.rounds:
                now, attempts = int(replica.round), attempts + 1
                if message is None:
                    message = self.message(now, digest)
                try:
                    quorum = self.engine.quorum(now, digest)
                    behind = quorum.digest != digest
                    own = self.message(quorum.round, quorum.digest, True) if behind else message
                    seen = None if behind else replica
                    call = Call(quorum, {self.worker: own}, seen, Seconds())
                    came = self.topology.collect(call) if quorum.round < self.rounds else None
                    after = replica
                    if behind:
                        body = new_frame(layout.size)
                        body[:] = np.frombuffer(self.engine.heal(quorum), np.uint8)
                        after = jax.tree.map(jax.numpy.array, layout.read(body))
                    if came is None:
                        replica = after
                        break
                    replica, verdicts = self.topology.finish(after, quorum.digest, came)
                except Interrupted as error:
                    self.notes.append(str(error))
                    self.engine.commit(False, digest)
                    continue
                digest = self.programs.digest(replica)
                held = dict([*held.items(), (digest, replica)][-2:])
                self.engine.commit(True, digest)
                self.sent.append(self.engine.counts.sent)
                counted, excluded = tuple(sorted(verdicts["losses"])), verdicts["excluded"]
                said = int(replica.round), digest, counted, excluded, behind, attempts
                self.done.append(Done(*said))
                message, attempts = None, 0
            self._farewell(int(replica.round), digest)
        except BaseException as error:
            self.error = error
        finally:
            self.replica = replica
            self.engine.close()

    def _farewell(self, now, digest):
        """Stay until all hold the final state."""
        while True:
            quorum = self.engine.quorum(now, digest)
            if set(quorum.sources) == set(quorum.workers) or quorum.digest != digest:
                return


class LightCrew:
    """`workers` light workers of a model with so many parameters; a context manager."""

    def __init__(
        self, workers, parameters, rounds, *, exchange="auto", outer="average", **timeouts
    ):
        spec = Spec(0, workers, "", "", rounds, f"synthetic:{parameters}", outer=outer)
        self.programs = Programs(
            task_of(spec.task), method_of(spec), workers, 1, 8, 0, (0,), LIMIT, (), exchange
        )
        self.seal = Seal.of(TOKEN, "light")
        self.address = free_address()
        environment = os.environ | {"LACONIC_TOKEN": TOKEN}
        self._lighthouse = lighthouse_at(self.address, 60.0, environment, join_timeout=600.0)
        waits = Timeouts(**(CALM | timeouts))
        make = lambda k: ElasticEngine(k, workers, self.address, self.seal, timeouts=waits, least=1)
        self.workers = [
            LightWorker(make(k), self.programs, self.seal, rounds) for k in range(workers)
        ]

    def begin(self):
        """Compile, then start all."""
        self.replica, _ = self.programs.start()
        digest = self.programs.digest(self.replica)
        first = self.workers[0]
        first.message(0, digest)
        if first.topology is not first.whole:
            first.topology.rehearse(self.replica, 0)
        self.threads = [
            threading.Thread(target=one.run, args=(self.replica, digest), daemon=True)
            for one in self.workers
        ]
        for thread in self.threads:
            thread.start()

    def join(self, seconds=600.0):
        """Wait for the end of all."""
        give_up = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        errors = [f"worker {one.worker}: {one.error!r}" for one in self.workers if one.error]
        if errors or any(thread.is_alive() for thread in self.threads):
            raise SystemExit("; ".join(errors) or f"not done after {seconds:.0f} s")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for one in self.workers:
            with contextlib.suppress(AttributeError):
                one.engine.close()
        self._lighthouse.kill()
        self._lighthouse.wait(30)
        if self._lighthouse.stdout is not None:
            self._lighthouse.stdout.close()
