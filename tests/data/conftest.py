"""A data folder of its own for every test, and a real server to download from."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def data_root(tmp_path, monkeypatch):
    """An empty $LACONIC_DATA, with an empty home."""
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "data"


@pytest.fixture
def serve(monkeypatch):
    """`serve(folder)` or `serve(handler=…)` starts a server and gives its address."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(folder=None, handler=Quiet):
        make = functools.partial(handler, directory=str(folder)) if folder else handler
        server = ThreadingHTTPServer(("127.0.0.1", 0), make)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def nowhere(serve):
    """An address that refuses every connection."""
    import socket

    with socket.socket() as taken:
        # Bound but not listening, so nobody else can listen there either.
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
