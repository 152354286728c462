"""lopt-r against its float64 twin, and what its form promises whatever φ is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from laconic import zoo
from laconic.errors import LaconicError
from laconic.outer.base import told
from laconic.outer.relative import RelativeOptimizer, squared_norms
from laconic.outer.sharded import sharded
from laconic.workers import AXIS, weighted_mean, worker_mesh
from tests import reference_relative as ref
from tests.outer.trees import QUICK, assert_close, random_deltas, random_relative, random_tree
from tests.zoo.made import LOPT_R, a_card, weights

K, ROUNDS = 5, 20
SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "vector": (7,),
    "wide": (3, 8),
    "kernel": (3, 3, 2, 4),
}
SPEC: Any = RelativeOptimizer()
GATED: Any = RelativeOptimizer(gates=6)
PARAMS = random_tree(SHAPES, 0)
DELTAS = random_deltas(SHAPES, ROUNDS, K, 1)  # leaves [T, K, …]
WEIGHTS = jnp.array([1.0, 2.0, 0.0, 1.0, 0.5])
TOLD = {"workers": 5, "local_steps": 30, "rounds": 15}


THETA = random_relative(SPEC.shapes, 7)


def scan(spec: Any, theta: Any, params: Any, means: Any, seen: Any, weights: Any) -> Any:
    """Changes and states of all rounds; `seen` are keywords of update, leaves [T, …]."""
    tx: Any = spec(theta).tx

    def body(carry: Any, now: Any) -> Any:
        params, state = carry
        changes, state = tx.update(now[0], state, params, weights=weights, **now[1])
        return (optax.apply_updates(params, changes), state), (changes, state)

    return jax.lax.scan(body, (params, tx.init(params)), (means, seen))[1]


def run(spec: Any, theta: Any, params: Any, *seen: Any, **told: Any) -> Any:
    """The same compiled, for an optimizer that is told something."""
    rounds = lambda theta, params: scan(lambda phi: spec(phi, **told), theta, params, *seen)
    return jax.jit(rounds, compiler_options=QUICK)(theta, params)


def means_of(deltas: Any, weights: Any = None) -> Any:
    return jax.vmap(lambda d: weighted_mean(d, jnp.ones(K) if weights is None else weights))(deltas)


def twin(
    theta: Any, deltas: Any, weights: Any, gathered: bool, spec: Any = SPEC, **told: Any
) -> Any:
    """The changes of all rounds, by the twin."""
    shares = np.ones(K) if weights is None else np.asarray(weights, np.float64)
    found = []
    params = {name: np.float64(p) for name, p in PARAMS.items()}
    tensors = {name: ref.Tensor(p.shape) for name, p in PARAMS.items()}
    for t in range(ROUNDS):
        changes = {}
        for name, p in params.items():
            each = np.asarray(deltas[name][t], np.float64)
            mean = np.tensordot(shares / shares.sum(), each, 1)
            seen = {"deltas": each if gathered else None, "weights": weights}
            nominal = {"rate": spec.rate, "momentum": spec.momentum}
            changes[name] = -ref.step(theta, tensors[name], mean, p, **seen, **told, **nominal)
            params[name] = p + changes[name]
        found.append(changes)
    return found


@pytest.mark.parametrize(
    ("weights", "gathered", "told", "spec"),
    [
        (None, False, {}, SPEC),
        (None, False, TOLD, RelativeOptimizer(rate=1.0, momentum=0.5)),
        (None, True, TOLD, SPEC),
        (WEIGHTS, True, {"workers": 4}, RelativeOptimizer(rate=0.3, momentum=0.99)),
        (None, True, TOLD, GATED),
        (WEIGHTS, False, {"workers": 4}, RelativeOptimizer(rate=1.0, momentum=0.5, gates=3)),
    ],
)
def test_rounds_in_a_scan_are_the_twins(weights, gathered, told, spec):
    deltas = jax.tree.map(jnp.asarray, DELTAS)
    seen = {"worker_deltas": deltas} if gathered else {}
    known = {} if weights is not None else told  # K is counted where there are weights
    theta = random_relative(spec.shapes, 7)
    changes, _ = run(spec, theta, PARAMS, means_of(deltas, weights), seen, weights, **known)
    for t, expected in enumerate(twin(theta, DELTAS, weights, gathered, spec, **told)):
        assert_close({n: x[t] for n, x in changes.items()}, expected, 1e-5, f"round {t}")


@pytest.mark.parametrize(
    ("rate", "momentum", "gates"), [(0.8, 0.9, 0), (1.0, 0.5, 0), (0.3, 0.99, 0), (0.8, 0.9, 6)]
)
def test_without_weights_it_is_optaxs_nesterov(rate, momentum, gates):
    spec = RelativeOptimizer(rate, momentum, gates=gates)
    theta = spec.init(jax.random.key(3))  # only the last layer is 0
    means = means_of(random_deltas(SHAPES, 50, K, 2))
    changes, _ = run(spec, theta, PARAMS, means, {}, None, **TOLD)
    nesterov = optax.sgd(rate, momentum=momentum, nesterov=True)
    state = nesterov.init(PARAMS)
    for t in range(50):
        expected, state = nesterov.update({n: d[t] for n, d in means.items()}, state)
        assert_close({n: x[t] for n, x in changes.items()}, expected, 1e-6, f"round {t}")


def mean_steps(theta: Any, params: Any, deltas: Any, weights: Any, spec: Any = SPEC) -> Any:
    """Rounds of the mean delta with every worker's delta beside it."""
    seen = {"worker_deltas": deltas}
    return run(spec, theta, params, means_of(deltas, weights), seen, weights, rounds=15)[0]


@pytest.mark.parametrize("spec", [SPEC, GATED], ids=["head", "gates"])
@pytest.mark.parametrize("c", [1e-6, 1e-3, 3.7, 1e6])
def test_steps_scale_with_what_the_workers_did(c, spec):
    scaled = lambda tree: jax.tree.map(lambda x: np.float32(c) * x, tree)
    theta = random_relative(spec.shapes, 7)
    found = mean_steps(theta, scaled(PARAMS), scaled(DELTAS), WEIGHTS, spec)
    expected = scaled(mean_steps(theta, PARAMS, DELTAS, WEIGHTS, spec))
    for t in range(ROUNDS):
        pick = lambda tree, t=t: {n: np.asarray(x[t]) / np.float32(c) for n, x in tree.items()}
        assert_close(pick(found), pick(expected), 1e-4, f"round {t}")


def test_the_order_of_workers_does_not_matter():
    order = np.array([3, 0, 4, 2, 1])
    found = mean_steps(THETA, PARAMS, {n: d[:, order] for n, d in DELTAS.items()}, WEIGHTS[order])
    expected = mean_steps(THETA, PARAMS, DELTAS, WEIGHTS)
    for t in range(ROUNDS):
        pick = lambda tree, t=t: {n: x[t] for n, x in tree.items()}
        assert_close(pick(found), pick(expected), 1e-6, f"round {t}")


def test_norms_stand_for_deltas_and_absent_workers_do_not_count():
    spoilt = {
        n: np.where(np.isclose(WEIGHTS, 0).reshape(-1, *[1] * (d.ndim - 2)), np.nan, d)
        for n, d in DELTAS.items()
    }
    expected = mean_steps(THETA, PARAMS, DELTAS, WEIGHTS)
    for deltas in (DELTAS, spoilt):
        seen = {"worker_squares": jax.vmap(squared_norms)(deltas)}
        found = run(SPEC, THETA, PARAMS, means_of(deltas, WEIGHTS), seen, WEIGHTS, rounds=15)[0]
        assert_close(
            {n: x[-1] for n, x in found.items()}, {n: x[-1] for n, x in expected.items()}, 1e-6
        )


@pytest.mark.parametrize("workers", [1, 2, 33])
def test_any_number_of_workers(workers):
    """Agreement is 1 for one worker and for workers who agree, and all of it can be unknown."""
    same = {n: jnp.broadcast_to(p, (workers, *p.shape)) for n, p in PARAMS.items()}
    once = lambda tree: {n: x[None] for n, x in tree.items()}
    seen = {"worker_deltas": once(same)}
    changes, _ = run(SPEC, THETA, PARAMS, once(PARAMS), seen, jnp.ones(workers))
    for name, p in PARAMS.items():
        alike = {"workers": workers, "deltas": np.broadcast_to(p, (workers, *p.shape))}
        expected = -ref.step(THETA, ref.Tensor(p.shape), p, p, **alike)
        np.testing.assert_allclose(changes[name][0], expected, rtol=1e-5)


def test_a_part_of_a_model_gets_the_step_it_gets_in_the_whole():
    means = means_of(DELTAS)
    whole, _ = run(SPEC, THETA, PARAMS, means, {}, None, **TOLD)
    for names in (["kernel"], ["scalar", "wide"]):
        part = lambda tree, names=names: {name: tree[name] for name in names}
        found, _ = run(SPEC, THETA, part(PARAMS), part(means), {}, None, **TOLD)
        for name in names:
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-6)


def test_under_vmap_over_weights_and_what_is_told():
    """Runs side by side, each with its own φ, K, H and length, 0 being unknown, are runs alone."""
    thetas = [random_relative(SPEC.shapes, seed) for seed in (1, 2)]
    counts = [{"workers": 8.0, "local_steps": 4.0, "rounds": 10.0}, dict.fromkeys(TOLD, 0.0)]
    stack = lambda *xs: jnp.stack([jnp.asarray(x) for x in xs])
    means = means_of(DELTAS)
    many = jax.vmap(lambda theta, told: run(SPEC, theta, PARAMS, means, {}, None, **told)[0])
    found = many(jax.tree.map(stack, *thetas), jax.tree.map(stack, *counts))
    for i, count in enumerate([counts[0], {}]):
        alone, _ = run(SPEC, thetas[i], PARAMS, means, {}, None, **count)
        assert_close({name: found[name][i] for name in PARAMS}, alone, 1e-5)


@pytest.mark.parametrize("spec", [SPEC, GATED], ids=["head", "gates"])
def test_zeros_give_finite_steps_from_momenta_only(spec):
    """Nothing moved ever, then something, then nothing again; and parameters of 0."""
    theta = random_relative(spec.shapes, 7)
    params = jax.tree.map(jnp.zeros_like, PARAMS)
    means = {n: jnp.stack([0 * p, p, 0 * p, 0 * p]) for n, p in PARAMS.items()}
    changes, _ = run(spec, theta, params, means, {}, None)
    tensors = {name: ref.Tensor(p.shape) for name, p in params.items()}
    now = {name: np.zeros(p.shape) for name, p in params.items()}
    for t in range(4):
        for name, tensor in tensors.items():
            change = -ref.step(theta, tensor, means[name][t], now[name])
            now[name] = now[name] + change
            assert_close(changes[name][t], change, 1e-5, f"{name}, {t}")
        assert t > 0 or not any(np.any(x[0]) for x in changes.values())


def test_gradients_through_many_steps_are_finite_where_nothing_moves():
    means = {"w": jnp.zeros((4, 3, 2)).at[1, 0].set(0.1)}
    params = {"w": jnp.ones((3, 2))}
    loss = lambda theta: jnp.sum(jnp.square(scan(SPEC, theta, params, means, {}, None)[0]["w"]))
    found = jax.tree.leaves(jax.jit(jax.grad(loss), compiler_options=QUICK)(THETA))
    assert all(np.all(np.isfinite(leaf)) for leaf in found)
    assert any(np.any(leaf) for leaf in found)


def test_half_the_memory_for_accumulators_of_bfloat16():
    means = means_of(DELTAS)
    whole, _ = run(SPEC, THETA, PARAMS, means, {}, None)
    found, state = run(SPEC, THETA, PARAMS, means, {}, None, accumulators="bfloat16")
    for name, moments in state.moments.items():
        assert {x.dtype for x in (*moments.b, moments.v)} == {jnp.dtype(jnp.bfloat16)}, name
        assert moments.q.dtype == jnp.float32
        error = np.linalg.norm(found[name] - whole[name]) / np.linalg.norm(whole[name])
        assert 0 < error < 0.02, name


def test_scale_and_weight_decay():
    tx: Any = SPEC(THETA, scale=0.5, weight_decay=0.1).tx
    changes, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    for name, p in PARAMS.items():
        expected = -0.5 * ref.step(THETA, ref.Tensor(p.shape), p, p) - 0.1 * p
        np.testing.assert_allclose(changes[name], expected, rtol=2e-5)


def test_published_it_skips_what_is_not_finite(tmp_path):
    """As an optax optimizer: the same steps, and a round with NaN changes nothing at all."""
    zoo.publish(tmp_path / "x.safetensors", LOPT_R, weights(LOPT_R), a_card(LOPT_R))
    guarded: Any = zoo.load(tmp_path / "x.safetensors").optax(rounds=9)
    tx: Any = LOPT_R(weights(LOPT_R), rounds=9).tx
    update: Any = jax.jit(guarded.update, compiler_options=QUICK)
    plain: Any = jax.jit(tx.update, compiler_options=QUICK)
    means, seen = means_of(DELTAS), jax.vmap(squared_norms)(DELTAS)
    state, expected_state = guarded.init(PARAMS), tx.init(PARAMS)
    for t in range(3):
        now = {"worker_squares": {n: x[t] for n, x in seen.items()}}
        mean = {n: x[t] for n, x in means.items()}
        before = state
        changes, state = update(jax.tree.map(lambda x: x * jnp.nan, mean), before, PARAMS, **now)
        assert int(state.skipped) == t + 1
        assert not any(np.any(x) for x in changes.values())
        for a, b in zip(*map(jax.tree.leaves, (state.inner, before.inner)), strict=True):
            np.testing.assert_array_equal(a, b)
        changes, state = update(mean, state, PARAMS, **now)
        expected, expected_state = plain(mean, expected_state, PARAMS, **now)
        assert_close(changes, expected, 1e-5, f"round {t}")


def test_under_a_mask_the_others_norms_are_left_out(tmp_path):
    zoo.publish(tmp_path / "x.safetensors", LOPT_R, weights(LOPT_R), a_card(LOPT_R))
    published: Any = zoo.load(tmp_path / "x.safetensors")
    mask = {name: name == "wide" for name in SHAPES}
    squares = squared_norms({n: d[0] for n, d in DELTAS.items()})
    masked: Any = optax.masked(published.optax(), mask)
    found, _ = masked.update(PARAMS, masked.init(PARAMS), PARAMS, worker_squares=squares)
    whole = published.optax()
    expected, _ = whole.update(PARAMS, whole.init(PARAMS), PARAMS, worker_squares=squares)
    assert_close({"wide": found["wide"]}, {"wide": expected["wide"]}, 1e-6)


def test_its_state_can_be_donated():
    tx: Any = SPEC(THETA).tx
    step: Any = jax.jit(tx.update, donate_argnums=(1,), compiler_options=QUICK)
    _, state = step(PARAMS, tx.init(PARAMS), PARAMS)
    assert int(state.round) == 1


def test_jax_spreads_it_over_devices():
    """Parameters and state placed on a mesh: a plain jit takes the same step."""
    mesh = worker_mesh(8)
    place = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec(AXIS)))
    params, delta = (place(jnp.asarray(random_tree({"w": (16, 6)}, i)["w"])) for i in (1, 2))
    tx: Any = SPEC(THETA).tx
    update: Any = jax.jit(tx.update, compiler_options=QUICK)
    found, state = update(delta, jax.tree.map(jnp.asarray, tx.init(params)), params)
    expected = -ref.step(THETA, ref.Tensor((16, 6)), delta, params)
    assert_close({"w": found}, {"w": expected}, 1e-5)
    assert len(state.moments.v.sharding.device_set) == 8
    with pytest.raises(LaconicError, match="no kernels of its own"):
        sharded(SPEC, THETA, mesh)


def test_a_run_tells_what_was_left_out():
    """`told` fills in K, H and T, and keeps what was said before."""
    means = means_of(DELTAS)
    expected, _ = run(SPEC, THETA, PARAMS, means, {}, None, workers=8, local_steps=4, rounds=7)
    outer = told(SPEC(THETA, rounds=7), workers=8, local_steps=4, rounds=100)
    found, _ = run(lambda theta: outer, THETA, PARAMS, means, {}, None)
    assert_close(
        {n: x[-1] for n, x in found.items()}, {n: x[-1] for n, x in expected.items()}, 1e-6
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RelativeOptimizer(momentum=0.8), "momentum must be one of 0.5, 0.9, 0.99"),
        (lambda: RelativeOptimizer(rate=0.0), "rate must be positive"),
        (lambda: RelativeOptimizer(inputs=("time",)), "inputs that are not among the 27"),
        (lambda: SPEC({"w0": np.zeros((27, 16))}), "not of lopt-r: b0 is missing"),
        (lambda: SPEC(THETA, workers=0), "workers must be at least 1"),
        (lambda: SPEC(THETA, rounds=-1), "rounds must be at least 1"),
        (lambda: SPEC(THETA, accumulators="int8"), "accumulators"),
        (
            lambda: SPEC(THETA).tx.update(PARAMS, SPEC(THETA).tx.init(PARAMS)),
            "needs the parameters",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(LaconicError, match=words):
        make()


def test_more_hidden_units_begin_with_the_same_steps_and_can_learn():
    few = RelativeOptimizer(hidden=3)
    many = RelativeOptimizer(hidden=7)
    theta = jax.tree.map(lambda x: x + 0.1, few.init(jax.random.key(5)))
    grown = many.grown(theta)
    many.check(grown)
    before, _ = run(few, theta, PARAMS, means_of(DELTAS), {}, None)
    after, _ = run(many, grown, PARAMS, means_of(DELTAS), {}, None)
    assert_close(after, before, 1e-6)
    assert np.all(np.asarray(grown["w1"])[3:] == 0)
    assert np.any(np.asarray(grown["w0"])[:, 3:] != 0)
    with pytest.raises(LaconicError, match="3 hidden units and 0 gates cannot begin from one with"):
        few.grown(grown)
