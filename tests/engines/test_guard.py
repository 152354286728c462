"""The guard against a twin in plain NumPy, and every kind of bad message."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.engines.guard import (
    CODE,
    REASONS,
    admit,
    bounded,
    init_guard,
    is_variance,
    judge,
    measure,
)
from laconic.engines.wire import EMPTY, VERSION, Header, Layout, Seal, fill_frame
from tests.engines.poison import fold_by_hand, sign, spoil

SEAL = Seal.of("secret", "run")
TREE = ({"w": np.ones((8, 64), np.float32), "b": np.ones(8, np.float32)}, ())
LAYOUT = Layout.of(TREE)
ORIGIN = bytes([9]) * 32


def frame(worker: int = 2, now: int = 5, flags: int = 0) -> np.ndarray:
    header = Header(flags, SEAL.run, LAYOUT.structure, ORIGIN, now, worker, 1.0, 0.5, LAYOUT.size)
    return sign(fill_frame(LAYOUT, header, TREE), header, VERSION, SEAL)


def verdict(bad: np.ndarray | None) -> str:
    whole = bad is not None and bad.size == LAYOUT.frame
    return REASONS[
        admit(SEAL, LAYOUT, bad, fold_by_hand(SEAL, bad) if whole else None, 2, 5, ORIGIN).code
    ]


@jax.jit
def judged(state, deltas, extras, weights, codes):
    """The guard's word on K messages."""
    messages = zip(deltas, extras, strict=True)
    norms, finite, sizes = zip(
        *[measure(message, lambda words: words, None) for message in messages], strict=True
    )
    sizes_KA = jnp.stack(sizes) if jax.tree.leaves(extras) else ()
    return judge(state, jnp.stack(norms), jnp.stack(finite), weights, codes, 10.0, sizes_KA)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("shape", "structure"),
        ("structure", "structure"),
        ("old", "round"),
        ("garbage", "garbage"),
        ("token", "token"),
        ("worker", "worker"),
        ("version", "version"),
        ("origin", "origin"),
        ("nan", "ok"),
        ("inf", "ok"),
        ("huge", "ok"),
    ],
)
def test_what_bytes_alone_can_tell(kind, reason):
    bad = spoil(frame(), kind, SEAL)
    assert (
        verdict(np.pad(bad, (0, LAYOUT.frame - bad.size))) == reason
    )  # as engines fill up what is too short


def test_a_good_one_is_admitted_and_an_empty_or_missing_one_is_absent():
    assert verdict(frame()) == "ok"
    assert verdict(frame(flags=EMPTY)) == "absent"
    assert verdict(None) == "absent"
    assert verdict(frame()[:100]) == "garbage"


class Twin:
    """The rule once more: reference = the largest lower median of the rounds so far."""

    def __init__(self, limit: float):
        self.limit, self.medians, self.excluded = limit, [], np.zeros(4, int)

    def __call__(self, deltas: np.ndarray, weights: np.ndarray, codes: list[str]) -> list[str]:
        codes = [
            "not finite" if code == "ok" and not np.all(np.isfinite(delta)) else code
            for code, delta in zip(codes, deltas, strict=True)
        ]
        with np.errstate(over="ignore", invalid="ignore"):
            norms = [np.sqrt(np.sum(delta.astype(np.float32) ** 2)) for delta in deltas]
        self.medians.append(self.middle([n for n in self.ok(norms, codes) if np.isfinite(n)]))
        usual = max(self.medians)
        far = lambda n: not np.isfinite(n) or (usual > 0 and n > self.limit * usual)
        codes = [
            "norm" if code == "ok" and far(n) else code
            for code, n in zip(codes, norms, strict=True)
        ]
        usual = self.middle(self.ok(weights, codes))
        heavy = lambda w: not w >= 0 or w > self.limit * usual
        codes = [
            "weight" if code == "ok" and heavy(w) else code
            for code, w in zip(codes, weights, strict=True)
        ]
        self.excluded += [code not in ("ok", "absent") for code in codes]
        return codes

    @staticmethod
    def ok(values, codes):
        return [v for v, code in zip(values, codes, strict=True) if code == "ok"]

    @staticmethod
    def middle(values):
        return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def test_the_guard_is_its_twin_over_a_long_run_with_poison():
    rng = np.random.default_rng(0)
    state, twin = init_guard(4), Twin(10.0)
    seen = set()
    for t in range(60):
        deltas = (0.97**t * rng.normal(size=(4, 30))).astype(np.float32)
        weights, codes = np.ones(4, np.float32), ["ok"] * 4
        who = int(rng.integers(4))
        kind = rng.integers(8)
        if kind < 4:
            deltas[who, 3] = [np.nan, np.inf, 1e30, 50.0][kind]
        elif kind == 4:
            weights[who] = 1e6
        elif kind == 5:
            codes[who] = "absent"
        elif kind == 6:
            codes[who] = "round"
        want = twin(deltas, weights, codes)
        have, state = judged(
            state, list(deltas), [()] * 4, weights, np.array([CODE[c] for c in codes], np.int32)
        )
        assert [REASONS[c] for c in np.asarray(have)] == want, t
        seen |= set(want)
        np.testing.assert_array_equal(state.excluded_K, twin.excluded)
    assert {"ok", "absent", "round", "not finite", "norm", "weight"} <= seen
    np.testing.assert_allclose(state.usual, max(twin.medians), rtol=1e-6)


def test_poison_in_the_very_first_round_has_nothing_to_compare_with_but_the_others():
    for honest in (1, 2, 3):
        deltas = np.ones((4, 5), np.float32)
        deltas[3] = 1e25
        codes = np.array(
            [CODE["ok"] if k < honest or k == 3 else CODE["absent"] for k in range(4)], np.int32
        )
        have, _ = judged(init_guard(4), list(deltas), [()] * 4, jnp.ones(4), jnp.asarray(codes))
        assert REASONS[int(have[3])] == "norm"
        assert REASONS[int(have[0])] == "ok"


def test_a_change_that_most_make_together_is_no_poison():
    state = init_guard(4)
    small, large = jnp.full((4, 5), 1e-3), jnp.full((4, 5), 10.0)
    ok = jnp.zeros(4, jnp.int32)
    for _ in range(20):
        _, state = judged(state, list(small), [()] * 4, jnp.ones(4), ok)
    codes, _ = judged(state, list(large), [()] * 4, jnp.ones(4), ok)
    np.testing.assert_array_equal(codes, 0)
    codes, _ = judged(state, list(small.at[1].set(10.0)), [()] * 4, jnp.ones(4), ok)
    assert [REASONS[c] for c in np.asarray(codes)] == ["ok", "norm", "ok", "ok"]


def test_an_honest_message_of_the_old_size_counts_after_the_others_have_shrunk():
    """Near loss 0 one worker still meets a hard example: the norms are those of such a training."""
    ok, state = jnp.zeros(4, jnp.int32), init_guard(4)
    for norms_K in ([0.4, 0.5, 0.4, 0.5], *[[1e-4, 2e-4, 3e-4, 1e-4]] * 100, [1e-4, 1e-4, 1.2, 0]):
        codes, state = judge(state, jnp.array(norms_K), ok == 0, jnp.ones(4), ok, 10.0)
        np.testing.assert_array_equal(codes, 0)
    codes, _ = judge(state, jnp.array([1e-4, 1e-4, 6.0, 1e-4]), ok == 0, jnp.ones(4), ok, 10.0)
    assert [REASONS[c] for c in np.asarray(codes)] == ["ok", "ok", "norm", "ok"]


def test_a_minority_cannot_raise_what_is_usual_step_by_step():
    ok, state = jnp.zeros(4, jnp.int32), init_guard(4)
    for factor in 9.0 ** np.arange(1, 6):
        norms_K = jnp.array([1.0, factor, 1.0, 1.0])
        codes, state = judge(state, norms_K, ok == 0, jnp.ones(4), ok, 10.0)
        assert REASONS[int(codes[1])] == ("ok" if factor < 10 else "norm")


def test_statistics_that_are_not_finite_exclude_their_sender():
    mean_K = jnp.ones((4, 3)).at[2, 1].set(jnp.nan)
    extras = [{"mean": mean, "seen": jnp.int32(1)} for mean in mean_K]
    codes, _ = judged(
        init_guard(4, 2), list(jnp.ones((4, 5))), extras, jnp.ones(4), jnp.zeros(4, jnp.int32)
    )
    assert [REASONS[c] for c in np.asarray(codes)] == ["ok", "ok", "not finite", "ok"]


class Batch(NamedTuple):
    """Statistics as a BatchNorm layer has them."""

    mean: Any
    var: Any
    seen: Any


STATISTICS = Batch(jnp.array([0.5, -0.5]), jnp.array([1.0, 2.0]), jnp.int32(7))
SPOILED = {
    "huge mean": STATISTICS._replace(mean=jnp.array([1e30, 0.0])),
    "huge negative mean": STATISTICS._replace(mean=jnp.array([0.0, -1e30])),
    "beyond what a square holds": STATISTICS._replace(var=jnp.array([3e38, 3e38])),
    "huge variance": STATISTICS._replace(var=jnp.array([1.0, 1e4])),
    "negative variance": STATISTICS._replace(var=jnp.array([1.0, -0.1])),
    "counter": STATISTICS._replace(seen=jnp.int32(2**31 - 1)),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_statistics_that_are_far_from_the_others_exclude_their_sender(kind):
    extras = [STATISTICS, SPOILED[kind], STATISTICS, STATISTICS]
    state, ok = init_guard(4, arrays=3), jnp.zeros(4, jnp.int32)
    for _ in range(2):  # the second round knows what is usual from the first
        codes, state = judged(state, list(jnp.ones((4, 5))), extras, jnp.ones(4), ok)
        assert [REASONS[c] for c in np.asarray(codes)] == ["ok", "statistics", "ok", "ok"]
    np.testing.assert_array_equal(state.excluded_K, [0, 2, 0, 0])
    wanted = [np.linalg.norm(x) for x in (STATISTICS.mean, STATISTICS.var)]
    np.testing.assert_allclose(state.statistics, [*wanted, 7.0], rtol=1e-6)


def test_honest_statistics_that_differ_and_a_first_round_of_zeros_are_no_fault():
    """Running means begin at 0, and most workers may not have moved yet."""
    spread = [STATISTICS._replace(mean=m * STATISTICS.mean) for m in (0.5, 1.0, 3.0, 0.1)]
    codes, _ = judged(
        init_guard(4, 3), list(jnp.ones((4, 5))), spread, jnp.ones(4), jnp.zeros(4, int)
    )
    np.testing.assert_array_equal(codes, 0)
    zeros = [STATISTICS._replace(mean=m * STATISTICS.mean) for m in (0.0, 0.0, 0.0, 1.0)]
    codes, _ = judged(
        init_guard(4, 3), list(jnp.ones((4, 5))), zeros, jnp.ones(4), jnp.zeros(4, int)
    )
    np.testing.assert_array_equal(codes, 0)


def test_names_of_variances():
    for name in ("['bn'].var", "layers[0].variance", "['running_var']", "bn1.running_var"):
        assert is_variance(name), name
    for name in ("['bn'].mean", "['variant']", "num_batches_tracked", "['vary'].x"):
        assert not is_variance(name), name


def test_a_majority_of_zero_changes_does_not_switch_the_guard_off():
    """The honest one among those that moved still counts; a lone one may move by 10 times the
    weights."""
    ok = jnp.zeros(5, jnp.int32)
    say = lambda norms_K, state, scale: [
        REASONS[c]
        for c in np.asarray(
            judge(state, jnp.array(norms_K), ok == 0, jnp.ones(5), ok, 10.0, (), scale)[0]
        )
    ]
    fresh = init_guard(5)
    assert say([0.0, 0, 0, 2.0, 1e25], fresh, 3.0) == ["ok", "ok", "ok", "ok", "norm"]
    assert say([0.0, 0, 0, 0, 1e25], fresh, 3.0) == ["ok", "ok", "ok", "ok", "norm"]
    assert say([0.0, 0, 0, 0, 29.0], fresh, 3.0) == ["ok"] * 5
    assert say([0.0, 0, 0, 1e6, 1e6], fresh, 3.0) == ["ok", "ok", "ok", "norm", "norm"]
    _, state = judge(fresh, jnp.array([0.0, 0, 0, 2, 2]), ok == 0, jnp.ones(5), ok, 10.0)
    assert float(state.usual) == 0.0  # what stood in for a usual norm is not kept
    _, state = judge(fresh, jnp.array([1.0, 1, 1, 0, 0]), ok == 0, jnp.ones(5), ok, 10.0)
    assert say([0.0, 0, 0, 9.0, 11.0], state, 1e9) == ["ok", "ok", "ok", "ok", "norm"]


def by_hand(norms: list[float], weights: list[float], limit: float) -> list[float]:
    """The bound on weight × norm once more: nobody's is lowered below the median weight."""
    middle = lambda values: sorted(values)[(len(values) - 1) // 2]
    norm, weight = middle(norms), middle(weights)
    most = [
        weight * max(1.0, limit * norm / max(n, norm)) if max(n, norm) else weight for n in norms
    ]
    return [min(w, m) for w, m in zip(weights, most, strict=True)]


@pytest.mark.parametrize(
    ("norms", "weights", "wanted"),
    [
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 99], [1, 1, 1, 1, 10]),
        ([1, 1, 1, 1, 5], [1, 1, 1, 1, 99], [1, 1, 1, 1, 2]),
        ([1, 1, 1, 1, 10], [1, 1, 1, 1, 99], [1, 1, 1, 1, 1]),
        ([1, 1, 1, 1, 0], [1, 1, 1, 1, 99], [1, 1, 1, 1, 10]),  # thins out the others
        ([0, 0, 0, 1, 0], [1, 1, 1, 99, 1], [1, 1, 1, 1, 1]),
        ([1, 2, 3, 4, 9], [10, 20, 30, 5, 7], [10, 20, 30, 5, 7]),
        ([1, 1, 1, 1, 90], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),  # equal weights stay as they are
    ],
)
def test_weight_times_norm_is_bounded(norms, weights, wanted):
    found = bounded(
        jnp.array(norms, jnp.float32), jnp.array(weights, jnp.float32), jnp.ones(5, bool), 10.0
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(found, by_hand(norms, weights, 10.0), rtol=1e-6)
