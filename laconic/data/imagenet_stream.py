"""Downsampled ImageNet that is not held on the device: batches are read from its files while others
are trained on.

Each epoch passes over the files in a new order and over the rows of each in a new order, so the
shuffling is as good as the published files, which are shuffled already. A file is mapped into
memory, not read, unless it is compressed: such a file is held whole, one at a time.
"""

import hashlib
import itertools
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.cifar10 import channel_major
from laconic.data.feed import Batch, Streamed
from laconic.data.imagenet32 import (
    check_layout,
    count_classes,
    find_folder,
    opened,
    read_test,
    train_files,
)
from laconic.data.npy import read_header
from laconic.data.splits import SEED, Dataset, divide
from laconic.errors import require_positive

HELD_OUT_ROWS = 10_000  # of each validation split that lie on the device
LOCAL_HEADER = 30  # bytes before the name in front of an archive's member


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


def load(folder: str | None, side: int, batch: int, everything: bool = False) -> Dataset:
    """The data set of `imagenet32.load` with its train split as a stream of batches; the same rows
    are held out.

    Of the validation splits the first 10,000 rows lie on the device. `everything` trains on the
    whole train files.
    """
    require_positive(batch=batch)
    root = find_folder(folder, side)
    files = train_files(root)
    labels = [np.asarray(member(path, "labels.npy")) for path in files]
    for path, one in zip(files, labels, strict=True):
        check_layout(path, layout(path, "data.npy"), one, side)
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
    held_out = _gathered(
        shards, ends, {split: rows[:HELD_OUT_ROWS] for split, rows in parts.items()}
    )
    splits = {
        split: {"x": jnp.asarray(x), "y": jnp.asarray(y - 1, dtype=jnp.int32)}
        for split, (x, y) in {**held_out, "test": (x, y)}.items()
    }
    digest = hashlib.sha256(np.ascontiguousarray(every).data).hexdigest()
    source = (
        f"{root.name}, {len(every)} images in the layout of downsampled ImageNet, streamed, labels "
        f"sha256:{digest}"
    )
    return Dataset(Streamed(splits, partial(batches, shards, batch)), classes, source)


def batches(shards: Sequence[Shard], batch: int) -> Iterator[Batch]:
    """Batches of so many rows for ever, the same ones each time; those that a file leaves over
    begin the next one's."""
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


def layout(path: Path, name: str) -> jax.ShapeDtypeStruct:
    """The shape and type of an array of an npz file, of which nothing more is read."""
    with opened(path) as archive, archive.open(name) as stream:
        return _header(stream, name)


def member(path: Path, name: str) -> np.ndarray:
    """An array of an npz file: mapped where it lies there as it is, read where it is compressed."""
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
        raise ValueError(f"{name} holds objects, or lies there by columns")
    return jax.ShapeDtypeStruct(shape, dtype)


def _name_length(path: Path, at: int) -> int:
    """The bytes of the name and of the extra field, which the archive's directory need not tell."""
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
    """A shuffle of n things that every start of the stream repeats."""
    return np.argsort(np.random.PCG64([SEED, epoch, which]).random_raw(n), kind="stable")
