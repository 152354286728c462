"""The k largest by counting: against a sort of Python's integers, and against XLA's own top-k."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import parse_compressor
from laconic.largest import by_bisection, by_partial_sort, kth_largest, largest
from laconic.workers import worker_mesh
from tests.outer.trees import QUICK

WAYS = [by_bisection, by_partial_sort, largest]
RNG = np.random.default_rng(4)
ODD_BITS = np.array(
    [0x7FC00001, 0xFFC00000, 0x7F800001, 0x7FC00000, 0x7F800000, 0xFF800000], np.uint32
)
SPECIAL = ODD_BITS.view(np.float32)  # four NaNs that differ, and both infinities
VECTORS = {
    "any bits at all": RNG.integers(0, 2**32, 777, dtype=np.uint64)
    .astype(np.uint32)
    .view(np.float32),
    "few values, many ties": RNG.integers(-3, 4, 777).astype(np.float32),
    "all the same": np.full(300, -2.5, np.float32),
    "zeros of both signs": np.where(RNG.uniform(size=300) < 0.5, 0.0, -0.0).astype(np.float32),
    "one entry among zeros": np.eye(1, 300, 123, dtype=np.float32)[0],
    "too small to be normal": RNG.integers(0, 9, 300).astype(np.uint32).view(np.float32),
    "NaN and infinity": np.concatenate([SPECIAL, np.arange(-9, 9, dtype=np.float32), SPECIAL]),
    "the largest and the smallest": np.array([3.4028235e38, -3.4028235e38, 1e-45, 0.0], np.float32),
    "bfloat16's values": np.asarray(
        jnp.asarray(RNG.normal(size=500), jnp.bfloat16).astype(jnp.float32)
    ),
    "one": np.array([-7.0], np.float32),
}


def places(x: np.ndarray, k: int) -> list[int]:
    """By sorting the bits without the sign as Python's integers, which know neither NaN nor
    rounding."""
    sizes = [int(bits) & 0x7FFFFFFF for bits in x.view(np.uint32)]
    return sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:k]


def found(way, x: np.ndarray, k: int) -> list[int]:
    indices = jax.jit(lambda x: way(x, k), compiler_options=QUICK)(x)
    assert indices.dtype == jnp.int32
    return np.asarray(indices).tolist()


@pytest.mark.parametrize("x", VECTORS.values(), ids=VECTORS)
def test_the_same_places_in_the_same_order_whichever_way(x):
    for k in sorted({1, max(1, len(x) // 9), len(x)}):
        for way in WAYS:
            assert found(way, x, k) == places(x, k), f"{way.__name__}, k = {k}"


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_nothing_is_nothing(way):
    assert found(way, np.zeros(0, np.float32), 0) == []
    assert found(way, np.ones(3, np.float32), 0) == []


def test_a_vmap_finds_what_each_alone_would():
    x_KN = np.stack([RNG.normal(size=400), RNG.integers(-2, 3, 400), np.zeros(400)]).astype(
        np.float32
    )
    for way in WAYS:
        together = jax.jit(jax.vmap(lambda x, way=way: way(x, 37)), compiler_options=QUICK)(x_KN)
        assert np.asarray(together).tolist() == [places(x, 37) for x in x_KN]


def test_workers_on_devices_of_their_own_find_the_same():
    x_KN = np.stack([RNG.integers(-9, 10, 100) for _ in range(8)]).astype(np.float32)
    mesh, spread = worker_mesh(8), jax.sharding.PartitionSpec("workers")
    for way in WAYS:
        each = jax.shard_map(
            jax.vmap(lambda x, way=way: way(x, 11)),
            mesh=mesh,
            in_specs=spread,
            out_specs=spread,
            axis_names={"workers"},
        )
        found_K = np.asarray(jax.jit(each, compiler_options=QUICK)(x_KN))
        assert found_K.tolist() == [places(x, 11) for x in x_KN]


def test_the_threshold_is_the_kth_largest_number():
    sizes = RNG.integers(0, 2**31, 100, dtype=np.uint64).astype(np.uint32)
    sizes[40:60] = sizes[7]
    ordered = sorted(sizes.tolist(), reverse=True)
    find = jax.jit(kth_largest, compiler_options=QUICK)
    assert [int(find(sizes, k)) for k in range(1, 101)] == ordered


def lowered(platform: str) -> str:
    """The program for K workers as it is handed to that platform's compiler."""
    traced = jax.jit(jax.vmap(lambda x: largest(x, 10))).trace(jnp.zeros((8, 5000)))
    return traced.lower(lowering_platforms=(platform,)).as_text()


def test_a_gpu_sorts_nothing_but_what_is_kept():
    text = lowered("cuda")
    sorts = re.findall(r"stablehlo\.sort.*?\}\) : \((.*?)\) ->", text, re.DOTALL)
    assert sorts == ["tensor<8x10xui32>, tensor<8x10xi32>"]
    assert "top_k" not in text
    assert "top_k" in lowered("cpu")


def test_no_gradient_goes_through_the_choice():
    x = jnp.array([1.0, -3.0, 2.0, 0.5])
    for way in WAYS:
        loss = lambda x, way=way: jnp.sum(x[way(x, 2)] ** 2)
        np.testing.assert_array_equal(
            jax.jit(jax.grad(loss), compiler_options=QUICK)(x), [0.0, -6.0, 4.0, 0.0]
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("spec", ["topk:0.25", "tensor-topk:0.25+int8", "topk:0.25+ef"])
def test_a_message_is_the_same_bytes_by_either_way(spec, dtype, monkeypatch):
    a, b, c = RNG.integers(-4, 5, (6, 7)), np.zeros(3), 2.0
    delta = jax.tree.map(lambda x: jnp.asarray(x, dtype), {"a": a, "b": b, "c": c})
    compressor = parse_compressor(spec)
    messages = []
    for way in (by_partial_sort, by_bisection):
        monkeypatch.setattr("laconic.compress.largest", way)

        def send(delta):
            payload, state = compressor.encode(delta, compressor.init(delta), jax.random.key(3))
            return payload, state, compressor.decode(payload, delta)

        messages.append(jax.device_get(jax.jit(send, compiler_options=QUICK)(delta)))
    for ours, theirs in zip(*map(jax.tree.leaves, messages), strict=True):
        assert ours.tobytes() == theirs.tobytes()
