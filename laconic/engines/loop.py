"""Training as one process of many: `local steps → quorum → exchange → guard and outer step →
commit`, round after round. Messages travel whole (`gather`) or in pieces (`reduce`).

An exchange that fails loses nothing: the worker keeps its signed message and offers it again to the
next quorum. If the others finished the round meanwhile, they hold its result; the worker takes over
their state, learns from it whether its own message counted, and goes on. A worker that was
restarted, paused, or diverged catches up in the same way.
"""

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.client import Shared
from laconic.engines import guard
from laconic.engines.base import Bounds, Digest, Engine, Frame, Interrupted, Quorum, text_digest
from laconic.engines.fragments import FragmentPrograms, FragmentWorkers
from laconic.engines.gather import AllGather, Call, Messages
from laconic.engines.local_workers import LocalWorkers, Seconds
from laconic.engines.reduce import ReduceScatter
from laconic.engines.replica import Programs, Replica
from laconic.engines.topology import AUTO, GATHER, REDUCE, check_exchange, needs_all
from laconic.engines.wire import Seal, new_frame
from laconic.errors import LaconicError
from laconic.fragments import Fragments
from laconic.method import Method, Setting
from laconic.store import checkpoint
from laconic.tasks.base import Task

BEFORE_QUORUM, BEFORE_GATHER = "before quorum", "between quorum and gather"
BEFORE_COMMIT, AFTER_COMMIT = "between gather and commit", "after commit"
DROP, NEXT = "drop", "next"  # what becomes of a message that is late for its round
KEPT = 2  # states held while a peer is behind: the present one and the one before


class Report(NamedTuple):
    """One committed round as this process saw it.

    round: how many are done
    loss: mean over the workers that counted, each the mean of its H local losses
    losses, norms: of the messages that counted, by worker · excluded: reasons by worker
    sent, received: bytes of this round · message_bits: the compressor's own count of one message
    attempts: gathers it took · healed: whether the state was taken over from `quorum.sources`
    refused: refusals so far, by reason · notes: for people
    digest: the name of the state after the round · shared: its weights and model state
    """

    round: int
    quorum: Quorum
    loss: float
    losses: dict[int, float]
    norms: dict[int, float]
    excluded: dict[int, str]
    sent: int
    received: int
    message_bits: int
    seconds: Seconds
    attempts: int
    healed: bool
    refused: dict[str, int]
    notes: tuple[str, ...]
    digest: str
    committed_at: float
    shared: Shared


@dataclass
class Tally:
    """What a round's report adds up over its exchanges."""

    seconds: Seconds = field(default_factory=Seconds)
    attempts: int = 0
    exchanges: int = 0
    sent: int = 0
    received: int = 0
    excluded: dict[int, str] = field(default_factory=dict)
    healed: bool = False


class Exchanged(NamedTuple):
    """What came of an exchange: the state after it, and the verdicts on its messages."""

    replica: Replica
    digest: Digest
    quorum: Quorum
    healed: bool
    verdicts: dict[str, Any] | None
    committed_at: float


def row_of(report: Report) -> dict[str, Any]:
    """A report as JSON: without the weights, and of the quorum only the workers."""
    row = report._asdict()
    del row["shared"]
    row["quorum"] = list(report.quorum.workers)
    row["notes"] = list(report.notes)
    row["seconds"] = asdict(report.seconds)
    return row


def check_late(late: str, fragments: Fragments) -> None:
    """Refuse what cannot become of a late message."""
    if late not in (DROP, NEXT):
        raise LaconicError(
            f"a message that is late for its round is dropped ({DROP}) or counts in the {NEXT} "
            f"one, got late {late!r}."
        )
    if late == NEXT and fragments.active:
        raise LaconicError(
            "late messages of fragments are dropped: a worker that is behind goes on from the "
            "global weights, which its own have left. Leave out late, or fragments, delay and mix."
        )


def check_whole(exchange: str, late: str) -> None:
    """Refuse late messages in pieces: who is late does not know what of the state to average."""
    if exchange == REDUCE and late == NEXT:
        raise LaconicError(
            "messages that count a round late travel whole: leave out --exchange, or --late."
        )


def checkpoint_path(folder: Path, engine: Engine) -> Path:
    """Where the process with this engine keeps its checkpoint."""
    return folder / f"worker-{engine.mine[0]}.safetensors"


class Loop:
    """The rounds of one process: `for report in Loop(…).rounds(): …`."""

    def __init__(
        self,
        task: Task,
        method: Method,
        setting: Setting,
        engine: Engine,
        seal: Seal,
        *,
        folder: str | Path | None = None,
        checkpoint_every: int = 0,
        norm_limit: float = guard.LIMIT,
        exchange: str = AUTO,
        late: str = DROP,
        running: str = "",
        devices: Sequence[Any] = (),
        at: Callable[[str, int], None] = lambda point, round: None,
        committed: Callable[[Report, bool], None] = lambda report, due: None,
        handing_on: Callable[[], None] = lambda: None,
    ):
        """With a `folder`, each process keeps a checkpoint there and resumes from it.

        checkpoint_every: in rounds; 0: only at the end
        norm_limit: the largest norm a message may have, as a multiple of the usual one
        exchange: how messages travel, one of `EXCHANGES`; engines whose workers cannot send each
            other messages of their own gather them
        late: "next" has a message that is late for its round count in the one after it, "drop" not
        running: what all processes must train, in words; those with other words are refused
        devices: those over which each local step's minibatch is split; none: the usual one does all
        at: is called with (point, round) at each named point of the protocol
        committed: is called with each report, and whether a checkpoint is due, before that is saved
        handing_on: is called before another worker can take over this one's state: what led to it
            must be on disk then, since that worker does not know it
        """
        K, H = method.budget(setting.workers, setting.local_steps)
        if K != engine.slots or len(setting.seeds) != 1:
            raise LaconicError(
                f"an engine of {engine.slots} workers runs one seed of K = {engine.slots}, got K = "
                f"{K}."
            )
        if setting.missing:
            raise LaconicError("`missing` is for simulated workers: leave it out with an engine.")
        if setting.fragments.active and len(devices) > 1:
            raise LaconicError(
                "a worker that exchanges fragments has one device: leave out --devices, or "
                "fragments, delay and mix."
            )
        check_late(late, setting.fragments)
        self.setting = setting
        self.late = late
        self.last = setting.rounds  # fewer if all processes agree to stop early
        self.engine = engine
        self.seal = seal
        self.running = running
        self.at = at
        self.committed = committed
        self.handing_on = handing_on
        check_exchange(exchange, method)
        check_whole(exchange, late)
        exchange = exchange if engine.direct and late == DROP else GATHER
        given = (task, method, K, H, setting.batch, setting.seeds[0], engine.mine, norm_limit)
        self.programs: Programs | FragmentPrograms = (
            FragmentPrograms(*given, setting.fragments, exchange)
            if setting.fragments.active
            else Programs(*given, devices, exchange)
        )
        self._gather = AllGather(self.programs, engine, seal)
        direct: Any = engine  # or no message travels in pieces
        self._reduce = ReduceScatter(self.programs, direct, seal, self._gather)
        self.path = None if folder is None else checkpoint_path(Path(folder), engine)
        self.every = checkpoint_every
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="laconic-sign")
        self._held: dict[Digest, Replica] = {}
        self._notes: list[str] = []
        self._lived = False  # whether this process has finished an exchange
        self._afresh = False  # local state that no checkpoint gave, before its first round
        self.final: tuple[Replica, Digest] | None = None  # the state after all rounds
        self._tally = Tally()

    def rounds(self) -> Generator[Report, None, None]:
        """Start or resume, until all rounds are done and all peers have their result."""
        replica, local = self._restore()
        method = self.programs.method
        obstacle = needs_all(method)
        if obstacle and (self.engine.direct or method.aggregate is not None):
            self._notes.append(f"{obstacle}: each worker sends its own to all others")
        if self.engine.direct:
            self._notes.append(self.programs.topology.words)
        digest = self._hold(self.programs.digest(replica), replica)
        self._warm_up(replica, local, digest)  # compile before peers wait for this process
        frame, state = self.programs.frame, self.programs.replica_layout
        kind = self.programs.topology.kind
        structure = text_digest(self._messages(), state.structure, frame, kind, self.running)
        try:
            bounds = Bounds(state.size, self.exchanges)
            self.engine.open(frame, structure, self._snapshot, bounds)
            while int(replica.round) < self.exchanges:
                replica, digest, report = self._round(replica, local, digest)
                if report is not None:
                    yield report
            self.final = replica, digest
            self._farewell(replica, digest)
        finally:
            self.engine.close()
            self._threads.shutdown()
            local.close()

    @property
    def exchanges(self) -> int:
        """How many there are until the end; without fragments, one a round."""
        return self.last * self.programs.exchanges

    def done(self, replica: Replica) -> int:
        """The rounds after which this is the state."""
        return int(replica.round) // self.programs.exchanges

    def _messages(self) -> Any:
        """The structures of all messages of a round."""
        found = [self.programs.at(f).layout.structure for f in range(self.programs.exchanges)]
        return found[0] if len(found) == 1 else found

    def _round(
        self, replica: Replica, local: LocalWorkers, digest: Digest
    ) -> tuple[Replica, Digest, Report | None]:
        """One exchange; a report after a round's last one, but none if the final state was taken
        over from a peer."""
        tally = self._tally
        if tally.attempts == 0:
            tally.sent, tally.received = self.engine.counts.sent, self.engine.counts.received
        local.compute(replica, digest, tally.seconds)
        exchange = lambda: self._exchange(replica, local, digest)
        new = local.during(exchange, replica, tally.seconds)
        replica, digest, quorum = new.replica, new.digest, new.quorum
        if new.verdicts is None:
            return replica, digest, None
        local.settle(replica, new.healed)
        self._afresh = False
        self._lived = True
        tally.healed |= new.healed
        tally.exchanges += 1
        self.at(AFTER_COMMIT, quorum.round)
        if int(replica.round) % self.programs.exchanges:
            tally.excluded |= new.verdicts["excluded"]
            return replica, digest, None
        new.verdicts["excluded"] = tally.excluded | new.verdicts["excluded"]
        report = Report(
            round=self.done(replica),
            quorum=quorum,
            **new.verdicts,
            sent=self.engine.counts.sent - tally.sent,
            received=self.engine.counts.received - tally.received,
            message_bits=self.programs.message_bits,
            seconds=tally.seconds,
            attempts=tally.attempts - tally.exchanges + 1,  # 1: nothing was gathered again
            healed=tally.healed,
            refused=dict(self.engine.counts.refused),
            notes=tuple(self._notes),
            digest=digest.hex(),
            committed_at=new.committed_at,
            shared=replica.shared,
        )
        self._tally = Tally()
        self.committed(report, self._due(report.round))
        with tally.seconds.spent("store"):
            self._checkpoint(replica, local)
        report = report._replace(notes=tuple(self._notes))
        self._notes = []
        return replica, digest, report

    def _exchange(self, replica: Replica, local: LocalWorkers, digest: Digest) -> Exchanged:
        """Quorum, gather, outer step and commit; there are no verdicts if the others are done."""
        now, seconds = int(replica.round), self._tally.seconds
        # An earlier process may have sent the message of our first exchange.
        late_in = now + 1 if self.late == NEXT and self._lived else None
        while True:
            self._tally.attempts += 1
            try:
                self.at(BEFORE_QUORUM, now)
                with seconds.spent("quorum"):
                    quorum = self.engine.quorum(now, digest)
                self.at(BEFORE_GATHER, now)
                behind = quorum.digest != digest
                if quorum.round >= self.exchanges:  # the others are done: nothing to gather
                    return Exchanged(*self._take_over(quorum), quorum, True, None, time.time())
                with seconds.spent("check"):
                    if not behind:
                        own, late_in = local.signed(), None  # from now on it may have counted
                    elif quorum.round == late_in:
                        own = local.late(quorum)
                        self._notes.append(f"sent its message of round {now + 1} a round late")
                    else:
                        own = local.nothing(quorum)
                if len(quorum.sources) < len(quorum.workers):
                    self.handing_on()
                topology: Any = self._topology(quorum.round)
                call = Call(quorum, own, replica, seconds)
                came = topology.collect(call._replace(replica=None) if behind else call)
                taken = replica, digest
                if behind:  # only now, so that no peer waits for it
                    with seconds.spent("gather"):
                        taken = self._take_over(quorum)
                replica, verdicts = topology.finish(*taken, came)
                break
            except Interrupted as interruption:
                self._notes.append(str(interruption))
                self.engine.commit(False, digest)
        with seconds.spent("check"):
            digest = self.programs.digest(replica)
        self.at(BEFORE_COMMIT, quorum.round)
        # the one before is for those that are behind, if any are
        all_follow = len(quorum.sources) == len(quorum.workers)
        self._hold(digest, replica, 1 if all_follow else KEPT)
        self.engine.commit(True, digest)
        return Exchanged(replica, digest, quorum, behind, verdicts, time.time())

    def _topology(self, exchange: int) -> AllGather | ReduceScatter:
        """How the messages of an exchange travel."""
        in_pieces = self.programs.at(exchange).topology.kind == REDUCE
        return self._reduce if in_pieces else self._gather

    def _warm_up(self, replica: Replica, local: LocalWorkers, digest: Digest) -> None:
        seconds = Seconds()
        local.compute(replica, digest, seconds)
        own, now = local.signed(), int(replica.round)
        for exchange in range(now, now + self.programs.exchanges):
            if self._topology(exchange) is self._reduce:
                self._reduce.rehearse(replica, exchange)
        if self._topology(now) is self._gather:
            nobody = Quorum((), now, digest, ())
            frames = {worker: one.room[: self.programs.frame] for worker, one in own.items()}
            came = Messages(Call(nobody, {}, replica, seconds), frames)
            self._gather.finish(replica, digest, came)
        local.rehearse(replica)

    # --- peers ------------------------------------------------------------------------------------

    def _take_over(self, quorum: Quorum) -> tuple[Replica, Digest]:
        layout = self.programs.replica_layout
        body = np.frombuffer(self.engine.heal(quorum), np.uint8)
        if body.size != layout.size:
            raise Interrupted(
                f"a state of {body.size} bytes came where {layout.size} were expected."
            )
        aligned = new_frame(body.size)
        aligned[:] = body
        replica = jax.tree.map(jnp.array, layout.read(aligned))
        digest = self.programs.digest(replica)
        if digest != quorum.digest:
            raise Interrupted("the state that came is not the one the quorum follows.")
        self._notes.append(f"took over the state of round {self.done(replica)}")
        if self._afresh:
            self._notes.append("no checkpoint: the local optimizer and its residual start afresh")
        return replica, self._hold(digest, replica)

    def _farewell(self, replica: Replica, digest: Digest) -> None:
        """Stay until all peers hold the final state: one may have missed the last round."""
        quorum = None
        while quorum is None or set(quorum.sources) != set(quorum.workers):
            try:
                quorum = self.engine.quorum(int(replica.round), digest)
            except LaconicError:  # nobody left to ask
                return
            if quorum.digest != digest:
                return

    def _hold(self, digest: Digest, replica: Replica, kept: int = KEPT) -> Digest:
        self._held = dict([*self._held.items(), (digest, replica)][-kept:])
        return digest

    def _snapshot(self, round: int, digest: Digest) -> Frame | None:
        replica = self._held.get(digest)
        if replica is None:
            return None
        body = new_frame(self.programs.replica_layout.size)
        self.programs.replica_layout.write(body, replica)
        return body

    # --- disk -------------------------------------------------------------------------------------

    def _restore(self) -> tuple[Replica, LocalWorkers]:
        replica, clients = self.programs.start()
        if self.path is not None and self.path.exists():
            (replica, clients), _ = checkpoint.load(self.path, (replica, clients))
            self._notes.append(f"resumed after round {self.done(replica)} from {self.path.name}")
        else:
            self._afresh = bool(jax.tree.leaves(clients))
        given: Any = (self.programs, self.seal, self.engine.mine, clients, self._threads)
        if isinstance(self.programs, FragmentPrograms):
            return replica, FragmentWorkers(*given, last=lambda: self.exchanges)
        return replica, LocalWorkers(*given)

    def _due(self, done: int) -> bool:
        regular = self.every > 0 and done % self.every == 0
        return self.path is not None and (regular or done == self.last)

    def _checkpoint(self, replica: Replica, local: LocalWorkers) -> None:
        done = self.done(replica)
        if self.path is None or not self._due(done):
            return
        about = {"round": done, "run": self.seal.run.hex()}
        try:
            checkpoint.save(self.path, (replica, local.clients), about)
        except LaconicError as error:  # a full disk must not stop training; the last one stays
            self._notes.append(str(error))
