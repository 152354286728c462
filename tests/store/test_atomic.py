import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.errors import LaconicError
from laconic.store import atomic


def test_writes_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    atomic.write_text(path, "first")
    atomic.write_text(path, "zweitens: ÄÖ\n")
    assert path.read_bytes() == "zweitens: ÄÖ\n".encode()
    assert os.listdir(path.parent) == ["file.txt"]


def test_the_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    atomic.write_bytes(tmp_path / "ours", b"")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").stat().st_mode
    )


def test_contents_are_synced_before_the_name_and_the_name_after(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (
            events.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"),
            sync(fd),
        ),
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    atomic.write_bytes(tmp_path / "x", b"1")
    assert events == ["file", "replace", "folder"]


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call, error):
    path = tmp_path / "x"
    atomic.write_bytes(path, b"old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises((LaconicError, KeyboardInterrupt)) as caught:
        atomic.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]
    if isinstance(error, OSError):
        assert str(path) in str(caught.value)
        assert "No space left" in str(caught.value)


def test_a_process_killed_before_the_replace_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    crash = (
        "import os; os.replace = lambda a, b: os._exit(9)\n"
        f"from laconic.store import atomic; atomic.write_bytes({str(path)!r}, b'new')"
    )
    root = Path(atomic.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", crash], env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    assert done.returncode == 9
    assert path.read_bytes() == b"old"
    atomic.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_where_a_folder_should_be_is_a_clear_error(tmp_path, raises_clearly):
    (tmp_path / "x").write_bytes(b"")
    with raises_clearly(str(tmp_path / "x" / "y"), "permissions"):
        atomic.write_bytes(tmp_path / "x" / "y", b"")
