"""The fixed splits: sizes, disjointness, order-independence, and that they never change."""

import hashlib

import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data.splits import (
    divide,
    half_of_classes,
    image_dataset,
    permutation,
    pooled,
    undivided,
)

PINNED = "1294e95f06b452512ff91913473de9c5308110ad935ed050a772940e67ac1327"


@pytest.mark.parametrize("n", [10, 47, 1500, 60000])
def test_divide_is_a_partition_with_the_promised_sizes(n):
    parts = divide(n)
    assert {split: len(rows) for split, rows in parts.items()} == {
        "train": n - 2 * (n // 10),
        "valid": n // 10,
        "outer_valid": n // 10,
    }
    assert sorted(np.concatenate(list(parts.values()))) == list(range(n))


def test_the_shuffle_never_changes():
    order = permutation(60000).astype("<i8")
    assert sorted(order) == list(range(60000))
    assert hashlib.sha256(order.tobytes()).hexdigest() == PINNED


def test_the_shuffle_ranks_the_documented_generator():
    draws = [int(np.random.PCG64(20240604).random_raw(7)[i]) for i in range(7)]
    assert list(permutation(7)) == sorted(range(7), key=draws.__getitem__)


def test_a_file_sorted_by_class_is_safe():
    labels = np.repeat(np.arange(10), 600)
    images = np.zeros((6000, 1, 1, 1), np.uint8)
    feed = image_dataset((images, labels), (images[:1], labels[:1]), 10, "made").feed
    for split in ("train", "valid", "outer_valid"):
        share = np.bincount(feed.splits[split]["y"], minlength=10) / feed.size(split)
        assert np.all(np.abs(share - 0.1) < 4 * np.sqrt(0.1 * 0.9 / feed.size(split)))


def test_images_stay_with_their_labels_and_types_are_fixed():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 250, 100)
    images = np.broadcast_to(labels[:, None, None, None], (100, 2, 3, 1)).astype(np.uint8)
    dataset = image_dataset((images, labels), (images[:7], labels[:7]), 250, "made")
    assert (dataset.classes, dataset.source) == (250, "made")
    for split, size in {"train": 80, "valid": 10, "outer_valid": 10, "test": 7}.items():
        part = dataset.feed.splits[split]
        assert part["x"].shape == (size, 2, 3, 1)
        assert (part["x"].dtype, part["y"].dtype) == (jnp.uint8, jnp.int32)
        np.testing.assert_array_equal(part["x"][:, 0, 0, 0], part["y"])


def test_undivided_puts_the_whole_train_file_back():
    images = np.arange(250, dtype=np.uint8).reshape(250, 1, 1, 1)
    labels = np.arange(250, dtype=np.int32)
    whole = undivided(image_dataset((images, labels), (images[:7], labels[:7]), 250, "made"))
    assert set(whole.feed.splits) == {"train", "test"}
    train = whole.feed.splits["train"]
    np.testing.assert_array_equal(np.sort(train["y"]), labels)
    np.testing.assert_array_equal(np.asarray(train["x"]).reshape(-1), train["y"])
    assert whole.feed.size("test") == 7


def test_smaller_images_are_means_of_squares(raises_clearly):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 6, 3), np.uint8)
    labels = np.arange(50) % 7
    dataset = image_dataset((images, labels), (images[:3], labels[:3]), 7, "made")
    small = pooled(dataset, 2)
    for split, part in dataset.feed.splits.items():
        x = np.asarray(part["x"], float)
        mean = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
        np.testing.assert_array_equal(small.feed.splits[split]["x"], np.rint(mean))
        np.testing.assert_array_equal(small.feed.splits[split]["y"], part["y"])
    with raises_clearly("4×6", "4×4"):
        pooled(dataset, 4)


def test_the_halves_of_the_classes_share_nothing_and_lose_nothing():
    labels = np.arange(210) % 7
    images = np.arange(210, dtype=np.uint8).reshape(-1, 1, 1, 1)
    dataset = image_dataset((images, labels), (images[:9], labels[:9]), 7, "made")
    halves = [half_of_classes(dataset, which) for which in ("first", "second")]
    assert [half.classes for half in halves] == [3, 4]
    for split, part in dataset.feed.splits.items():
        rows = [np.asarray(half.feed.splits[split]["x"]).ravel() for half in halves]
        assert sorted(np.concatenate(rows)) == sorted(np.asarray(part["x"]).ravel())
        for half, begin, x in zip(halves, (0, 3), rows, strict=True):
            np.testing.assert_array_equal(half.feed.splits[split]["y"] + begin, x % 7)
