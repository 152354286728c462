"""The search path, downloads through a real server, and what is said when something is wrong."""

import gzip
import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from laconic.data.files import (
    Remote,
    digest_of,
    find,
    gunzip,
    locate,
    read_header,
    search_path,
)

BODY = b"some published bytes" * 1000


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def left_in(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_search_path_order(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("LACONIC_DATA", "/big/disk")
    assert search_path() == [
        Path("/big/disk"),
        Path("/home/somebody/.cache/laconic"),
        Path("/usr/share/datasets"),
    ]
    monkeypatch.setenv("LACONIC_DATA", "")
    assert search_path() == [Path("/home/somebody/.cache/laconic"), Path("/usr/share/datasets")]


def test_search_path_has_no_duplicates_and_only_full_paths(monkeypatch, tmp_path):
    monkeypatch.setenv("LACONIC_DATA", "/usr/share/datasets")
    assert [str(path) for path in search_path()].count("/usr/share/datasets") == 1
    assert search_path()[0] == Path("/usr/share/datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LACONIC_DATA", "data")
    assert search_path()[0] == tmp_path / "data"


def test_find_prefers_a_typed_path_only_when_asked(data_root, monkeypatch, tmp_path):
    here = tmp_path / "here"
    for folder in (here, data_root):
        folder.mkdir()
        (folder / "x.txt").write_text("x")
    monkeypatch.chdir(here)
    assert find("x.txt") == data_root / "x.txt"
    assert find("x.txt", here=True) == here / "x.txt"
    assert find(str(here / "x.txt")) == here / "x.txt"
    assert find("y.txt", here=True) is None


def test_digests():
    assert digest_of(b"abc", "md5:…") == "md5:900150983cd24fb0d6963f7d28e17f72"
    assert (
        digest_of(b"", "sha256:…")
        == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


def test_download_then_found(data_root, serve, tmp_path, capfd):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.bin").write_bytes(BODY)
    remote = Remote("set/a.bin", serve(tmp_path / "site") + "/a.bin", sha256(BODY))
    assert locate([remote]) == [data_root / "set" / "a.bin"]
    assert (data_root / "set" / "a.bin").read_bytes() == BODY
    (tmp_path / "site" / "a.bin").unlink()
    assert locate([remote]) == [data_root / "set" / "a.bin"]
    assert left_in(data_root) == ["set/a.bin"]
    assert capfd.readouterr() == ("", "")  # no bar where stderr is no terminal


def test_download_shows_its_bar_on_stderr_only(data_root, serve, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "a.bin").write_bytes(BODY)
    locate([Remote("a.bin", serve(tmp_path) + "/a.bin", sha256(BODY))])
    out, err = capfd.readouterr()
    assert out == ""
    assert "a.bin" in err
    assert "100%" in err


def test_gzip_is_digested_after_decompression(data_root, serve, tmp_path):
    for mtime in (1, 2):  # headers that differ
        (tmp_path / f"{mtime}.gz").write_bytes(gzip.compress(BODY, mtime=mtime))
    address = serve(tmp_path)
    remotes = [Remote(f"{m}.gz", f"{address}/{m}.gz", sha256(BODY), gunzip) for m in (1, 2)]
    paths = locate(remotes)
    assert [remote.read(path) for remote, path in zip(remotes, paths, strict=True)] == [BODY, BODY]


def test_wrong_checksum_of_a_download(data_root, serve, tmp_path, raises_clearly):
    (tmp_path / "a.bin").write_bytes(BODY)
    url = serve(tmp_path) + "/a.bin"
    with raises_clearly("a.bin", url, sha256(b"other"), sha256(BODY), str(data_root / "a.bin")):
        locate([Remote("a.bin", url, sha256(b"other"))])
    assert left_in(data_root) == []


def test_truncated_download(data_root, serve, raises_clearly):
    class Short(BaseHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY[:100])

    with raises_clearly("a.bin", f"100 of {len(BODY)} bytes", str(data_root / "a.bin")):
        locate([Remote("a.bin", serve(handler=Short) + "/a.bin", sha256(BODY))])
    assert left_in(data_root) == []


def test_not_found_on_the_server(data_root, serve, tmp_path, raises_clearly):
    url = serve(tmp_path) + "/gone.bin"
    with raises_clearly("404", url, str(data_root / "gone.bin")):
        locate([Remote("gone.bin", url, sha256(BODY))])


def test_offline_says_every_file_that_is_missing(data_root, nowhere, raises_clearly):
    data_root.mkdir()
    (data_root / "b.bin").write_bytes(BODY)
    remotes = [Remote(f"{name}.bin", f"{nowhere}/{name}.bin", sha256(BODY)) for name in "abc"]
    wanted = [f"{nowhere}/{name}.bin as {data_root / name}.bin" for name in "ac"]
    with raises_clearly(*map(str, search_path()), *wanted) as info:
        locate(remotes)
    assert f"{nowhere}/b.bin" not in str(info.value)


def test_download_folder_that_cannot_be(tmp_path, monkeypatch, serve, raises_clearly):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "a.bin").write_bytes(BODY)
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with raises_clearly("a.bin", str(tmp_path / "file" / "a.bin")):
        locate([Remote("a.bin", serve(tmp_path) + "/a.bin", sha256(BODY))])
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_damaged_file_is_named_and_kept(data_root, raises_clearly):
    data_root.mkdir()
    path = data_root / "a.bin"
    path.write_bytes(b"damaged")
    remote = Remote("a.bin", "http://official.example/a.bin", sha256(BODY))
    assert locate([remote]) == [path]
    with raises_clearly(str(path), sha256(BODY), sha256(b"damaged"), "Move it away", remote.url):
        remote.read(path)
    assert path.read_bytes() == b"damaged"


@pytest.mark.parametrize("cut", [5, 40, -1])
def test_a_truncated_gzip_file_is_named(tmp_path, raises_clearly, cut):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(BODY)[:cut])
    with raises_clearly(str(path), "complete gzip", "Move it away"):
        Remote("a.gz", "http://official.example/a.gz", sha256(BODY), gunzip).read(path)


def test_no_gzip_file_and_a_folder_are_named(tmp_path, raises_clearly):
    path = tmp_path / "a.gz"
    path.write_bytes(b"<html>not found</html>")
    with raises_clearly(str(path), "complete gzip"):
        Remote("a.gz", "http://official.example/a.gz", sha256(BODY), gunzip).read(path)
    with raises_clearly(str(tmp_path), "readable file"):
        Remote("", "", sha256(BODY)).read(tmp_path)


def test_concurrent_first_downloads(data_root, serve):
    together = threading.Barrier(4, timeout=20)

    class Slow(BaseHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY[:5000])
            together.wait()  # all four are half way at once
            self.wfile.write(BODY[5000:])

    remote = Remote("set/a.bin", serve(handler=Slow) + "/a.bin", sha256(BODY))
    with ThreadPoolExecutor(4) as pool:
        paths = [future.result() for future in [pool.submit(locate, [remote]) for _ in range(4)]]
    assert paths == [[data_root / "set" / "a.bin"]] * 4
    assert remote.read(paths[0][0]) == BODY
    assert left_in(data_root) == ["set/a.bin"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_header_is_what_numpy_wrote(version, order):
    array = np.array([[1, 2, 3], [4, 5, 6]], np.int16, order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    file.seek(0)
    assert read_header(file) == ((2, 3), order == "F", np.int16)
    assert file.read() == array.tobytes(order)


def test_another_version_and_other_bytes_are_refused():
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(2), (3, 0))
    with pytest.raises(ValueError, match="version"):
        read_header(io.BytesIO(file.getvalue()))
    with pytest.raises(ValueError, match="magic"):
        read_header(io.BytesIO(b"PK\x03\x04 an archive"))
