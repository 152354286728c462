"""The pieces of the wire format, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import (
    STAGES,
    Codec,
    Compressor,
    index_width,
    kept,
    parse_compressor,
    payload_bytes,
    quantised,
    raw,
    top_k,
    tree_bits,
)
from tests import reference_compress as twin
from tests.outer.trees import QUICK


def quick(codec: Codec) -> Codec:
    return Codec(
        jax.jit(codec.encode, compiler_options=QUICK),
        jax.jit(codec.decode, static_argnums=1, compiler_options=QUICK),
    )


@pytest.mark.parametrize(
    ("fraction", "n", "k"),
    [
        (0.07, 100, 7),
        (0.1, 30, 3),
        (0.29, 100, 29),
        (0.001, 10, 1),
        (1.0, 5, 5),
        (0.5, 5, 3),
        (1e-5, 300_000, 3),
    ],
)
def test_how_many_are_kept_is_exact_decimal_arithmetic(fraction, n, k):
    assert kept(fraction, n) == twin.count_kept(n, fraction) == k


def test_an_index_takes_as_many_bits_as_it_needs():
    assert [index_width(n) for n in (1, 2, 3, 4, 5, 256, 257, 2**20, 2**20 + 1)] == [
        1,
        1,
        2,
        2,
        3,
        8,
        9,
        20,
        21,
    ]


def test_top_k_ties_go_to_the_lower_index_and_bits_are_packed_from_the_low_end():
    codec = quick(top_k(0.6, raw()))
    payload = codec.encode(jnp.array([1.0, -3.0, 3.0, 0.5, -1.0]), jax.random.key(0))
    np.testing.assert_array_equal(payload.values, [-3.0, 3.0, 1.0])
    # 1, 2, 0 in three bits each: 001 | 010 << 3 | 000 << 6
    np.testing.assert_array_equal(payload.indices, np.array([0b00_010_001, 0], np.uint8))
    np.testing.assert_array_equal(codec.decode(payload, 5), [1.0, -3.0, 3.0, 0.0, 0.0])


def test_nibbles_lie_in_pairs_the_first_one_low():
    codec = quick(quantised(4))
    payload = codec.encode(
        jnp.array([7.0, -7.0, 0.0]), jax.random.key(0)
    )  # codes 7, −7, 0 whatever the noise
    np.testing.assert_array_equal(payload.levels, np.array([15 | 1 << 4, 8], np.uint8))
    np.testing.assert_array_equal(payload.scales, [7.0])
    np.testing.assert_array_equal(codec.decode(payload, 3), [7.0, -7.0, 0.0])


def test_bytes_hold_signed_codes_and_each_bucket_its_scale():
    codec = quick(quantised(8))
    x = jnp.asarray(np.concatenate([[2.0, -2.0], np.zeros(254), [0.0, -5.0]]), jnp.float32)
    payload = codec.encode(x, jax.random.key(0))
    np.testing.assert_array_equal(payload.scales, [2.0, 5.0])
    np.testing.assert_array_equal(
        np.asarray(payload.levels)[[0, 1, 2, 256, 257]], [127, -127, 0, 0, -127]
    )
    assert payload.levels.dtype == jnp.int8
    np.testing.assert_allclose(codec.decode(payload, 258), x, rtol=1e-6)


def test_a_nan_or_infinity_cannot_hide():
    for spec in ("int8", "int4", "int2", "sparseloco"):
        compressor = parse_compressor(spec)
        for bad in (jnp.nan, jnp.inf):
            delta = {"w": jnp.array([1.0, bad, 2.0])}
            payload, _ = compressor.encode(delta, compressor.init(delta), jax.random.key(0))
            assert not bool(jnp.all(jnp.isfinite(compressor.decode(payload, delta)["w"])))


def test_payload_bytes_are_the_arrays_in_order():
    payload = {"a": jnp.array([1, 2], jnp.uint8), "b": jnp.array([1.0], jnp.float32)}
    assert payload_bytes(payload) == bytes([1, 2]) + np.float32(1.0).tobytes()
    assert tree_bits(payload) == 8 * len(payload_bytes(payload))


def test_every_stage_that_is_listed_can_be_parsed():
    for stage in STAGES:
        spec = stage.replace("F", "0.5").replace("D", "0.5")
        spec = f"int8+{spec}" if spec.startswith("ef") else spec
        assert isinstance(parse_compressor(spec), Compressor)
        assert parse_compressor(spec).name == spec
