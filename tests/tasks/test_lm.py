"""The byte decoder against a slow NumPy twin, and that it cannot see what comes next."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.tasks.lm import Decoder, lm_task, next_tokens


@pytest.fixture(scope="module")
def decoder():
    """A small decoder whose every array, biases and scales too, holds something."""
    shapes = eqx.filter_eval_shape(Decoder, jax.random.key(0), vocabulary=11, context=6, hidden=8, heads=2, layers=2)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: rng.normal(0, 0.5, a.shape).astype(np.float32), shapes)


@jax.jit
def logits_of(model, tokens):
    return model(tokens)


def linear(layer, x):
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


def norm(layer, x):
    centred = x - x.mean()
    scaled = centred / math.sqrt((centred**2).mean() + 1e-5)
    return scaled * np.asarray(layer.scale, np.float64) + np.asarray(layer.shift, np.float64)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slow_block(block, xs, heads):
    """One position, one head, one earlier position at a time."""
    hidden, size = len(xs[0]), len(xs[0]) // heads
    projected = [linear(block.qkv, norm(block.norm_attention, x)) for x in xs]
    after = []
    for t, x in enumerate(xs):
        gathered = np.zeros(hidden)
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            q = projected[t][:hidden][mine]
            scores = [q @ projected[s][hidden : 2 * hidden][mine] / math.sqrt(size) for s in range(t + 1)]
            weights = np.exp(scores) / np.exp(scores).sum()
            gathered[mine] = sum(w * projected[s][2 * hidden :][mine] for s, w in enumerate(weights))
        x = x + linear(block.out, gathered)
        after.append(x + linear(block.down, gelu(linear(block.up, norm(block.norm_mlp, x)))))
    return after


def test_logits_against_the_slow_twin(decoder):
    tokens = np.random.default_rng(1).integers(0, 11, (2, 6))
    got = logits_of(decoder, tokens)
    for row, sequence in enumerate(tokens):
        xs = [(decoder.tokens[b] + decoder.positions[t]).astype(np.float64) for t, b in enumerate(sequence)]
        for block in decoder.blocks:
            xs = slow_block(block, xs, heads=2)
        expected = [linear(decoder.head, norm(decoder.norm, x)) for x in xs]
        np.testing.assert_allclose(got[row], expected, rtol=1e-4, atol=1e-5)


def test_a_byte_changes_nothing_before_it(decoder):
    tokens = np.array([[1, 2, 3, 4, 5, 6]] * 2)
    before = np.asarray(logits_of(decoder, tokens))
    for j in range(6):
        changed = tokens.copy()
        changed[0, j] = 9
        after = np.asarray(logits_of(decoder, changed))
        np.testing.assert_array_equal(after[0, :j], before[0, :j])
        assert np.all(np.any(after[0, j:] != before[0, j:], axis=-1))  # and everything from it on


def test_a_shorter_text_is_read_alike(decoder):
    tokens = np.array([[1, 2, 3, 4, 5, 6]] * 2)
    np.testing.assert_allclose(
        logits_of(decoder, tokens[:, :4]), np.asarray(logits_of(decoder, tokens))[:, :4], rtol=1e-4, atol=1e-5
    )


def test_targets_are_the_next_tokens():
    x, y = next_tokens({"x": jnp.array([[10, 20, 200, 40]], dtype=jnp.uint8)})
    assert x.tolist() == [[10, 20, 200]]
    assert y.tolist() == [[20, 200, 40]]


def test_loss_is_in_nats_a_byte(text_set, started):
    task = lm_task("lm", text_set(8), context=8, hidden=8, heads=2, layers=1)
    params, state = started(task)
    zeros = jax.tree.map(np.zeros_like, params.head)
    nothing = eqx.tree_at(lambda p: p.head, params, zeros)

    @jax.jit
    def losses(task, nothing):
        held_out = task.feed.take(jnp.arange(2), "test")
        training, _ = task.loss(nothing, state, task.feed.take(jnp.arange(3)), jax.random.key(0))
        return training, task.evaluate(nothing, state, held_out)["loss"]

    np.testing.assert_allclose(losses(task, nothing), math.log(256), rtol=1e-6)
