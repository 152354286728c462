"""Seeds side by side or some at a time: the same values, in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.runs.seeds import over_seeds

X = jnp.linspace(0.0, 1.0, 5 * 64).reshape(5, 64)


def one(x, nothing):
    assert nothing is None
    table = jnp.sin(x[:, None] * jnp.arange(1024.0)[None, :])
    return {"sum": jnp.sum(jnp.cumsum(table, axis=1)), "x": x}


@pytest.mark.parametrize("at_once", [0, 1, 2, 4, 5, 9])
def test_every_seed_is_there_in_its_place(at_once):
    found = jax.jit(over_seeds(one, len(X), at_once))(X, None)
    expected = [
        np.cumsum(np.sin(np.float64(x)[:, None] * np.arange(1024.0)), axis=1).sum() for x in X
    ]
    np.testing.assert_allclose(found["sum"], expected, rtol=1e-3)
    np.testing.assert_array_equal(found["x"], X)


def test_fewer_at_once_take_less_memory():
    def temporary(at_once):
        compiled = jax.jit(over_seeds(one, len(X), at_once)).lower(X, None).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(1) < temporary(0) / 3
