"""What a gradient estimator is, and what all of them share: horizons, and runs that begin anew.

Estimators keep N groups of training runs under way (for the antithetic ones a group is a pair, +
and −). Each group has its own key, its own length κ and its own count c of rounds; it begins anew
once c ≥ κ, and only between truncations, so the unroll itself has no branches. What is random about
group i depends on (key, i) alone, not on where it runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.errors import LaconicError
from laconic.meta.problem import InnerProblem
from laconic.outer.learned import Theta


@dataclass(frozen=True)
class Horizon:
    """Lengths of inner runs, drawn log-uniformly, so that early rounds are seen most often.

    Args:
        shortest: the fewest rounds.
        longest: the most rounds.
        ramp: over so many outer steps the longest grows geometrically from the shortest to its
            full value, to learn first the beginning and then the rest of a run (0: off).

    Example:
        >>> from laconic import Horizon
        >>> Horizon(shortest=50, longest=500, ramp=1000).longest
        500
    """

    shortest: int = 100
    longest: int = 1000
    ramp: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise LaconicError(
                f"horizons need 1 ≤ shortest ≤ longest, got {self.shortest} and {self.longest}."
            )
        if self.ramp < 0:
            raise LaconicError(f"the ramp of horizons is a number of outer steps, got {self.ramp}.")

    def check_truncation(self, truncation: int) -> None:
        """Refuse to unroll more rounds at a time than any run has."""
        if truncation > self.longest:
            raise LaconicError(
                f"a truncation of {truncation} rounds is longer than the longest run, "
                f"{self.longest}."
            )

    def sample(self, key: jax.Array, age: jax.Array | int = 0) -> jax.Array:
        """One length, for a run that begins in outer step `age`."""
        low, span = math.log(self.shortest), math.log(self.longest / self.shortest)
        grown = jnp.minimum(jnp.asarray(age, jnp.float32) / self.ramp, 1.0) if self.ramp else 1.0
        drawn = jnp.exp(low + span * grown * jax.random.uniform(key, ()))
        return jnp.clip(jnp.round(drawn).astype(jnp.int32), self.shortest, self.longest)


class Metrics(NamedTuple):
    """What each group showed in a truncation, all [N]: its mean capped loss, and whether it began
    anew after it."""

    loss: jax.Array
    reset: jax.Array


class GradientEstimator(NamedTuple):
    """init: (φ, key) → state · estimate: (φ, state, key) → (gradient, state, metrics).

    Every leaf of the state has the groups along its first axis, and the gradient is a mean over
    groups: so a part of the groups gives a part of the gradient, on whichever device it lies.
    """

    init: Callable[[Theta, jax.Array], Any]
    estimate: Callable[[Theta, Any, jax.Array], tuple[Theta, Any, Metrics]]


class Clock(NamedTuple):
    """A group's number, the rounds c its run has done, the rounds κ it lives, and the outer steps
    so far, all [N]."""

    group: jax.Array
    done: jax.Array
    horizon: jax.Array
    age: jax.Array


def start_clocks(groups: int, horizon: Horizon, key: jax.Array) -> Clock:
    """Each group with its own κ and a random c below it, so that ends do not fall together."""
    ids_N = jnp.arange(groups)

    def one(group: jax.Array) -> Clock:
        length_key, offset_key = jax.random.split(jax.random.fold_in(key, group))
        length = horizon.sample(length_key)
        offset = jax.random.randint(offset_key, (), 0, length, dtype=jnp.int32)
        return Clock(group, offset, length, jnp.int32(0))

    return jax.vmap(one)(ids_N)


def group_keys(clock: Clock, key: jax.Array) -> jax.Array:
    """Three keys a group [N, 3]: for its noise, its next run and its next horizon."""
    return jax.vmap(lambda group: jax.random.split(jax.random.fold_in(key, group), 3))(clock.group)


def tick(
    clock: Clock, truncation: int, hopeless_N: jax.Array, horizon: Horizon, keys_N: jax.Array
) -> tuple:
    """After a truncation (Algorithm 2's c and κ) → the clocks, and who begins anew [N]."""
    done = clock.done + truncation
    over = (done >= clock.horizon) | hopeless_N
    fresh = jax.vmap(horizon.sample)(keys_N, clock.age)
    return Clock(
        clock.group, jnp.where(over, 0, done), jnp.where(over, fresh, clock.horizon), clock.age + 1
    ), over


def where_N(flag_N: jax.Array, yes: Any, no: Any) -> Any:
    """`yes` where a group's flag is set, else `no`, for trees with leaves [N, …]."""

    def pick(y: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.where(flag_N.reshape(-1, *[1] * (n.ndim - 1)), y, n)

    return jax.tree.map(pick, yes, no)


def begin_all(problem: InnerProblem, theta: Theta, keys_N: jax.Array, clock: Clock) -> Any:
    """A new run for every group, leaves [N, …], as long as its clock says."""
    begin = lambda key, rounds: problem.lasting(problem.begin(theta, key), rounds)
    return jax.vmap(begin)(keys_N, clock.horizon)


def restricted(tree: Any, names: Sequence[str]) -> Any:
    """A tree in the shape of φ with zeros for all tensors but those named; unnamed, the whole."""
    if not names:
        return tree
    return {name: x if name in names else jnp.zeros_like(x) for name, x in tree.items()}
