"""The mean of whole messages, taken one by one, against float64 on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.engines.summing import Summing
from laconic.engines.wire import Layout, unpack
from laconic.means import weighted_mean

SHAPE, K = (7, 33), 5


def messages(kind):
    """K trees of random numbers, the second of them poisoned."""
    rng = np.random.default_rng(0)
    delta = rng.standard_normal((K, *SHAPE)).astype(np.float32)
    delta[1] = np.nan
    counts = rng.integers(-100, 100, K).astype(np.int32)
    counts[1] = 2**31 - 1
    flags = np.array([False, True, False, False, False])
    return {"w": jnp.asarray(delta, kind)}, {"n": counts, "f": flags, "v": delta[:, 0]}


def summing(delta, extra, norms):
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (delta, extra))
    layout = Layout.of(one)
    words = []
    for k in range(K):
        body = np.zeros(layout.size, np.uint8)
        layout.write(body, jax.tree.map(lambda x, k=k: np.asarray(x[k]), (delta, extra)))
        words.append(jnp.asarray(body.view(np.uint32)))
    return Summing(lambda words: unpack(layout, words), one, norms), words


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_it_is_the_weighted_mean(kind):
    delta, extra = messages(kind)
    weights = np.array([1.0, 0.0, 3.0, 0.0, 0.5], np.float32)
    shares = weights / weights.sum()
    made, words = summing(delta, extra, True)
    mean, beside, squares = made.mean(words, shares)
    here = shares > 0
    exact = np.asarray(delta["w"], np.float64)[here]
    want = np.tensordot(shares[here].astype(np.float64), exact, 1)
    assert mean["w"].dtype == kind
    slack = 1e-6 if kind == jnp.float32 else 1e-2
    np.testing.assert_allclose(np.asarray(mean["w"], np.float64), want, rtol=slack, atol=slack)
    assert int(beside["n"]) == np.max(extra["n"][here])
    assert not beside["f"]
    found = np.where(here, np.sum(np.asarray(delta["w"], np.float64) ** 2, (1, 2)), 0)
    np.testing.assert_allclose(squares["w"], found, rtol=1e-5)
    together = weighted_mean((delta, extra), jnp.asarray(weights))  # as the simulator does it
    pairs = zip(jax.tree.leaves((mean, beside)), jax.tree.leaves(together), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=slack, atol=slack
        )


def test_without_a_message_that_counts_nothing_moves():
    delta, extra = messages(jnp.float32)
    made, words = summing(delta, extra, False)
    mean, _, squares = made.mean(words, np.zeros(K, np.float32))
    assert squares is None
    np.testing.assert_array_equal(mean["w"], np.zeros(SHAPE))


def test_one_message_is_on_the_device_at_a_time():
    """The sum is made in place: no room beside it, however many workers there are."""
    delta = {"w": np.ones((K, 256, 1024), np.float32)}
    made, words = summing(delta, (), False)
    size = delta["w"][0].nbytes
    program = made._added.lower(made._begun(), words[0], np.float32(0.5)).compile()
    used = program.memory_analysis()
    assert used.temp_size_in_bytes <= 0.01 * size
    assert used.alias_size_in_bytes == size
