"""Frames: what goes in comes out, and nothing else is let in."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compress import Quantised
from laconic.engines.wire import (
    BLOCK,
    FIELDS,
    HEADER,
    LANES,
    SIGNED,
    Header,
    Layout,
    Seal,
    fill_frame,
    fold,
    new_frame,
    open_frame,
    sign_frame,
    unpack,
)
from tests.engines.poison import fold_by_hand

SEAL = Seal.of("secret", "run")
TREE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": Quantised(np.array([-3, 7, 1], np.int8), np.array([0.5], np.float32)),
    "c": (np.array(True), np.zeros((0, 4), np.float32), np.array(5, np.int32)),
    "d": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
}
LAYOUT = Layout.of(TREE)
FOLD = jax.jit(fold)
HEAD = Header(0, SEAL.run, LAYOUT.structure, bytes(range(32)), 7, 3, 1.5, 0.25, LAYOUT.size)


def signed(seal: Seal = SEAL) -> np.ndarray:
    frame = fill_frame(LAYOUT, HEAD, TREE)
    return sign_frame(seal, frame, folded(seal, frame))


def folded(seal: Seal, frame: np.ndarray) -> np.ndarray:
    return np.asarray(FOLD(seal.fold_key, frame[HEADER:].view(np.uint32))[0])


def opened(frame: np.ndarray, seal: Seal = SEAL):
    return open_frame(seal, frame, folded(seal, frame))


def test_a_frame_holds_its_arrays_as_aligned_views():
    frame = signed()
    assert opened(frame) == (HEAD, "")
    assert frame.size == LAYOUT.frame
    back = LAYOUT.read(frame[HEADER:])
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for have, want in zip(jax.tree.leaves(back), jax.tree.leaves(TREE), strict=True):
        assert have.dtype == want.dtype
        assert have.shape == want.shape
        np.testing.assert_array_equal(have, want)
        assert have.size == 0 or np.shares_memory(have, frame)
        assert have.ctypes.data % 64 == 0


def test_the_bytes_are_those_of_the_description():
    """By hand: little-endian fields at their offsets, the first array after the header, HMAC-SHA256
    over the rest."""
    import hashlib
    import hmac

    frame = signed().tobytes()
    assert frame[:8] == b"LACN" + bytes([1, 0, 0, 0])
    settings = hashlib.sha256(b"run").hexdigest()[:32]
    identity = f'{{"code": "", "optimizer": "", "run": "", "settings": "{settings}"}}'
    assert frame[8:24] == hashlib.sha256(identity.encode()).digest()[:16]
    assert frame[40:72] == bytes(range(32))
    assert int.from_bytes(frame[72:80], "little") == 7
    assert int.from_bytes(frame[80:84], "little") == 3
    assert frame[HEADER : HEADER + 24] == TREE["a"].astype("<f4").tobytes()
    seed = hmac.new(b"secret", SEAL.run + b"the keys of a body's fold", "sha256").digest()
    stream = hashlib.shake_256(seed).digest(4 * (2 * BLOCK + LANES - 1))
    keys = [int.from_bytes(stream[i : i + 4], "little") for i in range(0, len(stream), 4)]
    halves = [int.from_bytes(frame[i : i + 2], "little") for i in range(HEADER, len(frame), 2)]
    ordered = (
        halves[0::2] + [0] * (BLOCK - len(halves) // 2) + halves[1::2]
    )  # all low halves, then all high ones
    sums = [sum(x * keys[j + t] for j, x in enumerate(ordered)) % 2**32 for t in range(LANES)]
    lanes = b"".join(x.to_bytes(4, "little") for x in sums)
    mac = hmac.new(b"secret", SEAL.run + frame[:SIGNED] + lanes, "sha256").digest()
    assert frame[SIGNED:HEADER] == mac
    assert FIELDS.size <= SIGNED


@pytest.mark.parametrize(
    "other",
    [
        TREE | {"a": np.zeros((3, 2), np.float32)},
        TREE | {"a": np.zeros((2, 3), np.int32)},
        TREE | {"z": np.zeros(1, np.float32)},
        {name: leaf for name, leaf in TREE.items() if name != "d"},
    ],
    ids=["shape", "dtype", "more", "less"],
)
def test_another_structure_has_another_hash(other):
    assert Layout.of(other).structure != LAYOUT.structure


def test_the_hash_is_the_same_in_every_process():
    """Names, dtypes and shapes alone, none of which depends on addresses: pinned."""
    assert (
        Layout.of({"w": np.zeros((2, 3), np.float32)}).structure.hex()
        == "ca872ca9b76a291e2062b2d412417d27"
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, LAYOUT.frame - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(place, change):
    frame = signed()
    frame[place] ^= change
    header, reason = opened(frame)
    assert header is None
    assert reason in ("garbage", "version", "token")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2 * LAYOUT.frame))
def test_garbage_is_refused_whatever_its_length(data):
    header, reason = open_frame(
        SEAL, np.frombuffer(data, np.uint8), np.zeros((LANES, 1), np.uint32)
    )
    assert header is None
    assert reason in ("garbage", "version", "token")


def test_another_token_and_another_run_are_refused():
    frame = signed()
    assert opened(frame, Seal.of("guess", "run")) == (None, "token")
    other = Seal.of("secret", "another")
    assert opened(frame, other) == (None, "token")
    assert opened(signed(other), other) == (None, "run")


@pytest.mark.parametrize("words", [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_the_fold_of_any_length_is_that_of_whole_numbers(words):
    frame = np.zeros(HEADER + 4 * words, np.uint8)
    frame[HEADER:] = np.random.default_rng(words).integers(0, 256, 4 * words)
    np.testing.assert_array_equal(folded(SEAL, frame), fold_by_hand(SEAL, frame))


def test_the_squares_are_added_up_on_the_way():
    numbers = np.random.default_rng(1).normal(size=3 * BLOCK + 5).astype(np.float32)
    _, square = FOLD(SEAL.fold_key, numbers.view(np.uint32))
    np.testing.assert_allclose(square, np.sum(numbers.astype(np.float64) ** 2), rtol=1e-5)


def test_all_sums_of_a_fold_change_with_any_half_and_with_its_place():
    """Also where a difference has the most factors of two that it can have."""
    frame = np.zeros(HEADER + 8 * BLOCK, np.uint8)
    frame[HEADER:] = np.random.default_rng(0).integers(0, 256, 8 * BLOCK)
    before = folded(SEAL, frame)
    for place in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1):
        for bit in (0, 15, 16, 31):
            changed = frame.copy()
            changed[HEADER:].view(np.uint32)[place] ^= np.uint32(1 << bit)
            after = folded(SEAL, changed)
            assert np.all((after != before) == (np.arange(2) == place // BLOCK)[None, :])
    assert len(set(folded(SEAL, frame).ravel().tolist())) == 2 * LANES
    swapped = np.concatenate(
        [frame[:HEADER], frame[HEADER + 4 * BLOCK :], frame[HEADER : HEADER + 4 * BLOCK]]
    )
    assert not np.array_equal(folded(SEAL, swapped), before)


def test_arrays_cut_out_on_the_device_are_those_on_the_host():
    body = signed()[HEADER:]
    on_device = jax.jit(lambda words: unpack(LAYOUT, words))(body.view(np.uint32))
    on_host = LAYOUT.read(body)
    assert jax.tree.structure(on_device) == jax.tree.structure(on_host)
    for have, want in zip(jax.tree.leaves(on_device), jax.tree.leaves(on_host), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(have), want)


def test_a_run_needs_a_token(raises_clearly):
    with raises_clearly("token", "secret"):
        Seal.of("", "run")


def test_new_frames_are_aligned_zeros():
    for size in (1, 63, 64, 1000):
        frame = new_frame(size)
        assert frame.size == size
        assert frame.ctypes.data % 64 == 0
        assert not frame.any()


def test_layout_rows_are_plain_json():
    assert json.loads(
        json.dumps(
            [[jax.tree_util.keystr(p)] for p, _ in jax.tree_util.tree_leaves_with_path(TREE)]
        )
    )
