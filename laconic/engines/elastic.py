"""The fault-tolerant engine: a Lighthouse says who is alive, links carry the bytes.

Each process shows a signed card at every quorum (see `membership`), only those with the token are
linked (see `links`), and what is fetched from a peer is checked (see `transfer`).

A death shows in three ways: the connection breaks, which interrupts a gather at once; a link stays
silent, which interrupts it a little later; and heartbeats stop, after which the Lighthouse forms
the next quorum without it. Either way the round is gathered again from the same messages, by the
workers that are left if they are enough (`least`). Workers that cannot reach each other say so on
their cards, and one of them is left out until they can.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.engines import membership
from laconic.engines.address import reached_at, split_address, with_port
from laconic.engines.base import (
    Bounds,
    Counts,
    Digest,
    Frame,
    Interrupted,
    Quorum,
    Refused,
    Snapshot,
)
from laconic.engines.links import Links
from laconic.engines.meeting import PAUSE, Caller, LighthouseLink
from laconic.engines.membership import Card, Plan
from laconic.engines.tls import Tls
from laconic.engines.transfer import StateServer, answers, fetch_state
from laconic.engines.waiting import PATIENT, Waiting, late, majority, reason
from laconic.engines.wire import Seal, new_frame
from laconic.errors import LaconicError, require_positive


@dataclass(frozen=True)
class Timeouts:
    """Seconds.

    gather: without any of a round's bytes, from workers that do give signs of life
    silence: without anything from a worker before it is given up
    heal: for a state to arrive
    heartbeat: between signs of life; the Lighthouse decides how many may be missed
    ask: for one answer about who is there; longer than workers usually wait for each other
    patience: to wait for all workers at the very start
    grace: for old peers that do not answer, after a Lighthouse was lost
    rejoin: for the rest of the workers once there are enough, after a restart or a lost Lighthouse
    lost: without any quorum before giving up; longer than the slowest worker's local steps
    """

    gather: float = 30.0
    silence: float = 5.0
    heal: float = 60.0
    heartbeat: float = 0.1
    ask: float = 600.0
    patience: float = 60.0
    grace: float = 2.0
    rejoin: float = 5.0
    lost: float = 3600.0

    def __post_init__(self) -> None:
        require_positive(**vars(self))


class ElasticEngine:
    """One worker of K, which meets the others at the Lighthouse at `lighthouse` ("host:port")."""

    direct = True

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
        yields: bool = False,
        tls: Tls | None = None,
        least: int | None = None,
        again: bool = False,
    ):
        """Listens on `bind`; `host` is where others reach it, if that differs. `yields`: whether it
        ends at its start if most others have another token or other settings. `least`: how many
        workers a round needs, by default a majority; 1: one may go on alone. `again`: whether an
        earlier process was this worker. `tls`: what links are wrapped in."""
        if not 0 <= worker < slots:
            raise LaconicError(f"worker ids run from 0 to {slots - 1}, got {worker}.")
        least = majority(slots) if least is None else least
        if not 1 <= least <= slots:
            raise LaconicError(f"a round needs from 1 to all {slots} workers, got {least}.")
        self.slots = slots
        self.mine = (worker,)
        self.counts = Counts(0, 0, {})
        self.worker = worker
        self._lighthouse = lighthouse
        self._seal = seal
        self._timeouts = timeouts
        self._bind = bind
        self._host = host or reached_at(bind, split_address(lighthouse)[0])
        self._born = time.time_ns()
        self._turn = 0
        self._yields = yields
        self._tls = tls
        self._rooms: dict[int, np.ndarray] = {}  # of the frames of others
        self._seen: dict[int, int] = {}  # when the others started, by their last cards
        self._misfits = 0  # answers in a row that said so
        self._least = least
        self._again = again
        self._waiting = Waiting(
            lambda line: self.counts.tell(line), meanwhile=lambda: self.counts.waits()
        )
        self._plan: Plan | None = None
        self._awaits: tuple[int, ...] = tuple(range(slots))
        self._closers: list[StateServer | LighthouseLink | Links] = []

    def open(
        self, size: int, structure: bytes, snapshot: Snapshot, bounds: Bounds = Bounds()
    ) -> None:
        """Start to listen and to give signs of life."""
        seconds = self._timeouts
        self._bounds = bounds
        self._size = size
        self._structure = structure.hex()
        waits = {"silence": seconds.silence, "timeout": seconds.gather, "tls": self._tls}
        who = (self._seal, self.worker, self.slots)
        self._links = Links(*who, self._bind, self._host, self.counts, **waits)
        self._closers = [self._links]
        serves = (self._seal, self._bind, snapshot, seconds.heal, self.counts, self._tls)
        self._state = StateServer(*serves)
        self._closers.append(self._state)
        caller = Caller(self._lighthouse, self._seal, self.worker, self._born, tls=self._tls)
        self._link = LighthouseLink(
            caller, seconds.heartbeat, seconds.patience, self._waiting.because
        )
        self._closers.append(self._link)
        self._await(self._awaits, seconds.patience)

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Show a card, read the others', and decide with them."""
        give_up = time.monotonic() + self._timeouts.lost
        while time.monotonic() < give_up:
            plan = self._ask(round, digest)
            if plan is not None and plan.ready and self.worker in plan.quorum.workers:
                if plan.present == self.mine and self.slots > 1 and self._begins(round):
                    self._lacks_company(plan)
                self._plan = plan
                self._awaits = ()
                if plan.fresh or plan.group != self._links.key:
                    self._links.begin(plan.group, self._peers(plan))
                self._waiting.over()
                return plan.quorum
            if plan is not None:
                self._wait_for_more(plan, round)
            time.sleep(PAUSE)
        raise LaconicError(
            f"worker {self.worker} found no quorum at {self._lighthouse} for "
            f"{self._timeouts.lost:.0f} s. Check that the Lighthouse runs and that enough workers "
            "are there."
        )

    def _peers(self, plan: Plan) -> dict[int, str]:
        return {card.worker: card.links for card in plan.cards if card.worker != self.worker}

    def _wait_for_more(self, plan: Plan, round: int) -> None:
        """Say why it waits, bound the time, and end what cannot begin."""
        enough = len(plan.quorum.workers) >= plan.least
        if why := reason(plan, self.slots, self.worker):
            self._waiting.because(why)
        elif plan.awaited:
            self._waiting.because(late(plan), PATIENT)
        if enough and not self._begins(round):
            end = time.monotonic() + self._timeouts.rejoin
            self._awaits_longest = min(self._awaits_longest, end)
        if not enough and not self._awaits and self._begins(round):
            self._lacks_company(plan)

    def _begins(self, round: int) -> bool:
        """Whether neither this worker nor an earlier process of it has taken part yet."""
        return self._plan is None and round == 0 and not self._again

    def _lacks_company(self, plan: Plan) -> None:
        """A worker that begins all by itself is not among those it was meant to join."""
        there = ", ".join(str(w) for w in plan.present if w != self.worker)
        found = f"only worker {there}" if there else "none"
        others = ", ".join(f"{n} × {reason}" for reason, n in self.counts.refused.items())
        why = (
            f"those who came were refused ({others}): give all workers the same token and the same "
            "words after --"
            if others
            else "start them, or give them more --patience"
        )
        raise LaconicError(
            f"worker {self.worker} found {found} of the other {self.slots - 1}: {why}."
        )

    def _ask(self, round: int, digest: Digest) -> Plan | None:
        self._turn += 1
        card = Card(
            worker=self.worker,
            born=self._born,
            turn=self._turn,
            round=round,
            digest=digest.hex(),
            group=self._links.key,
            structure=self._structure,
            links=self._links.address,
            state=with_port(self._host, self._state.port),
            awaits=self._still_awaited(),
            least=self._least,
            cut=tuple((w, self._seen[w]) for w in self._links.unreachable if w in self._seen),
        )
        seconds, shown = self._timeouts, card.show(self._seal)
        texts = self._link.ask(shown, seconds.ask, seconds.lost)
        if texts is None:
            self._await_peers()
            return None
        ours = (self._seal, texts, self.slots, self._structure)
        members, others = membership.accept(*ours, self.counts, self._bounds.rounds)
        self._check_fit(members, others)
        self._links.forget({worker: card.links for worker, card in members.items()})
        self._seen = {worker: card.born for worker, card in members.items()}
        mine = members.get(self.worker)
        if mine is not None and mine.born > self._born:
            raise Refused(
                f"worker {self.worker} was started again elsewhere; this older process ends."
            )
        known = set() if self._plan is None else set(self._plan.quorum.workers)
        if self._link.replaced and not known <= set(members):
            self._await_peers()
            return None
        # Another card than the last one shown is the late answer to a question that timed out.
        return membership.plan(members) if mine is not None and mine.turn == self._turn else None

    def _check_fit(self, members: dict[int, Card], others: list[Card]) -> None:
        """End a worker that most others refuse, before its first quorum and at the second sight of
        them: the first may be the question of a process that is gone."""
        starts = self._yields and self._plan is None
        wrong = membership.misfit(members, others) if starts else None
        self._misfits = 0 if wrong is None else self._misfits + 1
        if self._misfits > 1:
            raise Refused(f"worker {self.worker} at {self._lighthouse} {wrong}.")

    def _await_peers(self) -> None:
        """Wait for the old peers: a new Lighthouse knows none, and a worker would go on alone."""
        if self._plan is not None:
            self._await(self._plan.quorum.workers, self._timeouts.grace)

    def _await(self, workers: tuple[int, ...], seconds: float) -> None:
        self._awaits = workers
        self._awaits_until = time.monotonic() + seconds
        self._awaits_longest = math.inf  # until there are enough

    def _still_awaited(self) -> tuple[int, ...]:
        """All of them for a while; then those that answer but have not found the Lighthouse, until
        those that have are enough and have waited for the rest."""
        now = time.monotonic()
        if now >= self._awaits_longest:
            self._awaits = ()
        if self._awaits and now >= self._awaits_until:
            cards = () if self._plan is None else self._plan.cards
            seconds = self._timeouts.grace
            others = [card for card in cards if card.worker != self.worker]
            reached = {c.worker for c in others if answers(self._seal, c.state, seconds, self._tls)}
            self._awaits = tuple(w for w in self._awaits if w in reached)
            self._awaits_until = time.monotonic() + seconds
        return self._awaits

    def gather(self, frames: Mapping[int, Frame], size: int) -> dict[int, Frame]:
        """An all-gather of one frame a worker, in the order of worker ids."""
        if self._plan is None:
            raise Interrupted("there is no quorum to gather in.")
        workers = self._plan.quorum.workers
        own = self._fit(frames[self.worker], size)
        rooms = {w: self._room(w)[:size] for w in workers if w != self.worker}
        self.exchange(dict.fromkeys(rooms, (own,)), {w: (room,) for w, room in rooms.items()})
        return {worker: rooms.get(worker, own) for worker in workers}

    def exchange(
        self, sends: Mapping[int, Sequence[Frame]], into: Mapping[int, Sequence[np.ndarray]]
    ) -> None:
        """To each worker its own message; see `Links`."""
        self._links.ready()
        self._links.exchange(sends, into)

    def _fit(self, frame: Frame, size: int) -> np.ndarray:
        """Exactly so many bytes: others expect no more and no less."""
        array = np.frombuffer(frame, np.uint8)
        if array.size >= size:
            return array[:size]
        fitted = new_frame(size)
        fitted[: array.size] = array
        return fitted

    def _room(self, worker: int) -> np.ndarray:
        """Where a worker's frame goes, in every round."""
        if worker not in self._rooms:
            self._rooms[worker] = new_frame(self._size)
        return self._rooms[worker]

    def commit(self, ok: bool, digest: Digest) -> bool:
        """After a failure let go of the connection, which interrupts all who still wait in it."""
        if not ok:
            self._links.leave()
        return ok

    def heal(self, quorum: Quorum) -> Frame:
        """Fetch the state from a source, each worker from another; if it fails, from the next."""
        cards = () if self._plan is None else self._plan.cards
        addresses = {card.worker: card.state for card in cards}
        start, reasons = self.worker % len(quorum.sources), []
        for source in (*quorum.sources[start:], *quorum.sources[:start]):
            wanted = addresses[source], quorum.round, quorum.digest
            try:
                heal, most = self._timeouts.heal, self._bounds.state
                return fetch_state(self._seal, *wanted, heal, self.counts, most, self._tls)
            except Interrupted as error:
                reasons.append(str(error))
        raise Interrupted(" ".join(reasons))

    def close(self) -> None:
        """Leave: no more signs of life, no more listening."""
        for one in self._closers:
            one.close()
        self._closers = []
