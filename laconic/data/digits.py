"""Handwritten digits, 8×8, 1797 of them: bundled with scikit-learn, so real data with no download."""

import numpy as np

from laconic.data.splits import Dataset, image_dataset, permutation

CLASSES = 10
TEST_ROWS = 297


def load() -> Dataset:
    """The digits as uint8 [N, 8, 8, 1]; 297 rows of the fixed shuffle are the test split, 1500 the
    train file.

    The published values are 0…16; they are stored as round(value · 255/16), so that dividing by 255
    gives 0…1.
    """
    import sklearn  # slow to import, and needed by no other data set
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    images = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    order = permutation(len(images))
    test, train = order[:TEST_ROWS], order[TEST_ROWS:]
    source = f"digits, bundled with scikit-learn {sklearn.__version__}"
    return image_dataset(
        (images[train], labels[train]), (images[test], labels[test]), CLASSES, source
    )
