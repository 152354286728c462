"""Who is in a round and which state they follow, decided from signed cards.

Each process shows a card at every quorum: who it is, which state it holds, where it can be reached.
The cards travel with the membership service, which is not ours and checks nothing, so they are
signed; a card without the token is ignored and counted. Every rule here depends on the cards alone,
so all who see them decide alike.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from laconic.engines.base import Quorum
from laconic.engines.wire import Seal

LONGEST = 4096  # characters of a card


@dataclass(frozen=True)
class Card:
    """What a process says of itself.

    worker: its stable id · born: when it started, in ns; a restarted worker replaces an older one
    turn: how often it has shown a card · round, digest: the state it holds
    group: the connection it has, "" if none · structure: a hash of what it runs
    store, state: addresses to form a group at and to fetch its state from
    awaits: the workers it waits for before going on
    """

    worker: int
    born: int
    turn: int
    round: int
    digest: str
    group: str
    structure: str
    store: str
    state: str
    awaits: tuple[int, ...] = ()

    def show(self, seal: Seal) -> str:
        """The card as signed text."""
        text = json.dumps(asdict(self), sort_keys=True)
        return json.dumps([text, seal.sign(text.encode()).hex()])

    @classmethod
    def read(cls, seal: Seal, text: str) -> "Card | None":
        """The card in a text if it was signed with our token, else None."""
        try:
            if len(text) > LONGEST:
                return None
            body, signature = json.loads(text)
            if not seal.verify(bytes.fromhex(signature), body.encode()):
                return None
            fields = json.loads(body)
            return cls(**(fields | {"awaits": tuple(fields["awaits"])}))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class Plan(NamedTuple):
    """The cards by worker id, the quorum they make, and the key of the group that connects them.

    fresh: whether that group must be formed anew · ready: whether no worker is awaited any more
    """

    cards: tuple[Card, ...]
    quorum: Quorum
    group: str
    fresh: bool
    ready: bool


def accept(
    seal: Seal, texts: Iterable[str], slots: int, structure: str, refuse: Callable[[str], None]
) -> dict[int, Card]:
    """The newest valid card of each worker id; the others are refused with a reason."""
    members: dict[int, Card] = {}
    for text in texts:
        card = Card.read(seal, text)
        if card is None:
            refuse("a stranger without the token")
        elif not 0 <= card.worker < slots:
            refuse(f"worker id {card.worker} of a run with {slots}")
        elif card.structure != structure:
            refuse(f"worker {card.worker} runs another task or method")
        elif _age(card) > _age(members.get(card.worker)):
            members[card.worker] = card
    return members


def plan(members: dict[int, Card]) -> Plan:
    """Follow the furthest round; there the state that most hold; in a tie, the lowest worker's."""
    cards = tuple(members[w] for w in sorted(members))
    furthest = max(card.round for card in cards)
    there = [card.digest for card in cards if card.round == furthest]
    # the first to reach the top count: cards are in the order of ids
    ((digest, _),) = Counter(there).most_common(1)
    sources = tuple(c.worker for c in cards if (c.round, c.digest) == (furthest, digest))
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
    return Plan(cards, quorum, group, fresh, awaited <= set(members))


def _age(card: Card | None) -> tuple[int, int]:
    return (-1, -1) if card is None else (card.born, card.turn)


def _who(cards: Iterable[Card]) -> str:
    return hashlib.sha256(json.dumps([(c.worker, c.born) for c in cards]).encode()).hexdigest()[:16]
