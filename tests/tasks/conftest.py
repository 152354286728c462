"""Small data sets made on the spot, with the shapes of the real ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data.feed import Resident
from laconic.data.splits import Dataset
from laconic.data.text import CountWindows, Windows
from tests.outer.trees import QUICK


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Compiling is most of these tests' time."""
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


@pytest.fixture(scope="session")
def image_set():
    """`image_set(28, 28, 1)`: random images of that shape, ten classes unless told otherwise."""

    def make(*shape, classes=10, rows=20):
        rng = np.random.default_rng(0)
        split = {
            "x": jnp.asarray(rng.integers(0, 256, (rows, *shape)).astype(np.uint8)),
            "y": jnp.asarray(rng.integers(0, classes, rows).astype(np.int32)),
        }
        return Dataset(Resident({"train": split, "test": split}), classes, "made")

    return make


@pytest.fixture(scope="session")
def text_set():
    """`text_set(context)`: random bytes, of which a vocabulary may have more than occur."""

    def make(context, vocabulary=256):
        rng = np.random.default_rng(0)
        flat = rng.integers(0, 256, 5000).astype(np.uint8)
        rows = flat[: 20 * (context + 1)].reshape(20, context + 1)
        splits = {"train": {"x": jnp.asarray(flat)}, "test": {"x": jnp.asarray(rows)}}
        return Dataset(
            Resident(splits, Windows(context + 1), CountWindows(context + 1)), vocabulary, "made"
        )

    return make


@pytest.fixture(scope="session")
def started():
    """`started(task, seed, *leading)`: parameters and state of the right shapes drawn by NumPy,
    1/√fan_in large.

    XLA takes seconds to compile a random draw, and far from every test is about the draw.
    """

    def start(task, seed=0, *leading):
        rng = np.random.default_rng(seed)
        params, state = jax.eval_shape(task.init, jax.random.key(0))

        def draw(leaf):
            scale = 1 / np.sqrt(np.prod(leaf.shape[:-1])) if len(leaf.shape) > 1 else 0.5
            return rng.normal(0, scale, (*leading, *leaf.shape)).astype(np.float32)

        def positive(leaf):  # a state may hold variances
            return rng.uniform(0.5, 1.5, (*leading, *leaf.shape)).astype(np.float32)

        return jax.tree.map(draw, params), jax.tree.map(positive, state)

    return start
