"""A worker's H local steps against steps taken by hand in float64."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import Client, LocalOptimizer, Shared, gradient_client, local_client
from laconic.data.feed import Resident
from laconic.tasks.base import Aux, Task
from tests import reference as ref
from tests import reference_compress as twin
from tests import tiny
from tests.outer.trees import QUICK, assert_close, float64, random_tree

ROUNDS, H, B = 3, 5, 4
ROWS = np.random.default_rng(1).integers(0, len(tiny.X), (ROUNDS, H, B)).astype(np.int32)


class ByHand:
    """SGD with the decay, the clipping and the schedule that optax would add; steps count on across
    rounds."""

    def __init__(self, rate: float, decay: float = 0.0, clip: float = math.inf, steps: int = 0):
        self.rate, self.decay, self.clip, self.steps, self.step_count = rate, decay, clip, steps, 0

    def step(self, params: Any, grads: Any) -> Any:
        grads = twin.clip_by_global_norm(grads, self.clip)
        rate = self.rate
        if self.steps:
            rate *= 0.5 * (1 + math.cos(math.pi * min(self.step_count, self.steps) / self.steps))
        self.step_count += 1
        return {name: p - rate * (grads[name] + self.decay * p) for name, p in params.items()}


class ClippedAdamW(twin.AdamW):
    def step(self, params: Any, grads: Any) -> Any:
        return super().step(params, twin.clip_by_global_norm(grads, 0.3))


LOCAL = {
    "sgd": (LocalOptimizer(learning_rate=0.3), ByHand(0.3)),
    "weight decay": (LocalOptimizer(learning_rate=0.3, weight_decay=0.1), ByHand(0.3, decay=0.1)),
    "clipping": (LocalOptimizer(learning_rate=0.5, clip=0.4), ByHand(0.5, clip=0.4)),
    "cosine": (LocalOptimizer(learning_rate=0.4, decay_steps=20), ByHand(0.4, steps=20)),
    "adamw": (LocalOptimizer("adamw", 0.01, weight_decay=0.1), twin.AdamW(0.01, weight_decay=0.1)),
    "adamw clipped": (
        LocalOptimizer("adamw", 0.01, clip=0.3),
        ClippedAdamW(0.01, weight_decay=0.0),
    ),
    "muon": (LocalOptimizer("muon", 0.02, weight_decay=0.1), ref.Muon(0.02, decay=0.1)),
}


def run_of(client: Client) -> Any:
    return jax.jit(client.run, compiler_options=QUICK)


@pytest.mark.parametrize("name", LOCAL)
def test_h_steps_of(name):
    local, by_hand = LOCAL[name]
    params = random_tree(tiny.SHAPES, 2, 0.5)
    expected, clipped = float64(params), False
    with tiny.lenient(local.name != "sgd" or name == "cosine"):
        client = local_client(tiny.task(), local.optax())
        state, run = client.init(Shared(jax.tree.map(jnp.asarray, params))), run_of(client)
        for t in range(ROUNDS):
            message, state, losses = run(Shared(params), state, ROWS[t], jax.random.key(t))
            before = expected
            for h in range(H):
                value, grads = tiny.loss_and_gradient(expected, ROWS[t, h])
                clipped |= math.sqrt(sum(float(np.sum(g**2)) for g in grads.values())) > 0.4
                np.testing.assert_allclose(losses[h], value, rtol=1e-5)
                expected = by_hand.step(expected, grads)
            if (
                local.name == "sgd"
            ):  # optax corrects Adam's bias in float32, where 1 − 0.999 has four digits
                assert_close(
                    message.delta,
                    {n: before[n] - expected[n] for n in expected},
                    1e-5,
                    f"round {t}",
                )
            params = {n: p - message.delta[n] for n, p in params.items()}
            assert_close(params, expected, 1e-5, f"round {t}")
    assert clipped  # or clipping would not have been tested


def test_the_message_of_a_plain_task_has_nothing_extra():
    client = local_client(tiny.task(), optax.sgd(0.1))
    params = jax.tree.map(jnp.asarray, random_tree(tiny.SHAPES, 2))
    message, _, losses = run_of(client)(
        Shared(params), client.init(Shared(params)), ROWS[0], jax.random.key(0)
    )
    assert message.extra == ()
    assert message.weight == 1.0
    assert losses.shape == (H,)


def test_model_state_passes_from_step_to_step_and_travels_as_extra():
    task = tiny.stateful_task()
    client = local_client(task, optax.sgd(0.2))
    params, model_state = (
        random_tree(tiny.SHAPES, 3, 0.5),
        {"mean": jnp.full(5, 0.5), "seen": jnp.int32(7)},
    )
    shared = Shared(jax.tree.map(jnp.asarray, params), model_state)
    message, _, losses = run_of(client)(shared, client.init(shared), ROWS[0], jax.random.key(0))
    expected, mean = float64(params), np.full(5, 0.5)
    for h in range(H):
        value, grads = tiny.loss_and_gradient(expected, ROWS[0, h], mean)
        np.testing.assert_allclose(losses[h], value, rtol=1e-5)
        expected = {n: p - 0.2 * grads[n] for n, p in expected.items()}
        mean = 0.9 * mean + 0.1 * tiny.X[ROWS[0, h]].astype(np.float64).mean(axis=0)
    assert_close(message.extra["mean"], mean, 1e-5)
    assert message.extra["seen"] == 7 + H
    assert_close(message.delta, {n: float64(params)[n] - expected[n] for n in expected}, 1e-5)


def test_every_step_has_its_own_randomness():
    def noisy(params: Any, model_state: Any, batch: Any, key: jax.Array) -> Any:
        return jax.random.uniform(key) + 0.0 * jnp.sum(params), Aux(model_state)

    feed = Resident({"train": jnp.zeros((3, 1))})
    task = Task("noisy", lambda key: (jnp.zeros(2), ()), noisy, feed, evaluate=lambda p, s, b: {})
    client = local_client(task, optax.sgd(0.1))
    shared = Shared(jnp.zeros(2))
    run, items = run_of(client), jnp.zeros((4, 1), jnp.int32)
    losses = [
        run(shared, client.init(shared), items, jax.random.key(seed))[2] for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert len({float(x) for x in np.concatenate([losses[0], losses[2]])}) == 8


def test_a_synchronous_worker_sends_the_mean_gradient_of_all_its_examples():
    client, params = gradient_client(tiny.task()), random_tree(tiny.SHAPES, 4)
    message, state, losses = run_of(client)(Shared(params), (), ROWS[0], jax.random.key(0))
    value, grads = tiny.loss_and_gradient(float64(params), ROWS[0].reshape(-1))
    assert_close(message.delta, grads, 1e-5)
    each = [tiny.gradient(float64(params), rows) for rows in ROWS[0]]
    assert_close(message.delta, {n: np.mean([g[n] for g in each], axis=0) for n in grads}, 1e-5)
    np.testing.assert_allclose(losses, [value], rtol=1e-5)
    assert state == client.init(Shared(params)) == ()


def test_a_synchronous_worker_sends_its_model_state():
    client, params = gradient_client(tiny.stateful_task()), random_tree(tiny.SHAPES, 4)
    shared = Shared(params, {"mean": jnp.zeros(5), "seen": jnp.int32(2)})
    message, _, _ = run_of(client)(shared, (), ROWS[0], jax.random.key(0))
    assert message.extra["seen"] == 3
    assert_close(
        message.extra["mean"],
        0.1 * tiny.X[ROWS[0].reshape(-1)].astype(np.float64).mean(axis=0),
        1e-5,
    )


def test_a_gradient_in_pieces_is_the_same_gradient(raises_clearly):
    params = random_tree(tiny.SHAPES, 4)
    run = lambda task: run_of(gradient_client(task))(Shared(params), (), ROWS[0], jax.random.key(0))
    value, grads = tiny.loss_and_gradient(float64(params), ROWS[0].reshape(-1))
    for at_once in (H * B, 10, 4, 1):
        message, _, losses = run(replace(tiny.task(), at_once=at_once))
        assert_close(message.delta, grads, 1e-5, f"{at_once} at once")
        np.testing.assert_allclose(losses, [value], rtol=1e-5)
    with raises_clearly("20 examples", "3 at once"):
        run(replace(tiny.task(), at_once=3))


def test_pieces_pass_their_model_state_on():
    client, params = (
        gradient_client(replace(tiny.stateful_task(), at_once=B)),
        random_tree(tiny.SHAPES, 4),
    )
    shared = Shared(params, {"mean": jnp.zeros(5), "seen": jnp.int32(2)})
    message, _, _ = run_of(client)(shared, (), ROWS[0], jax.random.key(0))
    assert message.extra["seen"] == 2 + H
    mean, total = np.zeros(5), {name: 0.0 for name in tiny.SHAPES}
    for rows in ROWS[0]:  # each piece is centred by what the ones before it saw
        _, grads = tiny.loss_and_gradient(float64(params), rows, mean)
        total = {name: total[name] + grads[name] / H for name in total}
        mean = 0.9 * mean + 0.1 * tiny.X[rows].astype(np.float64).mean(axis=0)
    assert_close(message.delta, total, 1e-5)
    assert_close(message.extra["mean"], mean, 1e-5)


def test_local_optimizers_that_cannot_work_say_so(raises_clearly):
    with raises_clearly("unknown local optimizer 'adam'", "Did you mean 'adamw'?"):
        LocalOptimizer("adam")
    for rate in (0.0, -0.1, math.nan):
        with raises_clearly("learning rate must be positive", str(rate)):
            LocalOptimizer(learning_rate=rate)
    for knob in ("weight_decay", "clip", "decay_steps"):
        negative: dict[str, Any] = {knob: -1}
        with raises_clearly(f"{knob} must not be negative", "-1"):
            LocalOptimizer(**negative)
