"""Two Python processes with one device each, as two machines would be."""

import socket
import subprocess

from tests.cli.commands import process
from tests.outer.trees import QUICK

TIMEOUT = 300


def free_address():
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(folder, code, *argv):
    """A process of one device that runs `code` (None: the command line) in `folder`."""
    command, environment = process(code, *argv)
    quick = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=1 {quick}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def run_pair(first, second):
    """(exit status, stdout, stderr) of both, given each as (folder, code, *argv)."""
    both = [start(*first), start(*second)]
    try:
        outputs = [one.communicate(timeout=TIMEOUT) for one in both]
    finally:
        for one in both:
            one.kill()
    return [(one.returncode, *output) for one, output in zip(both, outputs, strict=True)]
