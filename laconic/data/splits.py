"""The fixed splits of a data set: "train", "valid" and "outer_valid" of its train file; "test"."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Feed, Resident
from laconic.errors import LaconicError

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


def pooled(dataset: Dataset, by: int) -> Dataset:
    """The same images made smaller: the rounded mean of every square of `by` × `by` pixels."""
    height, width = image_shape(dataset)[:2]
    if height % by or width % by:
        raise LaconicError(
            f"images of {height}×{width} have no squares of {by}×{by}: choose a pool that divides "
            "both."
        )

    def smaller(arrays: dict) -> dict:
        x = np.asarray(arrays["x"])
        squares = x.reshape(len(x), height // by, by, width // by, by, x.shape[-1])
        return arrays | {"x": jnp.asarray(np.rint(squares.mean((2, 4))).astype(np.uint8))}

    return _each_split(dataset, smaller, dataset.classes)


HALVES = ("first", "second")


def half_of_classes(dataset: Dataset, which: str) -> Dataset:
    """Only the examples of the first or the second half of the classes, labelled from 0."""
    middle = dataset.classes // 2
    begin, end = (0, middle) if which == "first" else (middle, dataset.classes)

    def kept(arrays: dict) -> dict:
        labels = np.asarray(arrays["y"])
        rows = np.flatnonzero((labels >= begin) & (labels < end))
        return {
            "x": jnp.asarray(np.asarray(arrays["x"])[rows]),
            "y": jnp.asarray(labels[rows]) - begin,
        }

    return _each_split(dataset, kept, end - begin)


def _each_split(dataset: Dataset, change: Callable[[dict], dict], classes: int) -> Dataset:
    if not isinstance(dataset.feed, Resident):
        raise LaconicError("streamed images are read as they are: leave out pool and half.")
    splits = {split: change(arrays) for split, arrays in dataset.feed.splits.items()}
    return dataset._replace(feed=Resident(splits), classes=classes)


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
