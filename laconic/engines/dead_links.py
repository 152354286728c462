"""Links that are down between workers that both reach the Lighthouse: who is left out.

Two workers that cannot reach each other cannot be in one round. Somebody must stay out, and all
must agree on who. `leave_out` decides it from what the cards say, alike for all who see them.
"""

import itertools
from collections.abc import Collection, Iterable

MOST = 20_000  # choices looked at; beyond them whoever lacks most links goes first

Link = tuple[int, int]  # of two workers, the lower id first


def link(one: int, other: int) -> Link:
    """The link between two workers."""
    return min(one, other), max(one, other)


def leave_out(links: Collection[Link], holders: Iterable[int]) -> tuple[int, ...]:
    """The fewest workers without whom none of these links is needed, ascending.

    Of several such choices one that keeps a worker of `holders`, which hold the state to follow;
    then the one that leaves out the highest ids.
    """
    ends = sorted({end for ends in links for end in ends}, reverse=True)
    kept, looked = set(holders), 0
    for size in range(len(ends)):
        fitting = []
        for choice in itertools.combinations(ends, size):
            looked += 1
            if looked > MOST:
                return _roughly(links)
            if all(a in choice or b in choice for a, b in links):
                fitting.append(choice)
        if fitting:
            # the first is that of the highest ids
            best = next((c for c in fitting if not kept <= set(c)), fitting[0])
            return tuple(sorted(best))
    return ()


def _roughly(links: Collection[Link]) -> tuple[int, ...]:
    """The same by always taking out the worker that lacks most links, the highest id in a tie."""
    left, out = set(links), []
    while left:
        ends = [end for pair in left for end in pair]
        worst = max(set(ends), key=lambda end: (ends.count(end), end))
        out.append(worst)
        left = {pair for pair in left if worst not in pair}
    return tuple(sorted(out))
