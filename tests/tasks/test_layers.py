"""Layers against lax, NumPy and torch-like definitions; their initial values against the
distribution promised."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

from laconic.tasks.layers import (
    Conv,
    ConvNorm,
    LayerNorm,
    Linear,
    Statistics,
    fan_in_normals,
    same_conv,
)

KEY = jax.random.key(0)


def normal(seed, *shape):
    # A jitted draw would compile each shape.
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference_conv(x, weight, stride):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x,
        weight,
        (stride, stride),
        "SAME",
        dimension_numbers=layout,
        precision=lax.Precision.HIGHEST,
    )


SIZES = [(8, 8), (7, 7), (9, 6), (1, 2)]
KERNELS = [(3, 3), (2, 5), (7, 7), (5, 6)]  # the large ones by tiles at stride 2


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_equals_xlas(stride):
    cases = [
        (normal(1, 2, *size, 3), normal(2, *kernel, 3, 4) / 3)
        for size in SIZES
        for kernel in KERNELS
    ]
    mine, theirs = (
        jax.jit(lambda cases, conv=conv: [conv(x, weight, stride) for x, weight in cases])(cases)
        for conv in (same_conv, reference_conv)
    )
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("size", "side"), [(8, 3), (7, 3), (9, 7)])
def test_convolutions_gradients_equal_xlas_under_vmap(size, side, stride):
    x, weight = normal(1, 3, 2, size, size, 3), normal(2, 3, side, side, 3, 4) / side

    def gradients(conv):
        loss = lambda x, weight: jnp.mean(jnp.sin(conv(x, weight, stride)))
        return jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(x, weight)

    for a, b in zip(gradients(same_conv), gradients(reference_conv), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


def test_initial_values_are_truncated_at_two_sigma_and_not_corrected():
    shapes = {(400, 250): 400, (3, 3, 32, 64): 288}
    drawn = fan_in_normals(KEY, *shapes)
    assert [array.shape for array in drawn] == list(shapes)
    for array, fan_in in zip(drawn, shapes.values(), strict=True):
        assert array.dtype == jnp.float32
        values, sigma = np.asarray(array, np.float64).reshape(-1), 1 / np.sqrt(fan_in)
        assert 1.99 * sigma < np.abs(values).max() <= 2 * sigma * (1 + 1e-6)
        assert stats.kstest(values, stats.truncnorm(-2, 2, scale=sigma).cdf).pvalue > 1e-3
        # The truncated normal's own deviation.
        assert values.std() == pytest.approx(0.8796 * sigma, rel=0.02)


def test_drawn_arrays_share_no_values():
    first, second = (np.asarray(array) for array in fan_in_normals(KEY, (50, 20), (50, 30)))
    assert len(np.intersect1d(first, second)) < 3


def test_biases_start_at_zero_and_scales_at_one():
    weight = normal(0, 3, 3, 2, 4)
    for layer in (Linear(weight[0, 0]), Conv(weight, 2)):
        np.testing.assert_array_equal(layer.bias, np.zeros(4))
    for layer in (ConvNorm(weight, 2), LayerNorm(4)):
        np.testing.assert_array_equal(layer.scale, np.ones(4))
        np.testing.assert_array_equal(layer.shift, np.zeros(4))


def test_linear_for_any_leading_axes():
    linear = eqx.tree_at(
        lambda layer: layer.bias, Linear(normal(7, 5, 3)), jnp.array([1.0, 2.0, 3.0])
    )
    x = normal(3, 2, 4, 5)
    expected = np.asarray(x, np.float64) @ np.asarray(linear.weight, np.float64) + [1, 2, 3]
    np.testing.assert_allclose(linear(x), expected, rtol=1e-5, atol=1e-6)


def test_layer_norm_against_numpy():
    norm = eqx.tree_at(
        lambda layer: (layer.scale, layer.shift), LayerNorm(6), (jnp.arange(6.0), jnp.ones(6))
    )
    x = np.asarray(3 * normal(4, 2, 5, 6) + 7, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * np.arange(6) + 1
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-5)


def conv_norm():
    scale, shift = jnp.array([1.0, 2.0, 0.5, -1.0]), jnp.array([0.0, 1.0, 2.0, 3.0])
    return eqx.tree_at(
        lambda layer: (layer.scale, layer.shift), ConvNorm(normal(8, 3, 3, 2, 4), 2), (scale, shift)
    )


def test_batch_norm_against_numpy():
    layer, x = conv_norm(), normal(5, 8, 7, 7, 2) + 3
    running = Statistics(jnp.array([0.5, -1.0, 2.0, 0.0]), jnp.array([1.0, 2.0, 3.0, 4.0]))
    y = np.asarray(reference_conv(x, layer.weight, 2), np.float64)
    flat = y.reshape(-1, 4)
    mean, var = flat.mean(0), ((flat - flat.mean(0)) ** 2).mean(0)
    scale, shift = np.asarray(layer.scale), np.asarray(layer.shift)
    got, after = eqx.filter_jit(layer.train)(x, running)
    np.testing.assert_allclose(
        got, (y - mean) / np.sqrt(var + 1e-5) * scale + shift, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(after.mean, 0.9 * np.asarray(running.mean) + 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(after.var, 0.9 * np.asarray(running.var) + 0.1 * var, rtol=1e-5)
    expected = (y - np.asarray(running.mean)) / np.sqrt(
        np.asarray(running.var) + 1e-5
    ) * scale + shift
    np.testing.assert_allclose(
        eqx.filter_jit(layer.infer)(x, running), expected, rtol=1e-4, atol=1e-5
    )


def test_batch_norms_running_statistics_settle_on_the_batchs():
    layer, x = conv_norm(), normal(6, 8, 6, 6, 2)
    running = layer.begin()
    np.testing.assert_array_equal(running.mean, np.zeros(4))
    np.testing.assert_array_equal(running.var, np.ones(4))
    train = eqx.filter_jit(layer.train)
    for _ in range(200):
        trained, running = train(x, running)
    np.testing.assert_allclose(
        eqx.filter_jit(layer.infer)(x, running), trained, rtol=1e-4, atol=1e-5
    )
