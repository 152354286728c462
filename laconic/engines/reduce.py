"""An exchange in which nobody gets every message: worker j averages everyone's piece j and sends
its mean to all. About 8 bytes a parameter are sent by each worker, however many there are.

1. Everyone sends all others its card (`pieces`), and each its piece. Who holds the state that is
   followed owns a piece; of the pieces of those who are not there the others own more.
2. Each owner says which cards and pieces it finds bad: wrong bytes, or sums other than the card's.
   What one of them finds bad is left out of all pieces.
3. The guard judges what is left by the cards alone, so all judge alike. Each owner averages its
   piece of the messages that count, in the order of workers, and sends it to all, signed.
4. Everyone checks every mean against the cards: no longer than the mean of the norms, and with the
   mean of the checksums.

Whatever fails after the first step (an owner that finds fault with most, a mean that does not fit)
interrupts the exchange, and the round is gathered again: the card of who found it asks for whole
messages, and then all gather all of them. A death interrupts it too, and it begins anew.
"""

import hmac
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from laconic.engines import guard
from laconic.engines.averaging import Averaging, Judgement, words_of
from laconic.engines.base import Digest, DirectEngine, Interrupted
from laconic.engines.fragments import FragmentPrograms
from laconic.engines.gather import (
    AllGather,
    Call,
    Finished,
    Messages,
    verdicts_of,
)
from laconic.engines.guard import CODE, Admitted
from laconic.engines.local_workers import Signed
from laconic.engines.pieces import (
    BROKEN,
    CARD,
    NOTHING,
    TRUST,
    WHOLE,
    Facts,
    Verdict,
    digest_of,
    sign_mean,
)
from laconic.engines.replica import Programs, Replica
from laconic.engines.wire import (
    HEADER,
    MAC,
    SIGNED,
    WORD,
    Seal,
    header_of,
    new_frame,
    open_header,
)


class Plan(NamedTuple):
    """Who owns which pieces in an exchange; `about` names it in all that is signed."""

    now: int
    workers: tuple[int, ...]
    sources: tuple[int, ...]
    owner: tuple[int, ...]  # of each piece
    about: bytes

    def owned(self, worker: int) -> list[int]:
        """The pieces of a worker."""
        return [piece for piece, owner in enumerate(self.owner) if owner == worker]


class Reduced(NamedTuple):
    """What an exchange brought: what came of each worker's card, the mean pieces [K, size] and
    their signatures, and the judgement, which a process that is behind cannot make yet."""

    call: Call
    plan: Plan
    admitted: list[Admitted]
    facts: list[Facts]
    means: np.ndarray
    signatures: np.ndarray
    judgement: Judgement | None


@dataclass
class ReduceScatter:
    """Exchanges over an engine, of messages under a seal; `whole` makes those in which they travel
    whole."""

    programs: Programs | FragmentPrograms
    engine: DirectEngine
    seal: Seal
    whole: AllGather
    _rooms: dict[int, np.ndarray] = field(default_factory=dict)
    _averaging: dict[int, Averaging] = field(default_factory=dict)
    _doubted: int = -1  # the exchange that did not come out right

    def rehearse(self, replica: Replica, exchange: int) -> None:
        """Compile what an exchange needs; nothing is sent."""
        programs = self.programs.at(exchange)
        K, none = programs.K, Admitted(CODE["absent"])
        room = self._room(programs, K)
        room[:] = 0
        jax.block_until_ready(programs.seen(self.seal.fold_key, words_of(room[:K])))
        jax.block_until_ready(programs.seen(self.seal.fold_key, words_of(room[:1])))
        averaging, facts = self._of(programs), [programs.card.empty()] * K
        judgement = averaging.judge(replica, [none] * K, facts)
        jax.block_until_ready(averaging.take(replica, room[:K], facts, judgement))

    def collect(self, call: Call) -> Reduced | Messages:
        """The mean pieces, or everyone's message if somebody asks for those; raises
        `Interrupted`."""
        quorum, me, K = call.quorum, self.engine.mine[0], self.engine.slots
        n = len(quorum.sources)
        owner = tuple(quorum.sources[piece % n] for piece in range(K))
        about = repr((quorum.round, quorum.workers, quorum.sources)).encode() + quorum.digest
        plan = Plan(quorum.round, quorum.workers, quorum.sources, owner, about)
        programs = self.programs.at(plan.now)
        room = self._room(programs, max(K, len(plan.owned(me)) * n))
        cards = self._hand_out(call, plan, programs, room)
        with call.seconds.spent("check"):
            admitted, facts = self._admit(plan, programs, cards)
        if any(one.header is not None and one.header.flags & WHOLE for one in admitted):
            return self.whole.collect(call)
        with call.seconds.spent("check"):
            bad = self._faults(plan, programs, room, admitted, facts)
        admitted = self._agree(call, plan, admitted, bad)
        judgement, own = None, np.zeros((0, programs.cut.size), np.float32)
        if call.replica is not None:
            with call.seconds.spent("check"):
                judgement = self._of(programs).judge(call.replica, admitted, facts)
            with call.seconds.spent("outer"):
                own = self._average(plan, room, judgement.weights_K)
        signatures = self._hand_round(call, plan, programs, room, own)
        return Reduced(call, plan, admitted, facts, room[:K], signatures, judgement)

    def finish(self, replica: Replica, origin: Digest, came: Reduced | Messages) -> Finished:
        """The state after the outer step on the mean, and the verdicts on all messages; raises
        `Interrupted` if a mean is wrong."""
        if isinstance(came, Messages):
            return self.whole.finish(replica, origin, came)
        programs, seconds = self.programs.at(came.plan.now), came.call.seconds
        averaging = self._of(programs)
        with seconds.spent("check"):
            judgement = came.judgement or averaging.judge(replica, came.admitted, came.facts)
            self._check(programs, came, judgement.weights_K)
        with seconds.spent("outer"):
            given = came.means, came.facts, judgement
            replica = jax.block_until_ready(averaging.take(replica, *given))
        norms = {k: float(one.norm) for k, one in enumerate(came.facts)}
        return replica, verdicts_of(judgement.judged, norms, came.admitted)

    # --- the steps of an exchange -----------------------------------------------------------------

    def _hand_out(
        self, call: Call, plan: Plan, programs: Programs, room: np.ndarray
    ) -> dict[int, np.ndarray]:
        """Cards to all and pieces to their owners → the cards; others' pieces are in the room."""
        me, n = self.engine.mine[0], len(plan.sources)
        mine, own = plan.owned(me), programs.pieces(call.own[me].room)
        with call.seconds.spent("check"):
            card = self._card(plan, programs, call.own[me])
        rows = room[: len(mine) * n].reshape(len(mine), n, programs.cut.size)
        cards = {w: new_frame(programs.card.size) for w in plan.workers if w != me}
        sends: dict[int, Any] = {w: [card] for w in cards}
        into: dict[int, Any] = {w: [one] for w, one in cards.items()}
        for s, worker in enumerate(plan.sources):
            if me in plan.sources and worker != me:
                sends[worker] += [own[piece] for piece in plan.owned(worker)]
                into[worker] += [rows[i, s] for i in range(len(mine))]
        with call.seconds.spent("gather"):
            self.engine.exchange(sends, into)
        for i, piece in enumerate(mine):
            rows[i, plan.sources.index(me)] = own[piece].view(np.float32)
        return cards | {me: card}

    def _card(self, plan: Plan, programs: Programs, own: Signed) -> np.ndarray:
        """This worker's card; from a room whose header is not signed."""
        assert own.facts is not None
        header = header_of(own.room)
        flags = header.flags | CARD | (WHOLE if plan.now == self._doubted else 0)
        if not np.all(np.isfinite(own.facts.squares)):
            numbers = programs.pieces(own.room).view(np.float32)
            flags |= 0 if np.all(np.isfinite(numbers)) else BROKEN
        return programs.card.write(self.seal, header._replace(flags=flags), own.facts)

    def _admit(
        self, plan: Plan, programs: Programs, cards: dict[int, np.ndarray]
    ) -> tuple[list[Admitted], list[Facts]]:
        """The verdicts on the bytes of K cards, and what they say."""
        admitted, facts, layout = [], [], programs.layout
        origin = plan.about[-32:]
        for worker in range(self.engine.slots):
            one, said = Admitted(CODE["absent"]), programs.card.empty()
            if worker in cards:
                card = cards[worker]
                signed = card[:SIGNED], card[HEADER:]
                header, reason = open_header(self.seal, card, layout.size, *signed)
                one = guard.judge_header(layout, header, reason, worker, plan.now, origin)
                if worker not in plan.sources:
                    one = one._replace(code=CODE["absent"])
                elif one.code == CODE["ok"]:
                    said = programs.card.read(card)
                    one = one if said.sound else one._replace(code=CODE["piece"])
            admitted.append(one)
            facts.append(said)
        return admitted, facts

    def _faults(
        self,
        plan: Plan,
        programs: Programs,
        room: np.ndarray,
        admitted: list[Admitted],
        facts: list[Facts],
    ) -> frozenset[int]:
        """The workers whose card or piece is bad, as this owner sees it."""
        n, K, bad = len(plan.sources), self.engine.slots, set()
        mine = plan.owned(self.engine.mine[0])
        for start in range(0, len(mine) * n, K):  # as many at a time as were compiled for
            rows = words_of(room[start : start + K])
            seen = jax.device_get(programs.seen(self.seal.fold_key, rows))
            for row in range(start, min(start + K, len(mine) * n)):
                piece, worker = mine[row // n], plan.sources[row % n]
                sums = float(seen.squares[row - start]), float(seen.checks[row - start])
                found = seen.folds[row - start], *sums
                good = admitted[worker].code == CODE["ok"]
                if not (good and self._fits(facts[worker], piece, *found)):
                    bad.add(worker)
        return frozenset(bad)

    def _fits(
        self, said: Facts, piece: int, folded: np.ndarray, square: float, check: float
    ) -> bool:
        """Whether a piece so measured is the one that its sender's card names."""
        if not np.array_equal(digest_of(self.seal, folded), said.digests[piece]):
            return False
        claimed, sum_claimed = float(said.squares[piece]), float(said.checks[piece])
        if not math.isfinite(square) or not math.isfinite(claimed):
            return math.isfinite(square) == math.isfinite(claimed)  # the guard leaves it out
        slack = TRUST * math.sqrt(square) + NOTHING
        near = abs(square - claimed) <= TRUST * square + NOTHING**2
        return near and abs(check - sum_claimed) <= slack

    def _agree(
        self, call: Call, plan: Plan, admitted: list[Admitted], bad: frozenset[int]
    ) -> list[Admitted]:
        """The verdicts that all owners have come to together."""
        me, K = self.engine.mine[0], self.engine.slots
        size, others = Verdict.size(K), [w for w in plan.workers if w != me]
        said = {w: np.zeros(size, np.uint8) for w in others if w in plan.sources}
        sends = {}
        if me in plan.sources:
            own = Verdict(bad).write(self.seal, plan.about, me, K)
            sends = dict.fromkeys(others, (own,))
        with call.seconds.spent("gather"):
            self.engine.exchange(sends, {w: (room,) for w, room in said.items()})
        found = set(bad)
        for owner, text in said.items():
            verdict = Verdict.read(self.seal, plan.about, owner, K, text)
            if verdict is None:
                self._doubt(plan, f"what worker {owner} says of the others' pieces is not signed")
            elif len(verdict.bad) > len(plan.sources) / 2:
                self._doubt(plan, f"worker {owner} finds fault with most pieces")
            else:
                found |= verdict.bad
        if len(bad) > len(plan.sources) / 2:
            self._doubt(plan, "this worker finds fault with most pieces")
        fault = lambda one: one._replace(code=CODE["piece"]) if one.code == CODE["ok"] else one
        return [fault(one) if k in found else one for k, one in enumerate(admitted)]

    def _average(self, plan: Plan, room: np.ndarray, weights_K: np.ndarray) -> np.ndarray:
        """The means of this owner's pieces, of one after the other in the order of workers."""
        n, total = len(plan.sources), np.sum(weights_K, dtype=np.float32)
        shares = weights_K / (total if total > 0 else np.float32(1))
        mine = plan.owned(self.engine.mine[0])
        means = np.zeros((len(mine), room.shape[1]), np.float32)
        scratch = np.empty(room.shape[1], np.float32)
        for i in range(len(mine)):
            for s, worker in enumerate(plan.sources):
                if shares[worker] > 0:
                    means[i] += np.multiply(room[i * n + s], shares[worker], out=scratch)
        return means

    def _hand_round(
        self, call: Call, plan: Plan, programs: Programs, room: np.ndarray, own: np.ndarray
    ) -> np.ndarray:
        """Each owner's mean pieces to all, into the room → their signatures [K, MAC]."""
        me, mine = self.engine.mine[0], plan.owned(self.engine.mine[0])
        signatures = np.zeros((self.engine.slots, MAC), np.uint8)
        with call.seconds.spent("check"):
            for piece, mean in zip(mine, own, strict=bool(len(own))):
                folded = np.asarray(
                    programs.seen(self.seal.fold_key, words_of(mean[None])).folds[0]
                )
                signature = sign_mean(self.seal, plan.about, piece, folded)
                signatures[piece] = np.frombuffer(signature, np.uint8)
        parts = [part for i, piece in enumerate(mine) for part in (own[i], signatures[piece])]
        others = [w for w in plan.workers if w != me]
        into: dict[int, list[np.ndarray]] = {w: [] for w in others if w in plan.sources}
        for piece, worker in enumerate(plan.owner):
            if worker != me:
                into[worker] += [room[piece], signatures[piece]]
        with call.seconds.spent("gather"):
            self.engine.exchange(dict.fromkeys(others, parts) if mine else {}, into)
        room[mine] = own
        return signatures

    def _check(self, programs: Programs, came: Reduced, weights_K: np.ndarray) -> None:
        """Whether each mean is its owner's, and what the cards say that it must be."""
        plan, total = came.plan, np.sum(weights_K, dtype=np.float64)
        counted = [k for k, weight in enumerate(weights_K) if weight > 0]
        shares = weights_K[counted] / (total if total > 0 else 1.0)
        stacked = lambda rows: np.array(rows, np.float64).reshape(len(counted), programs.K)
        norms = shares @ np.sqrt(stacked([came.facts[k].squares for k in counted]))
        checks = shares @ stacked([came.facts[k].checks for k in counted])
        seen = jax.device_get(programs.seen(self.seal.fold_key, words_of(came.means)))
        for piece, owner in enumerate(plan.owner):
            mean = float(seen.squares[piece]), float(seen.checks[piece])
            signed = sign_mean(self.seal, plan.about, piece, seen.folds[piece])
            short = math.sqrt(mean[0]) <= (1 + TRUST) * norms[piece] + NOTHING
            right = abs(mean[1] - checks[piece]) <= TRUST * norms[piece] + NOTHING
            if not hmac.compare_digest(signed, came.signatures[piece].tobytes()):
                self._doubt(plan, f"the mean of piece {piece} is not signed by worker {owner}")
            if not (short and right):
                self._doubt(plan, f"worker {owner} sent a wrong mean of piece {piece}")

    def _room(self, programs: Programs, rows: int) -> np.ndarray:
        """Where pieces come, and then their means: so many rows at least."""
        size, K = programs.cut.size, programs.K
        rows = -(-rows // K) * K
        if size not in self._rooms or len(self._rooms[size]) < rows:
            self._rooms[size] = new_frame(rows * size * WORD).view(np.float32).reshape(rows, size)
        return self._rooms[size]

    def _of(self, programs: Programs) -> Averaging:
        """What is compiled for these programs."""
        if id(programs) not in self._averaging:
            self._averaging[id(programs)] = Averaging(programs)
        return self._averaging[id(programs)]

    def _doubt(self, plan: Plan, why: str) -> NoReturn:
        """Break the exchange off, and ask for whole messages when it is made again."""
        self._doubted = plan.now
        raise Interrupted(f"{why}; whole messages are gathered.")
