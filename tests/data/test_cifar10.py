"""The binary CIFAR-10 loader on small files and archives of the official format, and the real
files."""

import dataclasses
import hashlib
import io
import tarfile

import numpy as np
import pytest

from laconic.data import images as sets
from laconic.data.files import Remote

NAMES = list(sets.CIFAR10_MD5)


def record_bytes(images_NHWC, labels):
    planes = np.moveaxis(images_NHWC, -1, 1).reshape(len(labels), -1)
    return np.column_stack([labels, planes]).astype(np.uint8).tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(2)
    made = {}
    for name in NAMES:
        labels = rng.integers(0, 10, 6)
        images = rng.integers(0, 256, (6, 32, 32, 3))
        images[:, 0, 0, 0] = labels
        made[name] = images, labels
    return made


@pytest.fixture
def contents(arrays):
    return {name: record_bytes(*pair) for name, pair in arrays.items()}


def md5(data):
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def registry(contents, archive=sets.CIFAR10_ARCHIVE):
    return sets.cifar10_files(archive, {name: md5(data) for name, data in contents.items()})


def put(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)


def pack(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return Remote(
        "cifar-10-binary.tar.gz",
        f"http://official.example/{path.name}",
        f"md5:{md5(path.read_bytes())}",
    )


def test_loads_small_official_files(data_root, contents, arrays):
    put(data_root / sets.CIFAR10_FOLDER, contents)
    dataset = sets.load_cifar10(files=registry(contents))
    sizes = {split: dataset.feed.size(split) for split in dataset.feed.splits}
    assert sizes == {"train": 24, "valid": 3, "outer_valid": 3, "test": 6}
    images, labels = arrays["test_batch.bin"]
    np.testing.assert_array_equal(dataset.feed.splits["test"]["x"], images)
    np.testing.assert_array_equal(dataset.feed.splits["test"]["y"], labels)
    for part in dataset.feed.splits.values():
        assert part["x"].shape[1:] == (32, 32, 3)
        np.testing.assert_array_equal(part["x"][:, 0, 0, 0], part["y"])


def test_downloads_and_unpacks_the_archive(data_root, contents, serve, tmp_path):
    site = tmp_path / "site"
    archive = pack(
        site / "c.tar.gz",
        {f"{sets.CIFAR10_FOLDER}/{name}": data for name, data in contents.items()},
    )
    archive = dataclasses.replace(archive, url=serve(site) + "/c.tar.gz")
    dataset = sets.load_cifar10(archive, registry(contents, archive))
    assert dataset.feed.size("test") == 6
    assert sorted(path.name for path in (data_root / sets.CIFAR10_FOLDER).iterdir()) == sorted(
        NAMES
    )


def test_unpacks_only_what_it_wants_and_where_it_wants(data_root, contents, tmp_path):
    kept = b"here before"
    put(data_root / sets.CIFAR10_FOLDER, {NAMES[0]: kept})
    members = {f"../../{name}": data for name, data in contents.items()}
    members |= {"/tmp/evil.bin": b"evil", "batches.meta.txt": b"names"}
    archive = pack(data_root / "cifar-10-binary.tar.gz", members)
    files = registry(contents | {NAMES[0]: kept}, archive)
    sets.unpack(data_root / "cifar-10-binary.tar.gz", files)
    got = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    folder = f"data/{sets.CIFAR10_FOLDER}"
    assert got == {"data/cifar-10-binary.tar.gz", *(f"{folder}/{name}" for name in NAMES)}
    assert (data_root / sets.CIFAR10_FOLDER / NAMES[0]).read_bytes() == kept
    assert (data_root / sets.CIFAR10_FOLDER / NAMES[1]).read_bytes() == contents[NAMES[1]]


def test_archive_lacks_a_file_or_holds_another_version(data_root, contents, raises_clearly):
    short = dict(list(contents.items())[:-1])
    path = data_root / "cifar-10-binary.tar.gz"
    archive = pack(path, short)
    with raises_clearly(str(path), "lacks test_batch.bin"):
        sets.load_cifar10(archive, registry(contents, archive))
    other = pack(path, contents | {NAMES[5]: b"other"})
    with raises_clearly(str(path), md5(contents[NAMES[5]]), md5(b"other")):
        sets.load_cifar10(other, registry(contents, other))
    assert not (data_root / sets.CIFAR10_FOLDER / NAMES[5]).exists()


def test_damaged_archive(data_root, contents, raises_clearly):
    path = data_root / "cifar-10-binary.tar.gz"
    archive = pack(path, contents)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with raises_clearly(str(path), archive.digest, md5(whole[:-100])):
        sets.load_cifar10(archive, registry(contents, archive))
    with raises_clearly(str(path), "could not be unpacked"):
        sets.unpack(path, registry(contents, archive))


def test_missing_offline(data_root, nowhere, raises_clearly):
    archive = dataclasses.replace(sets.CIFAR10_ARCHIVE, url=f"{nowhere}/cifar-10-binary.tar.gz")
    with raises_clearly(f"{archive.url} as {data_root}/cifar-10-binary.tar.gz"):
        sets.load_cifar10(archive)


def test_damaged_file_is_named(data_root, contents, raises_clearly):
    files = registry(contents)
    contents[NAMES[2]] = contents[NAMES[2]][:-1]
    put(data_root / sets.CIFAR10_FOLDER, contents)
    with raises_clearly(
        str(data_root / sets.CIFAR10_FOLDER / NAMES[2]), files[2].digest, md5(contents[NAMES[2]])
    ):
        sets.load_cifar10(files=files)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda data: data[:-1], "multiple of 3073 bytes, found 18437"),
        (lambda data: b"", "found 0"),
        (lambda data: b"\x0a" + data[1:], "found 10"),
    ],
)
def test_wrong_size_or_labels(data_root, contents, raises_clearly, data, says):
    contents[NAMES[4]] = data(contents[NAMES[4]])
    put(data_root / sets.CIFAR10_FOLDER, contents)
    with raises_clearly(str(data_root / sets.CIFAR10_FOLDER / NAMES[4]), says, "put the file"):
        sets.load_cifar10(files=registry(contents))


@pytest.mark.real_data
def test_the_real_files(real_data):
    real_data("cifar-10")
    dataset = sets.load_cifar10()
    sizes = {split: dataset.feed.size(split) for split in dataset.feed.splits}
    assert sizes == {"train": 40000, "valid": 5000, "outer_valid": 5000, "test": 10000}
    parts = [dataset.feed.splits[split] for split in ("train", "valid", "outer_valid")]
    assert np.bincount(np.concatenate([part["y"] for part in parts])).tolist() == [5000] * 10
    total = sum(np.asarray(part["x"]).reshape(-1, 3).sum(0, dtype=np.uint64) for part in parts)
    # Well-known means.
    np.testing.assert_allclose(total / (50000 * 1024 * 255), [0.4914, 0.4822, 0.4465], atol=1e-4)
