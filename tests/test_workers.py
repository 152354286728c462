"""Workers over a mesh of eight devices do what simulated ones do, and means are means."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from laconic.client import Client, LocalOptimizer, Message, local_client
from laconic.compress import parse_compressor
from laconic.outer import OUTER, LearnedOptimizer, OuterOptimizer
from laconic.round import Items, Server, communication_round, init_round
from laconic.tasks.base import Task
from laconic.workers import AXIS, Meshed, Simulated, weighted_mean, worker_mesh
from tests import reference as ref
from tests import tiny
from tests.outer.trees import QUICK, assert_close, float64, random_theta
from tests.zoo.made import LOPT_R, weights

H, B, T = 2, 4, 10
SGD, ADAMW = LocalOptimizer("sgd", 0.3), LocalOptimizer("adamw", 0.003)
IDLE: Any = Client(lambda shared: (), lambda *seen: None)  # pyright: ignore[reportArgumentType]


def learned(architecture: str, K: int | None) -> OuterOptimizer:
    spec = LearnedOptimizer(architecture, K)
    return spec(random_theta(spec.inputs, 1, True))


METHODS: dict[str, Any] = {  # K → (outer optimizer, local optimizer, compressor, task)
    "local SGD": lambda K: (OUTER["average"].make(), SGD, "dense", tiny.task()),
    "LOpt-A": lambda K: (learned("lopt-a", None), SGD, "dense", tiny.task()),
    "LAgg-A": lambda K: (learned("lagg-a", K), SGD, "dense", tiny.task()),
    "lopt-r": lambda K: (LOPT_R(weights(LOPT_R), scale=0.1), SGD, "dense", tiny.task()),
    "top-k": lambda K: (OUTER["average"].make(), SGD, "topk:0.3+ef", tiny.task()),
    "AdamW": lambda K: (OUTER["average"].make(), ADAMW, "dense", tiny.task()),
    "model state": lambda K: (OUTER["average"].make(), SGD, "dense", tiny.stateful_task()),
}


def run(workers: Simulated | Meshed, outer: OuterOptimizer, task: Task, K: int) -> Any:
    """(the last state, losses [T, K, H])."""
    server = Server(outer)
    rows = np.random.default_rng(0).integers(0, 64, (T, K, H, B)).astype(np.int32)
    items = Items(rows, jax.random.split(jax.random.key(1), (T, K)))
    step = lambda state, items: communication_round(workers, server, state, items)
    state = init_round(task, workers, server, K, jax.random.key(0))
    return jax.jit(lambda *args: jax.lax.scan(step, *args), compiler_options=QUICK)(state, items)


@pytest.mark.parametrize("K", [8, 16])
@pytest.mark.parametrize("name", METHODS)
def test_a_mesh_does_what_the_simulation_does(name, K):
    outer, local, spec, task = METHODS[name](K)
    with tiny.lenient(local is ADAMW):
        client, compressor = local_client(task, local.optax()), parse_compressor(spec)
        one, losses = run(Simulated(client, compressor), outer, task, K)
        many, mesh_losses = run(Meshed(client, compressor, worker_mesh(8)), outer, task, K)
    assert losses.shape == (T, K, H)
    np.testing.assert_allclose(mesh_losses, losses, rtol=1e-5)
    assert_close(many.shared.params, jax.device_get(one.shared.params), 1e-5, "weights")
    for a, b in zip(jax.tree.leaves(many.clients), jax.tree.leaves(one.clients), strict=True):
        assert_close(a, b, 1e-5, "client states")
    for a, b in zip(
        jax.tree.leaves(many.shared.model_state),
        jax.tree.leaves(one.shared.model_state),
        strict=True,
    ):
        assert_close(a, b, 1e-5, "model state")
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(many.shared))


def test_a_mesh_spreads_the_workers_over_its_devices():
    seen = Meshed(IDLE, parse_compressor("dense"), worker_mesh(4)).map(
        lambda shared, client, item: item + shared
    )
    out = jax.jit(seen)(jnp.float32(1), jnp.zeros(8), jnp.arange(8.0))
    np.testing.assert_array_equal(out, jnp.arange(8.0) + 1)
    assert out.sharding.spec == PartitionSpec(AXIS)
    assert len(out.sharding.device_set) == 4


def test_the_gradient_of_one_worker_is_its_own():
    """Inside shard_map the gradient with respect to replicated weights would come back summed over
    the devices."""

    def phase(shared: Any, client: Any, rows: Any) -> Any:
        return jax.grad(tiny.loss)(shared, tiny.task().feed.take(rows))

    params = tiny.init(jax.random.key(1))
    rows = np.random.default_rng(0).integers(0, 64, (16, B)).astype(np.int32)
    workers = Meshed(IDLE, parse_compressor("dense"), worker_mesh(8))
    grads = jax.device_get(jax.jit(workers.map(phase))(params, jnp.zeros(16), rows))
    for k in range(16):
        assert_close(
            {n: g[k] for n, g in grads.items()},
            tiny.gradient(float64(params), rows[k]),
            1e-5,
            f"worker {k}",
        )


def test_workers_that_do_not_divide_over_the_devices_say_so(raises_clearly):
    workers = Meshed(IDLE, parse_compressor("dense"), worker_mesh(8))
    with raises_clearly("12 workers", "8 devices", "multiple of 8"):
        workers.map(lambda shared, client, item: item)(jnp.zeros(2), jnp.zeros(12), jnp.zeros(12))


def test_a_mesh_larger_than_the_machine_says_so(raises_clearly):
    assert worker_mesh().shape == {AXIS: 8}
    assert worker_mesh(2).shape == {AXIS: 2}
    for devices in (9, 0):
        with raises_clearly(f"{devices} devices", "8"):
            worker_mesh(devices)


@pytest.mark.parametrize("how", ["mean", "gather"])
@pytest.mark.parametrize("where", ["one device", "a mesh"])
def test_messages_are_combined_by_weight_and_the_absent_are_silent(where, how):
    K, rng = 16, np.random.default_rng(2)
    deltas = {
        "w": rng.normal(size=(K, 3, 2)).astype(np.float32),
        "b": rng.normal(size=K).astype(np.float32),
    }
    weights = np.array(
        [0, 0, 1, 2, 0.5] + [1] * 10 + [0], np.float32
    )  # the first device has nobody
    expected = ref.weighted_mean(float64(deltas), [float(w) for w in weights])
    extra = {
        "mean": rng.normal(size=(K, 4)).astype(np.float32),
        "seen": np.arange(K, dtype=np.int32),
    }
    extra |= {"flag": np.zeros((K, 2), bool), "count": np.full(K, -5, np.int32)}
    mean = ref.weighted_mean(
        {"mean": extra["mean"].astype(np.float64)}, [float(w) for w in weights]
    )["mean"]
    for spoilt, garbage in [(deltas, np.nan), (extra, np.nan)]:
        for x in spoilt.values():
            x[weights == 0] = garbage if x.dtype == np.float32 else 99
    dense = parse_compressor("dense")
    workers = (
        Simulated(IDLE, dense) if where == "one device" else Meshed(IDLE, dense, worker_mesh(8))
    )
    like = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(())}
    combine = jax.jit(lambda m: workers.combine(m, how, like), compiler_options=QUICK)
    combined = jax.device_get(combine(Message(deltas, extra, jnp.asarray(weights))))
    assert_close(combined.mean_delta, expected, 1e-6)
    assert_close(combined.extra["mean"], mean, 1e-6)
    assert combined.extra["seen"] == 14  # a counter takes the largest, of those who are here
    assert combined.extra["count"] == -5
    np.testing.assert_array_equal(combined.extra["flag"], [False, False])
    np.testing.assert_array_equal(combined.weights_K, weights)
    if how == "mean":
        assert combined.worker_deltas is None
        return
    for name, x in combined.worker_deltas.items():
        np.testing.assert_array_equal(x, deltas[name])


@pytest.mark.parametrize("K", [1, 3, 40])
@pytest.mark.parametrize("devices", [0, 1])
def test_means_of_few_and_of_many_workers(K, devices):
    """More than 32 workers on a device are summed in a loop."""
    rng = np.random.default_rng(K)
    x, weights = (
        rng.normal(size=(K, 5)).astype(np.float32),
        rng.uniform(0.1, 2, K).astype(np.float32),
    )
    x[K // 2], weights[K // 2] = (np.nan, 0.0) if K > 1 else (x[0], weights[0])
    dense = parse_compressor("dense")
    workers = Meshed(IDLE, dense, worker_mesh(1)) if devices else Simulated(IDLE, dense)
    combine = jax.jit(
        lambda m: workers.combine(m, "mean", jnp.zeros(5)).mean_delta, compiler_options=QUICK
    )
    expected = ref.weighted_mean({"x": x.astype(np.float64)}, [float(w) for w in weights])["x"]
    assert_close(combine(Message(x, (), jnp.asarray(weights))), expected, 1e-6)


def test_weighted_mean():
    mean = jax.jit(weighted_mean)
    np.testing.assert_array_equal(mean(jnp.array([1.0, 5.0]), jnp.array([3.0, 1.0])), 2.0)
    np.testing.assert_array_equal(mean(jnp.array([[1.0], [jnp.inf]]), jnp.array([2.0, 0.0])), [1.0])
    np.testing.assert_array_equal(mean(jnp.array([jnp.nan, jnp.nan]), jnp.zeros(2)), 0.0)  # nobody
    one = np.float32(0.1) * np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(
        mean(jnp.asarray(one)[None], jnp.array([0.3])), one
    )  # of one: the same bits
    np.testing.assert_array_equal(mean(jnp.array([3, 9, 4]), jnp.array([1.0, 0.0, 1.0])), 4)
    np.testing.assert_array_equal(mean(jnp.array([3, 9], jnp.uint8), jnp.array([1.0, 1.0])), 9)
    np.testing.assert_array_equal(mean(jnp.array([False, True]), jnp.array([1.0, 1.0])), True)
    np.testing.assert_array_equal(mean(jnp.array([False, True]), jnp.array([1.0, 0.0])), False)
    assert mean((), jnp.ones(3)) == ()


def test_a_mean_of_bfloat16_is_rounded_once():
    x = jnp.asarray(np.random.default_rng(4).normal(size=(7, 50)), jnp.bfloat16)
    found = jax.jit(weighted_mean)(x, jnp.ones(7))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        found, jnp.asarray(np.asarray(x, np.float64).mean(axis=0), jnp.bfloat16)
    )
