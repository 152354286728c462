"""Attention: what rotary positions promise, and blocks that are scanned over against blocks one by
one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.tasks import layers as module
from laconic.tasks.layers import fan_in_normals
from laconic.tasks.transformer import (
    apply_transformer,
    block_shapes,
    causal_attention,
    full_attention,
    make_blocks,
    rotary,
    rotate,
)
from tests.outer.trees import QUICK
from tests.tasks.slow_transformer import turn


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_turning_against_complex_numbers():
    x = normal(0, 2, 7, 3, 8)
    got = np.asarray(rotate(jnp.asarray(x)))
    for b, t, n in np.ndindex(2, 7, 3):
        np.testing.assert_allclose(
            got[b, t, n], turn(x[b, t, n].astype(np.float64), t), rtol=1e-5, atol=1e-6
        )
    np.testing.assert_array_equal(got[:, 0], x[:, 0])
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_turned_scores_depend_on_the_distance_only():
    q, k = (jnp.broadcast_to(normal(seed, 1, 1, 1, 16), (1, 40, 1, 16)) for seed in (1, 2))
    scores_TS = np.asarray(rotate(q)[0, :, 0] @ rotate(k)[0, :, 0].T)
    for distance in range(-5, 30):
        along = np.diagonal(scores_TS, -distance)
        np.testing.assert_allclose(along, along[0], rtol=1e-4, atol=1e-4)
    assert np.ptp(scores_TS[:, 0]) > 0.5  # and they do depend on it


@pytest.mark.parametrize("attend", [causal_attention, rotary(causal_attention)])
def test_the_future_changes_nothing(attend):
    q, k, v = (normal(seed, 1, 6, 2, 4) for seed in range(3))
    before = np.asarray(attend(q, k, v))
    for t in range(1, 6):
        other_k, other_v = k.copy(), v.copy()
        other_k[:, t:], other_v[:, t:] = normal(9, 1, 6 - t, 2, 4), normal(8, 1, 6 - t, 2, 4)
        after = np.asarray(attend(q, other_k, other_v))
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert np.all(np.any(after[:, t:] != before[:, t:], axis=-1))


def test_everywhere_sees_the_future_and_no_order():
    q, k, v = (normal(seed, 1, 6, 2, 4) for seed in range(3))
    order = np.array([3, 1, 5, 0, 2, 4])
    mixed = full_attention(q, k[:, order], v[:, order])
    np.testing.assert_allclose(mixed, full_attention(q, k, v), rtol=1e-5, atol=1e-6)
    assert not np.allclose(full_attention(q, k[:, order], v), full_attention(q, k, v))


def test_scanned_blocks_are_the_blocks_one_by_one(monkeypatch):
    hidden, layers = 8, 5
    shapes = [
        (hidden, 3 * hidden),
        (hidden, hidden),
        (hidden, 4 * hidden),
        (4 * hidden, hidden),
    ] * layers
    blocks = make_blocks(
        [jnp.asarray(normal(i, *shape) / 3) for i, shape in enumerate(shapes)], heads=2
    )
    x = normal(99, 2, 5, hidden)

    def traced():
        """What there is now, traced anew."""
        loss = lambda blocks, x: jnp.sum(jnp.sin(apply_transformer(blocks, x, causal_attention)))
        return jax.jit(jax.value_and_grad(loss, (0, 1))).trace(blocks, x)

    scanned, text = (t := traced()).lower().compile(QUICK)(blocks, x), str(t.jaxpr)
    assert "scan" in text
    monkeypatch.setattr(module, "SCAN_FROM", layers + 1)
    apart, text = (t := traced()).lower().compile(QUICK)(blocks, x), str(t.jaxpr)
    assert "scan" not in text
    # Gradients by block, none stacked.
    assert len({leaf.shape for leaf in jax.tree.leaves(scanned[1][0])}) == 7
    for a, b in zip(jax.tree.leaves(scanned), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_blocks_keep_little_for_the_backward_pass(monkeypatch):
    layers, hidden = 8, 16
    blocks = make_blocks(
        fan_in_normals(jax.random.key(0), *block_shapes(hidden, 2, layers)), heads=2
    )
    x = normal(1, 32, 9, hidden)

    def temporaries():
        slopes = jax.jit(
            jax.grad(lambda blocks: jnp.sum(apply_transformer(blocks, x, full_attention) ** 2))
        )
        return slopes.lower(blocks).compile().memory_analysis().temp_size_in_bytes

    lean = temporaries()
    monkeypatch.setattr(jax, "checkpoint", lambda step, **options: step)
    assert lean < 0.6 * temporaries()
