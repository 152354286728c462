"""Walking over a tensor in tiles gives what working on all of it gives."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.outer.learned import LearnedOptimizer
from laconic.outer.tiles import Walk, default_tiles
from tests.outer.cases import LAGG_A, Case, name_of, step
from tests.outer.trees import QUICK, assert_close


@pytest.mark.parametrize("spec", [LAGG_A, LearnedOptimizer("lagg", 4)], ids=name_of)
def test_tiles_change_nothing(spec):
    shapes = {
        "vector": (20,),
        "tall": (16, 5),
        "kernel": (2, 3, 4, 6),
        "large": (2, 33, 34),
        "wide": (2, 90),
    }
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


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize(
    "shape", [(1, 13, 5), (1, 4, 50), (3, 6, 5), (7, 3, 40), (1, 200, 1)], ids=str
)
def test_a_walk_comes_by_everything_once(shape, lanes):
    field = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)), jnp.float32)
    walk = Walk(shape, 48, lanes)
    double = lambda tile: 2 * tile[:1] + tile[1:]
    count = lambda tile, tiles: (double(tile), tiles + 1)
    np.testing.assert_array_equal(walk.fill(count, field, jnp.int32(0)), double(field))
    sums = lambda tile, masks: jnp.sum(tile * masks.rows * masks.cols, axis=(1, 2, 3))
    np.testing.assert_allclose(walk.reduce(sums, field), jnp.sum(field, axis=(1, 2, 3)), rtol=1e-5)


def test_scratch_is_handed_on_from_tile_to_tile():
    shape = (2, 6, 5)
    numbered = lambda tile, done: (jnp.full_like(tile, done), done + 1)
    found = Walk(shape, 10).fill(numbered, jnp.zeros((1, *shape)), jnp.float32(0))
    np.testing.assert_array_equal(found.ravel(), np.repeat(np.arange(6), 10))


@pytest.mark.parametrize("B", [1, 10, 33, 64, 125, 230, 231, 768, 1000, 1152, 1153, 3162, 50_257])
def test_tiles_of_lanes_are_one_row_or_many_with_little_done_twice(B):
    A, tile = 1300, 1152
    rows, cols = Walk((1, A, B), tile, 16).size
    assert rows * cols <= tile
    assert rows >= 5 if B <= tile // 5 else rows == 1
    assert cols == B or cols % 16 == 0
    assert rows * cols * -(-A // rows) * -(-B // cols) < 1.1 * A * B


def test_a_tile_of_ones_own_is_kept_to():
    tiles = default_tiles(7)
    assert tiles[:3] == (7, 7, 7)
    assert not tiles.walk((1, 2, 4)).whole
    assert math.prod(tiles.walk((1, 9, 9)).size) <= 7


@pytest.mark.parametrize(("backend", "lanes"), [("cpu", 16), ("gpu", 1)])
def test_tiles_suit_the_platform(backend, lanes, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    tiles = default_tiles()
    assert tiles.lanes == lanes
    assert (tiles.steps < tiles.small < tiles.sums) == (backend == "cpu")
    assert tiles.walk((1, 64, tiles.small // 64)).whole
    assert tiles.walk((1, 64, tiles.small // 64 + 1)).tile == tiles.steps


@pytest.mark.parametrize(
    "shape", [(40_000,), (200, 200), (2, 20_000), (20_000, 2), (3, 3, 60, 70)], ids=str
)
def test_a_step_takes_little_memory_whatever_the_shape(shape):
    """Far below the 128 bytes a parameter that one hidden layer of a whole tensor would take."""
    learned = LearnedOptimizer("lopt-a")
    outer = learned(learned.init(jax.random.key(0)), tile=512)
    param = jax.ShapeDtypeStruct(shape, jnp.float32)
    state = jax.eval_shape(outer.tx.init, param)
    memory = jax.jit(outer.tx.update).lower(param, state, param).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes / math.prod(shape) < 40
