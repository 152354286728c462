"""One worker's connection to the Lighthouse: signs of life, and the question who else is there."""

import contextlib
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laconic.engines.address import split_address
from laconic.engines.base import Refused
from laconic.engines.identity import refusal
from laconic.engines.session import (
    CLAIM_SIZE,
    GREETING,
    HEAD,
    OLDER,
    Session,
    is_greeting,
    open_verdict,
    pack_claim,
)
from laconic.engines.tls import Tls, shake_hands, wrapped
from laconic.engines.wire import Seal
from laconic.errors import LaconicError

PAUSE = 0.02  # seconds between looks at a Lighthouse that is down
CONNECT = 5.0  # seconds for it to answer
TOLD = 1.0  # seconds between words about one that does not
SIZE = 4  # bytes of a frame that say how long it is
LONGEST = 1 << 26  # bytes of an answer


class Line:
    """One connection to the Lighthouse, which has let this worker in."""

    def __init__(self, peer: socket.socket, session: Session, verdict: dict[str, Any]):
        self.instance = str(verdict.get("instance"))
        self.run = str(verdict.get("run") or "")
        silence = verdict.get("silence")
        self.silence = float(silence) if isinstance(silence, int | float) else CONNECT
        self._peer, self._session = peer, session
        self._using = threading.Lock()
        self._rest = bytearray()
        peer.settimeout(CONNECT)
        self._poll = select.poll()
        self._poll.register(peer, select.POLLIN)

    def send(self, message: dict[str, Any]) -> None:
        """One message; an `OSError` if the connection is gone."""
        with self._using:
            self._peer.sendall(self._session.pack(message))

    def read(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if none came in so many seconds, an `OSError` if none will."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._whole()
            if message is not None:
                return message
            left = deadline - time.monotonic()
            if not self._ready(max(0.0, left)):
                return None
            with self._using:  # TLS does not bear one thread that reads beside one that writes
                piece = self._peer.recv(1 << 16)
            if not piece:
                raise ConnectionResetError("the Lighthouse closed the connection")
            self._rest += piece

    def _ready(self, seconds: float) -> bool:
        """Whether there is something to read within so many seconds."""
        if isinstance(self._peer, ssl.SSLSocket) and self._peer.pending():
            return True
        return bool(self._poll.poll(1000 * seconds))

    def _whole(self) -> dict[str, Any] | None:
        if len(self._rest) < HEAD.size:
            return None
        size, signature = HEAD.unpack_from(self._rest)
        if size > LONGEST:
            raise ConnectionAbortedError("a frame over the bound")
        if len(self._rest) < HEAD.size + size:
            return None
        body = bytes(self._rest[HEAD.size : HEAD.size + size])
        del self._rest[: HEAD.size + size]
        message = self._session.open(signature, body)
        if message is None:
            raise ConnectionAbortedError("a frame with a wrong signature")
        return message

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._peer.close()


@dataclass(frozen=True)
class Caller:
    """Who calls the Lighthouse at `address`: a worker's process, born then; `looks`: whether it
    only asks which run this is."""

    address: str
    seal: Seal
    worker: int
    born: int = 0
    looks: bool = False
    tls: Tls | None = None

    def call(self) -> Line:
        """Be let in; an `OSError` if nobody is there, `Refused` if we do not belong there."""
        peer = socket.create_connection(split_address(self.address), CONNECT)
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = wrapped(self.tls, peer, listens=False)
            shake_hands(peer)
            return self._enter(peer)
        except BaseException:
            peer.close()
            raise

    def _enter(self, peer: socket.socket) -> Line:
        deadline = time.monotonic() + CONNECT
        greeted = _receive(peer, GREETING.size, deadline)
        if not is_greeting(greeted):
            raise ConnectionAbortedError("what answers there is no Lighthouse of this laconic")
        claim = pack_claim(self.seal, greeted, self.worker, self.born, self.looks)
        peer.sendall(claim)
        size, signature = HEAD.unpack(_receive(peer, HEAD.size, deadline))
        if size > CLAIM_SIZE:
            raise ConnectionAbortedError("what answers there is no Lighthouse of this laconic")
        hello = greeted + claim[SIZE:]
        verdict = open_verdict(self.seal, hello, signature, _receive(peer, size, deadline))
        differs = ["token"] if verdict is None else list(verdict.get("differs") or [])
        if differs == [OLDER]:
            raise self.replaced()
        if differs or verdict is None:
            why = refusal(differs, f"the run at {self.address}")
            raise Refused(f"worker {self.worker} {why}.", signed=verdict is not None)
        return Line(peer, Session(self.seal, hello, serves=False), verdict)

    def replaced(self) -> Refused:
        """What ends a process whose worker was started again."""
        return Refused(
            f"worker {self.worker} was started again elsewhere; this older process ends."
        )

    def first(self, patience: float) -> Line:
        """The same as `call`, once somebody is there."""
        give_up = time.monotonic() + patience
        while True:
            try:
                return self.call()
            except OSError as error:
                if time.monotonic() > give_up:
                    raise LaconicError(
                        f"no Lighthouse answers at {self.address} ({error}): start it, or check "
                        "the address."
                    ) from None
            time.sleep(PAUSE)


def meet(address: str, seal: Seal, worker: int, patience: float, tls: Tls | None = None) -> Seal:
    """The seal of the run that the Lighthouse at `address` is of, once that answers."""
    line = Caller(address, seal, worker, looks=True, tls=tls).first(patience)
    line.close()
    return seal.of_run(line.run)


def _receive(peer: socket.socket, size: int, deadline: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the Lighthouse took too long to answer")
        peer.settimeout(left)
        piece = peer.recv(size - len(found))
        if not piece:
            raise ConnectionResetError("the connection closed early")
        found += piece
    return bytes(found)


class LighthouseLink:
    """Keeps a worker's connection to the Lighthouse alive on a thread of its own, and asks.

    `replaced`: whether the last answer came from another Lighthouse than the one before.
    """

    def __init__(
        self,
        caller: Caller,
        heartbeat: float,
        patience: float,
        waits: Callable[[str], None] = lambda why: None,
    ):
        """`heartbeat` seconds between signs of life, at most; `patience` for the Lighthouse to be
        there; `waits` is told every second that it is not."""
        self._waits = waits
        self._caller, self._heartbeat = caller, heartbeat
        self._last = ""
        self.replaced = False
        self._fatal: Refused | None = None
        self._events: queue.SimpleQueue[tuple[str, list[str]] | None] = queue.SimpleQueue()
        self._line = caller.first(patience)
        self._there, self._closing = threading.Event(), threading.Event()
        self._there.set()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="laconic-signs")
        self._thread.start()

    def ask(self, card: str, timeout: float, lost: float) -> list[str] | None:
        """Show a card; everyone's cards as soon as all are there, or None if there was no answer.

        lost: seconds to wait for a dead Lighthouse to come back
        """
        self._wait(lost)
        while not self._events.empty():
            self._events.get()  # of an earlier question, or connection
        line = self._line
        try:
            line.send({"kind": "ask", "card": card})
        except OSError:
            line.close()  # the thread that keeps it sees that, and calls again
        try:
            found = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if found is None:
            self._wait(lost)
            return None
        instance, cards = found
        self.replaced = bool(self._last) and instance != self._last
        self._last = instance
        return cards

    def _wait(self, lost: float) -> None:
        """Until the line is there again."""
        give_up = time.monotonic() + lost
        while not self._there.wait(max(0.0, min(TOLD, give_up - time.monotonic()))):
            self._waits(f"the Lighthouse at {self._caller.address} does not answer")
            if time.monotonic() >= give_up:
                raise LaconicError(
                    f"no Lighthouse answers at {self._caller.address}: start it, or check the "
                    "address."
                )
        if self._fatal is not None:
            raise self._fatal

    def _end(self, error: Refused) -> None:
        self._fatal = error
        self._closing.set()

    def _keep(self) -> None:
        """Signs of life, and the line anew whenever it breaks."""
        while not self._closing.is_set():
            with contextlib.suppress(OSError):
                self._listen(self._line)
            self._line.close()
            if not self._closing.is_set():
                self._there.clear()
            self._events.put(None)
            self._call_again()

    def _listen(self, line: Line) -> None:
        heard = beaten = time.monotonic()
        every = min(self._heartbeat, line.silence / 5)
        while not self._closing.is_set():
            now = time.monotonic()
            if now - heard > line.silence:
                return
            if now - beaten >= every:
                line.send({"kind": "beat"})
                beaten = now
            message = line.read(max(0.0, beaten + every - time.monotonic()))
            if message is None:
                continue
            heard = time.monotonic()
            cards = message.get("cards")
            if message.get("kind") == "leave":
                self._end(self._caller.replaced())
            elif isinstance(cards, list) and all(isinstance(card, str) for card in cards):
                self._events.put((line.instance, cards))

    def _call_again(self) -> None:
        while not (self._there.is_set() or self._closing.is_set()):
            try:
                self._line = self._caller.call()
            except OSError:
                self._closing.wait(PAUSE)
            except Refused as error:
                if error.signed:
                    self._end(error)
                self._closing.wait(PAUSE)  # unsigned: somebody else listens there just now
            else:
                self._there.set()
        self._there.set()  # whoever waits is told why it ended

    def close(self) -> None:
        """No more signs of life."""
        self._closing.set()
        self._line.close()
        self._thread.join()
