"""Random images with random labels: nothing can be learned from them, but a step takes as long as
with real ones."""

import numpy as np

from laconic.data.splits import SEED, Dataset, image_dataset

IMAGES, TEST_IMAGES = 512, 64  # batches are drawn with replacement, so few will do


def load(side: int = 224, classes: int = 1000) -> Dataset:
    """Uniform uint8 [N, side, side, 3] and uniform labels, the same every time."""
    draw = np.random.default_rng(SEED)
    train, test = (
        (draw.integers(0, 256, (n, side, side, 3), np.uint8), draw.integers(0, classes, n))
        for n in (IMAGES, TEST_IMAGES)
    )
    return image_dataset(
        train, test, classes, f"{IMAGES} random images of {side}×{side}, {classes} random labels"
    )
