"""Meta-gradients: unbiased where that is promised, step by step like the NumPy twin, fair to both
signs of a pair."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer
from laconic.meta.backprop import backprop
from laconic.meta.estimator import Clock, Horizon, group_keys, start_clocks
from laconic.meta.pes import Pairs, differences, es, nres, perturbation, pes
from laconic.meta.problem import Inner, InnerProblem, training_problem
from laconic.outer.learned import LearnedOptimizer
from laconic.tasks.catalog import make_task
from tests import reference_pes as twin
from tests.meta import quadratic
from tests.meta.quadratic import CALM, CEILING, PHI, STORMY, flatten, unflatten
from tests.outer.trees import QUICK, assert_close

# --- bias: means over 16384 runs against finite differences in float64 ----------------------------

ROUNDS, SHORT = 12, 3
CHUNKS, PAIRS = 64, 256


class Whole(NamedTuple):
    """What an estimator says of whole runs, and the truth of those very runs, a row for each chunk
    of pairs."""

    found: np.ndarray
    exact: np.ndarray
    truncated: np.ndarray
    resets: np.ndarray


@cache
def whole_runs(make: Any, truncation: int) -> Whole:
    """All runs from their first to their last round; a run's mean loss is the mean of its
    truncations'."""
    estimator = make(
        CALM, pairs=PAIRS, truncation=truncation, sigma=0.01, horizon=Horizon(ROUNDS, ROUNDS)
    )

    def chunk(key: jax.Array) -> Any:
        state = estimator.init(unflatten(), key)
        state = state._replace(clock=state.clock._replace(done=jnp.zeros(PAIRS, jnp.int32)))
        start = state.runs if make is backprop else jax.tree.map(lambda x: x[:, 0], state.runs)

        def step(state: Any, key: jax.Array) -> Any:
            gradient, state, metrics = estimator.estimate(unflatten(), state, key)
            return state, (gradient, metrics.reset)

        _, seen = jax.lax.scan(step, state, jax.random.split(key, ROUNDS // truncation))
        return start, jax.vmap(lambda run: CALM.draw(run, ROUNDS))(start), *seen

    chunks = jax.jit(jax.vmap(chunk), compiler_options=QUICK)(
        jax.random.split(jax.random.key(1), CHUNKS)
    )
    run, items, gradients, resets = chunks
    run = {name: np.asarray(run[name]) for name in ("w", "v", "round")}
    exact = quadratic.mean_loss_gradients(run, items)
    parts = []
    # The run's state at the start of a truncation held constant.
    for t in range(0, ROUNDS, truncation):
        part = {"target": np.asarray(items["target"])[:, :, t : t + truncation]}
        parts.append(quadratic.mean_loss_gradients(run, part))
        run, _ = quadratic.numpy_unroll(PHI, run, part)
    truncated = np.mean(parts, axis=0)
    return Whole(
        flatten(gradients).mean(axis=1),
        exact.mean(axis=1),
        truncated.mean(axis=1),
        np.asarray(resets),
    )


def standard_errors(found: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many standard errors the mean of an estimate is off, entry by entry, and these errors."""
    off = found - truth
    error = off.std(axis=0, ddof=1) / np.sqrt(len(off))
    return np.abs(off.mean(axis=0)) / error, error


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x))


@pytest.mark.parametrize(
    ("make", "truncation"),
    [(pes, SHORT), (nres, SHORT), (es, ROUNDS)],
    ids=["pes", "nres", "es on whole runs"],
)
def test_the_mean_estimate_is_the_gradient_of_whole_runs(make, truncation):
    runs = whole_runs(make, truncation)
    off, error = standard_errors(runs.found, runs.exact)
    found, exact = runs.found.mean(axis=0), runs.exact.mean(axis=0)
    assert norm(error) < 0.04 * norm(exact)  # enough runs for the next lines to mean something
    assert np.all(off < 4)
    assert cosine(found, exact) > 0.99
    assert abs(norm(found) - norm(exact)) < 4 * norm(error)


def test_truncated_es_is_short_sighted_where_pes_is_not():
    persistent, forgetful = whole_runs(pes, SHORT), whole_runs(es, SHORT)
    off, error = standard_errors(forgetful.found, forgetful.exact)
    assert np.all(off > 8)
    found, exact = forgetful.found.mean(axis=0), forgetful.exact.mean(axis=0)
    assert norm(found) < 0.4 * norm(exact)
    assert (
        cosine(found, exact)
        < 0.97
        < 0.99
        < cosine(persistent.found.mean(axis=0), persistent.exact.mean(axis=0))
    )
    # What it does estimate is the gradient with each truncation's start held constant.
    off, _ = standard_errors(forgetful.found, forgetful.truncated)
    assert norm(error) < 0.05 * norm(forgetful.truncated.mean(axis=0))
    assert np.all(off < 4)


def test_backpropagation_is_exact_within_a_truncation():
    whole, short = whole_runs(backprop, ROUNDS), whole_runs(backprop, SHORT)
    np.testing.assert_allclose(whole.found, whole.exact, rtol=1e-5)
    np.testing.assert_allclose(short.found, short.truncated, rtol=1e-5)
    assert norm(short.found.mean(axis=0)) < 0.4 * norm(short.exact.mean(axis=0))


@pytest.mark.parametrize("make", [pes, es, backprop])
def test_runs_that_began_together_end_together(make):
    resets = whole_runs(make, SHORT).resets  # [chunks, truncations, pairs]
    assert not np.any(resets[:, :-1])
    assert np.all(resets[:, -1])


# --- step by step against the twin ----------------------------------------------------------------

N, T, SIGMA, STEPS = 5, 3, 0.1, 12
SPAN = Horizon(4, 14, ramp=5)


@jax.jit
def draw_all(clock: Clock, key: jax.Array) -> Any:
    """What the estimator's keys give each pair: ε, the run it may begin, and the length that run
    would have."""
    keys_N3 = group_keys(clock, key)
    noise = jax.vmap(partial(perturbation, unflatten(), SIGMA))(keys_N3[:, 0])
    runs = jax.vmap(partial(quadratic.begin, None))(keys_N3[:, 1])
    return noise, runs, jax.vmap(SPAN.sample)(keys_N3[:, 2], clock.age)


@jax.jit
def draw_items(key: jax.Array, now: jax.Array) -> Any:
    return quadratic.draw({"key": key, "round": now}, T)


class Storm:
    """The twin's unroll, and every loss it saw."""

    def __init__(self) -> None:
        self.losses = []

    def unroll(self, phi: np.ndarray, run: Any) -> Any:
        items = jax.device_get(draw_items(run["key"], jnp.int32(run["round"])))
        after, losses_T = quadratic.numpy_stormy_unroll(phi, run, items)
        self.losses.append(losses_T)
        return after, losses_T

    def check(self) -> None:
        """It was one: NaNs in one sign of a pair and in both, and losses above the ceiling."""
        losses = np.array(self.losses).reshape(-1, 2, T)
        bad = np.isnan(losses)
        assert np.any(bad[:, 0] & ~bad[:, 1])
        assert np.any(bad[:, 1] & ~bad[:, 0])
        assert np.any(bad[:, 0] & bad[:, 1])
        assert np.any(losses > CEILING)


def split_runs(runs: Any) -> list[Any]:
    """Runs with leaves [N, …] → N runs of NumPy arrays, keys left as they are."""
    host = {name: x if name == "key" else np.asarray(x) for name, x in runs.items()}
    return [{name: x[i] for name, x in host.items()} for i in range(len(host["w"]))]


def assert_same_state(state: Pairs, particles: list[twin.Particle]) -> None:
    pairs = [particles[i : i + 2] for i in range(0, 2 * N, 2)]
    for name in ("w", "v"):
        expected = np.array([[p.run[name] for p in pair] for pair in pairs])
        assert_close(state.runs[name], expected, 1e-5, name)
    for name in ("round", "doom"):
        np.testing.assert_array_equal(
            state.runs[name], [[p.run[name] for p in pair] for pair in pairs]
        )
    keys = [[jax.random.key_data(p.run["key"]) for p in pair] for pair in pairs]
    np.testing.assert_array_equal(jax.random.key_data(state.runs["key"]), keys)
    assert_close(flatten(state.xi), np.array([plus.xi for plus, _ in pairs]), 1e-5, "ξ")
    np.testing.assert_array_equal([minus.xi for _, minus in pairs], [-plus.xi for plus, _ in pairs])
    np.testing.assert_array_equal(state.clock.horizon, [plus.kappa for plus, _ in pairs])
    np.testing.assert_array_equal(state.clock.done, [plus.c for plus, _ in pairs])


def rounding(xi: np.ndarray, losses: np.ndarray) -> float:
    """Two roundings of the losses in float32, carried through the formula: how far a gradient may
    be off.

    In the median step this is 3e-6 of the gradient. More where L⁺ and L⁻ nearly cancel, as they do
    once most pairs sit at the ceiling: there one rounding alone can be more than 1e-5 of what is
    left.
    """
    sums_N1 = losses.reshape(N, 2).sum(axis=1, keepdims=True)
    return 2 * 2.0**-24 * norm(np.mean(np.abs(xi) * sums_N1, axis=0)) / (2 * SIGMA**2)


@pytest.mark.parametrize("give_up", [True, False], ids=["early resets", "no early resets"])
@pytest.mark.parametrize(
    ("make", "step"), [(pes, twin.pes_step), (es, twin.es_step)], ids=["pes", "es"]
)
def test_every_step_is_the_twins(make, step, give_up):
    estimator = make(
        STORMY, pairs=N, truncation=T, sigma=SIGMA, horizon=SPAN, reset_diverged=give_up
    )
    estimate = jax.jit(estimator.estimate, compiler_options=QUICK)
    settings = twin.Settings(T, SIGMA, CEILING, give_up)
    state = jax.jit(estimator.init, compiler_options=QUICK)(unflatten(), jax.random.key(5))
    runs = split_runs({name: x[:, 0] for name, x in state.runs.items()})
    particles = twin.start(runs, state.clock.horizon.tolist(), state.clock.done.tolist(), len(PHI))
    assert_same_state(state, particles)
    resets, early, storm = np.zeros((STEPS, N), bool), 0, Storm()
    for j in range(STEPS):
        # The outer optimizer moves on.
        phi = flatten(unflatten(PHI - j * np.array([0.02, 0, -0.01, 0])))
        key = jax.random.key(100 + j)
        noise, fresh, kappas = draw_all(state.clock, key)
        drawn = twin.Drawn(list(flatten(noise)), split_runs(fresh), np.asarray(kappas).tolist())
        due = [p.c + T >= p.kappa for p in particles[::2]]
        remembered = np.array([p.xi for p in particles[::2]]) if make is pes else 0.0
        gradient, state, metrics = estimate(unflatten(phi), state, key)
        expected, particles, losses = step(particles, phi, storm.unroll, drawn, settings)
        xi = remembered + flatten(noise)
        assert norm(flatten(gradient) - expected) <= rounding(xi, losses), f"gradient {j}"
        assert_same_state(state, particles)
        np.testing.assert_allclose(metrics.loss, losses.reshape(N, 2).mean(axis=1), rtol=1e-5)
        resets[j] = [p.c == 0 for p in particles[::2]]
        np.testing.assert_array_equal(metrics.reset, resets[j])
        np.testing.assert_array_equal(state.clock.age, np.full(N, j + 1))
        early += np.sum(resets[j] & ~np.array(due))
    storm.check()
    assert len({tuple(column) for column in resets.T}) == N  # pairs ended at different times
    assert (early > 0) == give_up


# --- what is random -------------------------------------------------------------------------------


def test_noise_is_normal_with_the_given_deviation():
    count, sigma = 20_000, 0.3
    draw = jax.jit(jax.vmap(partial(perturbation, unflatten(), sigma)), compiler_options=QUICK)
    noise = flatten(draw(jax.random.split(jax.random.key(2), count))) / sigma
    error = 4 / np.sqrt(count)
    assert np.max(np.abs(noise.mean(axis=0))) < error
    np.testing.assert_allclose(noise.T @ noise / count, np.eye(4), atol=error * np.sqrt(2))
    np.testing.assert_allclose(np.mean(noise**4, axis=0), 3, atol=error * np.sqrt(96))


COUNT, LOW, HIGH = 20_000, 100, 1000
# Kolmogorov and Smirnov: 1.95/√n is passed by chance once in a thousand times; 1/LOW allows for
# whole rounds.
LIMIT = 1.95 / np.sqrt(COUNT) + 1 / LOW


def off_uniform(x: np.ndarray) -> float:
    """The largest gap between the distribution of x and a uniform one on 0…1."""
    return float(np.max(np.abs(np.sort(x) - (np.arange(len(x)) + 0.5) / len(x))))


def test_horizons_are_log_uniform_and_counters_start_anywhere_below():
    start = jax.jit(partial(start_clocks, COUNT, Horizon(LOW, HIGH)), compiler_options=QUICK)
    clock = jax.device_get(start(jax.random.key(3)))
    np.testing.assert_array_equal(clock.group, np.arange(COUNT))
    assert not np.any(clock.age)
    assert LOW <= clock.horizon.min() < 1.02 * LOW
    assert 0.98 * HIGH < clock.horizon.max() <= HIGH
    assert off_uniform(np.log(clock.horizon / LOW) / np.log(HIGH / LOW)) < LIMIT
    shares = clock.done / clock.horizon
    assert shares.min() >= 0
    assert shares.max() < 1
    assert off_uniform(shares) < LIMIT
    assert abs(np.corrcoef(shares, clock.horizon)[0, 1]) < 4 / np.sqrt(COUNT)


def test_a_ramp_lets_the_longest_horizon_grow_geometrically():
    horizon, keys = Horizon(LOW, HIGH, ramp=40), jax.random.split(jax.random.key(4), COUNT)
    sample = jax.jit(jax.vmap(horizon.sample, in_axes=(0, None)), compiler_options=QUICK)
    at = {age: np.asarray(sample(keys, jnp.int32(age)), np.float64) for age in (0, 20, 40, 400)}
    assert set(at[0]) == {LOW}
    for age, longest in ((20, np.sqrt(LOW * HIGH)), (40, HIGH)):
        assert 0.98 * longest < at[age].max() <= np.ceil(longest)
        # Rounding by ½ moves a length's place on the shorter logarithmic scale by up to twice as
        # much.
        assert off_uniform(np.log(at[age] / LOW) / np.log(longest / LOW)) < LIMIT
    np.testing.assert_array_equal(at[40], at[400])


def test_a_fixed_horizon_is_that_number():
    assert int(Horizon(7, 7).sample(jax.random.key(0))) == 7
    assert set(
        np.asarray(jax.vmap(Horizon(2, 3).sample)(jax.random.split(jax.random.key(0), 50)))
    ) == {2, 3}


def test_keys_depend_on_the_group_and_not_on_its_place():
    def keys_of(groups: list[int]) -> np.ndarray:
        clock = Clock(*[jnp.array(groups)] * len(Clock._fields))
        return np.asarray(jax.random.key_data(jax.jit(group_keys)(clock, jax.random.key(1))))

    keys = keys_of([0, 1, 2, 3, 4, 5])
    assert keys.shape[:2] == (6, 3)
    assert len({key.tobytes() for key in keys.reshape(-1, keys.shape[-1])}) == 6 * 3
    np.testing.assert_array_equal(keys_of([4, 1]), keys[[4, 1]])


# --- both signs of a pair, on real training -------------------------------------------------------

INNER = Inner(
    "digits-mlp", 3, 2, 4, LocalOptimizer("sgd", 0.5), "int8", dropout=0.3, objective="valid"
)
LOPT = LearnedOptimizer("lopt-a", hidden=4)
GROUPS = 3


@cache
def real() -> tuple[InnerProblem, Any, Any]:
    """Digits by LOpt-A with all that is random in a round: rounding, absences, batches and
    validation batches.

    φ has a gate beside it. While that is below ½ the perturbations reach nothing, as if ε were 0.
    """
    base = LOPT.init(jax.random.key(0)) | {"gate": jnp.float32(0)}
    problem = training_problem(make_task("digits-mlp:width=8"), LOPT, INNER)

    def gated(theta: Any, run: Any, items: Any) -> Any:
        theta = jax.tree.map(lambda t, b: jnp.where(theta["gate"] > 0.5, t, b), theta, base)
        return problem.unroll({n: x for n, x in theta.items() if n != "gate"}, run, items)

    begin = lambda theta, key: problem.begin({n: x for n, x in theta.items() if n != "gate"}, key)
    estimator = pes(
        InnerProblem(begin, problem.draw, gated, problem.ceiling),
        pairs=GROUPS,
        truncation=2,
        sigma=0.05,
        horizon=Horizon(2, 8),
    )
    first = jax.jit(estimator.init, compiler_options=QUICK)(base, jax.random.key(1))
    clock = first.clock._replace(done=jnp.array([0, 0, 2]), horizon=jnp.array([8, 2, 8]))
    first = first._replace(clock=clock)
    estimate = jax.jit(estimator.estimate, compiler_options=QUICK)
    open_or_shut = [
        estimate(base | {"gate": jnp.float32(gate)}, first, jax.random.key(2)) for gate in (0, 1)
    ]
    return problem, first, open_or_shut


def bits(tree: Any) -> list[np.ndarray]:
    """All leaves as arrays, keys too."""
    key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if key(x) else x) for x in jax.tree.leaves(tree)]


def same(tree: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(bits(tree), bits(other), strict=True))


def test_without_noise_both_signs_are_bit_identical():
    _, _, seen = real()
    gradient, state, metrics = seen[0]
    assert np.any(np.asarray(state.runs.round) > 0)
    for leaf in bits(state.runs):
        np.testing.assert_array_equal(leaf[:, 0], leaf[:, 1])
    for name, leaf in gradient.items():  # ξ·(L⁺ − L⁻), so the two losses were equal to the last bit
        assert not np.any(leaf), name
    assert np.all(np.asarray(metrics.loss) > 0.5)
    assert np.all(flat_xi(state)[np.array([0, 2])] != 0)


def flat_xi(state: Pairs) -> np.ndarray:
    return np.concatenate([np.asarray(x).reshape(GROUPS, -1) for x in state.xi.values()], axis=1)


def test_noise_parts_the_weights_of_a_pair_and_a_reset_joins_them():
    _, first, seen = real()
    gradient, state, metrics = seen[1]
    np.testing.assert_array_equal(metrics.reset, [False, True, False])
    assert all(np.any(leaf) for name, leaf in gradient.items() if name != "decay")
    for pair in range(GROUPS):
        plus, minus = (jax.tree.map(lambda x, i=pair, s=s: x[i, s], state.runs) for s in (0, 1))
        assert same((plus.round, plus.key), (minus.round, minus.key))
        assert same(plus.shared, minus.shared) == (pair == 1)
        old = jax.tree.map(lambda x, i=pair: x[i, 0], first.runs)
        assert same(plus.key, old.key) == (pair != 1)
        if pair == 1:
            assert same(plus, minus)
            assert not same(plus.shared, old.shared)
    np.testing.assert_array_equal(state.runs.round, [[2, 2], [0, 0], [2, 2]])
    np.testing.assert_array_equal(state.clock.done, [2, 0, 4])
    assert not np.any(flat_xi(state)[1])


def test_both_signs_see_the_same_data_and_pairs_do_not():
    problem, first, seen = real()
    _, state, _ = seen[1]
    draw = jax.jit(jax.vmap(jax.vmap(lambda run: problem.draw(run, 4))), compiler_options=QUICK)
    items, valid = draw(state.runs)
    for leaf in bits((items, valid)):  # [pair, sign, round, …]
        np.testing.assert_array_equal(leaf[:, 0], leaf[:, 1])
    for leaf in bits((items.batches, items.keys, valid, first.runs.shared)):
        if np.any(leaf):  # biases begin at 0 everywhere
            assert len({row.tobytes() for row in leaf[:, 0]}) == GROUPS
    for leaf in bits((items.batches, items.keys, valid)):
        for pair in range(GROUPS):
            # And every round brings others.
            assert len({row.tobytes() for row in leaf[pair, 0]}) == 4


# --- less variance --------------------------------------------------------------------------------


def test_outlying_pairs_count_as_so_many_medians_and_broken_ones_not_at_all():
    losses = jnp.array([[1.0, 0.9], [1.0, 1.2], [5.0, 1.0], [0.0, 7.0], [jnp.inf, 1.0]])
    whole = np.array([0.1, -0.2, 4.0, -7.0, 0.0])
    assert_close(differences(losses, float("inf")), whole, 1e-6)
    median = 0.2  # of 0.1, 0.2, 4, 7 and 0
    assert_close(differences(losses, 3.0), np.clip(whole, -3 * median, 3 * median), 1e-6)


def test_only_the_tensors_that_are_named_are_perturbed():
    settings: Any = {"pairs": N, "truncation": T, "sigma": SIGMA, "horizon": SPAN}
    every, one = nres(CALM, **settings), nres(CALM, only=("momentum",), **settings)
    key = jax.random.key(4)
    state = one.init(unflatten(), key)
    gradient, after, _ = one.estimate(unflatten(), state, key)
    assert not np.any(gradient["log_rates"])
    assert not np.any(after.xi["log_rates"])
    assert gradient["momentum"] != 0
    noise = every.estimate(unflatten(), state, key)[1].xi["momentum"]
    np.testing.assert_array_equal(after.xi["momentum"], noise)
