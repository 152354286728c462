"""What `laconic launch` knows of its workers as OpenMetrics text, over HTTP or in a file."""

import contextlib
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from laconic.errors import LaconicError
from laconic.store import atomic

if TYPE_CHECKING:
    from laconic.cli.launch import WorkerRow

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LOOPBACK, LAST_PORT = "127.0.0.1", 65535
PARTS = {"compute": ("compute",), "talk": ("quorum", "gather"), "outer": ("outer",)}
SECONDS = 5.0  # that a reader may take
READERS = 8  # at once; more are refused


def exposition(workers: Mapping[str, "WorkerRow"], rounds: int) -> str:
    """The state of a launch as OpenMetrics text; names of workers are "worker 0", …"""
    rows = {name.removeprefix("worker "): row for name, row in workers.items()}
    ahead = max(rows.values(), key=lambda row: row.round)
    total = {"": rounds}
    loss = {} if ahead.loss is None else {"": ahead.loss}
    lines = _family("rounds_asked", "gauge", "Rounds that the training has.", total)
    lines += _family("train_loss", "gauge", "Train loss of the last round.", loss)
    for name, kind, about, read in FAMILIES:
        samples = {f'worker="{worker}"': read(row) for worker, row in rows.items()}
        lines += _family(f"worker_{name}", kind, about, samples)
    times = {
        f'worker="{worker}",part="{part}"': mean(sum(s[n] for n in names) for s in row.seconds)
        for worker, row in rows.items()
        if row.seconds
        for part, names in PARTS.items()
    }
    lines += _family("worker_part_seconds", "gauge", "Mean seconds a round of late.", times)
    return "\n".join([*lines, "# EOF"]) + "\n"


FAMILIES: tuple[tuple[str, str, str, Any], ...] = (
    ("round", "gauge", "Rounds done.", lambda row: row.round),
    ("running", "gauge", "Whether it trains now.", lambda row: int(row.state == "trains")),
    ("done", "gauge", "Whether it came to the end.", lambda row: int(row.ended)),
    ("quorum", "gauge", "Workers in its last round.", lambda row: len(row.quorum)),
    ("sent_bytes", "counter", "Bytes sent since the launch.", lambda row: row.sent),
    ("received_bytes", "counter", "Bytes received since the launch.", lambda row: row.received),
    ("left_out", "counter", "Messages that did not count.", lambda row: row.left_out),
    ("restarts", "counter", "Times that it died.", lambda row: row.restarts),
    ("refused", "gauge", "Refusals of its present process.", lambda row: row.refused),
)


def _family(name: str, kind: str, about: str, samples: Mapping[str, float]) -> list[str]:
    """A family's lines; a sample's name is its labels."""
    end = "_total" if kind == "counter" else ""
    lines = [f"# TYPE laconic_{name} {kind}"]
    if name.endswith(("_bytes", "_seconds")):
        lines.append(f"# UNIT laconic_{name} {name.rpartition('_')[2]}")
    lines.append(f"# HELP laconic_{name} {about}")
    for labels, value in samples.items():
        shown = f"{{{labels}}}" if labels else ""
        lines.append(f"laconic_{name}{end}{shown} {_number(value)}")
    return lines


def _number(value: float) -> str:
    """As OpenMetrics spells it: NaN, +Inf, -Inf."""
    text = repr(float(value)) if isinstance(value, float) else str(value)
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)


class Metrics:
    """Shows the latest text to whoever asks: over HTTP on this machine, in a file, or both."""

    def __init__(self, port: int | None, file: Path | None):
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise LaconicError(f"--metrics-file {file} is no file in a folder that exists.")
        self.text = "# EOF\n"
        self.file = file
        self.server = None if port is None else _listen(port, self)
        if self.server is not None:
            threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True).start()

    @property
    def address(self) -> str | None:
        """Where it is served."""
        port = None if self.server is None else self.server.server_port
        return None if port is None else f"http://{LOOPBACK}:{port}/metrics"

    def publish(self, text: str) -> None:
        """From now on this is what is shown."""
        self.text = text
        if self.file is not None:
            atomic.write_text(self.file, text)

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop serving; the file stays."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()


def _listen(port: int, metrics: Metrics) -> "_Server":
    if not 0 <= port <= LAST_PORT:
        raise LaconicError(f"--metrics-port is from 0 (any) to {LAST_PORT}, got {port}.")
    try:
        return _Server(port, metrics)
    except OSError as error:
        raise LaconicError(
            f"cannot listen at {LOOPBACK}:{port}: {error.strerror or error}. Choose another "
            "--metrics-port, or 0 for any."
        ) from None


class _Server(ThreadingHTTPServer):
    """Answers GET /metrics on this machine, to a few at a time."""

    daemon_threads = True

    def __init__(self, port: int, metrics: Metrics):
        self.metrics = metrics
        self.free = threading.BoundedSemaphore(READERS)
        super().__init__((LOOPBACK, port), _Reader)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if one is left."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and let the next one in; one that trickles is cut off."""
        late = threading.Timer(SECONDS, _cut_off, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that leaves early is nobody's concern."""


def _cut_off(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Reader(BaseHTTPRequestHandler):
    timeout = SECONDS

    def do_GET(self) -> None:
        """The text; anything else is not here."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        assert isinstance(self.server, _Server)
        body = self.server.metrics.text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the table is what the terminal is for."""
