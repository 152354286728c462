"""A real Flower federation on the loopback: one SuperLink, several SuperNodes, and runs of the
tests' app."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.engines.processes import wait_until

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "app"


class Federation:
    """`nodes` are the configurations of the SuperNodes, as Flower spells them."""

    def __init__(self, folder: Path, nodes: list[str]):
        self.folder, self.nodes, self.processes = folder, nodes, []
        self.bin = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> "Federation":
        port, *others = free_ports(1 + len(self.nodes))
        address = f"127.0.0.1:{port}"
        (self.folder / "flwr").mkdir()
        loop = f'[superlink.loop]\naddress = "{address}"\ninsecure = true\n'
        config = f'[superlink]\ndefault = "loop"\n\n{loop}'
        (self.folder / "flwr" / "config.toml").write_text(config)
        link = ["--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
        self._start("flower-superlink", *link)
        wait_until(lambda: healthy(address), "the SuperLink")
        for node, own in zip(self.nodes, others, strict=True):
            at = ["--superlink", address, "--port", str(own)]
            self._start("flower-supernode", "--insecure", *at, "--node-config", node)
        return self

    def __exit__(self, *exc: Any) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the apps that it started
            process.wait()

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}-{len(self.processes)}.log", "wb") as log:
            command = [str(self.bin / name), *words]
            self.processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def run(self, **config: Any) -> None:
        """Submit a run of the tests' app."""
        said = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = [str(self.bin / "flwr"), "run", str(APP), "loop", "--run-config", said]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def healthy(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
