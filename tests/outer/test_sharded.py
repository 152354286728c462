"""The learned step over eight devices against the same step on one."""

from typing import Any

import jax
import numpy as np
import pytest

from laconic.outer.kernels import Tuning
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.sharded import placements, shard_mesh, sharded, split_of
from tests.outer.cases import LAGG_A, LOPT_A, Case, name_of
from tests.outer.trees import QUICK, assert_close

# Split along the largest axis, the second largest and a kept one; where a part's own largest axes
# are other ones than the whole's (the square one's are 2 and 16); vectors and tensors that eight
# does not divide.
SHAPES: dict[str, tuple[int, ...]] = {
    "wide": (6, 24),
    "second": (16, 21),
    "square": (16, 16),
    "kept": (8, 9, 11),
    "kernel": (3, 3, 8, 16),
    "vector": (16,),
    "odd": (7,),
    "odd matrix": (5, 9),
    "scalar": (),
}


def rounds_of(outer: Any, case: Case, count: int) -> Any:
    take = jax.jit(
        lambda mean, state, params, deltas: outer.tx.update(
            mean, state, params, worker_deltas=deltas
        ),
        compiler_options=QUICK,
    )
    state, found = outer.tx.init(case.params), []
    for t in range(count):
        mean, deltas = case.at(t)
        updates, state = take(mean, state, case.params, deltas)
        found.append((updates, state))
    return found


@pytest.mark.parametrize("spec", [LOPT_A, LAGG_A, LearnedOptimizer("lopt")], ids=name_of)
def test_eight_devices_step_like_one(spec):
    case, mesh = Case(spec, SHAPES, seed=400), shard_mesh()
    assert mesh.size == 8
    alone = rounds_of(spec(case.theta, scale=0.5), case, 2)
    for (updates, state), (same, same_state) in zip(
        rounds_of(sharded(spec, case.theta, mesh, scale=0.5), case, 2), alone, strict=True
    ):
        assert_close(jax.device_get(updates), jax.device_get(same), 1e-6)
        for a, b in zip(jax.tree.leaves(state.ada), jax.tree.leaves(same_state.ada), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12)
    updates, state = rounds_of(sharded(spec, case.theta, mesh), case, 1)[0]
    assert {x.addressable_shards[0].data.shape for x in [updates["wide"]]} == {(6, 3)}
    if spec.accumulates:
        parts = jax.tree.map(lambda x: x.addressable_shards[0].data.shape, state.ada)
        assert parts["wide"].m == (3, 6, 3)
        assert parts["wide"].row == (3, 6, 1)  # the mean over the split axis is everyone's
        assert parts["wide"].col == (3, 1, 3)
        assert parts["kept"].row == (3, 1, 9, 1)
        assert parts["odd matrix"].m == (3, 5, 9)


def test_shares_go_by_the_whole_tensors():
    """By hand: 4 of 6 and 4 of 16 inputs, and 1 of 2 matrices; each device has 8 inputs of the tall
    one."""
    case, mesh = (
        Case(LOPT_A, {"wide": (6, 24), "tall": (16, 8), "vector": (16,)}, seed=430),
        shard_mesh(2),
    )
    whole, less = (
        rounds_of(sharded(LearnedOptimizer("lopt-a", **rule), case.theta, mesh), case, 1)[0][0]
        for rule in ({}, {"widest": 4, "deepest": 1})
    )
    shares = {"wide": 4 / 6 / 2, "tall": 4 / 16 / 2, "vector": 1 / 2}
    assert_close(
        jax.device_get(less),
        {name: share * np.asarray(whole[name]) for name, share in shares.items()},
        1e-6,
    )


def test_the_state_begins_in_parts_and_stays_there():
    case, mesh = Case(LOPT_A, {"wide": (6, 24), "odd": (7,)}, seed=410), shard_mesh(4)
    outer = sharded(LOPT_A, case.theta, mesh)
    state, params = (
        outer.tx.init(case.params),
        jax.device_put(case.params, placements(case.params, mesh)),
    )
    assert state.ada["wide"].v.addressable_shards[0].data.shape == (6, 6)
    assert params["wide"].addressable_shards[0].data.shape == (6, 6)
    new, after = jax.jit(outer.step, compiler_options=QUICK)(params, state, params)
    for before, now in ((state, after), (params, new)):
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(now), strict=True):
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (4, 3, 5)], ids=str)
def test_the_kernels_step_in_parts_too(shape, monkeypatch):
    """By the interpreter, on two devices: the sums that the passes leave are added up over them."""
    case, mesh = Case(LOPT_A, {"matrix": shape, "vector": (6,)}, seed=420), shard_mesh(2)
    cut = Tuning(lanes=16, rows=2, sum_lanes=32, sum_rows=2, precision="float32", interpret=True)
    monkeypatch.setattr("laconic.outer.learned.Tuning", lambda: cut)
    (updates, state), (same, same_state) = (
        rounds_of(outer, case, 1)[0]
        for outer in (sharded(LOPT_A, case.theta, mesh, path="passes"), LOPT_A(case.theta))
    )
    assert_close(jax.device_get(updates), jax.device_get(same), 1e-6)
    for a, b in zip(jax.tree.leaves(state.ada), jax.tree.leaves(same_state.ada), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12)


def test_splits_and_meshes(raises_clearly):
    mesh = shard_mesh(4)
    assert split_of((6, 8, 12), mesh).axis == 2
    assert split_of((8, 3, 8), mesh).axis == 0
    assert split_of((7, 9), mesh).axis is None
    assert split_of((), mesh).axis is None
    with raises_clearly("9 devices", "8"):
        shard_mesh(9)
    grid = jax.make_mesh(
        (2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    with raises_clearly("one mesh axis", "'a', 'b'"):
        sharded(LOPT_A, LOPT_A.init(jax.random.key(0)), grid)
