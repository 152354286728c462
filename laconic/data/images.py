"""Small sets of images: digits, Fashion-MNIST, CIFAR-10, and random ones for timing.

Each loader reads the official files, whose contents it verifies, and returns a `Dataset` of uint8
images [N, H, W, C] on the device.
"""

import importlib.metadata
import importlib.util
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from laconic.data.files import Remote, arriving, find, gunzip, locate, search_path
from laconic.data.splits import SEED, Dataset, image_dataset, permutation
from laconic.errors import LaconicError

CLASSES = 10  # of all but the random images


# --- digits ---------------------------------------------------------------------------------------

DIGITS_TEST_ROWS = 297


def load_digits() -> Dataset:
    """The 1797 handwritten digits, 8×8, that scikit-learn bundles: real data with no download.

    297 rows of the fixed shuffle are the test split. The published values 0…16 are stored as
    round(value · 255/16), so that dividing by 255 gives 0…1.
    """
    *values, labels = np.loadtxt(_digits_file(), delimiter=",", unpack=True)
    images = np.rint(np.stack(values, 1) * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = labels.astype(int)
    test, train = np.split(permutation(len(images)), [DIGITS_TEST_ROWS])
    source = f"digits, bundled with scikit-learn {importlib.metadata.version('scikit-learn')}"
    return image_dataset(
        (images[train], labels[train]), (images[test], labels[test]), CLASSES, source
    )


def _digits_file() -> Path:
    """scikit-learn's file; to import the package takes longer than all else that a worker does
    before its first round."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise LaconicError("the digits come with scikit-learn: install it again.")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():
        raise LaconicError(f"scikit-learn has no {path}: install another version of it.")
    return path


# --- Fashion-MNIST --------------------------------------------------------------------------------

FMNIST_SIDE = 28
FMNIST_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FMNIST_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def fmnist_files(
    address: str = FMNIST_ADDRESS, sha256: dict[str, str] = FMNIST_SHA256
) -> list[Remote]:
    """The four files: train images, train labels, test images, test labels."""
    return [
        Remote(f"fashion-mnist/{name}.gz", f"{address}/{name}.gz", f"sha256:{digest}", gunzip)
        for name, digest in sha256.items()
    ]


def load_fmnist(files: Sequence[Remote] | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28×28; `files` replace ours."""
    files = fmnist_files() if files is None else files
    paths = locate(files)
    read = [(path, remote.read(path)) for remote, path in zip(files, paths, strict=True)]
    train, test = images_and_labels(*read[:2]), images_and_labels(*read[2:])
    return image_dataset(train, test, CLASSES, "Fashion-MNIST, official files, contents verified")


def images_and_labels(
    images: tuple[Path, bytes], labels: tuple[Path, bytes]
) -> tuple[np.ndarray, np.ndarray]:
    """Two IDX files, each a path and its content, as images [N, 28, 28, 1] and labels [N]."""
    x, y = idx(*images, rank=3), idx(*labels, rank=1)
    if x.shape[1:] != (FMNIST_SIDE, FMNIST_SIDE):
        raise LaconicError(
            f"{images[0]} holds images of {x.shape[1:]}, expected {(FMNIST_SIDE, FMNIST_SIDE)}; "
            "put the original there."
        )
    if len(x) != len(y) or (len(y) and y.max() >= CLASSES):
        raise LaconicError(
            f"{labels[0]} does not belong to {images[0]}: expected {len(x)} labels of "
            f"0…{CLASSES - 1}, found {len(y)} up to {y.max(initial=0)}; put both original files "
            "there."
        )
    return x[..., None], y


def idx(path: Path, data: bytes, rank: int) -> np.ndarray:
    """An IDX file of bytes: magic 0x0000 08 rank, one big-endian uint32 an axis, the values."""
    start = 4 + 4 * rank
    magic = 0x0800 + rank
    found = int.from_bytes(data[:4], "big")
    if len(data) < start or found != magic:
        raise LaconicError(
            f"{path} is no IDX file of rank {rank}: expected magic 0x{magic:08x} and a header of "
            f"{start} bytes, found 0x{found:08x} and {len(data)} bytes; put the original there."
        )
    shape = struct.unpack(f">{rank}I", data[4:start])
    size = start + int(np.prod(shape, dtype=np.int64))
    if len(data) != size:
        raise LaconicError(
            f"{path} has the wrong size: its header {shape} needs {size} bytes, found {len(data)}; "
            "put the original file there."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# --- CIFAR-10 -------------------------------------------------------------------------------------

CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR10_PIXELS = 3 * 32 * 32
CIFAR10_ARCHIVE = Remote(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR10_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def cifar10_files(
    archive: Remote = CIFAR10_ARCHIVE, md5: dict[str, str] = CIFAR10_MD5
) -> list[Remote]:
    """The six files of the archive, in order, the test file last."""
    return [
        Remote(f"{CIFAR10_FOLDER}/{name}", archive.url, f"md5:{digest}")
        for name, digest in md5.items()
    ]


def load_cifar10(
    archive: Remote = CIFAR10_ARCHIVE, files: Sequence[Remote] | None = None
) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour images, 32×32; arguments replace the official files."""
    files = cifar10_files(archive) if files is None else files
    if any(find(remote.relative) is None for remote in files):
        (archive_at,) = locate([archive])
        archive.read(archive_at)
        unpack(archive_at, files)
    paths = locate(files)
    parts = [records(path, remote.read(path)) for remote, path in zip(files, paths, strict=True)]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    source = "CIFAR-10, official binary files, contents verified"
    return image_dataset((x, y), parts[-1], CLASSES, source)


def unpack(archive_at: Path, files: Sequence[Remote]) -> None:
    """Write those of the files that are missing into the first data folder.

    Members are read by name and written under names of our own, so no path in the archive can lead
    anywhere else.
    """
    missing = [remote for remote in files if find(remote.relative) is None]
    wanted = {PurePosixPath(remote.relative).name: remote for remote in missing}
    try:
        with tarfile.open(archive_at) as tar:
            for member in filter(tarfile.TarInfo.isfile, tar):
                remote = wanted.pop(PurePosixPath(member.name).name, None)
                stream = tar.extractfile(member) if remote else None
                if remote and stream:
                    with arriving(search_path()[0] / remote.relative) as part:
                        part.write_bytes(remote.check(stream.read()))
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        raise LaconicError(
            f"{archive_at} could not be unpacked into {search_path()[0] / CIFAR10_FOLDER} "
            f"({error}); check that the folder can be written to, or unpack the archive there "
            "yourself."
        ) from error
    if wanted:
        raise LaconicError(
            f"{archive_at} lacks {', '.join(wanted)}; put the archive of the binary version there."
        )


def records(path: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records of a label byte and 3072 pixel bytes as images [N, 32, 32, 3] and labels [N]."""
    if not data or len(data) % (1 + CIFAR10_PIXELS):
        raise LaconicError(
            f"{path} has the wrong size: expected a multiple of {1 + CIFAR10_PIXELS} bytes, found "
            f"{len(data)}; put the file of the binary version there."
        )
    table = np.frombuffer(data, np.uint8).reshape(-1, 1 + CIFAR10_PIXELS)
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


# --- random images --------------------------------------------------------------------------------

NOISE_IMAGES, NOISE_TEST_IMAGES = 512, 64  # few are enough: batches are drawn with replacement


def load_noise(side: int = 224, classes: int = 1000) -> Dataset:
    """Random images and labels, always the same: for timing."""
    draw = np.random.default_rng(SEED)
    train, test = (
        (draw.integers(0, 256, (n, side, side, 3), np.uint8), draw.integers(0, classes, n))
        for n in (NOISE_IMAGES, NOISE_TEST_IMAGES)
    )
    source = f"{NOISE_IMAGES} random images of {side}×{side}, {classes} random labels"
    return image_dataset(train, test, classes, source)
