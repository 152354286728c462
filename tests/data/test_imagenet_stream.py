"""Downsampled ImageNet as a stream: the same rows as held on the device, every one once an epoch, a
file at a time."""

import itertools
import threading

import numpy as np
import pytest

from laconic.data import imagenet
from laconic.data.feed import Streamed
from laconic.tasks.catalog import make_task

SIZES = (23, 17, 31)


def put(folder, sizes=SIZES, classes=5, side=32, save=np.savez):
    """Train files of those sizes and a validation file; the first three values of a row name it
    uniquely."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    number = itertools.count()
    for name, n in [
        *((f"train_data_batch_{i + 1}.npz", n) for i, n in enumerate(sizes)),
        ("val_data.npz", 10),
    ]:
        data = rng.integers(0, 256, (n, 3 * side * side), dtype=np.uint8)
        data[:, 0] = [next(number) for _ in range(n)]
        save(folder / name, data=data, labels=np.arange(n) % classes + 1)


def rows(part):
    """Images as bytes, each with its label."""
    return [(np.asarray(x).tobytes(), int(y)) for x, y in zip(part["x"], part["y"], strict=True)]


def first(feed, n):
    return list(itertools.islice(feed.batches(), n))


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_epoch_is_the_resident_train_split(data_root, save, side):
    put(data_root / f"imagenet{side}", side=side, save=save)
    held = imagenet.load(side=side)
    dataset = imagenet.stream(None, side, batch=3)
    feed = dataset.feed
    assert isinstance(feed, Streamed)
    assert dataset.classes == held.classes == 5
    train = rows(held.feed.splits["train"])
    assert len(train) == 57  # 71 rows, two tenths held out: 19 batches of 3
    epochs = [
        [row for batch in first(feed, 38)[at : at + 19] for row in rows(batch)] for at in (0, 19)
    ]
    for epoch in epochs:
        assert sorted(epoch) == sorted(train)
    assert epochs[0] != epochs[1]
    assert epochs[0] != train
    for split in ("valid", "outer_valid", "test"):
        assert rows(feed.splits[split]) == rows(held.feed.splits[split])
    everything = imagenet.stream(None, side, batch=71, everything=True).feed
    assert list(everything.splits) == ["test"]
    assert sorted(rows(first(everything, 1)[0])) == sorted(
        row for split in ("train", "valid", "outer_valid") for row in rows(held.feed.splits[split])
    )


def test_batches_have_one_shape_and_span_files(data_root):
    put(data_root / "imagenet32")
    found = first(imagenet.stream(None, 32, batch=20).feed, 12)
    assert {batch["x"].shape for batch in found} == {(20, 32, 32, 3)}
    assert {(str(batch["x"].dtype), str(batch["y"].dtype)) for batch in found} == {
        ("uint8", "int32")
    }
    taken = [row for batch in found for row in rows(batch)]
    assert [taken.count(row) for row in set(taken)].count(4) + [
        taken.count(row) for row in set(taken)
    ].count(5) == 57


def test_starting_again_gives_the_same_batches(data_root):
    put(data_root / "imagenet32")
    feed = imagenet.stream(None, 32, batch=7).feed
    once, again = first(feed, 20), first(imagenet.stream(None, 32, batch=7).feed, 20)
    assert [rows(batch) for batch in once] == [rows(batch) for batch in again]


def test_rounds_read_ahead_are_the_batches_as_they_come(data_root):
    """The thread that reads ahead changes nothing, and ends with the rounds."""
    put(data_root / "imagenet32")
    feed = imagenet.stream(None, 32, batch=4).feed
    plain = first(feed, 5 * 6)
    before = set(threading.enumerate())
    rounds = feed.rounds(2, 3)
    for now in range(5):
        got = next(rounds)
        assert got["x"].shape == (2, 3, 4, 32, 32, 3)
        for k, h in np.ndindex(2, 3):
            expected = plain[6 * now + 3 * k + h]
            np.testing.assert_array_equal(got["x"][k, h], expected["x"])
            np.testing.assert_array_equal(got["y"][k, h], expected["y"])
    rounds.close()
    assert set(threading.enumerate()) <= before


def test_a_file_that_vanishes_is_named_to_whoever_trains(data_root, raises_clearly):
    put(data_root / "imagenet32")
    rounds = imagenet.stream(None, 32, batch=4).feed.rounds(2, 2, prefetch=1)
    next(rounds)
    for path in (data_root / "imagenet32").glob("train*"):
        path.unlink()
    with raises_clearly("train_data_batch_", "missing, truncated"):
        for _ in range(40):
            next(rounds)


def test_a_stored_file_is_mapped_and_a_compressed_one_read(data_root):
    put(data_root / "a")
    put(data_root / "b", save=np.savez_compressed)
    mapped, read = (imagenet.member(data_root / name / "val_data.npz", "data.npy") for name in "ab")
    assert isinstance(mapped, np.memmap)
    assert not isinstance(read, np.memmap)
    np.testing.assert_array_equal(mapped, read)
    with np.load(data_root / "a" / "val_data.npz") as file:
        np.testing.assert_array_equal(mapped, file["data"])


def test_validation_rows_on_the_device_are_capped(data_root, monkeypatch):
    put(data_root / "imagenet32")
    monkeypatch.setattr(imagenet, "HELD_OUT_ROWS", 3)
    feed = imagenet.stream(None, 32, batch=4).feed
    held = imagenet.load().feed
    assert {split: feed.size(split) for split in feed.splits} == {
        "valid": 3,
        "outer_valid": 3,
        "test": 10,
    }
    assert rows(feed.splits["valid"]) == rows(held.splits["valid"])[:3]


def spoil_side(path):
    np.savez(path, data=np.zeros((2, 12288), np.uint8), labels=np.ones(2, int))


def spoil_objects(path):
    np.savez(path, data=np.array([{"a": 1}], dtype=object), labels=np.ones(1, int))


def spoil_columns(path):
    np.savez(path, data=np.asfortranarray(np.zeros((2, 3072), np.uint8)), labels=np.ones(2, int))


def spoil_labels(path):
    np.savez(path, data=np.zeros((2, 3072), np.uint8), labels=np.ones(2))


def spoil_truncated(path):
    path.write_bytes(path.read_bytes()[:-50])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_side, "uint8[2, 12288]"),
        (spoil_objects, "objects"),
        (spoil_columns, "columns"),
        (spoil_labels, "float64"),
        (spoil_truncated, "truncated"),
    ],
)
def test_bad_files_are_named_before_anything_is_trained(data_root, raises_clearly, spoil, says):
    put(data_root / "imagenet32")
    path = data_root / "imagenet32" / "train_data_batch_2.npz"
    spoil(path)
    with raises_clearly(str(path), says, "put the"):
        imagenet.stream(None, 32, batch=4)


def test_data_larger_than_the_device_asks_for_a_stream(data_root, monkeypatch, raises_clearly):
    put(data_root / "imagenet64", side=64)
    monkeypatch.setattr(imagenet, "device_bytes", lambda: 100_000)
    with raises_clearly("0.0 GB", "stream=B"):
        make_task("imagenet64-deit-tiny")
    monkeypatch.setattr(imagenet, "device_bytes", lambda: 10_000_000)
    assert make_task("imagenet64-deit-tiny").feed.size("train") == 57
    task = make_task("imagenet64-deit-tiny:stream=8,split=all")
    assert isinstance(task.feed, Streamed)
    assert next(iter(task.feed.batches()))["x"].shape == (8, 64, 64, 3)


@pytest.mark.real_data
def test_the_real_subset_as_a_stream(real_data):
    real_data("tiny-imagenet-32")
    dataset = imagenet.stream("tiny-imagenet-32", 32, batch=500)
    assert dataset.classes == 200
    (batch,) = first(dataset.feed, 1)
    # The file is sorted by class or not: a batch is mixed.
    assert len(set(batch["y"].tolist())) > 150
    image = batch["x"].astype(np.int64)
    across = np.abs(np.diff(image, axis=2)).mean()
    shuffled = np.abs(np.diff(image.reshape(500, 3, 1024), axis=2)).mean()
    assert across < 0.7 * shuffled
