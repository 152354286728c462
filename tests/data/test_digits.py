"""scikit-learn's digits against scikit-learn's own array."""

import numpy as np
from sklearn.datasets import load_digits

from laconic.data import images as sets


def test_digits_are_the_bundled_ones():
    dataset = sets.load_digits()
    sizes = {split: dataset.feed.size(split) for split in dataset.feed.splits}
    assert sizes == {"train": 1200, "valid": 150, "outer_valid": 150, "test": 297}
    assert dataset.classes == 10
    parts = dataset.feed.splits.values()
    images = np.concatenate([part["x"] for part in parts])
    labels = np.concatenate([part["y"] for part in parts])
    assert images.shape == (1797, 8, 8, 1)
    # The 17 levels survive the scaling.
    back = np.rint(images.reshape(1797, 64) / 255 * 16).astype(int)
    values, targets = load_digits(return_X_y=True)
    mine = sorted(map(tuple, np.column_stack([labels, back])))
    theirs = sorted(map(tuple, np.column_stack([targets, values.astype(int)])))
    assert mine == theirs  # every row once: nothing lost, nothing shared by two splits
    assert images.max() == 255


def test_digits_are_in_test_by_chance_not_by_class():
    labels = np.asarray(sets.load_digits().feed.splits["test"]["y"])
    assert np.all(np.bincount(labels, minlength=10) > 10)
