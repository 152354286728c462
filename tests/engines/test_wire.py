"""Frames: what goes in comes out, and nothing else is let in."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compress import Quantised
from laconic.engines.wire import FIELDS, HEADER, SIGNED, Header, Layout, Seal, new_frame, open_frame, seal_frame

SEAL = Seal.of("secret", "run")
TREE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": Quantised(np.array([-3, 7, 1], np.int8), np.array([0.5], np.float32)),
    "c": (np.array(True), np.zeros((0, 4), np.float32), np.array(5, np.int32)),
    "d": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
}
LAYOUT = Layout.of(TREE)
HEAD = Header(0, SEAL.run, LAYOUT.structure, bytes(range(32)), 7, 3, 1.5, 0.25, LAYOUT.size)


def test_a_frame_holds_its_arrays_as_aligned_views():
    frame = seal_frame(SEAL, LAYOUT, HEAD, TREE)
    header, reason = open_frame(SEAL, frame)
    assert (header, reason) == (HEAD, "")
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
    """By hand: little-endian fields at their offsets, the first array after the header, HMAC-SHA256 over the rest."""
    import hashlib
    import hmac

    frame = seal_frame(SEAL, LAYOUT, HEAD, TREE).tobytes()
    assert frame[:8] == b"LACN" + bytes([1, 0, 0, 0])
    assert frame[8:24] == hashlib.sha256(b"run").digest()[:16]
    assert frame[40:72] == bytes(range(32))
    assert int.from_bytes(frame[72:80], "little") == 7
    assert int.from_bytes(frame[80:84], "little") == 3
    assert frame[HEADER : HEADER + 24] == TREE["a"].astype("<f4").tobytes()
    body = frame[HEADER : HEADER + LAYOUT.size]
    mac = hmac.new(b"secret", SEAL.run + frame[:SIGNED] + body, "sha256").digest()
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
    assert Layout.of({"w": np.zeros((2, 3), np.float32)}).structure.hex() == "ca872ca9b76a291e2062b2d412417d27"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, LAYOUT.frame - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(place, change):
    frame = seal_frame(SEAL, LAYOUT, HEAD, TREE)
    frame[place] ^= change
    header, reason = open_frame(SEAL, frame)
    assert header is None
    assert reason in ("garbage", "version", "token")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2 * LAYOUT.frame))
def test_garbage_is_refused_whatever_its_length(data):
    header, reason = open_frame(SEAL, np.frombuffer(data, np.uint8))
    assert header is None
    assert reason in ("garbage", "version", "token")


def test_another_token_and_another_run_are_refused():
    frame = seal_frame(SEAL, LAYOUT, HEAD, TREE)
    assert open_frame(Seal.of("guess", "run"), frame) == (None, "token")
    other = Seal.of("secret", "another")
    assert open_frame(other, frame) == (None, "token")
    assert open_frame(other, seal_frame(other, LAYOUT, HEAD, TREE)) == (None, "run")


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
    assert json.loads(json.dumps([[jax.tree_util.keystr(p)] for p, _ in jax.tree_util.tree_leaves_with_path(TREE)]))
