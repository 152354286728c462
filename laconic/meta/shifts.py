"""Evolution strategies on what the head of `lopt-r` decides, instead of on its weights.

A head has hundreds of weights, and the loss of a run tells little about any one of them: nearly all
of an estimate is noise. But what a run depends on is what the head decides, and that is mostly a
few numbers: how long steps are, how much momentum they have, and how both change over the run and
between kinds of tensors. So a pair holds a shift δ of the head's outputs z for the whole of its
run, one run +δ and one −δ on the same data:

    z_o ← z_o + Σ_d δ_d·basis_d(inputs)      for the few d of `SHIFTS`
    g_d = (L⁺ − L⁻)/(2·far_d²)·δ_d           the gradient with respect to δ, of each truncation
    g = ∇φ Σ_d g_d·a_d(φ)                    through the head, where a_d is the part of z along
                                             basis_d, by least squares over what the head has seen

It knows little of what single weights do, and which part of a run a decision belongs to beyond the
basis: a biased estimate of much less variance. L is the mean loss of a truncation, as in `pes`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.errors import LaconicError, require_positive
from laconic.meta.estimator import (
    Clock,
    GradientEstimator,
    Horizon,
    Metrics,
    begin_all,
    group_keys,
    start_clocks,
    tick,
    where_N,
)
from laconic.meta.pes import differences, hopeless, twice, unroll_pair
from laconic.meta.problem import Inner, InnerProblem, Learned
from laconic.meta.varied import in_rows, varied_problem
from laconic.outer.learned import Theta
from laconic.outer.relative import RelativeOptimizer
from laconic.tasks.base import Task

DONE, VECTOR = "share of training done", "scalar or vector"
UNITS = 2  # hidden units that shifts need, one for each basis function beside the constant
SLOPE = 0.4  # of the unit that sees the share of training done: so small that tanh is a line
STEEP = 1.0  # of the unit that sees the kind of tensor, which is 0 or 1
KEPT = 16  # rounds of a run whose inputs are kept
LEAST_SHIFT = 0.1  # of sigma: shorter shifts change losses too little to see
RIDGE = 0.05  # of least squares, where a run has shown little


class Shift(NamedTuple):
    """An output of the head, the basis function it moves along, and the standard deviation."""

    output: int
    along: int  # 0: all alike, 1: the share of training done, 2: vectors against others
    far: float


SHIFTS = (
    Shift(0, 0, 0.3),
    Shift(0, 1, 0.7),
    Shift(0, 2, 0.4),
    Shift(1, 0, 0.3),
    Shift(1, 1, 0.7),
    Shift(1, 2, 0.4),
    Shift(2, 0, 0.35),
    Shift(3, 0, 0.12),
    Shift(4, 0, 0.2),
    Shift(4, 1, 0.4),
)
OUTPUT_D, ALONG_D = (np.array([shift[i] for shift in SHIFTS]) for i in range(2))
FAR_D = np.array([shift.far for shift in SHIFTS], np.float32)


class Watchable(NamedTuple):
    """The problem of an optimizer with a head: `problem` is for the φ that `shifted` gives, and
    `inputs` are what the head saw of each tensor in a run's last round [T, inputs]."""

    spec: RelativeOptimizer
    problem: InnerProblem
    inputs: Callable[[Any], jax.Array]


class Shifted(NamedTuple):
    """The runs of N pairs [N, 2, …], their shifts [N, D], inputs that their heads saw
    [N, `KEPT`, T, inputs], how often they were looked at [N], and their clocks."""

    runs: Any
    shift: jax.Array
    seen: jax.Array
    looks: jax.Array
    clock: Clock


def check_watchable(learned: Learned, inners: tuple[Inner, ...]) -> None:
    """Refuse what has no head to shift."""
    if not isinstance(learned, RelativeOptimizer) or learned.gates:
        raise LaconicError(
            "the estimator 'shifts' moves what lopt-r's head decides: it is for the architecture "
            "lopt-r without gates."
        )
    for name in (DONE, VECTOR):
        if name not in learned.inputs:
            raise LaconicError(f"the estimator 'shifts' needs lopt-r's input {name!r}.")
    for inner in inners:
        if not inner.spread or not in_rows(learned, inner):
            raise LaconicError(
                f"the estimator 'shifts' is for tasks with a spread and dense messages; "
                f"{inner.task!r} has spread {inner.spread:g} and compress {inner.compress!r}."
            )


def watched_problem(task: Task, learned: RelativeOptimizer, inner: Inner) -> Watchable:
    """The family's problem, with a head that has room for shifts and is watched."""
    wider = replace(learned, hidden=learned.hidden + UNITS)
    problem = varied_problem(task, wider, inner, watched=True)
    return Watchable(learned, problem, lambda run: run.state.outer.inputs)


def basis(spec: RelativeOptimizer, inputs: jax.Array) -> jax.Array:
    """What outputs are moved along [..., 3]: all alike, over the run, vectors against others."""
    done, vector = (inputs[..., spec.inputs.index(name)] for name in (DONE, VECTOR))
    return jnp.stack([jnp.ones_like(done), done - 0.5, vector - 0.5], axis=-1)


def shifted(spec: RelativeOptimizer, theta: Theta, shift_D: jax.Array) -> Theta:
    """φ with two more hidden units, whose head decides z + Σ_d δ_d·basis_d."""
    w0, b0, w1, b1 = (theta[name] for name in ("w0", "b0", "w1", "b1"))
    done, vector = (spec.inputs.index(name) for name in (DONE, VECTOR))
    unit = np.array([SLOPE, 2 * STEEP], np.float32)
    seen = np.zeros((w0.shape[0], UNITS), np.float32)
    seen[[done, vector], [0, 1]] = unit
    # tanh(SLOPE·(x − ½)) ≈ SLOPE·(x − ½), and tanh(2·STEEP·(x − ½)) is ±tanh(STEEP)
    spans = np.array([1.0, 1 / SLOPE, 0.5 / math.tanh(STEEP)], np.float32)
    moves = jnp.zeros((UNITS + 1, w1.shape[1])).at[ALONG_D, OUTPUT_D].add(shift_D * spans[ALONG_D])
    return {
        "w0": jnp.concatenate([w0, seen], axis=1),
        "b0": jnp.concatenate([b0, -unit / 2]),
        "w1": jnp.concatenate([w1, moves[1:]]),
        "b1": b1 + moves[0],
    }


def along(spec: RelativeOptimizer, theta: Theta, inputs: jax.Array, known: jax.Array) -> jax.Array:
    """a [D], the part of the head's outputs along each shift: least squares over inputs [n, I] of
    which those with `known` 1 count."""
    basis_nB = basis(spec, inputs) * known[:, None]
    hidden = jnp.tanh(inputs @ theta["w0"] + theta["b0"][None])
    outputs = (hidden @ theta["w1"] + theta["b1"][None]) * known[:, None]
    gram = basis_nB.T @ basis_nB + RIDGE * jnp.eye(basis_nB.shape[1])
    return jnp.linalg.solve(gram, basis_nB.T @ outputs)[ALONG_D, OUTPUT_D]


def shifts(
    watchable: Watchable,
    *,
    pairs: int = 8,
    truncation: int = 50,
    sigma: float = 1.0,
    horizon: Horizon = Horizon(),
    reset_diverged: bool = True,
    outlying: float = math.inf,
) -> GradientEstimator:
    """The estimator at the top of this file; `sigma` multiplies how far all shifts go."""
    require_positive(pairs=pairs, truncation=truncation, sigma=sigma, outlying=outlying)
    horizon.check_truncation(truncation)
    spec, problem, inputs = watchable
    far_D = jnp.asarray(sigma * FAR_D)

    def fresh(keys_N: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: far_D * jax.random.normal(key, far_D.shape))(keys_N)

    def begun(theta: Theta, keys_N: jax.Array, clock: Clock) -> Any:
        return twice(begin_all(problem, shifted(spec, theta, 0 * far_D), keys_N, clock))

    def init(theta: Theta, key: jax.Array) -> Shifted:
        clock = start_clocks(pairs, horizon, jax.random.fold_in(key, 0))
        keys_N3 = group_keys(clock, jax.random.fold_in(key, 1))
        runs = begun(theta, keys_N3[:, 1], clock)
        seen = jax.vmap(lambda run: inputs(run)[0])(runs)
        kept = jnp.zeros((pairs, KEPT, *seen.shape[1:]))
        return Shifted(runs, fresh(keys_N3[:, 0]), kept, jnp.zeros(pairs, jnp.int32), clock)

    def estimate(theta: Theta, state: Shifted, key: jax.Array) -> tuple[Theta, Shifted, Metrics]:
        keys_N3 = group_keys(state.clock, key)
        moved = lambda shift_D, sign: shifted(spec, theta, sign * shift_D)
        unroll = partial(unroll_pair, problem, moved, truncation)
        runs, losses_N2 = jax.vmap(unroll)(state.runs, state.shift)
        now = jax.vmap(lambda run: inputs(run)[0])(runs)
        put = lambda kept, look, new: kept.at[look % KEPT].set(new)
        seen, looks = jax.vmap(put)(state.seen, state.looks, now), state.looks + 1
        slope_ND = differences(losses_N2, outlying)[:, None] * state.shift / (2 * far_D[None] ** 2)

        def decided(theta: Theta) -> jax.Array:
            along_ND = jax.vmap(partial(_along_run, spec, theta))(seen, looks)
            return jnp.mean(jnp.sum(slope_ND * along_ND, axis=1))

        gradient = jax.grad(decided)(theta)
        hopeless_N = hopeless(losses_N2, problem.ceiling, reset_diverged)
        clock, over_N = tick(state.clock, truncation, hopeless_N, horizon, keys_N3[:, 2])
        anew = (begun(theta, keys_N3[:, 1], clock), fresh(keys_N3[:, 0]), jnp.zeros_like(looks))
        goes_on = where_N(over_N, anew, (runs, state.shift, looks))
        metrics = Metrics(jnp.mean(losses_N2, axis=1), over_N)
        return gradient, Shifted(goes_on[0], goes_on[1], seen, goes_on[2], clock), metrics

    return GradientEstimator(init, estimate)


def _along_run(
    spec: RelativeOptimizer, theta: Theta, seen: jax.Array, looks: jax.Array
) -> jax.Array:
    """`along` over what is kept of a run, as far as that is filled and finite."""
    rows = seen.reshape(-1, seen.shape[-1])
    known = jnp.repeat(jnp.arange(KEPT) < looks, seen.shape[1])
    known &= jnp.all(jnp.isfinite(rows), axis=1)
    return along(spec, theta, jnp.where(known[:, None], rows, 0), known.astype(jnp.float32))
