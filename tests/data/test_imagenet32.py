"""The downsampled ImageNet loader on small files of the official format, and a real subset."""

import numpy as np
import pytest

from laconic.data import imagenet

GREEN, BLUE = 100, 50


def pixels(n, rng):
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8)


def put(folder, batches=2, classes=5, first=1):
    """Train files of 20 rows each and a validation file of 10; a row's first pixel holds its
    label's red."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.tile(np.arange(first, first + classes), 20)
    names = {f"train_data_batch_{i + 1}.npz": 20 for i in range(batches)} | {"val_data.npz": 10}
    for name, n in names.items():
        data = pixels(n, rng)
        data[:, 0] = labels[:n]
        data[:, 1024 + 33], data[:, 2048 + 34] = GREEN, BLUE
        np.savez(folder / name, data=data, labels=labels[:n].astype(np.int64))


@pytest.mark.parametrize("folder", imagenet.FOLDERS[32])
def test_loads_small_official_files(data_root, folder):
    put(data_root / folder, batches=11)
    dataset = imagenet.load()
    assert dataset.classes == 5
    assert dataset.source.startswith(f"{folder}, ")
    assert str(data_root) not in dataset.source
    sizes = {split: dataset.feed.size(split) for split in dataset.feed.splits}
    assert sizes == {"train": 176, "valid": 22, "outer_valid": 22, "test": 10}
    for part in dataset.feed.splits.values():
        assert part["x"].shape[1:] == (32, 32, 3)
        np.testing.assert_array_equal(part["x"][:, 0, 0, 0], part["y"] + 1)
        assert np.all(part["x"][:, 1, 1, 1] == GREEN)
        assert np.all(part["x"][:, 1, 2, 2] == BLUE)


def test_the_larger_set_is_preferred_and_a_name_or_path_decides(data_root, tmp_path, monkeypatch):
    put(data_root / "imagenet32", classes=5)
    put(data_root / "tiny-imagenet-32", classes=4)
    put(tmp_path / "elsewhere", classes=2)
    monkeypatch.chdir(tmp_path)
    assert imagenet.load().classes == 5
    assert imagenet.load("tiny-imagenet-32").classes == 4
    assert imagenet.load("elsewhere").classes == 2
    assert imagenet.load(str(tmp_path / "elsewhere")).classes == 2


def test_missing_folder_says_where_to_put_it(data_root, raises_clearly):
    with raises_clearly(
        str(data_root / "imagenet32"), "tiny-imagenet-32", "https://image-net.org", "val_data.npz"
    ):
        imagenet.load()
    with raises_clearly(str(data_root / "mine")):
        imagenet.load("mine")
    (data_root / "imagenet32").mkdir(parents=True)
    with raises_clearly(str(data_root / "imagenet32"), "train_data_batch_"):
        imagenet.load()
    put(data_root / "imagenet32")
    (data_root / "imagenet32" / "val_data.npz").unlink()
    with raises_clearly(str(data_root / "imagenet32" / "val_data.npz"), "missing"):
        imagenet.load()


def test_labels_must_count_from_one_without_gaps(data_root, raises_clearly):
    folder = data_root / "imagenet32"
    put(folder, first=0)
    with raises_clearly(str(folder), "5 different labels from 0 to 4", "expected 1…C"):
        imagenet.load()
    put(folder)
    rng = np.random.default_rng(0)
    np.savez(folder / "train_data_batch_1.npz", data=pixels(2, rng), labels=np.array([1, 9]))
    with raises_clearly(str(folder), "6 different labels from 1 to 9"):
        imagenet.load()
    put(folder)
    np.savez(folder / "val_data.npz", data=pixels(2, rng), labels=np.array([1, 6]))
    with raises_clearly(str(folder / "val_data.npz"), "labels 1…6", "expected 1…5"):
        imagenet.load()


def spoil_truncated(path):
    path.write_bytes(path.read_bytes()[:-50])


def spoil_pickle(path):
    np.savez(path, data=np.array([{"a": 1}], dtype=object), labels=np.ones(1, int))


def spoil_npy(path):
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 3072), np.uint8))


def spoil_names(path):
    np.savez(path, images=np.zeros((2, 3072), np.uint8))


def spoil_shape(path):
    np.savez(path, data=np.zeros((2, 12288), np.uint8), labels=np.ones(2, int))


def spoil_dtype(path):
    np.savez(path, data=np.zeros((2, 3072), np.float32), labels=np.ones(2, int))


def spoil_scalar(path):
    np.savez(path, data=np.zeros((1, 3072), np.uint8), labels=np.int64(1))


def spoil_float_labels(path):
    np.savez(path, data=np.zeros((2, 3072), np.uint8), labels=np.ones(2))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_truncated, "truncated"),
        (spoil_pickle, "allow_pickle=False"),
        (spoil_npy, "no npz file"),
        (spoil_names, "data is not a file"),
        (spoil_shape, "uint8[2, 12288]"),
        (spoil_dtype, "float32[2, 3072]"),
        (spoil_scalar, "labels []"),
        (spoil_float_labels, "float64"),
    ],
)
def test_bad_files_are_named_and_kept(data_root, raises_clearly, spoil, says):
    folder = data_root / "imagenet32"
    put(folder)
    path = folder / "train_data_batch_2.npz"
    spoil(path)
    before = path.read_bytes()
    with raises_clearly(str(path), says, "put the"):
        imagenet.load()
    assert path.read_bytes() == before


@pytest.mark.real_data
def test_the_real_subset(real_data):
    real_data("tiny-imagenet-32")
    dataset = imagenet.load("tiny-imagenet-32")
    assert dataset.classes == 200
    parts = [dataset.feed.splits[split] for split in ("train", "valid", "outer_valid")]
    counts = np.bincount(np.concatenate([part["y"] for part in parts]))
    assert len(counts) == 200
    assert counts.min() == counts.max()
    image = np.asarray(parts[0]["x"][:500], np.int64)
    across = np.abs(np.diff(image, axis=2)).mean()
    # What a wrong layout would look like.
    shuffled = np.abs(np.diff(image.reshape(500, 3, 1024), axis=2)).mean()
    assert across < 0.7 * shuffled  # neighbouring pixels resemble each other
