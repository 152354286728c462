"""Who is left out when links are down, against trying every set of workers."""

import itertools

import numpy as np
import pytest

from laconic.engines.dead_links import leave_out


def by_hand(links, workers, holders):
    """The answer by brute force over all sets of workers, in the rule's own words."""
    best = None
    for bits in itertools.product([False, True], repeat=workers):
        out = [w for w in range(workers) if bits[w]]
        if any(not bits[a] and not bits[b] for a, b in links):
            continue
        key = (len(out), set(holders) <= set(out), sorted(-w for w in out))
        if best is None or key < best[0]:
            best = key, tuple(out)
    return best[1]


@pytest.mark.parametrize("seed", range(40))
def test_the_fewest_are_left_out_then_the_highest(seed):
    random = np.random.default_rng(seed)
    workers = int(random.integers(2, 8))
    pairs = list(itertools.combinations(range(workers), 2))
    links = [
        pairs[i] for i in np.flatnonzero(random.random(len(pairs)) < random.choice([0.1, 0.4]))
    ]
    holders = [w for w in range(workers) if random.random() < 0.4] or [0]
    assert leave_out(links, holders) == by_hand(links, workers, holders)


def test_the_order_in_which_links_are_told_does_not_matter():
    links = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert {leave_out(order, [0]) for order in itertools.permutations(links)} == {(1, 3)}


def test_whole_links_leave_nobody_out():
    assert leave_out([], [0, 1]) == ()


def test_a_network_in_pieces_is_decided_too():
    """64 workers in two halves that do not see each other, and one that accuses everybody."""
    halves = [(a, b) for a in range(32) for b in range(32, 64)]
    assert leave_out(halves, range(64)) == tuple(range(32, 64))
    star = [(min(7, w), max(7, w)) for w in range(64) if w != 7]
    assert leave_out(star, range(64)) == (7,)
