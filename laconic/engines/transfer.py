"""State from peer to peer: a small signed exchange by which a worker that is behind catches up.

    server → caller   greeting  magic, a nonce
    caller → server   request   another nonce, a round and a digest; signed over the greeting
    server → caller   answer    the state's size and bytes; signed over the request

Both nonces are fresh, so neither a request nor an answer can be played back. A size is believed
only up to the one that was agreed, and each exchange has one deadline, however its bytes trickle.
"""

import secrets
import socket
import struct
import threading
import time

from laconic.engines.address import split_address
from laconic.engines.base import Counts, Digest, Frame, Interrupted, Snapshot
from laconic.engines.door import Door, Visitor
from laconic.engines.greeting import receive, send
from laconic.engines.tls import Tls, shake_hands, wrapped
from laconic.engines.wire import Seal

GREETING = struct.Struct("<4s32s")  # magic nonce
REQUEST = struct.Struct("<32sQ32s32s")  # nonce round digest signature
ANSWER = struct.Struct("<Q32s")  # size signature
MAGIC, MAC = b"LACS", 32
NO_STATE = bytes(32)  # the digest of no state
SLOWEST = 1 << 20  # bytes a second that a network must carry
AT_ONCE = 4  # states that are copied and sent at a time


class StateServer:
    """Hands this process's state to peers, on threads of its own, until closed.

    port: where it listens · timeout: seconds for an exchange, and more for each byte of a state
    """

    def __init__(
        self,
        seal: Seal,
        bind: str,
        snapshot: Snapshot,
        timeout: float,
        counts: Counts,
        tls: Tls | None = None,
    ):
        self._seal, self._snapshot, self._timeout, self._counts = seal, snapshot, timeout, counts
        self._busy = threading.BoundedSemaphore(AT_ONCE)
        self._door = Door(bind, "the state port", self._talk, counts, tls)
        self.port = self._door.port

    def close(self) -> None:
        """Stop serving."""
        self._door.close()

    def _talk(self, visitor: Visitor) -> None:
        peer = visitor.socket
        greeting = GREETING.pack(MAGIC, secrets.token_bytes(32))
        send(peer, greeting, visitor.deadline)
        request = receive(peer, REQUEST.size, visitor.deadline)
        _, now, digest, signature = REQUEST.unpack(request)
        if not self._seal.verify(signature, b"state request", greeting, request[:-MAC]):
            return
        visitor.prove()
        try:
            self._answer(peer, greeting + request, now, digest)
        finally:
            peer.close()

    def _answer(self, peer: socket.socket, asked: bytes, now: int, digest: Digest) -> None:
        deadline = time.monotonic() + self._timeout
        if digest == NO_STATE:
            return self._give(peer, asked, b"", deadline)
        if not self._busy.acquire(timeout=self._timeout):
            return None
        try:
            body = self._snapshot(now, digest)
            self._give(peer, asked, b"" if body is None else body, deadline)
        finally:
            self._busy.release()

    def _give(self, peer: socket.socket, asked: bytes, body: Frame, deadline: float) -> None:
        view = memoryview(body)
        deadline += view.nbytes / SLOWEST
        signature = self._seal.sign(b"state answer", asked, view)
        send(peer, ANSWER.pack(view.nbytes, signature), deadline)
        send(peer, view, deadline)
        self._counts.sent += ANSWER.size + view.nbytes


def fetch_state(
    seal: Seal,
    address: str,
    now: int,
    digest: Digest,
    timeout: float,
    counts: Counts,
    most: int,
    tls: Tls | None = None,
) -> bytearray:
    """The bytes of that state, at most so many, from the peer at `address`."""
    try:
        signed, body = _question(seal, address, now, digest, timeout, most, tls)
    except OSError as error:
        raise Interrupted(
            f"fetching the state of round {now} from {address} failed: {error}."
        ) from error
    counts.received += ANSWER.size + len(body)
    if not signed or not body:
        raise Interrupted(f"{address} did not give the state of round {now}.")
    return body


def answers(seal: Seal, address: str, timeout: float, tls: Tls | None = None) -> bool:
    """Whether a peer is at `address`: it must sign that it does not hold a state nobody has."""
    try:
        return _question(seal, address, 0, NO_STATE, timeout, 0, tls)[0]
    except OSError:
        return False


def _question(
    seal: Seal,
    address: str,
    now: int,
    digest: Digest,
    timeout: float,
    most: int,
    tls: Tls | None,
) -> tuple[bool, bytearray]:
    """Whether the answer bears our signature, and the answer."""
    deadline = time.monotonic() + timeout
    with wrapped(tls, _connected(address, timeout), listens=False) as peer:
        peer.settimeout(timeout)
        shake_hands(peer)
        greeting = receive(peer, GREETING.size, deadline)
        if not greeting.startswith(MAGIC):
            raise ConnectionAbortedError("what answers there hands out no states")
        head = REQUEST.pack(secrets.token_bytes(32), now, digest, bytes(MAC))[:-MAC]
        request = head + seal.sign(b"state request", greeting, head)
        send(peer, request, deadline)
        size, signature = ANSWER.unpack(receive(peer, ANSWER.size, deadline))
        if size > most:
            raise ConnectionAbortedError(f"it would send {size} bytes where at most {most} are due")
        body = bytearray(size)
        _fill(peer, memoryview(body), deadline + size / SLOWEST)
    return seal.verify(signature, b"state answer", greeting + request, body), body


def _connected(address: str, timeout: float) -> socket.socket:
    return socket.create_connection(split_address(address), timeout)


def _fill(peer: socket.socket, room: memoryview, deadline: float) -> None:
    while room:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the state took too long to arrive")
        peer.settimeout(left)
        count = peer.recv_into(room)
        if not count:
            raise ConnectionResetError("the connection closed early")
        room = room[count:]
