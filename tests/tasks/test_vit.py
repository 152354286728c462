"""The vision transformer against a slow NumPy twin, and its sizes against the published ones."""

import equinox as eqx
import jax
import numpy as np
import pytest

from laconic.tasks.base import count_parameters
from laconic.tasks.vit import ViT, patches, vit_task
from tests.tasks.slow_transformer import linear, norm, slow_block

KEY = jax.random.key(0)


def test_patches_lie_row_by_row():
    x = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    got = patches(x, 2)
    assert got.shape == (2, 6, 12)
    for b, i, j in np.ndindex(2, 2, 3):
        expected = x[b, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].reshape(-1)
        np.testing.assert_array_equal(got[b, 3 * i + j], expected)


@pytest.mark.parametrize("layers", [2, 4])
def test_logits_against_the_slow_twin(layers):
    build = lambda key: ViT(key, (4, 6, 3), 5, patch=2, hidden=8, heads=2, layers=layers)
    rng = np.random.default_rng(0)
    model = jax.tree.map(
        lambda a: rng.normal(0, 0.5, a.shape).astype(np.float32), eqx.filter_eval_shape(build, KEY)
    )
    images = rng.uniform(size=(2, 4, 6, 3)).astype(np.float32)
    got = jax.jit(lambda model, x: model(x))(model, images)
    for row, image in enumerate(images.astype(np.float64)):
        cut = [image[i : i + 2, j : j + 2].reshape(-1) for i in (0, 2) for j in (0, 2, 4)]
        xs = [model.token.astype(np.float64)] + [linear(model.embed, one) for one in cut]
        xs = [x + place for x, place in zip(xs, model.positions, strict=True)]
        for block in model.blocks:
            xs = slow_block(block, xs, heads=2, causal=False)
        np.testing.assert_allclose(
            got[row], linear(model.head, norm(model.norm, xs[0])), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("hidden", "heads", "published"), [(192, 3, 5_717_416), (768, 12, 86_567_656)]
)
def test_the_published_sizes(hidden, heads, published):
    """DeiT-tiny and ViT-B at 224/16 and 1000 classes; nothing is allocated."""
    build = lambda key: ViT(
        key, (224, 224, 3), 1000, patch=16, hidden=hidden, heads=heads, layers=12
    )
    assert count_parameters(eqx.filter_eval_shape(build, KEY)) == published


def test_the_class_token_and_positions_begin_small(image_set):
    task = vit_task("vit", image_set(8, 8, 3), patch=4, hidden=8, heads=2, layers=1)
    params, state = jax.jit(task.init)(KEY)
    np.testing.assert_array_equal(params.token, np.zeros(8))
    assert params.positions.shape == (5, 8)
    assert np.abs(params.positions).max() <= 2 / np.sqrt(5)
    assert state == ()
