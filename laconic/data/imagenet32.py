"""Downsampled ImageNet, 32×32 colour images: `train_data_batch_*.npz` and `val_data.npz` in one folder.

The files need an account to download, so they are only looked for. No checksum of them is known: what is checked is
their format, and that labels run from 1 to C. Any number of train files and any C will do (1000, or a subset's 200).
"""

import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np

from laconic.data.cifar10 import PIXELS, channel_major
from laconic.data.locate import find, search_path
from laconic.data.splits import Dataset, image_dataset
from laconic.errors import LaconicError

FOLDERS = ("imagenet32", "tiny-imagenet-32")


def load(folder: str | None = None) -> Dataset:
    """Downsampled ImageNet as uint8 [N, 32, 32, 3], labels 0…C−1; the validation file is the test split.

    `folder` is a path, or a name below the search path; without it "imagenet32", then "tiny-imagenet-32", is used.
    Contents are not verified against any checksum, for none is published.
    """
    root = find_folder(folder)
    train_files = sorted(root.glob("train_data_batch_*.npz"), key=lambda path: (len(path.name), path.name))
    if not train_files:
        raise LaconicError(
            f"{root} holds no train_data_batch_*.npz; put the train files of downsampled ImageNet there."
        )
    parts = [read(path) for path in train_files]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    classes = count_classes(root, y)
    test_x, test_y = read(root / "val_data.npz")
    if test_y.min() < 1 or test_y.max() > classes:
        raise LaconicError(
            f"{root / 'val_data.npz'} has labels {test_y.min()}…{test_y.max()}, expected 1…{classes} as in the train "
            "files; put the validation file that belongs to them there."
        )
    digest = hashlib.sha256()
    for array in (x, y, test_x, test_y):
        digest.update(np.ascontiguousarray(array).data)
    source = f"{root.name}, {len(x)} images in the layout of downsampled ImageNet, sha256:{digest.hexdigest()}"
    return image_dataset((x, y - 1), (test_x, test_y - 1), classes, source)


def find_folder(folder: str | None) -> Path:
    """The data set's folder, or an error that says where one may be put."""
    found = find(folder, here=True) if folder else next(filter(None, map(find, FOLDERS)), None)
    if found is None or not found.is_dir():
        names = [folder] if folder else FOLDERS
        raise LaconicError(
            f"no folder {' or '.join(names)} in {', '.join(map(str, search_path()))}. Downsampled ImageNet needs an "
            f"account at https://image-net.org: download the 32×32 npz files and put train_data_batch_*.npz and "
            f"val_data.npz into {search_path()[0] / names[0]}."
        )
    return found


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One npz file as images [N, 32, 32, 3] and labels [N] as published (from 1)."""
    try:
        with zipfile.ZipFile(path):  # np.load would take other formats, pickles among them, by their first bytes
            pass
        with np.load(path, allow_pickle=False) as file:
            pixels, labels = file["data"], file["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise LaconicError(
            f"{path} is missing, truncated or no npz file with plain arrays data and labels ({error}); "
            "put the original file there."
        ) from error
    if labels.ndim != 1 or not len(labels) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
        raise LaconicError(
            f"{path} has data {pixels.dtype}{list(pixels.shape)} and labels {list(labels.shape)}, expected "
            f"data uint8[N, {PIXELS}] and labels [N]; put the 32×32 version there."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise LaconicError(f"{path} has labels of type {labels.dtype}, expected integers; put the original file there.")
    return channel_major(pixels), labels.astype(np.int32)


def count_classes(root: Path, labels: np.ndarray) -> int:
    """C, where the train labels are exactly 1…C; a gap would silently make guessing look harder than it is."""
    seen = np.unique(labels)
    if seen[0] != 1 or seen[-1] != len(seen):
        raise LaconicError(
            f"the train files in {root} have {len(seen)} different labels from {seen[0]} to {seen[-1]}, expected "
            "1…C without a gap; renumber the labels of a subset from 1."
        )
    return len(seen)
