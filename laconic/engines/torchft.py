"""The fault-tolerant engine: torchft's Lighthouse and manager say who is alive, gloo carries the
bytes.

torchft's lower layer is used, not its `Manager` class: that one listens on every interface,
unpickles checkpoints, and would let whoever reaches the Lighthouse into the collective. Here each
process shows a signed card at every quorum (see `membership`), only those with the token are
connected, and what is fetched from a peer is checked (see `transfer`).

A death shows in two ways: the connection breaks, which interrupts a gather at once, and heartbeats
stop, after which the Lighthouse forms the next quorum without it. Either way the round is gathered
again from the same messages.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from laconic.engines import membership
from laconic.engines.address import reached_at, split_address, with_port
from laconic.engines.base import Counts, Digest, Frame, Interrupted, Quorum, Snapshot
from laconic.engines.gloo import Channel
from laconic.engines.membership import Card, Plan
from laconic.engines.presence import PAUSE, Presence
from laconic.engines.transfer import StateServer, answers, fetch_state
from laconic.engines.wire import Seal
from laconic.errors import LaconicError, require_positive


@dataclass(frozen=True)
class Timeouts:
    """Seconds.

    gather: for everyone's bytes to arrive once all agreed · heal: for a state to arrive heartbeat:
    between signs of life; the Lighthouse decides how many may be missed ask: for the answer to one
    question about who is there; not shorter than workers usually wait for each other patience: to
    wait for all workers at the very start grace: for old peers that do not answer, after a
    Lighthouse was lost lost: without any quorum before giving up; longer than the local steps of
    the slowest worker
    """

    gather: float = 30.0
    heal: float = 60.0
    heartbeat: float = 0.1
    ask: float = 600.0
    patience: float = 60.0
    grace: float = 2.0
    lost: float = 3600.0

    def __post_init__(self) -> None:
        require_positive(**vars(self))


class TorchFTEngine:
    """One worker of K, joined to the others through the Lighthouse at `lighthouse` ("host:port")."""

    def __init__(
        self,
        worker: int,
        slots: int,
        lighthouse: str,
        seal: Seal,
        *,
        bind: str = "127.0.0.1",
        host: str = "",
        timeouts: Timeouts = Timeouts(),
    ):
        """Listens on `bind`, the loopback unless asked otherwise; `host` is where others reach it,
        if that differs."""
        if not 0 <= worker < slots:
            raise LaconicError(f"worker ids run from 0 to {slots - 1}, got {worker}.")
        self.slots, self.mine, self.counts = slots, (worker,), Counts(0, 0, {})
        self.worker, self._lighthouse, self._seal, self._timeouts = (
            worker,
            lighthouse,
            seal,
            timeouts,
        )
        self._bind = bind
        self._host = host or reached_at(bind, split_address(lighthouse)[0])
        self._born, self._turn = time.time_ns(), 0
        self._plan: Plan | None = None
        self._awaits: tuple[int, ...] = tuple(range(slots))
        self._closers: list[StateServer | Presence] = []

    def open(self, size: int, structure: bytes, snapshot: Snapshot) -> None:
        """Start to listen and to give signs of life."""
        seconds = self._timeouts
        self._size, self._structure = size, structure.hex()
        self._channel = Channel(self._bind, self._host, seconds.gather, self.slots, size)
        self._state = StateServer(self._seal, self._bind, snapshot, seconds.heal, self.counts)
        self._closers = [self._state]
        name, addresses = (
            f"{self.worker:06d}:{self._born}",
            (self._bind, self._host, self._channel.address),
        )
        self._presence = Presence(
            name, self._lighthouse, *addresses, seconds.heartbeat, seconds.patience
        )
        self._closers.append(self._presence)
        self._await(self._awaits, seconds.patience)

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Show a card, read the others', and decide with them."""
        give_up = time.monotonic() + self._timeouts.lost
        while time.monotonic() < give_up:
            plan = self._ask(round, digest)
            if plan is not None and plan.ready:
                self._plan, self._awaits = plan, ()
                return plan.quorum
            time.sleep(PAUSE)
        raise LaconicError(
            f"worker {self.worker} found no quorum at {self._lighthouse} for "
            f"{self._timeouts.lost:.0f} s. "
            "Check that the Lighthouse runs and that enough workers are there."
        )

    def _ask(self, round: int, digest: Digest) -> Plan | None:
        self._turn += 1
        card = Card(
            worker=self.worker,
            born=self._born,
            turn=self._turn,
            round=round,
            digest=digest.hex(),
            group=self._channel.key,
            structure=self._structure,
            store=self._channel.address,
            state=with_port(self._host, self._state.port),
            awaits=self._still_awaited(),
        )
        seconds, shown = self._timeouts, card.show(self._seal)
        texts = self._presence.ask(round + 1, shown, seconds.ask, seconds.lost)
        if texts is None:
            self._await_peers()
            return None
        members = membership.accept(
            self._seal, texts, self.slots, self._structure, self.counts.refuse
        )
        mine = members.get(self.worker)
        if mine is not None and mine.born > self._born:
            raise LaconicError(
                f"worker {self.worker} was started again elsewhere; this older process steps back."
            )
        if (
            self._presence.replaced
            and self._plan is not None
            and not set(self._plan.quorum.workers) <= set(members)
        ):
            self._await_peers()
            return None
        # Another card than the last one shown is the late answer to a question that timed out.
        return membership.plan(members) if mine is not None and mine.turn == self._turn else None

    def _await_peers(self) -> None:
        """A new Lighthouse knows nobody: without this the first to reach it would go on alone."""
        if self._plan is not None:
            self._await(self._plan.quorum.workers, self._timeouts.grace)

    def _await(self, workers: tuple[int, ...], seconds: float) -> None:
        self._awaits, self._awaits_until = workers, time.monotonic() + seconds

    def _still_awaited(self) -> tuple[int, ...]:
        """All of them for a while; then those who answer when spoken to, who are only slow to find
        the Lighthouse."""
        if self._awaits and time.monotonic() >= self._awaits_until:
            cards, seconds = () if self._plan is None else self._plan.cards, self._timeouts.grace
            reached = {
                c.worker
                for c in cards
                if c.worker != self.worker and answers(self._seal, c.state, seconds)
            }
            self._await(tuple(w for w in self._awaits if w in reached), seconds)
        return self._awaits

    def gather(self, frames: Mapping[int, Frame]) -> dict[int, Frame]:
        """An all-gather of one frame a worker, in the order of worker ids."""
        if self._plan is None:
            raise Interrupted("there is no quorum to gather in.")
        everyone = self._channel.gather(self._plan, self.worker, frames[self.worker])
        others = (len(everyone) - 1) * self._size
        self.counts.sent += others
        self.counts.received += others
        return everyone

    def commit(self, ok: bool, digest: Digest) -> bool:
        """After a failure let go of the connection, which interrupts all who still wait in it."""
        if not ok:
            self._channel.leave()
        return ok

    def heal(self, quorum: Quorum) -> Frame:
        """From one who holds the state; those behind spread over the sources, and try the next if
        one fails."""
        addresses = (
            {} if self._plan is None else {card.worker: card.state for card in self._plan.cards}
        )
        start, reasons = self.worker % len(quorum.sources), []
        for source in (*quorum.sources[start:], *quorum.sources[:start]):
            wanted = addresses[source], quorum.round, quorum.digest
            try:
                return fetch_state(self._seal, *wanted, self._timeouts.heal, self.counts)
            except Interrupted as error:
                reasons.append(str(error))
        raise Interrupted(" ".join(reasons))

    def close(self) -> None:
        """Leave: no more signs of life, no more listening."""
        if self._closers:
            self._channel.leave()
        for one in self._closers:
            one.close()
        self._closers = []
