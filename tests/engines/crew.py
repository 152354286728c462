"""Workers without JAX for tests: engines on threads that take rounds with real links and a real
Lighthouse, and a wire between two of them that can be cut."""

import contextlib
import hashlib
import socket
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from laconic.engines.address import split_address
from laconic.engines.base import Interrupted, Quorum
from laconic.engines.elastic import ElasticEngine
from laconic.engines.wire import Seal
from tests.engines.processes import wait_until

SEAL = Seal.of("secret", "run")
SIZE, STRUCTURE = 64, bytes(32)


class Wire:
    """Carries bytes between callers and a target, either way, unless that way is cut."""

    def __init__(self, target: str):
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.there, self.back = threading.Event(), threading.Event()
        self.mend()
        threading.Thread(target=self._serve, daemon=True).start()

    def mend(self) -> None:
        """Carry again, what was held back first."""
        self.there.set()
        self.back.set()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                called = socket.create_connection(split_address(self._target))
                for one, other, whole in (
                    (caller, called, self.there),
                    (called, caller, self.back),
                ):
                    threading.Thread(target=_carry, args=(one, other, whole), daemon=True).start()

    def close(self) -> None:
        """No more callers."""
        self.mend()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()


def _carry(one: socket.socket, other: socket.socket, whole: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while piece := one.recv(1 << 16):
            whole.wait()
            other.sendall(piece)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


class Commit(NamedTuple):
    """One round of one worker; the digest tells the whole history before it."""

    round: int
    workers: tuple[int, ...]
    digest: bytes
    at: float


class Closed(Exception):
    """A crew is closed while one of its workers waits for others, or for a Lighthouse."""


class Crew:
    """Workers that take rounds until they are closed; `commits` by worker, `told` what they say."""

    def __init__(self, slots: int, lighthouse: str, **more: Any):
        self.commits: dict[int, list[Commit]] = {w: [] for w in range(slots)}
        self.told: dict[int, list[str]] = {w: [] for w in range(slots)}
        self.engines = [ElasticEngine(w, slots, lighthouse, SEAL, **more) for w in range(slots)]
        self._wires: list[Wire] = []
        self._stop = threading.Event()
        for engine in self.engines:
            engine.counts.tell = self.told[engine.worker].append
            engine.counts.waits = self._still_open
            engine.open(SIZE, STRUCTURE, lambda round, digest: None)

    def wire(self, one: int, other: int) -> list[Wire]:
        """Lay the link between two workers over wires → that from `one` to `other`, and the other
        one."""
        made = []
        for caller, called in ((one, other), (other, one)):
            links = self.engines[caller]._links
            wire = Wire(self.engines[called]._links.address)
            links._reach = _through(links._reach, called, wire.address)
            made.append(wire)
        self._wires += made
        return made

    def begin(self) -> None:
        """Start to take rounds."""
        self._threads = [
            threading.Thread(target=self._work, args=(engine,), daemon=True)
            for engine in self.engines
        ]
        for thread in self._threads:
            thread.start()

    def _still_open(self) -> None:
        if self._stop.is_set():
            raise Closed

    def _work(self, engine: ElasticEngine) -> None:
        now, digest = 0, bytes(32)
        frame = np.full(SIZE, engine.worker, np.uint8)
        while not self._stop.is_set():
            try:
                quorum: Quorum = engine.quorum(now, digest)
                frames = engine.gather({engine.worker: frame}, len(frame))
            except Interrupted as error:
                self.told[engine.worker].append(str(error))
                engine.commit(False, digest)
                continue
            except Closed:
                break
            assert {w: int(f[0]) for w, f in frames.items()} == {w: w for w in quorum.workers}
            now = quorum.round + 1
            digest = hashlib.sha256(quorum.digest + repr(quorum.workers).encode()).digest()
            engine.commit(True, digest)
            self.commits[engine.worker].append(Commit(now, quorum.workers, digest, time.time()))
            time.sleep(0.005)  # local steps
        engine.close()

    def wait_rounds(self, workers: tuple[int, ...], count: int = 5) -> None:
        """Until these, and only these, have taken so many rounds together from now on."""
        since = time.time()

        def there(worker: int) -> bool:
            found = [c for c in self.commits[worker] if c.at > since and c.workers == workers]
            return len(found) >= count

        wait_until(lambda: all(map(there, workers)), f"{workers} to go on", 60.0)

    def histories(self) -> set[int]:
        """Rounds of which two workers tell different histories."""
        found: dict[int, set[bytes]] = {}
        for commits in self.commits.values():
            for commit in commits:
                found.setdefault(commit.round, set()).add(commit.digest)
        return {now for now, digests in found.items() if len(digests) > 1}

    def close(self) -> None:
        """End all."""
        self._stop.set()
        for wire in self._wires:
            wire.close()
        for thread in self._threads:
            thread.join(60.0)


def _through(reach: Any, called: int, address: str) -> Any:
    return lambda peer, real, *rest: reach(peer, address if peer == called else real, *rest)
