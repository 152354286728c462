"""How long a training run lasts in meta-training before it begins anew (Algorithm 2's κ)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from laconic.errors import LaconicError


@dataclass(frozen=True)
class Horizon:
    """Lengths drawn log-uniformly from [shortest, longest] rounds, so that early rounds are seen most often."""

    shortest: int = 100
    longest: int = 1000

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise LaconicError(f"horizons need 1 ≤ shortest ≤ longest, got {self.shortest} and {self.longest}.")

    def sample(self, key: jax.Array) -> jax.Array:
        """One length."""
        low, high = math.log(self.shortest), math.log(self.longest)
        drawn = jnp.exp(jax.random.uniform(key, (), minval=low, maxval=high)) if high > low else jnp.exp(low)
        return jnp.clip(jnp.round(drawn).astype(jnp.int32), self.shortest, self.longest)
