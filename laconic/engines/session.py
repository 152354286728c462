"""An authenticated connection to the Lighthouse: both ends prove that they hold the token, then
every frame is numbered and signed.

    Lighthouse → worker   greeting  magic, version, a nonce
    worker → Lighthouse   claim     who it is, its identity, another nonce; signed over both nonces
    Lighthouse → worker   verdict   the run's id, or what differs; signed over the claim

Nonces are fresh, so nothing of an earlier connection can be played back. Whoever does not hold the
token is refused before anything it says is parsed, and no declared length over a fixed bound is
believed. Nothing here reads or writes a socket.
"""

import hmac
import json
import secrets
import struct
from dataclasses import asdict
from typing import Any, NamedTuple

from laconic.engines.identity import Identity
from laconic.engines.wire import Seal

GREETING = struct.Struct("<4sH32s")  # magic version nonce
HEAD = struct.Struct("<I32s")  # size signature; the frame's body follows
MAGIC, VERSION = b"LACH", 1
CLAIM_SIZE, CARD_SIZE = 2048, 1 << 14  # bytes, at most
OLDER = "born"  # what a process differs in whose worker has been started again


class Claim(NamedTuple):
    """Who calls: a worker's process, and whether it only asks which run this is."""

    worker: int
    born: int
    looks: bool
    identity: Identity


def greeting() -> bytes:
    """What the Lighthouse says first: a fresh nonce."""
    return GREETING.pack(MAGIC, VERSION, secrets.token_bytes(32))


def is_greeting(words: bytes) -> bool:
    """Whether a Lighthouse of this version said that."""
    return GREETING.unpack(words)[:2] == (MAGIC, VERSION)


def token_sign(seal: Seal, *parts: bytes) -> bytes:
    """A signature under the token alone, whatever the run."""
    mac = hmac.new(seal.token, b"laconic lighthouse", "sha256")
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()


class Session:
    """One end of a connection whose other end has proved that it holds the token.

    hello: the greeting and the claim that made it, so that no two sessions have one key
    """

    def __init__(self, seal: Seal, hello: bytes, serves: bool):
        self._key = token_sign(seal, b"session", hello)
        self._sends, self._hears = (b"S", b"C") if serves else (b"C", b"S")
        self._sent = self._heard = 0

    def pack(self, message: dict[str, Any]) -> bytes:
        """The next frame."""
        body = json.dumps(message).encode()
        self._sent += 1
        return HEAD.pack(len(body), self._mac(self._sends, self._sent, body)) + body

    def open(self, signature: bytes, body: bytes) -> dict[str, Any] | None:
        """The message of the next frame; None if it is not the next, or not from the other end."""
        self._heard += 1
        if not hmac.compare_digest(signature, self._mac(self._hears, self._heard, body)):
            return None
        return parsed(body)

    def _mac(self, way: bytes, number: int, body: bytes) -> bytes:
        mac = hmac.new(self._key, way + number.to_bytes(8, "little"), "sha256")
        mac.update(body)
        return mac.digest()


def parsed(body: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# --- the claim ------------------------------------------------------------------------------------


def pack_claim(seal: Seal, greeted: bytes, worker: int, born: int, looks: bool) -> bytes:
    """Who calls, as a frame signed over the greeting."""
    said = {"worker": worker, "born": born, "looks": looks, "identity": asdict(seal.identity)}
    body = json.dumps({"nonce": secrets.token_hex(16), **said}).encode()
    return HEAD.pack(len(body), token_sign(seal, b"claim", greeted, body)) + body


def open_claim(seal: Seal, greeted: bytes, signature: bytes, body: bytes) -> Claim | None:
    """The same, read; None if the caller does not hold the token."""
    if not hmac.compare_digest(signature, token_sign(seal, b"claim", greeted, body)):
        return None
    said = parsed(body) or {}
    worker, born, theirs = said.get("worker"), said.get("born"), Identity.read(said.get("identity"))
    if type(worker) is not int or type(born) is not int or theirs is None:
        return None
    whole = 0 <= born < 2**63 and 0 <= worker < 2**31
    return Claim(worker, born, said.get("looks") is True, theirs) if whole else None


def pack_verdict(seal: Seal, hello: bytes, said: dict[str, Any]) -> bytes:
    """The Lighthouse's answer to a claim, as a frame signed over all that was said before."""
    body = json.dumps(said).encode()
    return HEAD.pack(len(body), token_sign(seal, b"verdict", hello, body)) + body


def open_verdict(seal: Seal, hello: bytes, signature: bytes, body: bytes) -> dict[str, Any] | None:
    """The same, read; None if it was signed with another token."""
    if not hmac.compare_digest(signature, token_sign(seal, b"verdict", hello, body)):
        return None
    return parsed(body)
