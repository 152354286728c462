"""Walking over a tensor in tiles gives what working on all of it gives."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.outer.learned import LearnedOptimizer
from laconic.outer.tiles import Walk
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


@pytest.mark.parametrize("strands", [2, 3])
@pytest.mark.parametrize("shape", [(1, 13, 5), (1, 4, 50), (3, 6, 5), (7, 3, 4), (1, 200, 1)], ids=str)
def test_loops_side_by_side_change_nothing(shape, strands):
    field = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)), jnp.float32)
    alone, several = (Walk(shape, 12, count) for count in (1, strands))
    double = lambda tile: 2 * tile[:1] + tile[1:]
    np.testing.assert_array_equal(several.fill(double, field), double(field))
    sums = lambda tile, masks: jnp.sum(tile * masks.rows * masks.cols, axis=(1, 2, 3))
    for walk in (alone, several):
        np.testing.assert_allclose(walk.reduce(sums, field), jnp.sum(field, axis=(1, 2, 3)), rtol=1e-5)


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
