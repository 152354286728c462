"""Walking over a tensor in tiles gives what working on all of it gives."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from laconic.outer.learned import LearnedOptimizer
from tests.outer.cases import LAGG_A, Case, name_of, step
from tests.outer.trees import QUICK, assert_close


@pytest.mark.parametrize("spec", [LAGG_A, LearnedOptimizer("lagg", 4)], ids=name_of)
def test_tiles_change_nothing(spec):
    shapes = {"vector": (20,), "tall": (16, 5), "kernel": (2, 3, 4, 6), "large": (2, 33, 34), "wide": (2, 90)}
    case, knobs = Case(spec, shapes, seed=60), {"untiled": 1 << 30, "tile 7": 7, "tile 64": 64}

    def all_of_them(*args: Any) -> dict[str, Any]:
        return {name: step(spec, case.theta, *args, tile=tile) for name, tile in knobs.items()}

    run = jax.jit(all_of_them, compiler_options=QUICK)
    params, state = case.params, case.init()
    for t in range(3):
        found = jax.device_get(run(params, state, *case.at(t)))
        params, changes, state = found["untiled"]
        for tile in ("tile 7", "tile 64"):
            assert_close(found[tile][1], changes, 1e-6, f"round {t}, {tile}")


@pytest.mark.parametrize("shape", [(40_000,), (200, 200), (2, 20_000), (20_000, 2), (3, 3, 60, 70)], ids=str)
def test_a_step_takes_little_memory_whatever_the_shape(shape):
    """Far below the 128 bytes a parameter that one hidden layer of a whole tensor would take."""
    learned = LearnedOptimizer("lopt-a")
    outer = learned(learned.init(jax.random.key(0)), tile=512)
    param = jax.ShapeDtypeStruct(shape, jnp.float32)
    state = jax.eval_shape(outer.tx.init, param)
    memory = jax.jit(outer.tx.update).lower(param, state, param).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes / math.prod(shape) < 60
