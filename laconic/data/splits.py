"""The fixed splits of a data set: "train", "valid" and "outer_valid" of its train file; "test"."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Feed, Resident

SEED = 20240604  # changing it changes every published number


class Dataset(NamedTuple):
    """A feed with its number of classes, and where it was read from (for the records of a run)."""

    feed: Feed
    classes: int
    source: str


def image_shape(dataset: Dataset) -> tuple[int, ...]:
    """Height, width and channels of images, by any split: a stream holds no train split."""
    return next(iter(dataset.feed.splits.values()))["x"].shape[1:]


def permutation(n: int) -> np.ndarray:
    """A fixed shuffle of n rows, by raw PCG64 draws: NumPy promises that those never change."""
    return np.argsort(np.random.PCG64(SEED).random_raw(n), kind="stable")


def divide(n: int) -> dict[str, np.ndarray]:
    """Rows of a train file of n: a tenth each for "valid" and "outer_valid", the rest to train."""
    tenth = n // 10
    valid, outer_valid, train = np.split(permutation(n), [tenth, 2 * tenth])
    return {"train": train, "valid": valid, "outer_valid": outer_valid}


def undivided(dataset: Dataset) -> Dataset:
    """The same data with the whole train file as "train": nothing is left to validate on."""
    parts = dataset.feed.splits
    train = {
        field: jnp.concatenate([parts[s][field] for s in ("train", "valid", "outer_valid")])
        for field in ("x", "y")
    }
    return dataset._replace(feed=Resident({"train": train, "test": parts["test"]}))


def image_dataset(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: int,
    source: str,
) -> Dataset:
    """The data set of two (images uint8 [N, H, W, C], labels [N]) pairs, split, on the device."""
    images, labels = train
    parts = {split: (images[rows], labels[rows]) for split, rows in divide(len(images)).items()}
    parts["test"] = test
    splits = {
        split: {"x": jnp.asarray(x, dtype=jnp.uint8), "y": jnp.asarray(y, dtype=jnp.int32)}
        for split, (x, y) in parts.items()
    }
    return Dataset(Resident(splits), classes, source)
