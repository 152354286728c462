"""The simulator: chunks, seeds, streams, meshes, divergence, traffic."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.compress import parse_compressor
from laconic.data.feed import Streamed
from laconic.method import Method, Setting
from laconic.methods import parse_method
from laconic.outer import LearnedOptimizer, from_optax
from laconic.round import Shared, draw_items, draw_present
from laconic.runs.measure import heldout_metrics
from laconic.runs.simulate import Diverged, Simulation, over_seeds
from laconic.tasks.base import plain_task
from laconic.tasks.catalog import make_task
from laconic.workers import worker_mesh

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 5)).astype(np.float32)
Y = (X @ np.arange(1, 6, dtype=np.float32) / 5).astype(np.float32)


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def least_squares(**more):
    return plain_task(
        "least-squares",
        lambda key: {"w": jax.random.normal(key, (5,))},
        loss,
        {"x": X, "y": Y},
        **more,
    )


def all_losses(simulation, **how):
    return np.concatenate(
        [chunk.losses for chunk in simulation.run(simulation.start(), **how)], axis=1
    )


def test_chunks_make_up_the_rounds():
    assert Setting(rounds=45, evaluate_every=20).chunks == [20, 20, 5]
    assert Setting(rounds=40, evaluate_every=20).chunks == [20, 20]


@pytest.mark.parametrize("field", ["workers", "local_steps", "batch", "rounds", "evaluate_every"])
@pytest.mark.parametrize("value", [0, -3])
def test_counts_must_be_positive(field, value, raises_clearly):
    with raises_clearly(field, "positive", str(value)):
        Setting(**{field: value})


@pytest.mark.slow
def test_training_works_and_chunk_length_changes_nothing():
    method = parse_method("local-sgd:gamma=0.05", 4)
    whole = all_losses(Simulation(least_squares(), method, Setting(4, 2, 8, 12, (0, 1), 12)))
    parts = all_losses(Simulation(least_squares(), method, Setting(4, 2, 8, 12, (0, 1), 5)))
    assert whole.shape == parts.shape == (2, 12, 4)
    np.testing.assert_array_equal(whole, parts)
    assert whole[:, -1].mean() < whole[:, 0].mean() / 4


def test_seeds_are_independent_of_their_company():
    method = parse_method("slowmo:gamma=0.05,beta=0.5", 2)
    together = all_losses(Simulation(least_squares(), method, Setting(2, 2, 8, 6, (3, 7), 6)))
    alone = all_losses(Simulation(least_squares(), method, Setting(2, 2, 8, 6, (7,), 6)))
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 1e-3


def test_seeds_some_at_a_time_are_the_same_seeds():
    method, sizes = parse_method("slowmo:gamma=0.05,beta=0.5", 2), (2, 2, 8, 6, (3, 7, 5), 3)
    together = Simulation(least_squares(test={"x": X, "y": Y}), method, Setting(*sizes))
    apart = Simulation(
        least_squares(test={"x": X, "y": Y}), method, Setting(*sizes, seeds_at_once=2)
    )
    for one, other in zip(together.run(together.start()), apart.run(apart.start()), strict=True):
        np.testing.assert_allclose(other.losses, one.losses, rtol=1e-6)
        np.testing.assert_allclose(other.heldout["loss"], one.heldout["loss"], rtol=1e-6)


def test_seeds_at_once_are_counted(raises_clearly):
    with raises_clearly("seeds_at_once", "-1"):
        Setting(seeds_at_once=-1)


def test_absent_workers_are_left_out_of_the_mean():
    """By hand: local SGD, and the mean of those that are there, who are others in every round."""
    K, H, B, rounds, gamma, missing = 5, 3, 8, 6, 0.05, 2
    setting = Setting(K, H, B, rounds, (4,), rounds, missing=missing)
    simulation = Simulation(least_squares(), parse_method(f"local-sgd:gamma={gamma}", K), setting)
    start = simulation.start()
    (chunk,) = simulation.run(start)
    one = jax.tree.map(lambda x: x[0], start)
    at = lambda t: one._replace(round=t)
    draw = lambda t: (
        draw_items(least_squares().feed, at(t), K, H, B).batches,
        draw_present(at(t), K, missing),
    )
    rows_RKHB, present_RK = map(np.asarray, jax.jit(jax.vmap(draw))(jnp.arange(rounds)))
    w = np.asarray(one.shared.params["w"], np.float64)
    for t, present_K in enumerate(present_RK):
        ends, losses = [], []
        for k in np.flatnonzero(present_K):
            v, seen = w.copy(), []
            for rows in rows_RKHB[t, k]:
                errors = X[rows] @ v - Y[rows]
                seen.append(np.mean(errors**2))
                v = v - gamma * 2 * X[rows].T @ errors / B
            ends.append(v)
            losses.append(np.mean(seen))
        expected_K = np.full(K, np.mean(losses))  # nobody knows what the absent saw
        expected_K[present_K > 0] = losses
        np.testing.assert_allclose(chunk.losses[0, t], expected_K, rtol=1e-5)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(chunk.state.shared.params["w"][0], w, rtol=1e-5)
    np.testing.assert_array_equal(present_RK.sum(axis=1), K - missing)
    assert len({tuple(row) for row in present_RK.tolist()}) > 1


def test_everyone_is_missing_as_often_as_the_others():
    state = Simulation(least_squares(), parse_method("local-sgd", 8), Setting(8, 1, 4, 1)).start()
    one = jax.tree.map(lambda x: x[0], state)
    draw = jax.jit(jax.vmap(lambda t: draw_present(one._replace(round=t), 8, 2)))
    present_RK = np.asarray(draw(jnp.arange(4000)))
    np.testing.assert_array_equal(present_RK.sum(axis=1), 6)
    # A worker is missing 1000 times of 4000, give or take √(4000·¼·¾) = 27.
    assert np.all(np.abs((1 - present_RK).sum(axis=0) - 1000) < 5 * 27.4)


def test_who_can_be_missing(raises_clearly):
    for missing in (-1, 4):
        with raises_clearly("0 to 3", str(missing)):
            Setting(4, missing=missing)
    with raises_clearly("small-batch-sgd", "1 worker", "leave it out"):
        Simulation(
            least_squares(), parse_method("small-batch-sgd", 4), Setting(4, 1, 4, 1, missing=1)
        )


def test_resuming_from_a_state_continues_to_the_same_bits():
    simulation = Simulation(
        least_squares(), parse_method("fedadam:gamma=0.05", 4), Setting(4, 2, 8, 12, (0,), 4)
    )
    chunks = list(simulation.run(simulation.start()))
    later = list(simulation.run(chunks[0].state, done=4))
    np.testing.assert_array_equal(
        np.concatenate([c.losses for c in chunks[1:]], 1),
        np.concatenate([c.losses for c in later], 1),
    )
    assert [c.done for c in later] == [8, 12]


def test_resuming_off_a_chunk_boundary_is_refused(raises_clearly):
    simulation = Simulation(
        least_squares(), parse_method("local-sgd:gamma=0.05", 2), Setting(2, 1, 4, 12, (0,), 4)
    )
    with raises_clearly("3 rounds", "resume"):
        list(simulation.run(simulation.start(), done=3))


def test_a_mesh_gives_the_simulators_losses():
    method = parse_method("local-sgd:gamma=0.5", 8)
    setting = Setting(8, 4, 16, 10, (0,), 10)
    task = make_task("digits-mlp")
    one = all_losses(Simulation(task, method, setting))
    many = all_losses(Simulation(task, method, setting, worker_mesh(8)))
    np.testing.assert_allclose(many, one, rtol=1e-5)


def test_divergence_names_round_worker_and_seed():
    simulation = Simulation(
        least_squares(), parse_method("local-sgd:gamma=1e6", 2), Setting(2, 3, 4, 20, (5,), 4)
    )
    with pytest.raises(Diverged) as info:
        all_losses(simulation)
    losses = all_losses(simulation, keep_going=True)
    first = np.argwhere(~np.isfinite(losses[0]).all(axis=1))[0, 0] + 1
    assert f"round {first} " in str(info.value)
    assert "worker" in str(info.value)
    assert "seed 5" in str(info.value)
    assert info.value.done == (first - 1) // 4 * 4
    assert int(info.value.before.round[0]) == info.value.done


def test_held_out_metrics_are_means_over_the_whole_split():
    n = 611  # two full evaluation batches and a rest
    x = RNG.normal(size=(n, 5)).astype(np.float32)
    y = RNG.normal(size=n).astype(np.float32)
    task = least_squares(test={"x": x, "y": y})
    w = np.arange(5, dtype=np.float32)
    got = heldout_metrics(task, Shared({"w": jnp.asarray(w)}))
    np.testing.assert_allclose(got["loss"], np.mean((x.astype(float) @ w - y) ** 2), rtol=1e-5)
    assert heldout_metrics(least_squares(), Shared({"w": jnp.asarray(w)})) == {}


def stream(count, batch=8):
    def batches():
        rng = np.random.default_rng(1)
        for _ in range(count):
            rows = rng.integers(0, 100, batch)
            yield {"x": X[rows], "y": Y[rows]}

    return Streamed({}, batches)


def test_a_stream_trains_and_resumes():
    task = plain_task("stream", lambda key: {"w": jax.random.normal(key, (5,))}, loss, stream(1000))
    simulation = Simulation(
        task, parse_method("local-sgd:gamma=0.05", 4), Setting(4, 2, 8, 8, (0,), 4)
    )
    first, second = list(simulation.run(simulation.start()))
    assert second.losses.mean() < first.losses.mean()
    again = Simulation(task, simulation.method, simulation.setting)
    (resumed,) = list(again.run(first.state, done=4))
    np.testing.assert_array_equal(resumed.losses, second.losses)


def test_seeds_of_a_stream_see_their_own_batches():
    task = plain_task("stream", lambda key: {"w": jnp.zeros(5)}, loss, stream(1000))
    simulation = Simulation(
        task, parse_method("local-sgd:gamma=0.05", 2), Setting(2, 2, 8, 3, (0, 1), 3)
    )
    (chunk,) = simulation.run(simulation.start())
    batches = list(stream(1000).batches())
    w = np.zeros(5)
    first = np.mean((batches[0]["x"] @ w - batches[0]["y"]) ** 2)
    step = 2 * batches[0]["x"].T @ (batches[0]["x"] @ w - batches[0]["y"]) / 8
    second = np.mean((batches[1]["x"] @ (w - 0.05 * step) - batches[1]["y"]) ** 2)
    np.testing.assert_allclose(chunk.losses[0, 0, 0], (first + second) / 2, rtol=1e-5)
    assert np.abs(chunk.losses[0] - chunk.losses[1]).min() > 0


def test_a_stream_of_another_batch_size_is_refused(raises_clearly):
    task = plain_task("stream", lambda key: {"w": jnp.zeros(5)}, loss, stream(100, batch=5))
    simulation = Simulation(
        task, parse_method("local-sgd:gamma=0.05", 2), Setting(2, 2, 8, 3, (0,), 3)
    )
    with raises_clearly("batches have 5 examples", "says 8"):
        list(simulation.run(simulation.start()))


def test_a_stream_stops_with_its_run():
    task = plain_task("stream", lambda key: {"w": jnp.zeros(5)}, loss, stream(10_000))
    simulation = Simulation(
        task, parse_method("local-sgd:gamma=0.05", 2), Setting(2, 2, 8, 3, (0,), 1)
    )
    before = threading.active_count()
    next(run := simulation.run(simulation.start()))
    assert threading.active_count() == before + 1
    run.close()
    assert threading.active_count() == before


def test_weights_that_stop_being_numbers_stop_the_run():
    """The outer step overflows after losses that were still finite."""
    method = Method(
        "boom", parse_method("local-sgd:gamma=0.05", 2).client, from_optax(optax.scale(-np.inf))
    )
    simulation = Simulation(least_squares(), method, Setting(2, 3, 4, 2, (5,), 1))
    with pytest.raises(Diverged, match=r"weights are not finite after round 1 \(seed 5\)"):
        list(simulation.run(simulation.start()))
    (chunk, *_) = simulation.run(simulation.start(), keep_going=True)
    assert not chunk.finite[0]


def test_one_worker_needs_no_mesh():
    method = parse_method("small-batch-sgd:alpha=0.01", 4)
    simulation = Simulation(least_squares(), method, Setting(4, 2, 8, 2, (0,), 2), worker_mesh(2))
    (chunk,) = simulation.run(simulation.start())
    assert np.isfinite(chunk.losses).all()


def test_workers_that_do_not_divide_over_devices_are_refused_at_once(raises_clearly):
    with raises_clearly("3 workers", "2 devices"):
        Simulation(
            least_squares(), parse_method("local-sgd", 3), Setting(3, 2, 8, 2), worker_mesh(2)
        )


@pytest.mark.parametrize("seed", [-1, 2**32, 10**25])
def test_seeds_fit_in_32_bits(seed, raises_clearly):
    with raises_clearly("seed", str(seed)):
        Setting(seeds=(seed,))


def test_a_stream_that_ends_early_says_so(raises_clearly):
    task = plain_task("short", lambda key: {"w": jax.random.normal(key, (5,))}, loss, stream(50))
    simulation = Simulation(
        task, parse_method("local-sgd:gamma=0.05", 4), Setting(4, 2, 8, 8, (0,), 4)
    )
    with raises_clearly("ended after 6 of 8 rounds", "8 batches"):
        list(simulation.run(simulation.start()))


def test_a_worker_aware_optimizer_refuses_another_k(raises_clearly):
    learned = LearnedOptimizer("lagg-a", 4)
    outer = learned(learned.init(jax.random.key(0)))
    method = Method("lagg-a", parse_method("local-sgd", 8).client, outer)
    with raises_clearly("K = 4", "not 8", "lopt-a"):
        Simulation(least_squares(), method, Setting(8, 2, 8, 4, (0,), 4))


def test_traffic_by_topology(raises_clearly):
    def traffic(spec, topology, K=4):
        return Simulation(least_squares(), parse_method(spec, K), Setting(K, 2, 8, 4)).traffic(
            topology
        )

    assert (
        traffic("local-sgd", "server").sent_bits,
        traffic("local-sgd", "server").received_bits,
    ) == (160, 160)
    assert traffic("local-sgd", "all-gather").sent_bits == 3 * 160
    assert traffic("local-sgd", "ring").sent_bits == 240
    sparse = traffic("local-sgd:compress=topk:0.4+ef", "server")
    assert (sparse.sent_bits, sparse.received_bits) == (2 * 32 + 8, 160)
    assert sparse.sent_bits == parse_compressor("topk:0.4+ef").bits({"w": jnp.zeros(5)})
    assert traffic("small-batch-sgd", "server").sent_bits == 0
    with raises_clearly("ring", "all-gather"):
        traffic("local-sgd:compress=int8", "ring")
    with raises_clearly("ring", "gather"):
        traffic("lagg-a", "ring")


# --- seeds side by side, or some at a time --------------------------------------------------------

SEEDED = jnp.linspace(0.0, 1.0, 5 * 64).reshape(5, 64)


def table_sum(x, nothing):
    assert nothing is None
    table = jnp.sin(x[:, None] * jnp.arange(1024.0)[None, :])
    return {"sum": jnp.sum(jnp.cumsum(table, axis=1)), "x": x}


@pytest.mark.parametrize("at_once", [0, 1, 2, 4, 5, 9])
def test_every_seed_is_there_in_its_place(at_once):
    found = jax.jit(over_seeds(table_sum, len(SEEDED), at_once))(SEEDED, None)
    expected = [
        np.cumsum(np.sin(np.float64(x)[:, None] * np.arange(1024.0)), axis=1).sum() for x in SEEDED
    ]
    np.testing.assert_allclose(found["sum"], expected, rtol=1e-3)
    np.testing.assert_array_equal(found["x"], SEEDED)


def test_fewer_at_once_take_less_memory():
    def temporary(at_once):
        compiled = (
            jax.jit(over_seeds(table_sum, len(SEEDED), at_once)).lower(SEEDED, None).compile()
        )
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(1) < temporary(0) / 3
