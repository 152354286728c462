"""Four real worker processes and a Lighthouse for a test, with their logs, and signals for any of
them."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines.processes import wait_until

ROOT = Path(__file__).parents[2]
FAST = {
    "ask": 20.0,
    "gather": 1.0,
    "silence": 1.0,
    "heal": 5.0,
    "heartbeat": 0.05,
    "patience": 120.0,
    "grace": 1.5,
    "lost": 60.0,
}
HEARTBEAT_TIMEOUT = 0.5
# Where nobody is to die, so that nobody is taken for dead on a busy machine.
CALM = FAST | {"gather": 30.0, "silence": 5.0}
CALM_HEARTBEAT_TIMEOUT = 3.0


def environment() -> dict[str, str]:
    """One device, one shared store of compiled programs, and quick compiling."""
    flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    cache = ROOT / ".pytest_cache" / "jax" / "workers"
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags
        + " --xla_llvm_disable_expensive_passes=true --xla_cpu_multi_thread_eigen=false",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def knock(port: int) -> None:
    """What a stranger might say who comes across a port."""
    for noise in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(300),
        np.random.default_rng(port).bytes(5000),
    ):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 5.0) as peer,
        ):
            peer.sendall(noise)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(0.2)
            peer.recv(1000)


def saved_weights(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[f"arr_{i}"] for i in range(len(file.files))]


class Nursery:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.engines.nursery"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        assert self._out.readline() == "ready\n"

    def start(self, spec: dict[str, Any]) -> int:
        self._in.write(json.dumps(spec) + "\n")
        self._in.flush()
        return int(self._out.readline())

    def close(self) -> None:
        self._in.close()
        self.process.wait(30)
        self._out.close()


@dataclasses.dataclass
class Cluster:
    """A Lighthouse and the workers started so far (their process ids by worker)."""

    nursery: Nursery
    folder: Path
    spec: dict[str, Any]
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT
    pids: dict[int, int] = dataclasses.field(default_factory=dict)
    births: dict[int, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.begin_lighthouse()

    def begin_lighthouse(self) -> None:
        options = [
            "--bind",
            f"127.0.0.1:{self.port}",
            "--heartbeat-timeout",
            str(self.heartbeat_timeout),
        ]
        command = [
            sys.executable,
            "-m",
            "laconic.engines.lighthouse",
            *options,
            "--join-timeout",
            "30",
        ]
        self.lighthouse = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment() | {"LACONIC_TOKEN": "secret"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.lighthouse.stdout is not None
        assert "lighthouse at" in self.lighthouse.stdout.readline()

    def end_lighthouse(self) -> None:
        self.lighthouse.kill()
        self.lighthouse.wait(30)
        assert self.lighthouse.stdout is not None
        self.lighthouse.stdout.close()

    def start(self, worker: int, **more: Any) -> None:
        born = self.births.get(worker, -1) + 1
        base = {
            "worker": worker,
            "lighthouse": f"127.0.0.1:{self.port}",
            "folder": str(self.folder),
            "born": born,
        }
        self.pids[worker] = self.nursery.start({"timeouts": FAST} | self.spec | base | more)
        self.births[worker] = born

    def signal(self, worker: int, number: int) -> None:
        os.kill(self.pids[worker], number)

    def alive(self, worker: int) -> bool:
        try:
            os.kill(self.pids[worker], 0)
        except ProcessLookupError:
            return False
        return True

    def open_gate(self, round: int) -> None:
        (self.folder / f"gate-{round}").touch()

    def rows(self, name: str, worker: int) -> list[dict[str, Any]]:
        """What every life of a worker wrote, in order; a line cut off by death is left out."""
        found = []
        for born in range(self.births.get(worker, -1) + 1):
            path = self.folder / f"{name}-{worker}-{born}.jsonl"
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            found += [json.loads(line) | {"born": born} for line in text.split("\n")[:-1]]
        return found

    def at_round(self, name: str, worker: int, round: int) -> bool:
        return any(row["round"] >= round for row in self.rows(name, worker)[-1:])

    def wait_round(self, name: str, workers: list[int], round: int) -> None:
        def there() -> bool:
            assert all(self.alive(w) or self._done(w) for w in workers), self.errors()
            return all(self.at_round(name, w, round) for w in workers)

        wait_until(there, f"round {round} of {name} at workers {workers}")

    def _done(self, worker: int) -> bool:
        return (self.folder / f"done-{worker}-{self.births[worker]}").exists()

    def wait_done(self, workers: list[int]) -> None:
        def done() -> bool:
            assert all(self.alive(w) or self._done(w) for w in workers), self.errors()
            return all(self._done(w) for w in workers)

        wait_until(done, f"workers {workers} to finish")

    def weights(self, name: str, worker: int) -> list[np.ndarray]:
        return saved_weights(self.folder / f"{name}-{worker}-{self.births[worker]}.npz")

    def errors(self) -> str:
        return "\n".join(
            f"{p.name}: {p.read_text()[-1500:]}" for p in sorted(self.folder.glob("stderr-*"))
        )

    def close(self) -> None:
        for worker, pid in self.pids.items():
            if self.alive(worker):
                os.kill(pid, signal.SIGKILL)
        if self.lighthouse.poll() is None:
            self.end_lighthouse()
