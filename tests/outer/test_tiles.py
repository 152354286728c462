"""Walking over a tensor in tiles gives what working on all of it gives."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from laconic.outer import features
from laconic.outer.learned import LearnedOptimizer
from tests.outer.cases import LAGG_A, ROUNDS, Case, name_of, step
from tests.outer.trees import QUICK, assert_close


@pytest.mark.parametrize("spec", [LAGG_A, LearnedOptimizer("lagg", 4)], ids=name_of)
def test_tiles_change_nothing(spec):
    shapes = {"vector": (20,), "tall": (16, 5), "kernel": (2, 3, 4, 6)}
    case, knobs = Case(spec, shapes, seed=60), {"untiled": 1 << 30, "tile 7": 7, "tile 64": 64}
    state = case.init()
    if spec.accumulates:
        history = case.twin()[-1][2]
        make = lambda name, ada: features.Ada(
            jnp.asarray(history.m[name], jnp.float32),
            jnp.asarray(history.v[name], jnp.float32),
            jnp.asarray(history.row[name], jnp.float32),
            None if ada.col is None else jnp.asarray(history.col[name], jnp.float32),
        )
        state = state._replace(round=jnp.int32(ROUNDS), ada={name: make(name, ada) for name, ada in state.ada.items()})

    def all_of_them(*args: Any) -> dict[str, Any]:
        return {name: step(spec, case.theta, *args, tile=tile)[1] for name, tile in knobs.items()}

    found = jax.jit(all_of_them, compiler_options=QUICK)(case.params, state, *case.at(0))
    assert_close(found["tile 7"], jax.device_get(found["untiled"]), 1e-6, "tile 7")
    assert_close(found["tile 64"], jax.device_get(found["untiled"]), 1e-6, "tile 64")
