"""A published optimizer in somebody else's optax loop: what is wrong is refused or skipped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import laconic
from laconic.errors import LaconicError

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), "b": jnp.zeros(4)}
DELTA = jax.tree.map(lambda p: 0.01 * (p + 0.5), PARAMS)


@pytest.fixture(scope="module")
def lopt():
    return laconic.load("lopt-a-fmnist")


@pytest.fixture(scope="module")
def lagg():
    return laconic.load("lagg-a-fmnist")


def workers(tree, K=8):
    return jax.tree.map(lambda x: jnp.stack([x * (1 + k) for k in range(K)]), tree)


def same(one, two):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_bad_delta_changes_nothing_and_is_counted(lopt, value, compiled):
    tx = lopt.optax()
    update = jax.jit(tx.update) if compiled else tx.update
    _, state = update(DELTA, tx.init(PARAMS), PARAMS)
    bad = {**DELTA, "b": DELTA["b"].at[1].set(value)}
    changes, after = update(bad, state, PARAMS)
    assert same(changes, jax.tree.map(jnp.zeros_like, PARAMS))
    assert same(after.inner, state.inner)
    assert (state.skipped, after.skipped) == (0, 1)
    good, _ = update(DELTA, after, PARAMS)
    assert same(good, update(DELTA, state, PARAMS)[0])


def test_a_bad_worker_delta_is_noticed_too(lagg):
    tx = lagg.optax()
    bad = workers(DELTA)
    bad["w"] = bad["w"].at[3, 0, 0].set(jnp.nan)
    _, state = tx.update(DELTA, tx.init(PARAMS), PARAMS, worker_deltas=bad)
    assert state.skipped == 1


def test_raise_raises_with_and_without_jit(lopt):
    tx = lopt.optax(on_nonfinite="raise")
    state, bad = tx.init(PARAMS), jax.tree.map(lambda x: x * jnp.nan, DELTA)
    with pytest.raises(LaconicError, match="some worker diverged"):
        tx.update(bad, state, PARAMS)
    with pytest.raises(eqx.EquinoxRuntimeError, match="some worker diverged"):
        jax.block_until_ready(eqx.filter_jit(tx.update)(bad, state, PARAMS))
    with pytest.raises(LaconicError, match="on_nonfinite"):
        lopt.optax(on_nonfinite="ignore")


def test_sound_steps_are_the_optimizers_own_bits(lopt, lagg):
    for published, more in ((lopt, {}), (lagg, {"worker_deltas": workers(DELTA)})):
        ours, bare = published.optax(), published.outer().tx
        one, two = ours.init(PARAMS), bare.init(PARAMS)
        for _ in range(3):
            changes, one = jax.jit(ours.update)(DELTA, one, PARAMS, **more)
            wanted, two = jax.jit(bare.update)(DELTA, two, PARAMS, **more)
            assert same(changes, wanted)
        assert same(one.inner, two)


@pytest.mark.parametrize(
    ("leaf", "kind"), [(True, "bool"), (jnp.array([True]), "bool"), (1j, "complex64"), (3, "int32")]
)
def test_leaves_that_are_no_real_numbers_are_refused(lopt, leaf, kind):
    with pytest.raises(LaconicError, match=rf"\['x'\] is {kind}"):
        lopt.optax().init({**PARAMS, "x": leaf})


def test_python_floats_and_none_are_taken_as_optax_takes_them(lopt):
    tx = lopt.optax()
    tree = {"w": PARAMS["w"], "x": 0.5, "none": None}
    changes, _ = tx.update({"w": DELTA["w"], "x": 0.1, "none": None}, tx.init(tree), tree)
    array = {"w": PARAMS["w"], "x": jnp.float32(0.5)}
    wanted, _ = tx.update({"w": DELTA["w"], "x": jnp.float32(0.1)}, tx.init(array), array)
    assert changes["none"] is None
    assert same(changes, wanted)


def test_an_empty_model_is_no_error(lopt, lagg):
    for tx in (lopt.optax(), lagg.optax()):
        assert tx.update({}, tx.init({}), {}, worker_deltas={})[0] == {}


def test_masked_parts_are_left_alone_by_lagg_a(lagg):
    tx = optax.masked(lagg.optax(), {"w": True, "b": False})
    changes, _ = tx.update(DELTA, tx.init(PARAMS), PARAMS, worker_deltas=workers(DELTA))
    alone = lagg.optax()
    only = lambda tree: {"w": tree["w"]}
    wanted, _ = alone.update(
        only(DELTA), alone.init(only(PARAMS)), only(PARAMS), worker_deltas=only(workers(DELTA))
    )
    assert same(changes["w"], wanted["w"])
    assert same(changes["b"], DELTA["b"])


def test_a_state_belongs_to_its_optimizer(lopt):
    other = laconic.load("lopt-a-general").optax()
    state = lopt.optax().init(PARAMS)
    with pytest.raises(LaconicError, match="belongs to another learned optimizer"):
        other.update(DELTA, state, PARAMS)
    with pytest.raises(eqx.EquinoxRuntimeError, match="belongs to another learned optimizer"):
        jax.block_until_ready(eqx.filter_jit(other.update)(DELTA, state, PARAMS))
    with pytest.raises(LaconicError, match="must come from its init"):
        other.update(DELTA, state.inner, PARAMS)
    again = laconic.load("lopt-a-fmnist").optax()
    again.update(DELTA, state, PARAMS)


def test_a_schedule_scales_the_step_of_its_round(lopt):
    schedule = lambda rounds: jnp.where(rounds < 1, 1.0, 0.5)
    tx, whole = lopt.optax(scale=schedule, weight_decay=0.1), lopt.optax(weight_decay=0.1)
    one, two = tx.init(PARAMS), whole.init(PARAMS)
    for factor in (1.0, 0.5):
        changes, one = tx.update(DELTA, one, PARAMS)
        wanted, two = whole.update(DELTA, two, PARAMS)
        assert same(changes, jax.tree.map(lambda x, f=factor: f * x, wanted))


def test_it_runs_inside_scan(lopt):
    tx = lopt.optax()

    def body(carry, _):
        params, state = carry
        changes, state = tx.update(DELTA, state, params)
        return (optax.apply_updates(params, changes), state), state.skipped

    (_, state), skipped = jax.lax.scan(body, (PARAMS, tx.init(PARAMS)), None, length=4)
    assert state.inner.round == 4
    assert skipped.tolist() == [0] * 4


def test_a_part_of_a_model_takes_the_step_it_takes_in_the_whole():
    general = laconic.load("lopt-a-general")
    params = {f"w{i}": PARAMS["w"] + i for i in range(9)}  # more matrices than `deepest`
    delta = {name: DELTA["w"] for name in params}
    labels = {name: "learned" if name < "w3" else "sgd" for name in params}
    parts = lambda tx: optax.multi_transform({"learned": tx, "sgd": optax.sgd(1.0)}, labels)
    with pytest.raises(LaconicError, match="matrices=N"):
        parts(general.optax()).init(params)
    tx, whole = parts(general.optax(matrices=9)), general.optax()
    changes, _ = tx.update(delta, tx.init(params), params)
    wanted, _ = whole.update(delta, whole.init(params), params)
    for name in ("w0", "w1", "w2"):
        np.testing.assert_array_equal(changes[name], wanted[name])
    with pytest.raises(LaconicError, match="at least one matrix"):
        general.optax(matrices=0)
