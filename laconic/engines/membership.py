"""Who is in a round and which state they follow, decided from signed cards.

Each process shows a card at every quorum: who it is, which state it holds, where it can be reached.
The cards travel with the membership service, which is not ours and checks nothing, so they are
signed; a card without the token is ignored and counted. A worker whose card differs from most
others' at its start is told what differs. Every rule here depends on the cards alone,
so all who see them decide alike.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from laconic.engines.base import Counts, Quorum
from laconic.engines.dead_links import Link, leave_out, link
from laconic.engines.wire import Seal

LONGEST = 4096  # characters of a card
TOKEN, SETTINGS, STRUCTURE = "token", "settings", "structure"  # in what a card may differ from ours
WHAT_TO_DO = {
    TOKEN: "has another token than {}: give it theirs, in LACONIC_TOKEN or with --token-file",
    SETTINGS: "was given other settings than {}: give all of them the same words after --",
    STRUCTURE: "runs another task or method than {}: install the same laconic and the same data",
}


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
        """The card as text, signed for this run and with the token alone."""
        text = json.dumps(asdict(self), sort_keys=True)
        signatures = [one.sign(text.encode()).hex() for one in (seal, seal.any_run)]
        return json.dumps([text, *signatures])

    @classmethod
    def read(cls, seal: Seal, text: str) -> "tuple[Card | None, str]":
        """The card in a text, if it is one, and what is wrong with its signature, "" if nothing.

        What a card with another token says may be a lie.
        """
        try:
            if len(text) > LONGEST:
                return None, TOKEN
            body, for_run, for_any = json.loads(text)
            fields = json.loads(body)
            lists = {"awaits": tuple(fields["awaits"]), "cut": _pairs(fields["cut"])}
            card = cls(**(fields | lists))
            if not all(type(x) is int for x in (card.worker, card.born, card.least)):
                return None, TOKEN
            if seal.verify(bytes.fromhex(for_run), body.encode()):
                return card, ""
            known = seal.any_run.verify(bytes.fromhex(for_any), body.encode())
            return card, SETTINGS if known else TOKEN
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None, TOKEN


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
    seal: Seal, texts: Iterable[str], slots: int, structure: str, counts: Counts
) -> tuple[dict[int, Card], list[tuple[str, Card]]]:
    """The newest valid card of each worker id, and the cards of workers that differ, with the kind
    of difference; all but the valid ones are refused and counted."""
    members: dict[int, Card] = {}
    others: list[tuple[str, Card]] = []
    for text in texts:
        card, wrong = Card.read(seal, text)
        if card is not None and not wrong and card.structure != structure:
            wrong = STRUCTURE
        if card is None or wrong == TOKEN:
            said = "" if card is None else f"; it says it is worker {card.worker}"
            counts.refuse("a stranger without the token", f"{said}. Give all workers one token.")
        elif not 0 <= card.worker < slots:
            counts.refuse(f"worker id {card.worker} of a run with {slots}")
        elif not 1 <= card.least <= slots:
            counts.refuse(f"worker {card.worker} wants {card.least} of {slots} workers in a round")
        elif wrong == SETTINGS:
            counts.refuse(f"worker {card.worker} has other settings after --")
        elif wrong == STRUCTURE:
            counts.refuse(f"worker {card.worker} runs another task or method")
        elif _age(card) > _age(members.get(card.worker)):
            members[card.worker] = card
        if card is not None and wrong:
            others.append((wrong, card))
    return members, others


def misfit(members: dict[int, Card], others: list[tuple[str, Card]]) -> str | None:
    """What to do about it if those who agree with us are fewer than those who differ; in a tie,
    the side that came last is wrong. None if we may stay."""
    if not others or len(members) > len(others):
        return None
    first = lambda cards: min(card.born for card in cards)
    if len(members) == len(others) and first(members.values()) < first(c for _, c in others):
        return None
    kinds = Counter(kind for kind, _ in others)
    they = ", ".join(str(w) for w in sorted({card.worker for _, card in others})[:8])
    return WHAT_TO_DO[kinds.most_common(1)[0][0]].format(f"the workers that are there ({they})")


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
