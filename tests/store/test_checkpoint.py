import hashlib
import json
import os
import struct
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.store import checkpoint

META = {"round": 7, "name": "mlp ü\u2028", "nested": {"list": [1, 2.5, None, True]}}


class Pair(NamedTuple):
    first: Any
    second: Any


def odd_tree():
    key = jax.random.key(3)
    return {
        "bf16": jnp.asarray([[1.5, -0.0, jnp.nan], [jnp.inf, 3e38, 1e-40]], jnp.bfloat16),
        "u8": np.arange(256, dtype=np.uint8),
        "zero-d": jnp.asarray(-5, jnp.int32),
        "bool": np.array([True, False, True]),
        "empty": jnp.zeros((0, 3), jnp.float32),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "strided": np.arange(20, dtype=np.int16)[::3],
        "scalar": np.float32(0.1),
        "keys": Pair(key, jax.random.split(jax.random.key(4, impl="rbg"), (2, 3))),
        "optax": optax.adamw(1e-3).init({"w": jnp.ones((2, 2)), "b": jnp.ones(2, jnp.float16)}),
        "none": (None, [], {}),
        "a/b['c']": [{1: np.array(1, np.uint32)}, {"1": np.array(2, np.uint32)}],
    }


def bits(leaf):
    """Dtype, shape and bytes of a leaf: the oracle for "the same to the last bit"."""
    name, shape = str(leaf.dtype), leaf.shape
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return name, shape, np.asarray(leaf).tobytes()


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert [bits(x) for x in jax.tree.leaves(a)] == [bits(x) for x in jax.tree.leaves(b)]


def small_tree():
    return {
        "w": np.array([1.0, 2.0], np.float32),
        "k": jax.random.key(1),
        "n": np.array(3, np.uint8),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "small.safetensors"
    checkpoint.save(path, small_tree(), {"round": 1})
    return path


@pytest.mark.parametrize("struct_like", [False, True])
def test_round_trip_of_an_odd_tree(tmp_path, struct_like):
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, odd_tree(), META)
    like = (
        jax.eval_shape(lambda: jax.tree.map(jnp.asarray, odd_tree())) if struct_like else odd_tree()
    )
    tree, meta = checkpoint.load(path, like)
    assert_same(tree, odd_tree())
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))
    assert meta == META == checkpoint.peek(path)


def test_restored_keys_draw_what_the_originals_would(tmp_path):
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        key = jax.random.key(11, impl=impl)
        checkpoint.save(tmp_path / impl, key, {})
        restored, _ = checkpoint.load(tmp_path / impl, jax.random.key(0, impl=impl))
        np.testing.assert_array_equal(
            jax.random.normal(restored, (4,)), jax.random.normal(key, (4,))
        )


@pytest.mark.parametrize("tree", [(), None, np.float32(2), jnp.zeros((2, 0, 3), jnp.bfloat16)])
def test_trees_of_no_or_one_leaf(tmp_path, tree):
    checkpoint.save(tmp_path / "x", tree, {})
    assert_same(checkpoint.load(tmp_path / "x", tree)[0], tree)


def test_any_safetensors_reader_can_open_it(saved):
    with safetensors.safe_open(saved, "numpy") as file:
        assert sorted(file.keys()) == ["['k']", "['n']", "['w']"]
        assert file.metadata()["format"] == "laconic-checkpoint"
        np.testing.assert_array_equal(file.get_tensor("['w']"), np.array([1.0, 2.0], np.float32))


def test_the_format_of_version_1_is_what_it_was(tmp_path):
    """A file put together by hand, byte by byte, loads: changing the format or its hash needs a new
    version."""
    meta, keys = '{"a": 1}', "{}"
    body = struct.pack("<2f", 1.0, -2.0) + b"\x07"
    total = hashlib.sha256(b'["{\\"a\\": 1}", "{}", 2]')
    total.update(
        b'["[\'n\']", "uint8", []]\n\x07["[\'w\']", "float32", [2]]\n'
        + struct.pack("<2f", 1.0, -2.0)
    )
    header = json.dumps(
        {
            "__metadata__": {
                "format": "laconic-checkpoint",
                "version": "1",
                "sha256": total.hexdigest(),
                "keys": keys,
                "meta": meta,
            },
            "['w']": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "['n']": {"dtype": "U8", "shape": [], "data_offsets": [8, 9]},
        }
    ).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + body)
    want = {"w": np.array([1.0, -2.0], np.float32), "n": np.array(7, np.uint8)}
    tree, got_meta = checkpoint.load(tmp_path / "x", want)
    assert_same(tree, want)
    assert got_meta == {"a": 1}


def test_every_changed_byte_is_noticed(saved):
    whole = saved.read_bytes()
    for position in range(len(whole)):
        for mask in (0x01, 0x20, 0xFF):  # the last bit, the case of a letter, all bits
            data = bytearray(whole)
            data[position] ^= mask
            saved.write_bytes(data)
            with pytest.raises(LaconicError, match=r"small\.safetensors"):
                checkpoint.peek(saved)
    saved.write_bytes(whole)
    assert_same(checkpoint.load(saved, small_tree())[0], small_tree())


def test_every_truncation_and_anything_appended_is_noticed(saved, raises_clearly):
    whole = saved.read_bytes()
    for data in (*(whole[:n] for n in range(len(whole))), whole + b"\0"):
        saved.write_bytes(data)
        with raises_clearly(str(saved), "not a whole safetensors file", "use another copy"):
            checkpoint.load(saved, small_tree())


def test_a_flipped_weight_is_called_damage(saved, raises_clearly):
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x40]))
    with raises_clearly(str(saved), "damaged", "sha256"):
        checkpoint.load(saved, small_tree())


def test_a_text_file(tmp_path, raises_clearly):
    (tmp_path / "notes.txt").write_text("these are only notes\n" * 9)
    with raises_clearly("notes.txt", "not a whole safetensors file"):
        checkpoint.peek(tmp_path / "notes.txt")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_foreign_safetensors(tmp_path, raises_clearly, metadata):
    (tmp_path / "foreign").write_bytes(
        safetensors.numpy.save({"w": np.zeros(2, np.float32)}, metadata)
    )
    with raises_clearly("foreign", "not a laconic-checkpoint", "give a file that laconic saved"):
        checkpoint.load(tmp_path / "foreign", {"w": np.zeros(2, np.float32)})


@pytest.mark.parametrize("path", ["absent", "."])
def test_a_path_that_is_no_file(tmp_path, raises_clearly, path):
    with raises_clearly("cannot read", str(tmp_path / path)):
        checkpoint.load(tmp_path / path, ())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "2"}, ("version '2'", "reads version 1", "a later one")),
        ({"version": ""}, ("version ''",)),
        ({"meta": '{"round":2}'}, ("damaged",)),
        ({"keys": "{}"}, ("damaged",)),
        ({"sha256": "0" * 64}, ("damaged",)),
    ],
)
def test_a_changed_header_entry(saved, raises_clearly, change, says):
    rewrite(saved, change)
    with raises_clearly(str(saved), *says):
        checkpoint.load(saved, small_tree())


def test_an_added_tensor_of_a_dtype_we_never_write(saved, raises_clearly):
    rewrite(saved, {}, extra={"x": np.zeros(1, jnp.float8_e5m2)})
    with raises_clearly(str(saved), "damaged"):
        checkpoint.load(saved, small_tree())


def rewrite(path, change, extra=()):
    with safetensors.safe_open(path, "numpy") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    path.write_bytes(safetensors.numpy.save({**tensors, **dict(extra)}, {**metadata, **change}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"w": jax.ShapeDtypeStruct((3,), jnp.float32)},
            ("['w'] is float32[2] but float32[3] is wanted",),
        ),
        (
            {"w": jax.ShapeDtypeStruct((2, 1), jnp.float32)},
            ("['w'] is float32[2] but float32[2, 1] is wanted",),
        ),
        (
            {"w": jax.ShapeDtypeStruct((2,), jnp.bfloat16)},
            ("['w'] is float32[2] but bfloat16[2] is wanted",),
        ),
        ({"k": jax.random.key(1, impl="rbg")}, ("['k'] is key<fry>[] but key<rbg>[] is wanted",)),
        (
            {"k": jax.ShapeDtypeStruct((2,), jnp.uint32)},
            ("['k'] is key<fry>[] but uint32[2] is wanted",),
        ),
        ({"extra": np.zeros(1, np.float32)}, ("['extra'] is missing",)),
        ({"w": {"w": np.zeros(2, np.float32)}}, ("['w']['w'] is missing", "['w'] is not wanted")),
        ({f"m{i}": np.zeros(1, np.float32) for i in range(9)}, ("['m0'] is missing", "and 6 more")),
    ],
)
def test_a_checkpoint_that_does_not_fit(saved, raises_clearly, change, says):
    with raises_clearly(str(saved), "does not fit", "settings it was saved with", *says):
        checkpoint.load(saved, {**small_tree(), **change})


def test_a_tree_with_less_than_the_file(saved, raises_clearly):
    with raises_clearly(str(saved), "['k'] is not wanted; ['w'] is not wanted"):
        checkpoint.load(saved, {"n": small_tree()["n"]})


@pytest.mark.parametrize("leaf", [1, 2.5, True, "text", object()])
def test_leaves_that_are_not_arrays_are_refused(saved, raises_clearly, leaf):
    before = saved.read_bytes()
    with raises_clearly("['a'][1]", type(leaf).__name__, "array"):
        checkpoint.save(saved, {"a": (np.zeros(1, np.float32), leaf)}, {})
    with raises_clearly("['a']", type(leaf).__name__):
        checkpoint.load(saved, {"a": leaf})
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (np.zeros(1, np.float64), ("float64", "float32", "jax_enable_x64")),
        (np.zeros(1, np.int64), ("int64", "int32", "jax_enable_x64")),
        (np.zeros(1, np.complex64), ("complex64", "cast it first")),
        (np.zeros(1, ">f4"), (">f4", "cast it first")),
        (np.array(["a"]), ("<U1", "cast it first")),
    ],
)
def test_dtypes_that_would_not_come_back_are_refused(tmp_path, raises_clearly, leaf, says):
    with raises_clearly("['a']", *says):
        checkpoint.save(tmp_path / "x", {"a": leaf}, {})
    assert os.listdir(tmp_path) == []


def test_wide_numbers_need_x64_on_both_sides(tmp_path, raises_clearly):
    tree = {"a": np.array([0.1], np.float64), "n": np.array(2**40, np.int64)}
    with jax.enable_x64(True):
        checkpoint.save(tmp_path / "x", tree, {})
        assert_same(checkpoint.load(tmp_path / "x", tree)[0], tree)
    with raises_clearly("['a']", str(tmp_path / "x"), "jax_enable_x64"):
        checkpoint.load(tmp_path / "x", tree)


@pytest.mark.parametrize(
    "meta", [{"a": float("nan")}, {"a": object()}, {"a": np.float32(1)}, {(1, 2): 3}]
)
def test_meta_that_is_not_json_is_refused(saved, raises_clearly, meta):
    before = saved.read_bytes()
    with raises_clearly("meta is not JSON"):
        checkpoint.save(saved, small_tree(), meta)
    assert saved.read_bytes() == before


def test_leaves_of_one_name_are_refused(tmp_path, raises_clearly):
    class Clash:
        pass

    children = (
        (jax.tree_util.GetAttrKey("x"), np.zeros(1)),
        (jax.tree_util.GetAttrKey("x"), np.ones(1)),
    )
    jax.tree_util.register_pytree_with_keys(
        Clash, lambda _: (children, None), lambda _, __: Clash()
    )
    with raises_clearly("two checkpoint leaves", ".x"):
        checkpoint.save(tmp_path / "x", Clash(), {})


def test_a_failed_replace_leaves_the_old_checkpoint(saved, monkeypatch, raises_clearly):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with raises_clearly(str(saved), "Input/output error"):
        checkpoint.save(saved, {"other": np.zeros(3, np.float32)}, {"round": 2})
    tree, meta = checkpoint.load(saved, small_tree())
    assert_same(tree, small_tree())
    assert meta == {"round": 1}
    assert os.listdir(saved.parent) == [saved.name]


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float16",
    "bfloat16",
    "float32",
]


@st.composite
def arrays(draw):
    dtype = jnp.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype == np.bool_:
        data = bytes(b & 1 for b in data)
    return np.frombuffer(data, dtype).reshape(shape)


TREES = st.recursive(
    arrays() | st.none() | st.builds(jax.random.key, st.integers(0, 9)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(tree=TREES, meta=st.dictionaries(st.text(), JSON, max_size=3))
def test_any_tree_comes_back_as_it_was(tmp_path_factory, tree, meta):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    checkpoint.save(path, tree, meta)
    restored, restored_meta = checkpoint.load(path, tree)
    assert_same(restored, tree)
    assert restored_meta == meta
