"""Who is in a round and which state they follow, decided from signed cards.

Each process shows a card at every quorum: who it is, which state it holds, where it can be reached.
The Lighthouse hands them round and lets in only who holds the token; cards are signed for this run
as well, and every field has a type and bounds, so that a broken worker's card is refused with a
reason. Every rule here depends on the cards alone, so all who see them decide alike.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from laconic.engines.address import LAST_PORT
from laconic.engines.base import Counts, Quorum
from laconic.engines.dead_links import Link, leave_out, link
from laconic.engines.identity import refusal
from laconic.engines.session import CARD_SIZE
from laconic.engines.wire import Seal

STRUCTURE = "structure"
LAST_ID, LAST_TIME, LAST_ROUND = 2**31 - 1, 2**63 - 1, 2**31 - 1
DIGEST = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[\w.-]{0,128}")
ADDRESS = re.compile(r"(?:[\w.-]{1,255}|\[[0-9a-fA-F:.%\w]{2,64}\]):([0-9]{1,5})")
STRANGER = "a card without the run's signature"


@dataclass(frozen=True)
class Card:
    """What a process says of itself.

    worker: its stable id · born: when it started, in ns; a restarted worker replaces an older one
    turn: how often it has shown a card · round, digest: the state it holds
    group: the connection it has, "" if none · structure: a hash of what it runs
    links, state: addresses to link with it at and to fetch its state from
    awaits: the workers it waits for before going on
    least: how many workers a round needs · cut: workers it cannot reach, each with its `born`
    """

    worker: int
    born: int
    turn: int
    round: int
    digest: str
    group: str
    structure: str
    links: str
    state: str
    awaits: tuple[int, ...] = ()
    least: int = 1
    cut: tuple[tuple[int, int], ...] = ()

    def show(self, seal: Seal) -> str:
        """The card as text, signed for this run."""
        text = json.dumps(asdict(self), sort_keys=True)
        return json.dumps([text, seal.sign(text.encode()).hex()])

    @classmethod
    def read(cls, seal: Seal, text: str) -> "tuple[Card | None, str]":
        """The card in a text, or None and what is wrong with it."""
        try:
            if len(text) > CARD_SIZE:
                return None, STRANGER
            body, signature = json.loads(text)
            if not seal.verify(bytes.fromhex(signature), body.encode()):
                return None, STRANGER
            fields = json.loads(body)
            lists = {"awaits": tuple(fields["awaits"]), "cut": _pairs(fields["cut"])}
            card = cls(**(fields | lists))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None, STRANGER
        wrong = card.fault()
        return (None, f"a card with an impossible {wrong}") if wrong else (card, "")

    def fault(self) -> str:
        """The first field whose value is none that a worker can have; "" if there is none."""
        checks = {
            "worker": _whole(self.worker, LAST_ID),
            "born": _whole(self.born, LAST_TIME),
            "turn": _whole(self.turn, LAST_TIME),
            "round": _whole(self.round, LAST_ROUND),
            "digest": _matches(DIGEST, self.digest),
            "group": _matches(NAME, self.group),
            "structure": _matches(NAME, self.structure),
            "links": self.links == "" or is_address(self.links),
            "state": self.state == "" or is_address(self.state),
            "awaits": all(_whole(worker, LAST_ID) for worker in self.awaits),
            "least": type(self.least) is int,
            "cut": all(_whole(w, LAST_ID) and _whole(born, LAST_TIME) for w, born in self.cut),
        }
        return next((name for name, good in checks.items() if not good), "")


def _whole(value: Any, last: int) -> bool:
    return type(value) is int and 0 <= value <= last


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_address(value: Any) -> bool:
    """Whether it is HOST:PORT with a port that one can listen at."""
    found = ADDRESS.fullmatch(value) if isinstance(value, str) and value.isascii() else None
    return found is not None and 0 < int(found[1]) <= LAST_PORT


def _pairs(found: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((worker, born) for worker, born in found)


class Plan(NamedTuple):
    """The cards by worker id, the quorum they make, and the key of the group that connects them.

    cards: of the workers that take part · fresh: whether their group must be formed anew
    ready: whether they may go on · present: all whose cards are there
    awaited: workers that are waited for and not there · least: how many workers a round needs
    down: links that are down · left: the workers left out because of them
    """

    cards: tuple[Card, ...]
    quorum: Quorum
    group: str
    fresh: bool
    ready: bool
    present: tuple[int, ...]
    awaited: tuple[int, ...]
    least: int
    down: tuple[Link, ...]
    left: tuple[int, ...]


def accept(
    seal: Seal,
    texts: Iterable[str],
    slots: int,
    structure: str,
    counts: Counts,
    last: int = LAST_ROUND,
) -> tuple[dict[int, Card], list[Card]]:
    """The newest valid card of each worker id, and the cards of workers that run another task; all
    but the valid ones are refused and counted. `last` is the number of rounds there are."""
    members: dict[int, Card] = {}
    others: list[Card] = []
    for text in texts:
        card, wrong = Card.read(seal, text)
        if card is None:
            counts.refuse(wrong)
        elif card.worker >= slots or any(worker >= slots for worker in card.awaits):
            counts.refuse(f"worker id {max(card.worker, *card.awaits, 0)} of a run with {slots}")
        elif not 1 <= card.least <= slots:
            counts.refuse(f"worker {card.worker} wants {card.least} of {slots} workers in a round")
        elif card.round > last:
            counts.refuse(f"worker {card.worker} with a round after the last")
        elif card.structure != structure:
            counts.refuse(f"worker {card.worker} runs another task or method")
            others.append(card)
        elif _age(card) > _age(members.get(card.worker)):
            members[card.worker] = card
    return members, others


def misfit(members: dict[int, Card], others: list[Card]) -> str | None:
    """What to do about it if those who agree with us are fewer than those who differ; in a tie,
    the side that came last is wrong. None if we may stay."""
    if not others or len(members) > len(others):
        return None
    first = lambda cards: min(card.born for card in cards)
    if len(members) == len(others) and first(members.values()) < first(others):
        return None
    they = ", ".join(str(w) for w in sorted({card.worker for card in others})[:8])
    return refusal([STRUCTURE], f"the workers that are there ({they})")


def plan(members: dict[int, Card]) -> Plan:
    """Follow the furthest round; there the state that most hold; in a tie, the lowest worker's.

    Nobody goes on with fewer workers than the cards ask for. Between two workers that cannot reach
    each other one is left out, unless too few would stay: then all wait.
    """
    least = max(card.least for card in members.values())
    down = _down(members)
    left = leave_out(down, _sources(members.values())[1])
    if len(members) - len(left) < least:
        left = ()
    staying = {worker: card for worker, card in members.items() if worker not in left}
    cards = tuple(staying[w] for w in sorted(staying))
    (furthest, digest), sources = _sources(cards)
    workers = tuple(card.worker for card in cards)
    quorum = Quorum(workers, furthest, bytes.fromhex(digest), sources)
    groups = {card.group for card in cards}
    group = groups.pop() if len(groups) == 1 else ""
    fresh = not group or not group.startswith(_who(cards))
    if fresh:
        turns = json.dumps([(c.worker, c.born, c.turn) for c in cards])
        group = f"{_who(cards)}-{hashlib.sha256(turns.encode()).hexdigest()[:16]}"
    # workers that are behind make nobody wait
    awaited = {w for card in cards if card.worker in sources for w in card.awaits}
    awaited -= set(members)
    whole = not any(a in staying and b in staying for a, b in down)
    ready = not awaited and len(cards) >= least and whole
    seen = tuple(sorted(members)), tuple(sorted(awaited))
    return Plan(cards, quorum, group, fresh, ready, *seen, least, down, left)


def _sources(cards: Iterable[Card]) -> tuple[tuple[int, str], tuple[int, ...]]:
    """The round and digest of the state to follow, and the workers that hold it."""
    cards = sorted(cards, key=lambda card: card.worker)
    furthest = max(card.round for card in cards)
    there = [card.digest for card in cards if card.round == furthest]
    # the first to reach the top count: cards are in the order of ids
    ((digest, _),) = Counter(there).most_common(1)
    followed = furthest, digest
    return followed, tuple(c.worker for c in cards if (c.round, c.digest) == followed)


def _down(members: dict[int, Card]) -> tuple[Link, ...]:
    """The links that either end says are down; what is said of a process that was restarted since
    does not count."""
    found = {
        link(card.worker, worker)
        for card in members.values()
        for worker, born in card.cut
        if worker in members and members[worker].born == born and worker != card.worker
    }
    return tuple(sorted(found))


def _age(card: Card | None) -> tuple[int, int]:
    return (-1, -1) if card is None else (card.born, card.turn)


def _who(cards: Iterable[Card]) -> str:
    return hashlib.sha256(json.dumps([(c.worker, c.born) for c in cards]).encode()).hexdigest()[:16]
