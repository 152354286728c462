"""An outer optimizer of one's own in every table: this file is the `laconic` command with one
optimizer more.

python own_optimizer.py compare --optimizers local-sgd slowmo sign-momentum:rate=0.003
python own_optimizer.py sweep sign-momentum --task digits-mlp --rounds 100
python own_optimizer.py reproduce table-rounds --scale smoke
"""

import jax
import jax.numpy as jnp

from laconic.cli import main
from laconic.outer import OUTER, Entry, OuterOptimizer
from laconic.outer.base import transform


def sign_momentum(rate: float = 0.01, beta: float = 0.9) -> OuterOptimizer:
    """m ← βm + (1−β)Δ;  W ← W − rate·sign(m)."""

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(delta, m, params):
        m = jax.tree.map(lambda m, d: beta * m + (1 - beta) * d, m, delta)
        return jax.tree.map(lambda m: -rate * jnp.sign(m), m), m

    return OuterOptimizer(transform(init, update))


GRID = ("gamma=0.3,0.1", "rate=0.01,0.003,0.001", "beta=0.9,0.5")
OUTER["sign-momentum"] = Entry(
    sign_momentum, "steps along the sign of a momentum", row="rate=0.003", grid=GRID
)

if __name__ == "__main__":
    main()
