"""Who is in a run just now, and when a quorum is complete.

A member is a process whose connection to the Lighthouse lives. It asks by showing a card; all who
asked get everyone's cards as soon as the last of those that are there has asked. What a card says
is the members' own business. Only the Lighthouse decides who is there, so all of them are told the
same.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Guest:
    """A member: its worker id and birth, the card it asks with, if it does, and since when.

    tell: is called with everyone's cards · leave: is called when a younger process takes its place
    """

    worker: int
    born: int
    tell: Callable[[list[str]], None]
    leave: Callable[[], None]
    card: str | None = None
    asked_at: float = 0.0


class Room:
    """The members of one run."""

    def __init__(
        self,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        grace: float | None = None,
        least: int = 1,
    ):
        """`patience` seconds for those that are there but do not ask; `grace` seconds, if any, once
        `least` have asked."""
        self.guests: dict[int, Guest] = {}
        self._last: set[tuple[int, int]] = set()  # worker and birth of the last quorum's members
        self._patience = patience
        self._clock = clock
        self._grace, self._least = grace, least

    def enter(self, guest: Guest) -> bool:
        """Take a member in; False if a younger process of the same worker is there."""
        older = self.guests.get(guest.worker)
        if older is not None and older.born > guest.born:
            return False
        self.guests[guest.worker] = guest
        if older is not None:
            older.leave()
        return True

    def go(self, guest: Guest) -> None:
        """It is not there any more; the others do not wait for it."""
        if self.guests.get(guest.worker) is guest:
            del self.guests[guest.worker]
        self.look()

    def ask(self, guest: Guest, card: str) -> None:
        """It shows a card and waits for everyone's."""
        if self.guests.get(guest.worker) is not guest:
            return
        guest.card = card
        guest.asked_at = self._clock()
        self.look()

    def look(self) -> None:
        """Tell all who asked, if the quorum is complete."""
        asked = [guest for guest in self.guests.values() if guest.card is not None]
        if not asked or not self._complete(asked):
            return
        asked.sort(key=lambda guest: guest.worker)
        cards = [guest.card or "" for guest in asked]
        self._last = {(guest.worker, guest.born) for guest in asked}
        for guest in asked:
            guest.card = None
            guest.tell(cards)

    def _complete(self, asked: list[Guest]) -> bool:
        """All have asked, or all of the last quorum, or enough have and waited for the rest, or
        most after so much patience."""
        if len(asked) == len(self.guests):
            return True
        if self._last and self._last <= {(guest.worker, guest.born) for guest in asked}:
            return True
        if self._grace is not None and len(asked) >= self._least:
            enough = sorted(guest.asked_at for guest in asked)[self._least - 1]
            if self._clock() - enough >= self._grace:
                return True
        late = self._clock() - min(guest.asked_at for guest in asked) > self._patience
        return late and 2 * len(asked) > len(self.guests)
