"""Files from someone else: they load as they were published, or are refused with a reason."""

import json
import random
import struct
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from laconic import zoo
from laconic.errors import LaconicError
from laconic.store import checkpoint, sealed
from tests.zoo.made import LAGG_A, LOPT_A, LOPT_R, a_card, a_meta, forge, weights


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.safetensors"
    zoo.publish(path, LOPT_A, weights(), a_card())
    return path


def test_the_format_is_what_it_was(tmp_path):
    """A file put together from the format's description loads: changing it needs a new version."""
    got = zoo.load(forge(tmp_path / "x.safetensors", a_meta()))
    assert got.learned == LOPT_A
    assert got.card == a_card()
    assert checkpoint.peek(tmp_path / "x.safetensors") == a_meta()


def test_a_file_from_before_wide_tensors_took_smaller_steps_takes_whole_ones(tmp_path):
    old = a_meta(changes={"version": 1})
    del old["learned"]["widest"], old["learned"]["deepest"]
    assert zoo.load(forge(tmp_path / "old.safetensors", old)).learned == LOPT_A


def test_a_file_from_before_deep_models_took_smaller_steps_takes_whole_ones_but_in_wide_tensors(
    tmp_path,
):
    old = a_meta(replace(LOPT_A, widest=784), {"version": 2})
    del old["learned"]["deepest"]
    got = zoo.load(forge(tmp_path / "old.safetensors", old)).learned
    assert (got.widest, got.deepest) == (784, 0)


def test_both_numbers_are_kept(tmp_path):
    learned = replace(LOPT_A, widest=784, deepest=6)
    zoo.publish(tmp_path / "x.safetensors", learned, weights(), a_card())
    assert zoo.load(tmp_path / "x.safetensors").learned == learned
    assert checkpoint.peek(tmp_path / "x.safetensors")["learned"]["deepest"] == 6


def test_a_flipped_byte_is_refused_by_the_name_of_the_file(good):
    whole = good.read_bytes()
    draw = random.Random(0)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    places = [
        *range(9),
        *draw.sample(range(header), 20),
        *draw.sample(range(header, len(whole)), 21),
    ]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << draw.randrange(8)
        good.write_bytes(data)
        with pytest.raises(LaconicError, match=r"good\.safetensors"):
            zoo.load(good)
    assert len(places) == 50
    good.write_bytes(whole)
    assert zoo.load(good).card == a_card()


def test_a_cut_file_is_refused(good, raises_clearly):
    whole = good.read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        good.write_bytes(whole[:length])
        with raises_clearly(str(good), "not a whole safetensors file"):
            zoo.load(good)


def test_an_edited_card_is_refused(good, raises_clearly):
    whole = good.read_bytes()
    assert whole.count(b"4500") == 1
    good.write_bytes(whole.replace(b"4500", b"9500"))
    with raises_clearly(str(good), "damaged", "sha256"):
        zoo.load(good)


def test_other_files(tmp_path, raises_clearly):
    text = tmp_path / "notes.safetensors"
    text.write_text("these are only notes\n" * 20)
    with raises_clearly(str(text), "not a whole safetensors file"):
        zoo.load(text)
    text.write_bytes(safetensors.numpy.save({"w0": np.zeros((39, 32), np.float32)}))
    with raises_clearly(str(text), "not a laconic-checkpoint"):
        zoo.load(text)
    with open(text, "r+b") as file:
        file.truncate(2**28 + 1)  # sparse: it takes no room
    with raises_clearly(str(text), "268435457 bytes", "something else"):
        zoo.load(text)


LIES = {
    "format": ({"format": "laconic-run"}, "not a published optimizer"),
    "no format": ({"format": None}, "not a published optimizer"),
    "a later version": ({"version": 5}, "of version 5, and this laconic reads up to version 4"),
    "version true": ({"version": True}, "of version True"),
    "version text": ({"version": "1" * 99}, "of version '1111"),
    "no card": ({"card": None}, "weights without a card"),
    "card text": ({"card": "made-up"}, "card must be a dictionary"),
    "card incomplete": ({"card": {"name": "x"}}, "card lacks the field summary"),
    "no learned": ({"learned": None}, "learned must be a dictionary"),
}
LIES |= {
    f"{name}={value!r}": ({"learned": {**a_meta()["learned"], name: value}}, says)
    for name, value, says in [
        ("hidden", 10**9, "learned.hidden must be a whole number from 1 to 4096"),
        ("hidden", 0, "learned.hidden"),
        ("hidden", 32.0, "learned.hidden"),
        ("hidden", 64, "these weights are not of lopt-a with 1 deltas: b0 is (32,), not (64,)"),
        ("hidden", 4096, "not (4096,)"),
        ("workers", 10**9, "learned.workers must be a whole number from 1 to 4096 or null"),
        ("workers", 8, "leave workers out"),
        ("architecture", ["lopt-a"], "learned.architecture must be one of"),
        ("architecture", "lagg-a", "needs workers=K"),
        ("architecture", "lopt", "card.architecture is lopt-a, but the optimizer's is lopt"),
        ("time", "never", "unknown time features 'never'"),
        ("time", None, "learned.time"),
        ("output_scale", "small", "learned.output_scale"),
        ("deepest", -1, "learned.deepest must be a whole number from 0"),
        ("deepest", 0.5, "learned.deepest"),
        ("secret", 1, "learned has the unknown field 'secret'"),
    ]
}


@pytest.mark.parametrize(("change", "says"), LIES.values(), ids=LIES)
def test_a_header_that_lies(tmp_path, raises_clearly, change, says):
    path = forge(tmp_path / "x.safetensors", a_meta(changes=change))
    with raises_clearly(str(path), says):
        zoo.load(path)


RELATIVE_LIES = [
    ("inputs", ["time"], "weights are for 1 inputs that are not among the 27"),
    ("inputs", a_meta(LOPT_R)["learned"]["inputs"][::-1], "inputs that are not among the 27"),
    ("inputs", "time", "learned.inputs must be a list"),
    ("rate", -1.0, "nominal rate must be positive"),
    ("momentum", 0.8, "nominal momentum must be one of 0.5, 0.9, 0.99"),
    ("hidden", 32, "these weights are not of lopt-r: b0 is (16,), not (32,)"),
    ("widest", 0, "learned has the unknown field 'widest'"),
    ("architecture", "lopt-a", "learned lacks the field workers"),
]


@pytest.mark.parametrize(("field", "value", "says"), RELATIVE_LIES)
def test_a_header_of_lopt_r_that_lies(tmp_path, raises_clearly, field, value, says):
    meta = a_meta(LOPT_R)
    meta["learned"][field] = value
    path = forge(tmp_path / "x.safetensors", meta, weights(LOPT_R))
    with raises_clearly(str(path), says):
        zoo.load(path)


def test_a_workers_lie_is_seen_in_the_weights(tmp_path, raises_clearly):
    meta = a_meta(LAGG_A)
    meta["learned"]["workers"] = meta["card"]["workers"] = 4096
    path = forge(tmp_path / "x.safetensors", meta, weights(LAGG_A))
    with raises_clearly(str(path), "w0 is (46, 32), not (4134, 32)"):
        zoo.load(path)


@pytest.mark.parametrize(
    ("theta", "says"),
    [
        ({}, "a card but no weights"),
        (weights(LAGG_A), "w0 is (46, 32), not (39, 32)"),
        ({name: x for name, x in weights().items() if name != "b2"}, "b2 is missing, not (2,)"),
        ({**weights(), "w9": np.zeros(1, np.float32)}, "\"['w9']\" belongs to no lopt-a"),
        ({**weights(), "\x1b\n": np.zeros(1, np.float32)}, "belongs to no lopt-a"),
        ({"theta": weights()}, "belongs to no lopt-a"),
        ({**weights(), "b0": np.zeros(32, np.float16)}, "\"['b0']\" is F16"),
        ({**weights(), "b0": jnp.zeros(32, jnp.bfloat16)}, "\"['b0']\" is BF16"),
        ({**weights(), "b0": np.zeros(32, np.int32)}, "\"['b0']\" is I32"),
        ({**weights(), "b2": np.array([0, np.nan], np.float32)}, "b2 are not all finite"),
        ({**weights(), "decay": np.full(7, -np.inf, np.float32)}, "decay are not all finite"),
    ],
)
def test_weights_that_are_not_the_architectures(tmp_path, raises_clearly, theta, says):
    path = forge(tmp_path / "x.safetensors", a_meta(), theta)
    with raises_clearly(str(path), says):
        zoo.load(path)


def test_wide_weights_are_refused(tmp_path, raises_clearly):
    with jax.enable_x64(True):
        theta = {name: x.astype(np.float64) for name, x in weights().items()}
        path = forge(tmp_path / "x.safetensors", a_meta(), theta)
    with raises_clearly(str(path), "float32", "F64"):
        zoo.load(path)


def rehash(path, meta_json="{}", keys_json="{}"):
    """A checkpoint whose hash is right though its header holds what `save` would never write."""
    arrays = {f"['{name}']": x for name, x in weights().items()}
    digest = sealed.digest(meta_json, keys_json, arrays)
    header = {
        "format": "laconic-checkpoint",
        "version": "1",
        "sha256": digest,
        "keys": keys_json,
        "meta": meta_json,
    }
    path.write_bytes(safetensors.numpy.save(arrays, header))
    return path


@pytest.mark.parametrize(
    "meta",
    ["", "{", "[" * 10**5, "9" * 10**4, "\ud7ff{}"],
    ids=["empty", "cut", "deep", "long", "odd"],
)
def test_meta_that_is_not_json(tmp_path, raises_clearly, meta):
    path = rehash(tmp_path / "x.safetensors", meta)
    with raises_clearly(str(path), "header that laconic never writes"):
        zoo.load(path)


@pytest.mark.parametrize("meta", ["[]", "null", "3", '"laconic-optimizer"'])
def test_meta_that_is_no_dictionary(tmp_path, raises_clearly, meta):
    path = rehash(tmp_path / "x.safetensors", meta)
    with raises_clearly(str(path), "not a published optimizer"):
        zoo.load(path)


@pytest.mark.parametrize("keys", ["[]", "7", '{"[\'w0\']": "fry"}', "{\"['w0']\": 3}"])
def test_weights_that_claim_to_be_random_keys(tmp_path, raises_clearly, keys):
    path = rehash(tmp_path / "x.safetensors", json.dumps(a_meta()), keys)
    with raises_clearly(str(path), "header that laconic never writes"):
        zoo.load(path)


def test_numbers_json_does_not_have(tmp_path, raises_clearly):
    text = json.dumps(a_meta()).replace("361.5", "NaN")
    path = rehash(tmp_path / "x.safetensors", text)
    with raises_clearly(str(path), "card.seconds must be a finite number", "nan"):
        zoo.load(path)
