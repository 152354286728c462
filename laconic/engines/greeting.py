"""How two workers prove to each other that both hold the token, before anything else is said.

    caller → listener   HELLO    who calls whom, for which group, a nonce, a signature
    listener → caller   ANSWER   another nonce, a signature over the hello and both nonces
    caller → listener   CONFIRM  a signature over the same

Nonces are fresh, and every signature covers the group and both ids. So nothing of it can be
replayed, to the same worker or to another. 208 bytes in all; a stranger is read 112 of them.
"""

import hashlib
import secrets
import socket
import struct
import time
from typing import NamedTuple

from laconic.engines.wire import Seal

MAGIC, VERSION = b"LACL", 1
HELLO = struct.Struct("<4sIII32s32s32s")  # magic version from to group nonce signature
ANSWER = struct.Struct("<32s32s")  # nonce signature
MAC = 32
NO_GROUP = bytes(32)  # of a caller that only asks whether it can be heard


class Caller(NamedTuple):
    """Who calls, and for which group; its signature is right, that it is no replay is open."""

    worker: int
    group: bytes
    hello: bytes


def name_of(group: str) -> bytes:
    """A group's key as 32 bytes."""
    return hashlib.sha256(group.encode()).digest()


def call(
    peer: socket.socket, seal: Seal, worker: int, other: int, group: bytes, deadline: float
) -> bool:
    """Greet the worker `other` → whether it proved that it holds the token."""
    head = HELLO.pack(MAGIC, VERSION, worker, other, group, secrets.token_bytes(32), bytes(MAC))
    hello = head[:-MAC] + seal.sign(b"laconic hello", head[:-MAC])
    send(peer, hello, deadline)
    answer = receive(peer, ANSWER.size, deadline)
    nonce, signature = ANSWER.unpack(answer)
    if not seal.verify(signature, b"laconic answer", hello, nonce):
        return False
    send(peer, seal.sign(b"laconic confirm", hello, nonce), deadline)
    return True


def hear(peer: socket.socket, seal: Seal, worker: int, deadline: float) -> Caller | None:
    """The hello of one who calls this worker; None if it is not signed, or meant for another."""
    hello = receive(peer, HELLO.size, deadline)
    magic, version, caller, called, group, _, signature = HELLO.unpack(hello)
    if (magic, version) != (MAGIC, VERSION):
        return None
    if not seal.verify(signature, b"laconic hello", hello[:-MAC]) or called != worker:
        return None
    return Caller(caller, group, hello)


def answer(peer: socket.socket, seal: Seal, caller: Caller, deadline: float) -> bool:
    """Answer a hello → whether the caller is there and signs our nonce, so that it is no replay."""
    nonce = secrets.token_bytes(32)
    signature = seal.sign(b"laconic answer", caller.hello, nonce)
    send(peer, ANSWER.pack(nonce, signature), deadline)
    return seal.verify(receive(peer, MAC, deadline), b"laconic confirm", caller.hello, nonce)


def send(peer: socket.socket, words: bytes | memoryview, deadline: float) -> None:
    """All of the words until the deadline, or an `OSError`."""
    peer.settimeout(_left(deadline))
    peer.sendall(words)


def receive(peer: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes until the deadline, however slowly they come, or an `OSError`."""
    found = bytearray()
    while len(found) < size:
        peer.settimeout(_left(deadline))
        piece = peer.recv(size - len(found))
        if not piece:
            raise ConnectionResetError("the connection closed early")
        found += piece
    return bytes(found)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other end took too long")
    return left
