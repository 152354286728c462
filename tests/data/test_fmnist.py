"""The IDX loader on small files of the official format, and the real files where there are some."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from laconic.data import images as sets

NAMES = list(sets.FMNIST_SHA256)


def idx_bytes(array, magic=None):
    magic = 0x0800 + array.ndim if magic is None else magic
    return (
        struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
    )


def tiny():
    """Content of four small files: 40 train and 10 test images."""
    rng = np.random.default_rng(1)
    made = {}
    for part, n in (("train", 40), ("t10k", 10)):
        labels = rng.integers(0, 10, n)
        images = rng.integers(0, 256, (n, 28, 28))
        images[:, 0, 0] = labels  # so that a shuffled pair can be recognised
        made |= {f"{part}-images-idx3-ubyte": images, f"{part}-labels-idx1-ubyte": labels}
    return made


def put(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))


def registry(contents, address=sets.FMNIST_ADDRESS):
    return sets.fmnist_files(
        address, {name: hashlib.sha256(contents[name]).hexdigest() for name in NAMES}
    )


@pytest.fixture
def contents():
    return {name: idx_bytes(array) for name, array in tiny().items()}


def test_loads_small_official_files(data_root, contents):
    put(data_root / "fashion-mnist", contents)
    dataset = sets.load_fmnist(registry(contents))
    assert {split: dataset.feed.size(split) for split in dataset.feed.splits} == {
        "train": 32,
        "valid": 4,
        "outer_valid": 4,
        "test": 10,
    }
    assert dataset.classes == 10
    assert dataset.source == "Fashion-MNIST, official files, contents verified"
    for part in dataset.feed.splits.values():
        assert part["x"].shape[1:] == (28, 28, 1)
        np.testing.assert_array_equal(part["x"][:, 0, 0, 0], part["y"])
    np.testing.assert_array_equal(
        dataset.feed.splits["test"]["x"][..., 0], tiny()["t10k-images-idx3-ubyte"]
    )


def test_downloads_all_four_files(data_root, contents, serve, tmp_path):
    put(tmp_path / "site", contents)
    dataset = sets.load_fmnist(registry(contents, serve(tmp_path / "site")))
    assert dataset.feed.size("train") == 32
    assert sorted(path.name for path in (data_root / "fashion-mnist").iterdir()) == sorted(
        f"{n}.gz" for n in NAMES
    )


def test_official_digests_refuse_other_files(data_root, contents, raises_clearly):
    put(data_root / "fashion-mnist", contents)
    with raises_clearly(
        str(data_root / "fashion-mnist/train-images-idx3-ubyte.gz"), sets.FMNIST_SHA256[NAMES[0]]
    ):
        sets.load_fmnist()


def test_checked_at_every_load(data_root, contents, raises_clearly):
    put(data_root / "fashion-mnist", contents)
    files = registry(contents)
    sets.load_fmnist(files)
    path = data_root / "fashion-mnist" / f"{NAMES[3]}.gz"
    path.write_bytes(gzip.compress(contents[NAMES[3]][:-1] + b"\x00\x01"))
    with raises_clearly(str(path), "sha256:"):
        sets.load_fmnist(files)


def test_missing_offline(data_root, contents, nowhere, raises_clearly):
    places = [f"{nowhere}/{name}.gz as {data_root}/fashion-mnist/{name}.gz" for name in NAMES]
    with raises_clearly(*places):
        sets.load_fmnist(registry(contents, nowhere))


def wrong(name, data):
    def change(contents):
        contents[name] = data(contents[name])

    return change


@pytest.mark.parametrize(
    ("change", "which", "says"),
    [
        (wrong(NAMES[0], lambda data: b"\x00\x00\x08\x01" + data[4:]), 0, "magic 0x00000803"),
        (wrong(NAMES[1], lambda data: data[:6]), 1, "header of 8 bytes"),
        (wrong(NAMES[2], lambda data: data[:-1]), 2, "needs 7856 bytes, found 7855"),
        (wrong(NAMES[2], lambda data: data + b"\x00"), 2, "needs 7856 bytes, found 7857"),
        (wrong(NAMES[3], lambda data: data[:-1] + b"\x0a"), 3, "found 10 up to 10"),
        (wrong(NAMES[3], lambda data: idx_bytes(np.zeros(9))), 3, "expected 10 labels"),
        (wrong(NAMES[0], lambda data: idx_bytes(np.zeros((40, 14, 56)))), 0, "(14, 56)"),
    ],
)
def test_wrong_content_is_named_and_kept(data_root, contents, raises_clearly, change, which, says):
    change(contents)
    folder = data_root / "fashion-mnist"
    put(folder, contents)
    path = folder / f"{NAMES[which]}.gz"
    before = path.read_bytes()
    with raises_clearly(str(path), says, "put"):
        sets.load_fmnist(registry(contents))
    assert path.read_bytes() == before


@pytest.mark.real_data
def test_the_real_files(real_data):
    real_data("fashion-mnist")
    dataset = sets.load_fmnist()
    sizes = {split: dataset.feed.size(split) for split in dataset.feed.splits}
    assert sizes == {"train": 48000, "valid": 6000, "outer_valid": 6000, "test": 10000}
    parts = [dataset.feed.splits[split] for split in ("train", "valid", "outer_valid")]
    labels = np.concatenate([part["y"] for part in parts])
    assert np.bincount(labels).tolist() == [6000] * 10
    images = np.concatenate([part["x"] for part in parts])
    # The well-known mean of its pixels.
    assert images.mean() / 255 == pytest.approx(0.2860, abs=1e-4)
