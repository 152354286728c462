"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28×28, ten classes, in four IDX files."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from laconic.data.locate import Remote, gunzip, locate
from laconic.data.splits import Dataset, image_dataset
from laconic.errors import LaconicError

CLASSES = 10
SIDE = 28
ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def published(address: str = ADDRESS, sha256: dict[str, str] = SHA256) -> list[Remote]:
    """The four files: train images, train labels, test images, test labels."""
    return [
        Remote(f"fashion-mnist/{name}.gz", f"{address}/{name}.gz", f"sha256:{digest}", gunzip)
        for name, digest in sha256.items()
    ]


def load(files: Sequence[Remote] | None = None) -> Dataset:
    """Fashion-MNIST as uint8 [N, 28, 28, 1]; `files` replaces the four official ones (another
    mirror, a test)."""
    files = published() if files is None else files
    paths = locate(files)
    contents = [remote.read(path) for remote, path in zip(files, paths, strict=True)]
    train = images_and_labels(paths[0], contents[0], paths[1], contents[1])
    test = images_and_labels(paths[2], contents[2], paths[3], contents[3])
    return image_dataset(train, test, CLASSES, "Fashion-MNIST, official files, contents verified")


def images_and_labels(
    images_at: Path, images: bytes, labels_at: Path, labels: bytes
) -> tuple[np.ndarray, np.ndarray]:
    """Two IDX files as images [N, 28, 28, 1] and labels [N]."""
    x, y = idx(images_at, images, rank=3), idx(labels_at, labels, rank=1)
    if x.shape[1:] != (SIDE, SIDE):
        raise LaconicError(
            f"{images_at} holds images of {x.shape[1:]}, expected {(SIDE, SIDE)}; put the original "
            "there."
        )
    if len(x) != len(y) or (len(y) and y.max() >= CLASSES):
        raise LaconicError(
            f"{labels_at} does not belong to {images_at}: expected {len(x)} labels of "
            f"0…{CLASSES - 1}, "
            f"found {len(y)} up to {y.max(initial=0)}; put both original files there."
        )
    return x[..., None], y


def idx(path: Path, data: bytes, rank: int) -> np.ndarray:
    """An IDX file of unsigned bytes: magic 0x0000 08 rank, one big-endian uint32 an axis, then the
    values."""
    start = 4 + 4 * rank
    magic = 0x0800 + rank
    found = int.from_bytes(data[:4], "big")
    if len(data) < start or found != magic:
        raise LaconicError(
            f"{path} is no IDX file of rank {rank}: expected magic 0x{magic:08x} and a header of "
            f"{start} bytes, "
            f"found 0x{found:08x} and {len(data)} bytes; put the original file there."
        )
    shape = struct.unpack(f">{rank}I", data[4:start])
    size = start + int(np.prod(shape, dtype=np.int64))
    if len(data) != size:
        raise LaconicError(
            f"{path} has the wrong size: its header {shape} needs {size} bytes, found {len(data)}; "
            "put the original file there."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
