"""The kernel for few positions, in Pallas's interpreter, against loops in float64 and against JAX's
own derivative."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from laconic.tasks import transformer as module
from laconic.tasks.transformer import (
    causal_attention,
    full_attention,
    has_kernel,
    make_blocks,
    short_attention,
)
from tests.outer.trees import gpus

HALF = 2.0**-8  # the largest relative error of rounding to bfloat16
# T, N, E, causal.
SIZES = [(17, 3, 64, False), (16, 4, 16, True), (5, 2, 16, True), (32, 1, 32, False)]


def formula(only_back):
    return causal_attention if only_back else full_attention


def kernel(N, only_back):
    return short_attention(formula(only_back), N, only_back, interpret=True)


def drawn(T, N, E):
    return jnp.asarray(np.random.default_rng(T).normal(size=(2, 3, T, 3 * N * E)), jnp.bfloat16)


def by_loops(qkv, heads, only_back):
    """One example, one head, one position at a time."""
    B, T, threefold = qkv.shape
    hidden, size = threefold // 3, threefold // 3 // heads
    out = np.zeros((B, T, hidden))
    for b, n, t in np.ndindex(B, heads, T):
        part = lambda i, s, b=b, n=n: qkv[b, s, i * hidden + n * size : i * hidden + (n + 1) * size]
        seen = range(t + 1 if only_back else T)
        scores = np.array([part(0, t) @ part(1, s) / math.sqrt(size) for s in seen])
        weights = np.exp(scores - scores.max())
        out[b, t, n * size : (n + 1) * size] = sum(
            w * part(2, s) for w, s in zip(weights / weights.sum(), seen, strict=True)
        )
    return out


@pytest.mark.parametrize(("T", "N", "E", "only_back"), SIZES)
def test_every_workers_attention_against_loops(T, N, E, only_back):
    qkv = drawn(T, N, E)
    got = jax.jit(jax.vmap(kernel(N, only_back)))(qkv)
    assert got.dtype == jnp.bfloat16
    for mine, given in zip(got, qkv, strict=True):
        expected = by_loops(np.asarray(given, np.float64), N, only_back)
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), expected, atol=2 * HALF, rtol=2 * HALF
        )


@pytest.mark.parametrize(("T", "N", "E", "only_back"), SIZES)
def test_its_gradient_against_the_derivative_of_the_plain_formula(T, N, E, only_back):
    qkv = drawn(T, N, E)
    g = jnp.asarray(np.random.default_rng(9).normal(size=(2, 3, T, N * E)), jnp.bfloat16)

    def slope(function, qkv, g):
        return np.asarray(jax.jit(lambda x, g: jax.vjp(jax.vmap(function), x)[1](g)[0])(qkv, g))

    mine = slope(kernel(N, only_back), qkv, g).astype(np.float64)
    plain = plain_of(T, N, E, only_back)
    theirs = slope(plain, qkv.astype(jnp.float32), g.astype(jnp.float32)).astype(np.float64)
    assert np.linalg.norm(mine - theirs) < HALF * np.linalg.norm(theirs)


def plain_of(T, N, E, only_back):
    def plain(qkv):
        parts = [part.reshape(*qkv.shape[:2], N, E) for part in jnp.split(qkv, 3, axis=-1)]
        return formula(only_back)(*parts).reshape(*qkv.shape[:2], N * E)

    return plain


@pytest.mark.parametrize(("T", "N", "E", "only_back"), SIZES[1:3])
def test_its_second_derivative_is_that_of_the_plain_formula(T, N, E, only_back):
    qkv = drawn(T, N, E)[0]

    def twice(function, qkv):
        slope = jax.grad(lambda x: jnp.sum(jnp.sin(function(x).astype(jnp.float32))))
        curve = jax.grad(lambda x: jnp.sum(jnp.cos(slope(x).astype(jnp.float32))))
        return jax.jit(curve)(qkv)

    mine = np.asarray(twice(kernel(N, only_back), qkv), np.float64)
    theirs = np.asarray(twice(plain_of(T, N, E, only_back), qkv.astype(jnp.float32)), np.float64)
    assert np.linalg.norm(mine - theirs) < 4 * HALF * np.linalg.norm(theirs)


@pytest.mark.parametrize(("T", "N", "E", "only_back"), SIZES)
def test_workers_spread_over_gpus_have_programs_of_it(T, N, E, only_back):
    """Lowered to Triton here, if not run: for two devices that each have a worker."""
    mesh = gpus(2, "workers", AxisType.Auto)
    loss = lambda x: jnp.sum(
        short_attention(formula(only_back), N, only_back)(x).astype(jnp.float32) ** 2
    )
    spread = jax.shard_map(
        jax.vmap(jax.grad(loss)), mesh=mesh, in_specs=P("workers"), out_specs=P("workers")
    )
    lowered = jax.jit(spread).trace(drawn(T, N, E)).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("attention_gradient") >= 1


def test_only_gpus_half_precision_and_few_positions_have_it(monkeypatch):
    assert not has_kernel(16, 16, jnp.bfloat16)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not has_kernel(16, 16, jnp.bfloat16)  # a GPU without units for it
    monkeypatch.setattr(module, "has_tensor_cores", lambda: True)
    assert has_kernel(16, 16, jnp.bfloat16)
    assert has_kernel(32, 64, jnp.bfloat16)
    for T, E, dtype in (
        (16, 16, jnp.float32),
        (33, 16, jnp.bfloat16),
        (16, 128, jnp.bfloat16),
        (16, 8, jnp.bfloat16),
        (16, 48, jnp.bfloat16),
    ):
        assert not has_kernel(T, E, dtype)


@pytest.mark.parametrize("attend", [causal_attention, full_attention])
def test_a_block_takes_it_where_it_is(attend, monkeypatch):
    weights = [
        np.random.default_rng(i).normal(size=shape) / 6
        for i, shape in enumerate([(32, 96), (32, 32), (32, 128), (128, 32)])
    ]
    (block,) = make_blocks([jnp.asarray(w, jnp.bfloat16) for w in weights], heads=2)
    x = jnp.asarray(np.random.default_rng(5).normal(size=(2, 7, 32)), jnp.bfloat16)
    run = lambda: np.asarray(jax.jit(lambda x: block(x, attend))(x), np.float64)
    without = run()
    calls = []

    def interpreted(formula, heads, only_back):
        calls.append((formula, only_back))
        return short_attention(formula, heads, only_back, interpret=True)

    monkeypatch.setattr("laconic.tasks.transformer.has_kernel", lambda *sizes: True)
    monkeypatch.setattr("laconic.tasks.transformer.short_attention", interpreted)
    np.testing.assert_allclose(run(), without, atol=8 * HALF, rtol=4 * HALF)
    assert calls == [(attend, attend is causal_attention)]
