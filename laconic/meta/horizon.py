"""How long a training run lasts in meta-training before it begins anew (Algorithm 2's κ)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from laconic.errors import LaconicError


@dataclass(frozen=True)
class Horizon:
    """Lengths drawn log-uniformly from [shortest, longest] rounds, so that early rounds are seen
    most often.

    With `ramp` > 0 the longest one grows with the outer steps, geometrically from the shortest to
    its full value after `ramp` of them: first learn to begin well, then to go on.
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
