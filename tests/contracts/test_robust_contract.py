"""What every robust mean promises: its NumPy twin's numbers, whoever comes first, whoever is
absent, inside jit, vmap and scan; and nothing of an attacker's beyond its breakdown point."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.means import ROBUST, RobustMean, parse_aggregate
from tests import reference_means as twin
from tests.outer.trees import QUICK, assert_close, random_tree

SHAPES = {"a": (5, 4), "b": (3,), "c": ()}
SPECS = list(twin.TWINS)
MEANS = ["trimmed:0", "multi-krum:f=0", "clip:100", "centred-clip:100"]  # with no attackers
K = 7  # of most tests, so that few programs are compiled
# The most attackers among 7 that a mean withstands, and how many carry it away.
WITHSTANDS = {
    "median": 3,
    "trimmed:0.2": 2,
    "trimmed:0.4": 3,
    "krum:f=1": 1,
    "multi-krum:f=2": 2,
    "clip:1": 3,
    "centred-clip:1": 3,
}
CARRY = {"median": 4, "trimmed:0.2": 3, "krum:f=1": 6, "multi-krum:f=2": 3}
EXTRA = {"mean": (3,), "var": (3,)}


def robust(spec: str) -> RobustMean:
    found = parse_aggregate(spec)
    assert found is not None
    return found


@cache
def compiled(spec: str) -> Any:
    return jax.jit(robust(spec).combine, compiler_options=QUICK)


def messages(K: int, seed: int = 0, scale: float = 1.0) -> Any:
    """Deltas and statistics [K, …] around a common one."""
    both = []
    for shapes, i in ((SHAPES, 0), (EXTRA, 1)):
        middle = random_tree(shapes, 2 * seed + i)
        own = random_tree({n: (K, *s) for n, s in shapes.items()}, 100 + 2 * seed + i, 0.3 * scale)
        both.append({n: np.asarray(middle[n] + own[n], np.float32) for n in shapes})
    both[1]["seen"] = np.arange(K, dtype=np.int32) + 4
    return tuple(both)


def rows(tree: Any, keep: Any) -> list[Any]:
    return [{n: x[k] for n, x in tree.items()} for k in keep]


def without_counter(extra: Any) -> Any:
    return {n: x for n, x in extra.items() if n != "seen"}


def test_every_member_is_here_under_the_contract():
    assert {spec.partition(":")[0] for spec in SPECS} == set(ROBUST)
    assert {spec.partition(":")[0] for spec in WITHSTANDS} == set(ROBUST)
    for name, entry in ROBUST.items():
        assert entry.usage.partition(":")[0] == name
        assert entry.summary


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("K", [1, 2, K])
def test_it_is_its_twin_with_and_without_the_absent(spec, K):
    deltas, extra = messages(K)
    for here in {tuple(range(K)), tuple(range(0, K, 2))}:
        weights_K = np.zeros(K, np.float32)
        weights_K[list(here)] = 1.0 + np.arange(len(here))  # a weight only says who is there
        delta, found, counted_K = compiled(spec)(deltas, extra, weights_K)
        np.testing.assert_array_equal(counted_K, weights_K)
        assert_close(delta, twin.TWINS[spec](rows(deltas, here)), 1e-5, f"{here}")
        assert found["seen"].dtype == np.int32
        assert int(found["seen"]) == 4 + here[(len(here) - 1) // 2]


@pytest.mark.parametrize("spec", ["median", "trimmed:0.2", "clip:1", "centred-clip:1"])
def test_statistics_are_combined_each_by_itself(spec):
    deltas, extra = messages(K)
    _, found, _ = compiled(spec)(deltas, extra, jnp.ones(K))
    rule = twin.TWINS[spec] if "clip" not in spec else twin.median
    assert_close(
        without_counter(found), rule(rows(without_counter(extra), range(K))), 1e-5, "statistics"
    )


@pytest.mark.parametrize("f", [0, 1])
def test_krum_takes_the_statistics_of_the_worker_it_takes(f):
    deltas, extra = messages(K, seed=3)
    chosen = int(np.argmin(twin.krum_scores(rows(deltas, range(K)), f)))
    delta, found, _ = compiled(f"krum:f={f}")(deltas, extra, jnp.ones(K))
    for name in EXTRA:
        np.testing.assert_array_equal(found[name], extra[name][chosen])
    for name in SHAPES:
        np.testing.assert_array_equal(delta[name], deltas[name][chosen])


@pytest.mark.parametrize("spec", SPECS)
def test_the_order_of_workers_changes_nothing(spec):
    for K in (2, 7):  # two may tie
        both = messages(K, seed=1)
        order = np.random.default_rng(0).permutation(K)
        weights_K = np.ones(K, np.float32)
        one = compiled(spec)(*both, weights_K)[:2]
        shuffled = jax.tree.map(lambda x, order=order: x[order], both)
        other = compiled(spec)(*shuffled, weights_K)[:2]
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", MEANS)
def test_with_nothing_to_leave_out_it_is_the_mean(spec):
    deltas, extra = messages(K, seed=2)
    assert_close(
        compiled(spec)(deltas, extra, jnp.ones(K))[0], twin.mean(rows(deltas, range(K))), 1e-6, spec
    )


@pytest.mark.parametrize("spec", SPECS)
def test_workers_that_agree_are_believed_and_nobody_gives_zeros(spec):
    one = random_tree(SHAPES, 5)
    same = {n: np.repeat(x[None], K, axis=0) for n, x in one.items()}
    extra = messages(K)[1]
    assert_close(compiled(spec)(same, extra, jnp.ones(K))[0], one, 1e-6, spec)
    for leaf in jax.tree.leaves(compiled(spec)(same, extra, jnp.zeros(K))):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


@pytest.mark.parametrize("spec", ["median", "trimmed:0.4", "multi-krum:f=2", "centred-clip:1"])
def test_inside_jit_vmap_and_scan_it_is_the_same(spec):
    many = [messages(K, seed=s) for s in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *many)
    combine: Any = robust(spec).combine
    ones = jnp.ones(K)
    mapped = jax.jit(jax.vmap(lambda m: combine(*m, ones)), compiler_options=QUICK)(stacked)
    scan = lambda all: jax.lax.scan(lambda c, m: (c, combine(*m, ones)), 0, all)[1]
    scanned = jax.jit(scan, compiler_options=QUICK)
    for found in (mapped, scanned(stacked)):
        for i, message in enumerate(many):
            alone = compiled(spec)(*message, ones)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
                np.testing.assert_allclose(a[i], b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attack", [1e30, -1e30, 3e38, np.inf, np.nan, 1e4, -50.0])
@pytest.mark.parametrize("spec", WITHSTANDS)
def test_up_to_its_breakdown_point_the_result_stays_among_the_honest(spec, attack):
    most = WITHSTANDS[spec]
    deltas, extra = messages(K, seed=4)
    weights_K = np.ones(K, np.float32)
    weights_K[:most] = 1e30  # a claim that buys nothing
    bad = jax.tree.map(np.copy, (deltas, without_counter(extra)))
    for leaf in jax.tree.leaves(bad):
        leaf[:most] = attack
    counter = {"seen": np.where(np.arange(K) < most, 2**31 - 1, extra["seen"]).astype(np.int32)}
    delta, found, _ = compiled(spec)(bad[0], {**bad[1], **counter}, weights_K)
    stays_inside(without_counter(found), rows(without_counter(extra), range(most, K)))
    honest = rows(deltas, range(most, K))
    if "clip" not in spec:
        stays_inside(delta, honest)
    longest = max(np.linalg.norm(twin.vector(r)) for r in honest)  # an attacker may be as long
    assert np.linalg.norm(twin.vector(delta)) <= 2 * longest
    assert extra["seen"].min() <= int(found["seen"]) <= extra["seen"].max()


def stays_inside(found: Any, honest: list[Any]) -> None:
    """Each number between the least and the largest honest one."""
    have, ends = twin.vector(found), np.stack([twin.vector(tree) for tree in honest])
    assert np.all(have >= ends.min(axis=0) - 1e-6)
    assert np.all(have <= ends.max(axis=0) + 1e-6)


@pytest.mark.parametrize("spec", CARRY)
def test_beyond_its_breakdown_point_it_may_be_carried_away(spec):
    """So that the test above tests something."""
    deltas, extra = messages(K, seed=4)
    for x in jax.tree.leaves(deltas):
        x[: CARRY[spec]] = 1e6
    delta = compiled(spec)(deltas, extra, jnp.ones(K))[0]
    assert np.linalg.norm(twin.vector(delta)) > 1e4


@pytest.mark.parametrize("spec", SPECS)
def test_numbers_keep_their_dtype(spec):
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), messages(4)[0])
    flags = {"on": jnp.array([True, False, True, True])}
    delta, extra, _ = jax.eval_shape(robust(spec).combine, half, flags, jnp.ones(4))
    assert {x.dtype for x in jax.tree.leaves(delta)} == {jnp.dtype(jnp.bfloat16)}
    assert extra["on"].dtype == bool


def test_squared_norms_are_the_median_of_those_here():
    squares = {"a": jnp.array([1.0, 3.0, 2.0, 1e30]), "b": jnp.array([5.0, 4.0, 7.0, 0.0])}
    seen = robust("median").squares(squares, jnp.array([1.0, 1.0, 1.0, 0.0]))
    np.testing.assert_array_equal(seen["a"], [2.0] * 4)
    np.testing.assert_array_equal(seen["b"], [5.0] * 4)


def test_what_cannot_be_parsed_says_so(raises_clearly):
    assert parse_aggregate("mean") is None
    assert [robust(f"krum:f={f}").least for f in (0, 1, 2)] == [3, 5, 7]
    for spec, parts in {
        "": ["unknown robust mean ''", "Known:", "trimmed:F"],
        "medain": ["Did you mean 'median'?"],
        "median:3": ["'median:3'", "takes no number"],
        "trimmed": ["'trimmed' needs the share", "as in 'trimmed:0.2'"],
        "trimmed:0.5": ["below 0.5"],
        "trimmed:-0.1": ["at least 0"],
        "trimmed:x": ["needs the share"],
        "krum": ["'krum' needs how many attackers", "'krum:f=1'"],
        "krum:1": ["'krum:f=1'"],
        "krum:f=-1": ["how many attackers"],
        "krum:f=1.5": ["how many attackers"],
        "multi-krum:f=": ["'multi-krum:f=1'"],
        "clip": ["'clip:1'"],
        "clip:0": ["above 0"],
        "centred-clip:nan": ["'centred-clip:1'"],
        "clip:1/0": ["above 0"],
    }.items():
        with raises_clearly(*parts):
            parse_aggregate(spec)
