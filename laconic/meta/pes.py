"""Persistent evolution strategies (Vicol et al., 2021; the paper's Algorithm 2), plain evolution
strategies, and noise-reuse evolution strategies (Li et al., 2023).

N antithetic pairs, σ the perturbations' standard deviation. In each truncation of T rounds a pair
draws ε ~ N(0, σ²I), goes on with its two runs under φ + ε and φ − ε on the same data, and sees
their mean losses L⁺ and L⁻:

    ξ ← ξ + ε        (PES: all that perturbed this run so far; 0 when it begins anew)
    ξ ← ε            (ES: only this truncation's)
    ξ = ε            (NRES: drawn when a run begins, and held until it ends)
    g = 1/N Σ ξ·(L⁺ − L⁻) / (2σ²)

PES is an unbiased estimate of the gradient of the smoothed loss of whole runs; ES forgets how
earlier truncations led to this one, which makes it short-sighted unless a truncation is a whole
run. NRES is unbiased as PES is, and where losses are smooth in φ its variance does not grow with
the number of truncations. N pairs are the paper's 2N particles. `outlying` trades their being
unbiased for less variance; `only` names the tensors of φ that are perturbed, all by default.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from laconic.errors import require_positive
from laconic.meta.estimator import (
    Clock,
    GradientEstimator,
    Horizon,
    Metrics,
    begin_all,
    group_keys,
    restricted,
    start_clocks,
    tick,
    where_N,
)
from laconic.meta.problem import InnerProblem, capped
from laconic.outer.learned import Theta

SIGNS = (1.0, -1.0)


class Pairs(NamedTuple):
    """The runs of N pairs: leaves of `runs` are [N, 2, …], of `xi` [N, …]."""

    runs: Any
    xi: Theta
    clock: Clock


def pes(
    problem: InnerProblem,
    *,
    pairs: int = 8,
    truncation: int = 50,
    sigma: float = 0.01,
    horizon: Horizon = Horizon(),
    reset_diverged: bool = True,
    outlying: float = math.inf,
    only: tuple[str, ...] = (),
) -> GradientEstimator:
    """Persistent evolution strategies; `reset_diverged` ends a pair early once both its runs sit at
    the ceiling."""
    given = (pairs, truncation, sigma, horizon, reset_diverged, outlying, only)
    return _antithetic(problem, _persist, *given)


def es(
    problem: InnerProblem,
    *,
    pairs: int = 8,
    truncation: int = 50,
    sigma: float = 0.01,
    horizon: Horizon = Horizon(),
    reset_diverged: bool = True,
    outlying: float = math.inf,
    only: tuple[str, ...] = (),
) -> GradientEstimator:
    """Truncated evolution strategies; with `Horizon(truncation, truncation)` every unroll is a
    whole run."""
    given = (pairs, truncation, sigma, horizon, reset_diverged, outlying, only)
    return _antithetic(problem, _forget, *given)


def nres(
    problem: InnerProblem,
    *,
    pairs: int = 8,
    truncation: int = 50,
    sigma: float = 0.01,
    horizon: Horizon = Horizon(),
    reset_diverged: bool = True,
    outlying: float = math.inf,
    only: tuple[str, ...] = (),
) -> GradientEstimator:
    """Noise-reuse evolution strategies: a pair keeps one perturbation for the whole of its run."""
    given = (pairs, truncation, sigma, horizon, reset_diverged, outlying, only)
    return _antithetic(problem, _reuse, *given)


def _persist(xi: jax.Array, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    return eps, xi + eps


def _forget(xi: jax.Array, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    return eps, eps


def _reuse(xi: jax.Array, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    held = jnp.where(xi == 0, eps, xi)  # ξ is 0 where a run has just begun
    return held, held


def _antithetic(
    problem: InnerProblem,
    remember: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
    pairs: int,
    truncation: int,
    sigma: float,
    horizon: Horizon,
    reset_diverged: bool,
    outlying: float,
    only: tuple[str, ...],
) -> GradientEstimator:
    require_positive(pairs=pairs, truncation=truncation, sigma=sigma, outlying=outlying)
    horizon.check_truncation(truncation)

    def init(theta: Theta, key: jax.Array) -> Pairs:
        clock = start_clocks(pairs, horizon, jax.random.fold_in(key, 0))
        keys_N3 = group_keys(clock, jax.random.fold_in(key, 1))
        runs = begin_all(problem, theta, keys_N3[:, 1], clock)
        return Pairs(twice(runs), _zeros(theta, pairs), clock)

    def estimate(theta: Theta, state: Pairs, key: jax.Array) -> tuple[Theta, Pairs, Metrics]:
        keys_N3 = group_keys(state.clock, key)
        eps = jax.vmap(partial(perturbation, theta, sigma))(keys_N3[:, 0])
        eps = restricted(eps, only)
        pairs_of = jax.tree.map(remember, state.xi, eps)
        eps, xi = jax.tree.transpose(jax.tree.structure(theta), None, pairs_of)

        def moved(eps: Theta, sign: jax.Array) -> Theta:
            return jax.tree.map(lambda t, e: t + sign * e, theta, eps)

        unroll = partial(unroll_pair, problem, moved, truncation)
        runs, losses_N2 = jax.vmap(unroll)(state.runs, eps)
        gradient = jax.tree.map(partial(_correlate, differences(losses_N2, outlying), sigma), xi)
        hopeless_N = hopeless(losses_N2, problem.ceiling, reset_diverged)
        clock, over_N = tick(state.clock, truncation, hopeless_N, horizon, keys_N3[:, 2])
        fresh = twice(begin_all(problem, theta, keys_N3[:, 1], clock))
        runs, xi = where_N(over_N, (fresh, _zeros(xi, None)), (runs, xi))
        return gradient, Pairs(runs, xi, clock), Metrics(jnp.mean(losses_N2, axis=1), over_N)

    return GradientEstimator(init, estimate)


def perturbation(theta: Theta, sigma: float, key: jax.Array) -> Theta:
    """ε ~ N(0, σ²I) in the shape of φ; one long draw cut up, because each separate one would be
    compiled anew."""
    flat, unflatten = ravel_pytree(theta)
    return unflatten(sigma * jax.random.normal(key, flat.shape, flat.dtype))


def twice(tree: Any) -> Any:
    """[N, …] → [N, 2, …]: both signs of a pair begin alike."""
    return jax.tree.map(lambda x: jnp.stack([x, x], axis=1), tree)


def unroll_pair(
    problem: InnerProblem,
    moved: Callable[[Any, jax.Array], Theta],
    truncation: int,
    runs: Any,
    perturbation: Any,
) -> tuple[Any, jax.Array]:
    """Both signs of one pair, on the same items → their runs and mean capped losses [2]; `moved`
    gives φ from a perturbation and a sign."""
    items = problem.draw(jax.tree.map(lambda x: x[0], runs), truncation)

    def one(sign: jax.Array, run: Any) -> tuple[Any, jax.Array]:
        run, losses_T = problem.unroll(moved(perturbation, sign), run, items)
        return run, jnp.mean(capped(losses_T, problem.ceiling))

    return jax.vmap(one)(jnp.asarray(SIGNS), runs)


def hopeless(losses_N2: jax.Array, ceiling: float, reset_diverged: bool) -> jax.Array:
    """Pairs that begin anew [N]: both signs at the ceiling, if asked for, or one not finite."""
    at_ceiling_N = jnp.all(losses_N2 >= ceiling * (1 - 1e-6), axis=1) & reset_diverged
    return at_ceiling_N | ~jnp.all(jnp.isfinite(losses_N2), axis=1)


def differences(losses_N2: jax.Array, outlying: float) -> jax.Array:
    """L⁺ − L⁻ of every pair, 0 where one is not finite: without a ceiling a run can diverge to
    infinity, and such a pair teaches nothing and begins anew.

    Those further from 0 than `outlying` medians of their absolute values count as that many: a few
    runs near chaos would be most of a mean otherwise.
    """
    finite_N = jnp.all(jnp.isfinite(losses_N2), axis=1)
    difference_N = jnp.where(finite_N, losses_N2[:, 0] - losses_N2[:, 1], 0)
    if outlying == math.inf:
        return difference_N
    most = outlying * jnp.median(jnp.abs(difference_N))
    return jnp.clip(difference_N, -most, most)


def _correlate(difference_N: jax.Array, sigma: float, xi_N: jax.Array) -> jax.Array:
    difference_N /= 2 * sigma**2
    return jnp.mean(xi_N * difference_N.reshape(-1, *[1] * (xi_N.ndim - 1)), axis=0)


def _zeros(tree: Theta, groups: int | None) -> Theta:
    """Zeros like the tree, with an axis for groups in front if their number is given."""
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape if groups is None else (groups, *x.shape), x.dtype), tree
    )
