"""Strangers at every listening port of a run, while the run goes on.

    python benchmarks/fuzz_ports.py [--messages 10000] [--out FILE]

Two workers on threads ask the Lighthouse, exchange messages over their links and fetch a state from
each other, round after round. Meanwhile messages arrive at the three kinds of ports: random bytes,
true messages cut off, with flipped bits, or played back, declared sizes far too large, and ones
that trickle. Told are the rounds, the longest gap between two, and what strangers cost: threads,
descriptors and memory. The last line is one JSON object.
"""

import argparse
import contextlib
import itertools
import json
import os
import resource
import secrets
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.engines import greeting, session, transfer
from laconic.engines.address import split_address
from laconic.engines.base import Counts, Interrupted
from laconic.engines.identity import Identity
from laconic.engines.lighthouse import Lighthouse
from laconic.engines.links import Links
from laconic.engines.meeting import Caller, LighthouseLink
from laconic.engines.transfer import StateServer, fetch_state
from laconic.engines.wire import Seal
from laconic.store.records import provenance, write_json

HOST = "127.0.0.1"
SEAL = Seal.by("secret", Identity("a" * 16, "settings", "optimizer", "code"))
DIGEST, SIZE = bytes(range(32)), 100_000
KINDS = ("random", "truncated", "flipped", "replayed", "oversized", "slow")
SLOW = 24  # connections that trickle at a time


def samples() -> dict[str, bytes]:
    """What a true worker said to each port, some other time."""
    greeted = session.greeting()
    claim = session.pack_claim(SEAL, greeted, 1, 10**18, looks=False)
    frame = session.Session(SEAL, greeted, serves=False).pack({"kind": "ask", "card": "card"})
    old = transfer.GREETING.pack(transfer.MAGIC, bytes(32))
    head = transfer.REQUEST.pack(bytes(32), 7, DIGEST, bytes(32))[:-32]
    request = head + SEAL.sign(b"state request", old, head)
    group = greeting.name_of("group")
    hello = greeting.HELLO.pack(
        greeting.MAGIC, greeting.VERSION, 1, 0, group, bytes(32), bytes(32)
    )[:-32]
    hello += SEAL.sign(b"laconic hello", hello)
    return {"lighthouse": claim + frame, "state": request, "links": hello + bytes(32)}


class Run:
    """Two workers that go from round to round until closed."""

    def __init__(self) -> None:
        self.lighthouse = Lighthouse(f"{HOST}:0", SEAL, silence=5.0, workers=2)
        self.counts = [Counts(0, 0, {}) for _ in range(2)]
        where = (HOST, HOST)
        self.links = [
            Links(SEAL, k, 2, *where, self.counts[k], silence=5.0, timeout=20.0) for k in (0, 1)
        ]
        state = np.arange(SIZE, dtype=np.uint8)
        give = lambda now, digest: state if digest == DIGEST else None
        self.states = [StateServer(SEAL, HOST, give, 20.0, self.counts[k]) for k in (0, 1)]
        self.asks = [
            LighthouseLink(Caller(self.lighthouse.address(), SEAL, k, 10 + k), 0.5, 20.0)
            for k in (0, 1)
        ]
        self.committed: list[float] = [time.monotonic()]
        self.faults: list[str] = []
        self._closing = threading.Event()
        self._both = threading.Barrier(2)
        self._threads = ThreadPoolExecutor(2)
        self._work = [self._threads.submit(self._rounds, k) for k in (0, 1)]

    @property
    def ports(self) -> dict[str, list[int]]:
        """Where a stranger may knock."""
        return {
            "lighthouse": [split_address(self.lighthouse.address())[1]],
            "state": [server.port for server in self.states],
            "links": [split_address(one.address)[1] for one in self.links],
        }

    def _rounds(self, k: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            for now in itertools.count():
                self._both.wait(60.0)
                try:
                    self._round(k, now)
                except (Interrupted, OSError) as error:
                    self.faults.append(str(error))
                if k == 0:
                    self.committed.append(time.monotonic())
                    if self._closing.is_set():
                        self._both.abort()

    def _round(self, k: int, now: int) -> None:
        cards = self.asks[k].ask(f"card {k}", 20.0, 20.0)
        if cards != ["card 0", "card 1"]:
            self.faults.append(f"worker {k} was told of {cards}")
        if now == 0:
            self.links[k].begin("group", {1 - k: self.links[1 - k].address})
        self.links[k].ready()
        room = np.zeros(SIZE, np.uint8)
        self.links[k].exchange({1 - k: (np.full(SIZE, k, np.uint8),)}, {1 - k: (room,)})
        if not np.all(room == 1 - k):
            self.faults.append(f"worker {k} got another message than was sent")
        if now % 10 == 0:
            address = f"{HOST}:{self.states[1 - k].port}"
            fetch_state(SEAL, address, now, DIGEST, 20.0, self.counts[k], SIZE)

    def close(self) -> None:
        """End after the round under way."""
        self._closing.set()
        for one in self._work:
            one.result(120.0)
        self._threads.shutdown()
        for one in (*self.asks, *self.links, *self.states):
            one.close()
        self.lighthouse.shutdown()


def spoilt(kind: str, sample: bytes, rng: np.random.Generator) -> bytes:
    """A message of that kind."""
    if kind == "random":
        return rng.bytes(int(rng.integers(1, 5000)))
    if kind == "oversized":
        lengths = struct.pack("<I", 2**32 - 1), struct.pack("<Q", 2**63 - 1)
        return lengths[int(rng.integers(2))] + rng.bytes(100) + sample
    if kind == "flipped":
        bad = bytearray(sample)
        for at in rng.integers(0, 8 * len(bad), int(rng.integers(1, 9))):
            bad[at // 8] ^= 1 << (at % 8)
        return bytes(bad)
    if kind == "replayed":
        return sample
    return sample[: int(rng.integers(0, len(sample)))]  # truncated, and what a slow one says


def knock(run: Run, messages: int, seed: int = 0) -> dict[str, int]:
    """Send so many messages, evenly to all ports and of all kinds → how many of each kind."""
    rng, known, slow = np.random.default_rng(seed), samples(), deque[socket.socket]()
    sent: dict[str, int] = dict.fromkeys(KINDS, 0)
    places = [(name, port) for name, ports in run.ports.items() for port in ports]
    for number in range(messages):
        kind = KINDS[number % len(KINDS)]
        name, port = places[number // len(KINDS) % len(places)]
        with contextlib.suppress(OSError):
            peer = socket.create_connection((HOST, port), 5.0)
            words = spoilt(kind, known[name], rng)
            if kind == "slow":
                slow.append(peer)
                peer.sendall(words[: len(words) // 2])
                for one in list(slow):
                    with contextlib.suppress(OSError):
                        one.sendall(secrets.token_bytes(1))
                while len(slow) > SLOW:
                    slow.popleft().close()
            else:
                with peer:
                    peer.sendall(words)
                    peer.shutdown(socket.SHUT_WR)
        sent[kind] += 1
    for one in slow:
        one.close()
    return sent


def cost() -> dict[str, float]:
    """Threads, descriptors and megabytes of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    descriptors = len(os.listdir("/proc/self/fd"))
    return {
        "threads": threading.active_count(),
        "descriptors": descriptors,
        "resident_mb": round(resident / 1e6, 1),
    }


def fuzz(messages: int) -> dict[str, Any]:
    """A run under so many messages, as a record."""
    run = Run()
    try:
        while len(run.committed) < 5:
            time.sleep(0.01)
        before, began = cost(), time.monotonic()
        sent = knock(run, messages)
        seconds = time.monotonic() - began
        rounds, after = len(run.committed), cost()
        while len(run.committed) < rounds + 5:
            time.sleep(0.01)
        gaps = np.diff(run.committed)
    finally:
        run.close()
    refused = dict(run.lighthouse.refused)
    for counts in run.counts:
        for reason, count in counts.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    return {
        "benchmark": "fuzz-ports",
        "messages": sent,
        "seconds": round(seconds, 2),
        "rounds": rounds,
        "longest_gap": round(float(gaps.max()), 3),
        "before": before,
        "after": after,
        "peak_resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "refused": refused,
        "faults": run.faults,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Fuzz, tell, and write the record."""
    parser = argparse.ArgumentParser(description="strangers at every listening port")
    parser.add_argument("--messages", type=int, default=10_000, help="how many, in all")
    parser.add_argument("--out", type=Path, help="a file for the record")
    options = parser.parse_args(arguments)
    found = {"provenance": provenance(), **fuzz(options.messages)}
    if options.out is not None:
        write_json(options.out, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
