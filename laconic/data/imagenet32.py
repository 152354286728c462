"""Downsampled ImageNet, 32×32 or 64×64 colour images: `train_data_batch_*.npz` and `val_data.npz`
in one folder.

The files need an account to download, so they are only looked for. No checksum of them is known:
what is checked is their format, and that labels run from 1 to C. Any number of train files and any
C will do (1000, or a subset's 200).
"""

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from laconic.data.cifar10 import channel_major
from laconic.data.locate import find, search_path
from laconic.data.splits import Dataset, image_dataset
from laconic.errors import LaconicError

FOLDERS = {32: ("imagenet32", "tiny-imagenet-32"), 64: ("imagenet64", "tiny-imagenet-64")}


def load(folder: str | None = None, side: int = 32) -> Dataset:
    """Downsampled ImageNet as uint8 [N, side, side, 3], labels 0…C−1; the validation file is the
    test split.

    `folder` is a path, or a name below the search path; without it "imagenet32", then
    "tiny-imagenet-32", is used, or their like of the other side. Contents are not verified against
    any checksum, for none is published.
    """
    root = find_folder(folder, side)
    files = train_files(root)
    require_room(root, sum(path.stat().st_size for path in files))
    parts = [read(path, side) for path in files]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    classes = count_classes(root, y)
    test_x, test_y = read_test(root, side, classes)
    digest = hashlib.sha256()
    for array in (x, y, test_x, test_y):
        digest.update(np.ascontiguousarray(array).data)
    source = (
        f"{root.name}, {len(x)} images in the layout of downsampled ImageNet, "
        f"sha256:{digest.hexdigest()}"
    )
    return image_dataset((x, y - 1), (test_x, test_y - 1), classes, source)


def find_folder(folder: str | None, side: int) -> Path:
    """The data set's folder, or an error that says where one may be put."""
    found = (
        find(folder, here=True) if folder else next(filter(None, map(find, FOLDERS[side])), None)
    )
    if found is None or not found.is_dir():
        names = [folder] if folder else FOLDERS[side]
        raise LaconicError(
            f"no folder {' or '.join(names)} in {', '.join(map(str, search_path()))}. Downsampled "
            "ImageNet needs an "
            f"account at https://image-net.org: download the {side}×{side} npz files and put "
            "train_data_batch_*.npz "
            f"and val_data.npz into {search_path()[0] / names[0]}."
        )
    return found


def train_files(root: Path) -> list[Path]:
    """The train files in the order of their numbers."""
    found = sorted(
        root.glob("train_data_batch_*.npz"), key=lambda path: (len(path.name), path.name)
    )
    if not found:
        raise LaconicError(
            f"{root} holds no train_data_batch_*.npz; put the train files of downsampled ImageNet "
            "there."
        )
    return found


def require_room(root: Path, size: int) -> None:
    """Raise if that many bytes do not fit on the device; where its size is not known, as on a CPU,
    anything may."""
    room = device_bytes()
    if room is not None and size > room:
        raise LaconicError(
            f"the train files in {root} take {size / 1e9:.1f} GB and the device has "
            f"{room / 1e9:.1f}; "
            "stream them in batches instead, with the option stream=B of the task (B as --batch)."
        )


def device_bytes() -> int | None:
    """The memory of the first device, if it says."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def read_test(root: Path, side: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The validation file, whose labels must be among the train files'."""
    x, y = read(root / "val_data.npz", side)
    if y.min() < 1 or y.max() > classes:
        raise LaconicError(
            f"{root / 'val_data.npz'} has labels {y.min()}…{y.max()}, expected 1…{classes} as in "
            "the train "
            "files; put the validation file that belongs to them there."
        )
    return x, y


def read(path: Path, side: int) -> tuple[np.ndarray, np.ndarray]:
    """One npz file as images [N, side, side, 3] and labels [N] as published (from 1)."""
    with opened(path), np.load(path, allow_pickle=False) as file:
        pixels, labels = file["data"], file["labels"]
    check_layout(path, pixels, labels, side)
    return channel_major(pixels, side), labels.astype(np.int32)


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive that an npz file is; what goes wrong with it inside this context is explained."""
    try:
        with zipfile.ZipFile(
            path
        ) as archive:  # np.load would take other formats, pickles among them, by first bytes
            yield archive
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise LaconicError(
            f"{path} is missing, truncated or no npz file with plain arrays data and labels "
            f"({error}); "
            "put the original file there."
        ) from error


def check_layout(
    path: Path, pixels: np.ndarray | jax.ShapeDtypeStruct, labels: np.ndarray, side: int
) -> None:
    """Raise unless the arrays of a file have the shapes and types of downsampled ImageNet."""
    values = 3 * side * side
    if (
        labels.ndim != 1
        or not len(labels)
        or pixels.dtype != np.uint8
        or pixels.shape != (len(labels), values)
    ):
        raise LaconicError(
            f"{path} has data {pixels.dtype}{list(pixels.shape)} and labels {list(labels.shape)}, "
            "expected "
            f"data uint8[N, {values}] and labels [N]; put the {side}×{side} version there."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise LaconicError(
            f"{path} has labels of type {labels.dtype}, expected integers; put the original file "
            "there."
        )


def count_classes(root: Path, labels: np.ndarray) -> int:
    """C, where the train labels are exactly 1…C; a gap would silently make guessing look harder
    than it is."""
    seen = np.unique(labels)
    if seen[0] != 1 or seen[-1] != len(seen):
        raise LaconicError(
            f"the train files in {root} have {len(seen)} different labels from {seen[0]} to "
            f"{seen[-1]}, expected "
            "1…C without a gap; renumber the labels of a subset from 1."
        )
    return len(seen)
