"""Text as bytes: splits, windows at any offset, rows of the held-out splits, and the default
corpus."""

import __future__

import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data import bpe, text


def numbered(path, size):
    """A text in which every aligned 4 bytes name their own place."""
    data = np.arange(size // 4, dtype="<u4").tobytes()
    path.write_bytes(data)
    return data


def test_splits_are_disjoint_and_cover_the_pages(tmp_path):
    context = 63
    data = numbered(tmp_path / "x.txt", 64 * 64 * 50)  # 50 pages of 64 windows
    dataset = text.load(str(tmp_path / "x.txt"), context)
    splits = {split: np.asarray(part["x"]) for split, part in dataset.feed.splits.items()}
    assert splits["train"].shape == (64 * 64 * 37,)
    held_out = {split: splits[split] for split in ("valid", "outer_valid", "test")}
    assert {split: rows.shape for split, rows in held_out.items()} == {
        "valid": (256, 64),  # 4 pages of 64 windows
        "outer_valid": (256, 64),
        "test": (320, 64),  # 5 pages
    }
    words = [splits["train"].view("<u4")] + [
        rows.reshape(-1).view("<u4") for rows in held_out.values()
    ]
    assert sorted(np.concatenate(words).tolist()) == list(range(len(data) // 4))
    assert np.all(np.diff(words[0].astype(np.int64)) > 0)  # training text keeps its order


def test_held_out_rows_are_capped_and_spread(tmp_path):
    numbered(tmp_path / "x.txt", 2_000_000)
    feed = text.load(str(tmp_path / "x.txt"), 7).feed
    rows = np.ascontiguousarray(feed.splits["test"]["x"]).view("<u4")[:, 0].astype(np.int64)
    assert rows.shape == (512,)
    assert len(set(rows)) == 512
    assert rows.max() - rows.min() > 0.9 * 500_000


def test_windows_at_any_offset_and_rows(tmp_path):
    numbered(tmp_path / "x.txt", 100_000)
    feed = text.load(str(tmp_path / "x.txt"), 16).feed
    flat = np.asarray(feed.splits["train"]["x"])
    assert feed.size("train") == len(flat) - 16
    last = feed.size("train") - 1
    starts = jnp.array([[0, 1, 2], [5, 1000, last]], dtype=jnp.int32)
    got = feed.take(starts)["x"]
    assert got.shape == (2, 3, 17)
    assert got.dtype == jnp.uint8
    for place in np.ndindex(2, 3):
        start = int(starts[place])
        np.testing.assert_array_equal(got[place], flat[start : start + 17])
    held = feed.take(jnp.array([3, 0], dtype=jnp.int32), "valid")["x"]
    np.testing.assert_array_equal(held, np.asarray(feed.splits["valid"]["x"])[[3, 0]])
    assert feed.size("valid") == len(feed.splits["valid"]["x"])


def test_windows_inside_jit_vmap_and_as_argument(tmp_path):
    numbered(tmp_path / "x.txt", 100_000)
    feed = text.load(str(tmp_path / "x.txt"), 16).feed
    traced = []

    @jax.jit
    def draw(feed, keys):
        traced.append(1)
        return jax.vmap(lambda key: feed.take(feed.sample(key, (4,)))["x"])(keys)

    keys = jax.random.split(jax.random.key(0), 3)
    got = draw(feed, keys)
    again = draw(text.load(str(tmp_path / "x.txt"), 16).feed, keys)
    assert traced == [1]  # a second feed of the same shape is the same program
    np.testing.assert_array_equal(got, again)
    expected = np.stack([feed.take(feed.sample(key, (4,)))["x"] for key in keys])
    np.testing.assert_array_equal(got, expected)


def test_source_names_the_text(tmp_path):
    data = numbered(tmp_path / "x.txt", 10_000)
    source = text.load(str(tmp_path / "x.txt"), 16).source
    assert hashlib.sha256(data).hexdigest() in source
    assert source.startswith("x.txt, ")
    assert "10000 bytes" in source


def test_a_name_below_the_data_folder(data_root):
    (data_root / "text").mkdir(parents=True)
    numbered(data_root / "text" / "x.txt", 10_000)
    assert text.load("text/x.txt", 16).source.startswith("x.txt, ")


def test_short_texts(tmp_path, raises_clearly):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a" * 20 * 17)
    feed = text.load(str(path), 16).feed
    assert {split: feed.size(split) for split in feed.splits} == {
        "train": 16 * 17 - 16,
        "valid": 1,
        "outer_valid": 1,
        "test": 2,
    }
    path.write_bytes(b"a" * (20 * 17 - 1))
    with raises_clearly(str(path), "339 bytes", "context of 16", "at least 340 bytes"):
        text.load(str(path), 16)


def test_missing_file_and_bad_context(data_root, raises_clearly):
    with raises_clearly("nothing.txt", str(data_root), "full path"):
        text.load("nothing.txt")
    with raises_clearly("context must be positive"):
        text.load(context=0)


def test_library_order_exclusions_and_cut(tmp_path):
    for name in (
        "b.py",
        "a/z.py",
        "a.py",
        "test/t.py",
        "site-packages/s.py",
        "a/test/t.py",
        "idlelib/i.py",
        "c.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"[{name}]")
    assert text.library(tmp_path) == b"[a.py][a/z.py][b.py]"
    assert text.library(tmp_path, limit=9) == b"[a.py][a/"


def test_the_default_corpus_is_this_pythons_library():
    whole = text.library()
    assert len(whole) == 4_000_000
    assert whole.startswith(Path(__future__.__file__).read_bytes())  # the first file by name
    assert hashlib.sha256(whole).hexdigest() in text.load().source


@pytest.mark.real_data
def test_a_real_text(real_data):
    real_data("text")
    dataset = text.load("text/tinyshakespeare.txt", 64)
    assert dataset.classes == 256
    assert (
        "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed" in dataset.source
    )
    assert bytes(np.asarray(dataset.feed.splits["train"]["x"])).count(b"ROMEO") > 50


def sentences(path, n=400):
    lines = [f"sentence {i} says that {i} is {'even' if i % 2 == 0 else 'odd'}." for i in range(n)]
    path.write_text("\n".join(lines) + "\n\n")
    return lines


def words_of(rows, decode):
    return decode(np.asarray(rows).reshape(-1).tolist())


def test_lines_are_dealt_out_whole(tmp_path):
    lines = sentences(tmp_path / "x.txt")
    dataset = text.load(str(tmp_path / "x.txt"), 8, lines=True)
    train = bytes(np.asarray(dataset.feed.splits["train"]["x"])).decode()
    assert train.endswith("\n")
    mine = train.splitlines()
    assert len(mine) == 288  # 72 % of 400
    assert set(mine) < set(lines)
    assert mine == sorted(mine, key=lines.index)
    held_out = b"".join(
        bytes(np.asarray(dataset.feed.splits[s]["x"]).reshape(-1)) for s in ("valid", "test")
    )
    kept = [line for line in held_out.decode().splitlines() if line in lines]
    assert len(kept) > 60
    assert not set(kept) & set(mine)
    assert dataset.classes == 256


def test_byte_pairs_are_learned_from_the_train_split(tmp_path, data_root):
    sentences(tmp_path / "x.txt")
    plain = text.load(str(tmp_path / "x.txt"), 8, lines=True)
    train = bytes(np.asarray(plain.feed.splits["train"]["x"]))
    dataset = text.load(str(tmp_path / "x.txt"), 8, lines=True, vocabulary=300)
    pairs = bpe.learn(train, 300)
    assert dataset.classes == 300
    assert dataset.feed.splits["train"]["x"].dtype == jnp.uint16
    np.testing.assert_array_equal(dataset.feed.splits["train"]["x"], pairs.encode(train))
    assert pairs.decode(np.asarray(dataset.feed.splits["train"]["x"]).tolist()) == train
    assert dataset.feed.take(jnp.array([0, 5]))["x"].shape == (2, 9)
    whole = bytes(np.asarray(plain.feed.splits["test"]["x"]).reshape(-1))
    rows = words_of(dataset.feed.splits["test"]["x"], pairs.decode)
    assert rows.startswith(whole[:200])  # the same text is held out, whatever its tokens are
    assert (tmp_path / "home" / ".cache" / "laconic" / "tokenizers").is_dir()


def test_too_few_lines_or_tokens(tmp_path, data_root, raises_clearly):
    path = tmp_path / "x.txt"
    sentences(path, 19)
    with raises_clearly(str(path), "19 lines", "give 20"):
        text.load(str(path), 8, lines=True)
    sentences(path, 40)
    with raises_clearly(str(path), "tokens for the split", "context of 200", "shorter context"):
        text.load(str(path), 200, lines=True)
