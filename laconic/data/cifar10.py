"""CIFAR-10: 50,000 + 10,000 colour images, 32×32, ten classes, in the six files of the binary
version."""

import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from laconic.data.locate import Remote, arriving, find, locate, search_path
from laconic.data.splits import Dataset, image_dataset
from laconic.errors import LaconicError

CLASSES = 10
FOLDER = "cifar-10-batches-bin"
PIXELS = 3 * 32 * 32
ARCHIVE = Remote(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def published(archive: Remote = ARCHIVE, md5: dict[str, str] = MD5) -> list[Remote]:
    """The six files, in order, the test file last; each comes out of the archive."""
    return [
        Remote(f"{FOLDER}/{name}", archive.url, f"md5:{digest}") for name, digest in md5.items()
    ]


def load(archive: Remote = ARCHIVE, files: Sequence[Remote] | None = None) -> Dataset:
    """CIFAR-10 as uint8 [N, 32, 32, 3]; `archive` and `files` replace the official ones (another
    mirror, a test)."""
    files = published(archive) if files is None else files
    if any(find(remote.relative) is None for remote in files):
        (archive_at,) = locate([archive])
        archive.read(archive_at)
        unpack(archive_at, files)
    paths = locate(files)
    parts = [records(path, remote.read(path)) for remote, path in zip(files, paths, strict=True)]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return image_dataset(
        (x, y), parts[-1], CLASSES, "CIFAR-10, official binary files, contents verified"
    )


def unpack(archive_at: Path, files: Sequence[Remote]) -> None:
    """Write those of the files that are missing into the first data folder.

    Members are read by name and written under names of our own, so no path in the archive can lead
    anywhere else.
    """
    wanted = {
        PurePosixPath(remote.relative).name: remote
        for remote in files
        if find(remote.relative) is None
    }
    try:
        with tarfile.open(archive_at) as tar:
            for member in tar:
                remote = (
                    wanted.pop(PurePosixPath(member.name).name, None) if member.isfile() else None
                )
                stream = tar.extractfile(member) if remote else None
                if remote and stream:
                    with arriving(search_path()[0] / remote.relative) as part:
                        part.write_bytes(remote.check(stream.read()))
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        raise LaconicError(
            f"{archive_at} could not be unpacked into {search_path()[0] / FOLDER} ({error}); "
            "check that the folder can be written to, or unpack the archive there yourself."
        ) from error
    if wanted:
        raise LaconicError(
            f"{archive_at} lacks {', '.join(wanted)}; put the archive of the binary version there."
        )


def records(path: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3072 pixel bytes (channel by channel) as images [N, 32, 32, 3]
    and labels [N]."""
    if not data or len(data) % (1 + PIXELS):
        raise LaconicError(
            f"{path} has the wrong size: expected a multiple of {1 + PIXELS} bytes, found "
            f"{len(data)}; "
            "put the file of the binary version there."
        )
    table = np.frombuffer(data, np.uint8).reshape(-1, 1 + PIXELS)
    labels = table[:, 0]
    if labels.max() >= CLASSES:
        raise LaconicError(
            f"{path} is no CIFAR-10 file: expected labels 0…{CLASSES - 1}, found {labels.max()}; "
            "put the file of the binary version there."
        )
    return channel_major(table[:, 1:]), labels


def channel_major(pixels: np.ndarray, side: int = 32) -> np.ndarray:
    """Rows of bytes, all red, all green, all blue, as images [N, side, side, 3]."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, side, side).transpose(0, 2, 3, 1))
