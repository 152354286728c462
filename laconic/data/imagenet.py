"""Downsampled ImageNet, 32×32 or 64×64 colour images, held on the device or streamed.

The data is one folder of `train_data_batch_*.npz` and `val_data.npz`. The files need an account to
download, so they are only looked for. No checksum of them is published: what is checked is their
format, and that labels run from 1 to C. Any number of train files and any C will do (1000, or a
subset's 200).

A stream passes over the files in a new order each epoch, and over the rows of each in a new order;
the published files are shuffled already. A file is mapped into memory, not read, unless it is
compressed: such files are held whole, one at a time.
"""

import hashlib
import itertools
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Batch, Streamed
from laconic.data.files import find, read_header, search_path
from laconic.data.images import channel_major
from laconic.data.splits import SEED, Dataset, divide, image_dataset
from laconic.errors import LaconicError, require_positive

HELD_OUT_ROWS = 10_000  # of each validation split of a stream that lie on the device
LOCAL_HEADER = 30  # bytes before the name in front of an archive's member
FOLDERS = {32: ("imagenet32", "tiny-imagenet-32"), 64: ("imagenet64", "tiny-imagenet-64")}


def load(folder: str | None = None, side: int = 32) -> Dataset:
    """Downsampled ImageNet as uint8 [N, side, side, 3], held on the device.

    `folder` is a path, or a name below the search path; by default "imagenet32", then
    "tiny-imagenet-32" (or the same at 64). The validation file is the test split.
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
    layout = f"{len(x)} images in the layout of downsampled ImageNet"
    source = f"{root.name}, {layout}, sha256:{digest.hexdigest()}"
    return image_dataset((x, y - 1), (test_x, test_y - 1), classes, source)


def find_folder(folder: str | None, side: int) -> Path:
    """The data set's folder, or an error that says where one may be put."""
    if folder:
        found = find(folder, here=True)
    else:
        found = next(filter(None, map(find, FOLDERS[side])), None)
    if found is None or not found.is_dir():
        names = [folder] if folder else FOLDERS[side]
        raise LaconicError(
            f"no folder {' or '.join(names)} in {', '.join(map(str, search_path()))}. Downsampled "
            f"ImageNet needs an account at https://image-net.org: download the {side}×{side} npz "
            "files and put train_data_batch_*.npz and val_data.npz into "
            f"{search_path()[0] / names[0]}."
        )
    return found


def train_files(root: Path) -> list[Path]:
    """The train files in the order of their numbers."""
    found = root.glob("train_data_batch_*.npz")
    files = sorted(found, key=lambda path: (len(path.name), path.name))
    if not files:
        raise LaconicError(
            f"{root} holds no train_data_batch_*.npz; put downsampled ImageNet's train files there."
        )
    return files


def require_room(root: Path, size: int) -> None:
    """Raise if that many bytes do not fit on the device, where its size is known."""
    room = device_bytes()
    if room is not None and size > room:
        raise LaconicError(
            f"the train files in {root} take {size / 1e9:.1f} GB and the device has "
            f"{room / 1e9:.1f}; stream them in batches instead, with the option stream=B of the "
            "task (B as --batch)."
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
            "the train files; put the validation file that belongs to them there."
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
    """An npz file as an archive; errors inside this context name the file."""
    try:
        # np.load alone would also accept other formats, pickles among them.
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise LaconicError(
            f"{path} is missing, truncated or no npz file with plain arrays data and labels "
            f"({error}); put the original file there."
        ) from error


def check_layout(
    path: Path, pixels: np.ndarray | jax.ShapeDtypeStruct, labels: np.ndarray, side: int
) -> None:
    """Raise unless the arrays of a file have the shapes and types of downsampled ImageNet."""
    values = 3 * side * side
    rows = labels.ndim == 1 and len(labels)
    if not rows or pixels.dtype != np.uint8 or pixels.shape != (rows, values):
        raise LaconicError(
            f"{path} has data {pixels.dtype}{list(pixels.shape)} and labels {list(labels.shape)}, "
            f"expected data uint8[N, {values}] and labels [N]; put the {side}×{side} version there."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise LaconicError(
            f"{path} has labels of type {labels.dtype}, not integers; put the original file there."
        )


def count_classes(root: Path, labels: np.ndarray) -> int:
    """C, where the train labels are exactly 1…C: with gaps, ln C is no longer a guess's loss."""
    seen = np.unique(labels)
    if seen[0] != 1 or seen[-1] != len(seen):
        raise LaconicError(
            f"the train files in {root} have {len(seen)} different labels from {seen[0]} to "
            f"{seen[-1]}, expected 1…C without a gap; renumber the labels of a subset from 1."
        )
    return len(seen)


# --- streaming ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shard:
    """A train file: its labels as published, and which of its rows are for training."""

    path: Path
    side: int
    labels: np.ndarray
    train: np.ndarray

    def pixels(self) -> np.ndarray:
        """Rows [N, 3·side·side], mapped or read."""
        return member(self.path, "data.npy")


def stream(folder: str | None, side: int, batch: int, everything: bool = False) -> Dataset:
    """The data set of `load` with its train split as a stream; the same rows are held out.

    Of each validation split the first 10,000 rows lie on the device. With `everything`, nothing is
    held out of the train files.
    """
    require_positive(batch=batch)
    root = find_folder(folder, side)
    files = train_files(root)
    labels = [np.asarray(member(path, "labels.npy")) for path in files]
    for path, one in zip(files, labels, strict=True):
        check_layout(path, array_shape(path, "data.npy"), one, side)
    every = np.concatenate(labels)
    classes = count_classes(root, every)
    parts = {"train": np.arange(len(every))} if everything else divide(len(every))
    ends = np.cumsum([len(one) for one in labels])
    train = np.split(np.isin(np.arange(len(every)), parts.pop("train")), ends[:-1])
    shards = [
        Shard(path, side, one, np.flatnonzero(rows))
        for path, one, rows in zip(files, labels, train, strict=True)
    ]
    x, y = read_test(root, side, classes)
    wanted = {split: rows[:HELD_OUT_ROWS] for split, rows in parts.items()}
    held_out = _gathered(shards, ends, wanted)
    splits = {
        split: {"x": jnp.asarray(x), "y": jnp.asarray(y - 1, dtype=jnp.int32)}
        for split, (x, y) in {**held_out, "test": (x, y)}.items()
    }
    digest = hashlib.sha256(np.ascontiguousarray(every).data).hexdigest()
    layout = f"{len(every)} images in the layout of downsampled ImageNet"
    source = f"{root.name}, {layout}, streamed, labels sha256:{digest}"
    return Dataset(Streamed(splits, partial(batches, shards, batch)), classes, source)


def batches(shards: Sequence[Shard], batch: int) -> Iterator[Batch]:
    """Endless batches, the same each time; rows left over of a file begin the next batch."""
    spare_x, spare_y = None, np.zeros(0, np.int32)
    for epoch in itertools.count():
        for number in _order(len(shards), epoch, 0):
            shard = shards[number]
            pixels, rows = shard.pixels(), shard.train[_order(len(shard.train), epoch, 1 + number)]
            while len(rows):
                taken, rows = np.split(rows, [batch - len(spare_y)])
                x = channel_major(pixels[taken], shard.side)
                x = x if spare_x is None else np.concatenate([spare_x, x])
                y = np.concatenate([spare_y, shard.labels[taken].astype(np.int32) - 1])
                if len(y) == batch:
                    yield {"x": x, "y": y}
                    x, y = None, y[:0]
                spare_x, spare_y = x, y


def array_shape(path: Path, name: str) -> jax.ShapeDtypeStruct:
    """The shape and type of an array of an npz file; its numbers are not read."""
    with opened(path) as archive, archive.open(name) as stream:
        return _header(stream, name)


def member(path: Path, name: str) -> np.ndarray:
    """An array of an npz file: mapped if stored as it is, read if compressed."""
    with opened(path) as archive:
        info = archive.getinfo(name)
        with archive.open(info) as stream:
            found = _header(stream, name)
            if info.compress_type != zipfile.ZIP_STORED:
                return np.frombuffer(stream.read(), found.dtype).reshape(found.shape)
            before = stream.tell()
        start = info.header_offset + LOCAL_HEADER + _name_length(path, info.header_offset) + before
        return np.memmap(path, found.dtype, "r", start, found.shape)


def _header(stream: IO[bytes], name: str) -> jax.ShapeDtypeStruct:
    shape, column_major, dtype = read_header(stream)
    if dtype.hasobject or column_major:
        raise ValueError(f"{name} holds objects, or is stored by columns")
    return jax.ShapeDtypeStruct(shape, dtype)


def _name_length(path: Path, at: int) -> int:
    """Bytes of the name and the extra field, read from the member: the directory may omit them."""
    with path.open("rb") as file:
        file.seek(at + LOCAL_HEADER - 4)
        return sum(np.frombuffer(file.read(4), "<u2").tolist())


def _gathered(
    shards: Sequence[Shard], ends: np.ndarray, wanted: dict[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and labels at the wanted rows of all files together, each file opened once."""
    if not wanted:
        return {}
    side = shards[0].side
    found = {
        split: (np.zeros((len(rows), side, side, 3), np.uint8), np.zeros(len(rows), np.int64))
        for split, rows in wanted.items()
    }
    for shard, end in zip(shards, ends, strict=True):
        pixels, begin = shard.pixels(), end - len(shard.labels)
        for split, rows in wanted.items():
            here = np.flatnonzero((rows >= begin) & (rows < end))
            found[split][0][here] = channel_major(pixels[rows[here] - begin], side)
            found[split][1][here] = shard.labels[rows[here] - begin]
    return found


def _order(n: int, epoch: int, which: int) -> np.ndarray:
    """A shuffle of n rows or files that every start of the stream repeats."""
    return np.argsort(np.random.PCG64([SEED, epoch, which]).random_raw(n), kind="stable")
