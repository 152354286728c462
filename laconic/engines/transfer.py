"""State from peer to peer: a small signed TCP exchange by which a worker that is behind catches up.

A request is a nonce, a round and a digest, signed; the answer is the state's bytes, signed together
with the nonce. Requests without our signature get nothing and are counted.
"""

import contextlib
import secrets
import socket
import socketserver
import struct
import threading

from laconic.engines.address import split_address
from laconic.engines.base import Counts, Digest, Interrupted, Snapshot
from laconic.engines.wire import Seal

REQUEST = struct.Struct("<4s16sQ32s32s")  # magic nonce round digest signature
ANSWER = struct.Struct("<Q32s")  # length signature
MAGIC = b"LACS"
PIECE = 1 << 20
NO_STATE = bytes(32)  # the digest of no state


class StateServer:
    """Hands this process's state to peers, on its own thread, until closed."""

    def __init__(self, seal: Seal, bind: str, snapshot: Snapshot, timeout: float, counts: Counts):
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(timeout)
                with contextlib.suppress(OSError):  # a peer that left, a stranger that never spoke
                    _answer(self.request, seal, snapshot, counts)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET

        self._server = Server((bind, 0), Handler)
        self.port = self._server.server_address[1]
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(peer: socket.socket, seal: Seal, snapshot: Snapshot, counts: Counts) -> None:
    request = _receive(peer, REQUEST.size)
    magic, nonce, now, digest, signature = REQUEST.unpack(request)
    if magic != MAGIC or not seal.verify(signature, request[: -len(signature)]):
        counts.refuse("a stranger at the state port")
        return
    body = snapshot(now, digest)
    if body is None:
        peer.sendall(ANSWER.pack(0, seal.sign(nonce)))
        return
    view = memoryview(body)
    peer.sendall(ANSWER.pack(view.nbytes, seal.sign(nonce, view)))
    peer.sendall(view)
    counts.sent += ANSWER.size + view.nbytes


def fetch_state(
    seal: Seal, address: str, now: int, digest: Digest, timeout: float, counts: Counts
) -> bytes:
    """The bytes of that state from the peer at `address`."""
    try:
        signed, body = _question(seal, address, now, digest, timeout)
    except OSError as error:
        raise Interrupted(
            f"fetching the state of round {now} from {address} failed: {error}."
        ) from error
    counts.received += ANSWER.size + len(body)
    if not signed or not body:
        raise Interrupted(f"{address} did not give the state of round {now}.")
    return body


def answers(seal: Seal, address: str, timeout: float) -> bool:
    """Whether a peer is at `address`: it must sign that it does not hold a state nobody has."""
    try:
        return _question(seal, address, 0, NO_STATE, timeout)[0]
    except OSError:
        return False


def _question(
    seal: Seal, address: str, now: int, digest: Digest, timeout: float
) -> tuple[bool, bytes]:
    """Whether the answer bears our signature, and the answer."""
    nonce = secrets.token_bytes(16)
    head = REQUEST.pack(MAGIC, nonce, now, digest, bytes(32))[:-32]
    with socket.create_connection(split_address(address), timeout) as peer:
        peer.sendall(head + seal.sign(head))
        length, signature = ANSWER.unpack(_receive(peer, ANSWER.size))
        body = _receive(peer, length)
    return seal.verify(signature, nonce, body), body


def _receive(peer: socket.socket, size: int) -> bytes:
    pieces, left = [], size
    while left:
        piece = peer.recv(min(left, PIECE))
        if not piece:
            raise ConnectionResetError("the connection closed early")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
