"""A listening port that strangers cannot block, fill or crash.

Each visitor is heard on a thread of its own until it has proved that it belongs here. Before that
at most `ROOM` are inside, each for at most `SECONDS`; when one more comes the oldest is sent away,
since a worker proves itself in milliseconds. So strangers cost a bounded number of descriptors, and
whatever they do, a worker gets in.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from laconic.engines.address import with_port
from laconic.engines.base import Counts
from laconic.engines.tls import Tls, shake_hands, wrapped

ROOM = 32  # visitors that have not proved anything yet
SECONDS = 5.0  # to prove it
PAUSE = 0.1  # seconds before the next look where the system has no descriptor left


class Visitor:
    """One connection; `deadline` is when it must have proved itself, by `time.monotonic`."""

    def __init__(self, plain: socket.socket, deadline: float, known: Callable[["Visitor"], None]):
        self.socket = plain
        self.deadline = deadline
        self.proved = False
        self._known = known

    def prove(self) -> None:
        """It belongs here: it is not sent away any more, and whoever talks to it closes it."""
        self.proved = True
        self._known(self)

    def send_away(self) -> None:
        """Close the connection, also under a thread that waits for it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class Door:
    """Listens at `bind` (any port) until closed; `talk` meets each visitor, and calls its `prove`.

    One that goes without having proved itself is counted as "a stranger at " and the `name`.
    """

    def __init__(
        self,
        bind: str,
        name: str,
        talk: Callable[[Visitor], None],
        counts: Counts,
        tls: Tls | None = None,
    ):
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._listener = socket.create_server((bind, 0), family=family, backlog=128)
        self._name, self._talk, self._counts, self._tls = name, talk, counts, tls
        self._inside: list[Visitor] = []  # oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"laconic-{name}")
        self._thread.start()

    def address(self, host: str) -> str:
        """Where others find it who reach this machine at `host`."""
        return with_port(host, self.port)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                plain, _ = self._listener.accept()
            except OSError:  # no descriptor left, or the visitor has gone again, or we close
                self._make_room(0)
                self._closing.wait(PAUSE)
                continue
            visitor = Visitor(plain, time.monotonic() + SECONDS, self._known)
            self._make_room(ROOM - 1)
            with self._lock:
                self._inside.append(visitor)
            try:
                threading.Thread(target=self._meet, args=(visitor,), daemon=True).start()
            except RuntimeError:  # no thread left
                self._known(visitor)
                plain.close()

    def _make_room(self, most: int) -> None:
        with self._lock:
            going = self._inside[: max(0, len(self._inside) - most)]
            del self._inside[: len(going)]
        for visitor in going:
            visitor.send_away()

    def _meet(self, visitor: Visitor) -> None:
        try:
            visitor.socket.settimeout(SECONDS)
            visitor.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            visitor.socket = wrapped(self._tls, visitor.socket, listens=True)
            shake_hands(visitor.socket)
            self._talk(visitor)
        except OSError:  # one that left, said nothing or has no certificate
            pass
        if not visitor.proved:
            self._known(visitor)
            visitor.socket.close()
            if not self._closing.is_set():
                self._counts.refuse(f"a stranger at {self._name}")

    def _known(self, visitor: Visitor) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._inside.remove(visitor)

    def close(self) -> None:
        """No more visitors."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._make_room(0)
        self._thread.join()
