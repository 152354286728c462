"""What half precision has of its own in layers: sums as products with ones, and gradients written
out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.tasks import layers as module
from laconic.tasks.layers import (
    Conv,
    ConvNorm,
    LayerNorm,
    Linear,
    Statistics,
    affine,
    batch_normal,
    column_sums,
    normalise,
    shifted,
)
from laconic.tasks.lm import embed

HALF = 2.0**-8  # the largest relative error of rounding to bfloat16


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def half(x):
    return jnp.asarray(x, jnp.bfloat16)


def exact(x):
    return np.asarray(x, np.float64)


def test_column_sums_of_every_worker():
    x_WBTD = half(normal(0, 3, 40, 7, 5))
    got = jax.jit(jax.vmap(column_sums))(x_WBTD)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact(x_WBTD).sum((1, 2)), rtol=1e-5, atol=1e-4)


def test_column_sums_pass_on_what_is_not_a_number():
    x = normal(0, 6, 3)
    x[0, 0], x[2, 1] = np.nan, np.inf
    np.testing.assert_array_equal(np.isfinite(column_sums(half(x))), [False, False, True])


def cases():
    """(function, its formula, arguments, what the result's gradient is)."""
    y, g = normal(1, 3, 64, 4, 6) * 2 + 1, normal(2, 3, 64, 4, 6)
    scale, shift = 1 + normal(3, 3, 6) / 3, normal(4, 3, 6)
    plain_affine = lambda x, scale, shift: x * scale[None, None] + shift[None, None]
    plain_shifted = lambda y, bias: y + bias[None, None]

    def plain_normal(y, scale, shift):
        wide = y.astype(jnp.float32)
        by = Statistics(jnp.mean(wide, (0, 1)), jnp.var(wide, (0, 1)))
        return normalise(wide, by, scale, shift)

    own_normal = lambda y, scale, shift: batch_normal(y, scale, shift)[0]
    return {
        "affine": (affine, plain_affine, (y, scale, shift), g),
        "shifted": (shifted, plain_shifted, (half(y), shift), half(g)),
        "batch normal": (own_normal, plain_normal, (half(y), scale, shift), half(g)),
    }


@pytest.mark.parametrize("name", cases())
def test_results_and_gradients_are_those_of_the_formula(name):
    own, plain, arguments, g = cases()[name]

    def both(function, dtype):
        def one(g, *arguments):
            out, back = jax.vjp(function, *arguments)
            return out, back(g.astype(out.dtype))

        cast = [jnp.asarray(a, dtype) if dtype is not None else a for a in arguments]
        return jax.jit(jax.vmap(one))(g, *cast)

    mine, slopes = both(own, None)
    theirs, expected = both(plain, jnp.float32)
    np.testing.assert_allclose(exact(mine), exact(theirs), rtol=2 * HALF, atol=2 * HALF)
    np.testing.assert_allclose(exact(slopes[0]), exact(expected[0]), rtol=2 * HALF, atol=4 * HALF)
    # Sums: what is rounded is small beside them.
    for a, b in zip(slopes[1:], expected[1:], strict=True):
        assert a.dtype == jnp.float32
        assert np.linalg.norm(exact(a) - exact(b)) < HALF * np.linalg.norm(exact(b))


def test_statistics_of_a_batch():
    y = half(normal(5, 64, 4, 4, 6) * 3 + 2)
    _, by = jax.jit(batch_normal)(y, jnp.ones(6), jnp.zeros(6))
    flat = exact(y).reshape(-1, 6)
    np.testing.assert_allclose(by.mean, flat.mean(0), rtol=1e-5)
    # Of squares that are rounded, one by one.
    np.testing.assert_allclose(by.var, flat.var(0), rtol=2e-3)


def test_looking_up_is_indexing_and_so_is_its_gradient():
    table, tokens, g = (
        normal(0, 11, 4),
        np.random.default_rng(1).integers(0, 11, (3, 9)),
        normal(2, 3, 9, 4),
    )
    for function in (embed, lambda table, tokens: table[tokens]):
        out, back = jax.vjp(lambda table, f=function: f(table, tokens), table)
        np.testing.assert_array_equal(out, table[tokens])
        expected = np.zeros((11, 4))
        np.add.at(expected, tokens, g)
        np.testing.assert_allclose(back(g)[0], expected, rtol=1e-5, atol=1e-6)


def test_batch_normals_second_derivative_is_the_formulas(monkeypatch):
    """As meta-training by backpropagation takes it. With exact sums, so that only the rule itself
    is compared."""
    monkeypatch.setattr(
        module, "column_sums", lambda x: jnp.sum(x.reshape(-1, x.shape[-1]), axis=0)
    )
    y, g, scale, shift = normal(1, 32, 6), normal(2, 32, 6), 1 + normal(3, 6) / 3, normal(4, 6)

    def plain(y, scale, shift):
        return normalise(y, Statistics(jnp.mean(y, 0), jnp.var(y, 0)), scale, shift)

    def twice(function):
        loss = lambda y, scale: jnp.sum(jnp.sin(function(y, scale, shift)) * g)
        slopes = jax.grad(loss, (0, 1))
        curved = lambda y, scale: sum(jnp.sum(jnp.cos(s)) for s in slopes(y, scale))
        return jax.jit(jax.grad(curved, (0, 1)))(y, scale)

    mine, theirs = twice(lambda *a: batch_normal(*a)[0]), twice(plain)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_layers_give_the_type_they_are_given_and_statistics_in_float32(dtype):
    weight, kernel = jnp.asarray(normal(0, 6, 4), dtype), jnp.asarray(normal(0, 3, 3, 6, 4), dtype)
    x = jnp.asarray(300 * normal(1, 8, 4, 4, 6), dtype)
    for layer in (Linear(weight), LayerNorm(6), Conv(kernel, 1)):
        assert layer(x).dtype == dtype
    layer = ConvNorm(kernel, 1)
    out, running = layer.train(x, layer.begin())
    assert out.dtype == dtype
    for value in running:
        assert value.dtype == jnp.float32
        assert np.all(np.isfinite(value))


def test_a_bias_in_half_precision_has_a_gradient_in_it():
    y, bias = half(normal(0, 5, 4)), half(normal(1, 4))
    slopes = jax.grad(lambda *a: jnp.sum(shifted(*a).astype(jnp.float32)), (0, 1))(y, bias)
    assert [s.dtype for s in slopes] == [jnp.bfloat16] * 2
