"""The decoder against a slow NumPy twin, and that it cannot see what comes next."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.tasks.base import count_parameters
from laconic.tasks.lm import Decoder, lm_task, next_tokens
from tests.tasks.slow_transformer import linear, norm, slow_block


@pytest.fixture(scope="module")
def decoder():
    """A small decoder whose every array, biases and scales too, holds something."""
    shapes = eqx.filter_eval_shape(
        Decoder, jax.random.key(0), vocabulary=11, context=6, hidden=8, heads=2, layers=2
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: rng.normal(0, 0.5, a.shape).astype(np.float32), shapes)


@jax.jit
def logits_of(model, tokens):
    return model(tokens)


def test_logits_against_the_slow_twin(decoder):
    tokens = np.random.default_rng(1).integers(0, 11, (2, 6))
    got = logits_of(decoder, tokens)
    for row, sequence in enumerate(tokens):
        learned = np.zeros((6, 8)) if decoder.positions is None else decoder.positions
        xs = [(decoder.tokens[b] + learned[t]).astype(np.float64) for t, b in enumerate(sequence)]
        for block in decoder.blocks:
            xs = slow_block(block, xs, heads=2, rotary=decoder.positions is None)
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
        logits_of(decoder, tokens[:, :4]),
        np.asarray(logits_of(decoder, tokens))[:, :4],
        rtol=1e-4,
        atol=1e-5,
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


def test_what_is_stated_of_its_size(text_set):
    """12 layers of 192: 5,338,368 parameters, a final norm, and what the vocabulary and the context
    add."""
    layer = 192 * 576 + 576 + 192 * 192 + 192 + 192 * 768 + 768 + 768 * 192 + 192 + 4 * 192
    assert 12 * layer == 5_338_368
    for vocabulary, context, positions in (
        (256, 64, "learned"),
        (4096, 64, "learned"),
        (32_000, 16, "rotary"),
    ):
        shape = {
            "context": context,
            "hidden": 192,
            "heads": 12,
            "layers": 12,
            "positions": positions,
        }
        task = lm_task("lm", text_set(context, vocabulary), **shape)
        params, _ = jax.eval_shape(task.init, jax.random.key(0))
        outside = (
            (192 + 192 + 1) * vocabulary
            + (context * 192 if positions == "learned" else 0)
            + 2 * 192
        )
        assert count_parameters(params) == 12 * layer + outside
