"""Every large task trains: 20 rounds by simulated workers at reduced width, on data that can be
learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer, local_client
from laconic.compress import DENSE
from laconic.data.feed import Resident
from laconic.data.splits import Dataset
from laconic.data.text import CountWindows, Windows
from laconic.outer import OUTER
from laconic.round import Server, communication_round, draw_items, init_round
from laconic.runs.measure import heldout_metrics
from laconic.tasks.catalog import TASKS, parse_spec
from laconic.workers import Simulated

K, H, B = 2, 4, 16

RESNET = "width=4,blocks=5"
VIT = "hidden=16,heads=2,layers=4,patch=4"
LM = "hidden=16,heads=2,layers=4,context=8,tokenizer=bytes"
SMALL = {
    "cifar10-resnet50": RESNET,
    "cifar10-deit-tiny": VIT,
    "imagenet32-resnet50": RESNET + ",compute=bf16",
    "imagenet32-resnet152": "width=4,blocks=1-5",
    "imagenet32-deit-tiny": VIT + ",compute=bf16",
    "imagenet32-vit-b": VIT,
    "imagenet64-resnet50": "width=4,blocks=1-1,conv=xla,stem=large",
    "imagenet64-resnet152": "width=4,blocks=1-2,conv=xla",
    "imagenet64-deit-tiny": VIT,
    "imagenet64-vit-b": VIT,
    "lm-decoder": LM,
}
FAST = ("lm-decoder",)
RATES = {"resnet": 0.1, "lm": 0.5}


def quadrants():
    """Noisy 8×8 images of four classes: which quarter is bright."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 200).astype(np.int32)
    x = rng.integers(0, 100, (200, 8, 8, 3))
    for i, label in enumerate(y):
        row, column = divmod(label, 2)
        x[i, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 150
    split = {"x": jnp.asarray(x.astype(np.uint8)), "y": jnp.asarray(y)}
    return Dataset(Resident({"train": split, "test": split}), 4, "made")


def counting(context):
    """A text that counts to 32 again and again, so that the next token follows from the last."""
    flat = np.tile(np.arange(32, dtype=np.uint8), 100)
    rows = flat[: 20 * (context + 1)].reshape(20, context + 1)
    splits = {"train": {"x": jnp.asarray(flat)}, "test": {"x": jnp.asarray(rows)}}
    return Dataset(Resident(splits, Windows(context + 1), CountWindows(context + 1)), 32, "made")


def test_every_large_task_is_here():
    learnable = {name: entry for name, entry in TASKS.items() if not name.startswith("noise-")}
    large = {name for name, entry in learnable.items() if "at_once" in entry.options}
    assert large == set(SMALL)
    assert set(FAST) < large


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_twenty_rounds(name):
    spec = f"{name}:{SMALL[name]}"
    _, options = parse_spec(spec)
    task = TASKS[name].model(spec, counting(8) if name == "lm-decoder" else quadrants(), options)
    rate = next((rate for word, rate in RATES.items() if word in name), 0.3)
    client = local_client(task, LocalOptimizer("sgd", rate, weight_decay=1e-4, clip=1.0).optax())
    workers, server = Simulated(client, DENSE), Server(OUTER["average"].make())

    def train(key):
        def one_round(state, _):
            state, losses_KH = communication_round(
                workers, server, state, draw_items(task.feed, state, K, H, B)
            )
            return state, jnp.mean(losses_KH)

        state, losses_T = jax.lax.scan(
            one_round, init_round(task, workers, server, K, key), length=20
        )
        return losses_T, heldout_metrics(task, state.shared)

    losses_T, heldout = jax.jit(train)(jax.random.key(0))
    assert losses_T.shape == (20,)
    assert np.isfinite(losses_T).all()
    nothing = np.log(task.classes)
    assert abs(losses_T[0] - nothing) < 1.5
    assert np.mean(losses_T[-3:]) < 0.6 * nothing
    assert heldout["loss"] < 0.8 * nothing
