"""What the decoder examples share: processes on this machine, and text to train on."""
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.distributed import TCPStore

HOST = "127.0.0.1"


def start(script, count, *words):
    """Run `count` processes of a script, which are told their rank and the port of a store, to
    their end."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, script, *words, "--port", str(store.port), "--rank"]
    processes = [subprocess.Popen([*command, str(rank)]) for rank in range(count)]
    if any([process.wait() for process in processes]):
        sys.exit("a worker failed")


def windows(worker, workers, context):
    """A worker's part of tinyshakespeare as rows of context + 1 bytes; of Python's own sources
    where `$LACONIC_DATA` has no text."""
    text = Path(os.environ.get("LACONIC_DATA", "."), "text", "tinyshakespeare.txt")
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    found = b"".join(path.read_bytes() for path in ([text] if text.exists() else sources))
    part = torch.frombuffer(bytearray(found), dtype=torch.uint8).chunk(workers)[worker].long()
    return part[: len(part) // (context + 1) * (context + 1)].view(-1, context + 1)
