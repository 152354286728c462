"""Partitions: Dirichlet marginals against their exact distribution, equal sizes, and no sample used
twice."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from laconic.data.partition import (
    class_counts,
    client_sizes,
    deal,
    deal_by_class,
    draw_counts,
    generator,
)

CLASSES = 10


def partition(alpha, samples=6000, clients=100, seed=0, spread=0.0):
    labels = np.random.default_rng(9).permutation(np.arange(samples) % CLASSES)
    rng = generator(0, seed)
    sizes = client_sizes(samples, clients, spread, rng)
    rows = deal(samples, sizes, rng) if alpha is None else deal_by_class(labels, sizes, alpha, rng)
    return labels, rows, sizes


@pytest.mark.parametrize("alpha", [None, 0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("samples", [6000, 6037], ids=["even", "left over"])
def test_clients_have_one_size_and_no_sample_is_used_twice(alpha, samples):
    _, rows, _ = partition(alpha, samples)
    assert [len(own) for own in rows] == [60] * 100
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) == 6000
    assert used.min() >= 0
    assert used.max() < samples


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_unequal_sizes_are_log_normal_and_use_no_sample_twice(alpha):
    _, rows, sizes = partition(alpha, samples=50_000, clients=1000, spread=0.8)
    assert [len(own) for own in rows] == sizes.tolist()
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) <= 50_000
    assert len(used) > 49_000
    assert sizes.min() >= 1
    assert np.log(sizes).std() == pytest.approx(0.8, rel=0.1)


# e to the power of the last two is infinite.
@pytest.mark.parametrize("spread", [3.0, 1000.0, 1e308])
def test_even_a_wide_spread_leaves_everyone_a_sample(spread):
    for seed in range(5):
        sizes = client_sizes(300, 200, spread, generator(0, seed))
        assert sizes.min() == 1
        assert 250 < sizes.sum() <= 300


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_a_classs_count_is_beta_binomial_while_stock_lasts(alpha):
    """Marginally a client's n samples hold a class as often as BetaBinomial(n, α, 9α) says."""
    labels = np.repeat(np.arange(CLASSES), 40_000)
    n, clients = 20, 2000
    counts = class_counts(
        labels, deal_by_class(labels, np.full(clients, n), alpha, generator(5)), CLASSES
    )
    assert (counts.sum(axis=1) == n).all()
    assert counts.sum(axis=0).max() < 40_000  # nothing ran out
    expected = clients * stats.betabinom(n, alpha, 9 * alpha).pmf(np.arange(n + 1))
    for c in (0, 4, 9):
        seen = np.bincount(counts[:, c], minlength=n + 1)
        groups = np.minimum(np.arange(n + 1), np.flatnonzero(expected >= 5).max())
        pooled = [np.bincount(groups, weights=x) for x in (seen, expected)]
        p_value = stats.chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue
        assert p_value > 0.01, (c, p_value)
    assert counts.sum(axis=0).std() / counts.sum(axis=0).mean() < 0.2  # all classes alike


def test_small_alpha_makes_clients_of_few_classes_and_large_alpha_of_all():
    held = {}
    for alpha in (0.1, 100.0):
        labels, rows, _ = partition(alpha, samples=48_000, clients=400)
        counts = class_counts(labels, rows, CLASSES)[:200]  # of those who could still choose
        held[alpha] = (counts > 0).sum(axis=1).mean()
    assert held[0.1] < 5
    assert held[100.0] > 9.9


def one_by_one(mix, left, size, rng):
    """The definition: a class is drawn, and zeroed in the mix as soon as it is empty."""
    counts = np.zeros(len(mix), int)
    for _ in range(size):
        weights = np.where(left > counts, mix, 0.0)
        counts[rng.choice(len(mix), p=weights / weights.sum())] += 1
    return tuple(counts.tolist())


def test_exhausted_classes_are_zeroed_and_the_rest_renormalised():
    mix, left, size, trials = np.array([0.6, 0.25, 0.15]), np.array([2, 3, 9]), 7, 4000
    rng = np.random.default_rng(1)
    ours = Counter(tuple(draw_counts(mix, left, size, rng).tolist()) for _ in range(trials))
    theirs = Counter(one_by_one(mix, left, size, rng) for _ in range(trials))
    assert all(sum(counts) == size and all(np.array(counts) <= left) for counts in ours)
    often = [counts for counts in theirs if theirs[counts] >= 20]
    assert (
        stats.chi2_contingency([[ours[c] for c in often], [theirs[c] for c in often]]).pvalue > 0.01
    )
    assert len(often) > 3


def test_a_mix_that_ran_out_altogether_takes_what_is_left():
    counts = draw_counts(
        np.array([1.0, 0.0, 0.0]), np.array([2, 5, 5]), 6, np.random.default_rng(0)
    )
    assert counts[0] == 2
    assert counts.sum() == 6


def test_a_seed_gives_the_same_partition_and_another_seed_another():
    one, again, other = (np.concatenate(partition(0.1, seed=seed)[1]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.5


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
def test_an_impossible_alpha_is_refused(alpha, raises_clearly):
    with raises_clearly("α must be positive", str(alpha)):
        deal_by_class(np.zeros(4, int), np.array([2, 2]), alpha, generator())


def test_more_clients_than_samples_are_refused(raises_clearly):
    with raises_clearly("5 clients", "4 samples", "fewer clients"):
        client_sizes(4, 5, 0.0, generator())
