"""BatchNorm's statistics are estimated anew before a look at held-out data, and nothing else
changes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data.feed import Resident, Streamed
from laconic.data.splits import Dataset
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.runs.simulate import Simulation
from laconic.tasks.base import Aux, Task
from laconic.tasks.catalog import make_task
from laconic.tasks.classifier import images, stateful_classifier_task
from laconic.tasks.small import NormCNN
from tests.tasks.test_classifier import lax_conv

SETTING = Setting(workers=2, local_steps=3, batch=4, rounds=4, seeds=(0, 1), evaluate_every=1)
KEEP = 0.5


def moving_task(**feed) -> Task:
    """A weight that is pulled to 1 and a running mean of it times the inputs, which are all ones:
    so the statistic of every batch is the weight. The test loss is the running mean."""

    def loss(params, model_state, batch, key):
        seen = params["w"] * jnp.mean(batch["x"])
        value = (params["w"] - 1.0) ** 2 + 0.0 * seen
        return value, Aux({"mean": KEEP * model_state["mean"] + (1 - KEEP) * seen})

    init = lambda key: ({"w": jax.random.normal(key)}, {"mean": jnp.float32(-7.0)})
    evaluate = lambda params, model_state, batch: {
        "loss": model_state["mean"],
        "weight": params["w"],
    }
    data = {"x": np.ones((12, 1), np.float32)}
    return Task("moving", init, loss, Resident({"train": data, "test": data}), evaluate=evaluate)


def looks(count: int, task: Task | None = None):
    setting = replace(SETTING, fresh_statistics=count)
    simulation = Simulation(task or moving_task(), parse_method("local-sgd:gamma=0.1", 2), setting)
    chunks = list(simulation.run(simulation.start()))
    together = lambda name: np.stack([chunk.heldout[name] for chunk in chunks], axis=1)
    losses = np.concatenate([chunk.losses for chunk in chunks], axis=1)
    return together("loss"), together("weight"), losses, chunks[-1].state


@pytest.mark.parametrize("count", [1, 3, 30])
def test_the_statistic_moves_to_that_of_the_weights_looked_at(count):
    as_left, weights, _, _ = looks(0)
    fresh, same_weights, _, _ = looks(count)
    np.testing.assert_array_equal(same_weights, weights)
    old = KEEP**count
    np.testing.assert_allclose(fresh, old * as_left + (1 - old) * weights, rtol=1e-5, atol=1e-6)
    assert np.abs(as_left - weights).max() > 0.1  # as the workers left it, it is behind


def test_training_is_the_same_to_the_bit():
    _, _, losses, state = looks(0)
    _, _, again, after = looks(5)
    np.testing.assert_array_equal(again, losses)
    jax.tree.map(np.testing.assert_array_equal, after.shared, state.shared)


def test_batch_norm_is_looked_at_with_statistics_of_its_weights():
    """Against the mean and variance of all training data after the first convolution."""
    rng = np.random.default_rng(0)
    split = {
        "x": jnp.asarray(rng.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8)),
        "y": jnp.asarray(rng.integers(0, 10, 20).astype(np.int32)),
    }
    dataset = Dataset(Resident({"train": split, "test": split}), 10, "made")
    task = stateful_classifier_task("bn", lambda key: NormCNN(key, 3, 2, 10), dataset)
    setting = replace(SETTING, rounds=1, batch=64, seeds=(0,), fresh_statistics=60)
    simulation = Simulation(task, parse_method("local-sgd:gamma=0.5", 2), setting)
    (chunk,) = simulation.run(simulation.start())
    state = jax.tree.map(lambda x: x[0], chunk.state)
    seen = jax.jit(lambda: simulation._seen(simulation.task, state))()
    jax.tree.map(np.testing.assert_array_equal, seen.params, state.shared.params)
    y = lax_conv(images(split)[0], state.shared.params.convs[0].weight, 2)
    exact = np.asarray(y, np.float64).reshape(-1, 2).var(0)
    before, now = (np.asarray(x.model_state[0].var) for x in (state.shared, seen))
    assert np.abs(now / exact - 1).max() < 0.2 < np.abs(before / exact - 1).max()


def test_a_model_without_statistics_is_refused(raises_clearly):
    with raises_clearly("digits-mlp", "no statistics", "leave out fresh_statistics"):
        looks(3, make_task("digits-mlp"))


def test_a_stream_is_refused(raises_clearly):
    task = replace(moving_task(), feed=Streamed({}, lambda: iter([])))
    with raises_clearly("moving", "streamed", "fresh_statistics"):
        looks(3, task)


def test_a_count_cannot_be_negative(raises_clearly):
    with raises_clearly("fresh_statistics", "-1"):
        Setting(fresh_statistics=-1)
