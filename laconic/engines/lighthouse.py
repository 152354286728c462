"""The Lighthouse, which says who is there: as a process or on a thread of one.

    LACONIC_TOKEN=… python -m laconic.engines.lighthouse --bind 127.0.0.1:29510

Only who holds the token gets in, and who belongs to another run, or runs other code, is told so at
once. It holds no state that matters: losing it stops new quorums until it is back at the same
address. Strangers cost it at most `ROOM` connections of `SECONDS` each.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laconic.engines.address import split_address, with_port
from laconic.engines.identity import Identity
from laconic.engines.room import Guest, Room
from laconic.engines.session import (
    CARD_SIZE,
    CLAIM_SIZE,
    HEAD,
    OLDER,
    Claim,
    Session,
    greeting,
    open_claim,
    pack_verdict,
)
from laconic.engines.supervisor import end_with_stdin
from laconic.engines.tls import Tls, TlsFiles
from laconic.engines.wire import Seal
from laconic.errors import LaconicError

LINGER = 3.0  # seconds for the workers to end their round
ROOM, SECONDS = 64, 5.0  # visitors that have not proved anything yet, and how long they may take
BACKLOG = 512  # visitors that wait to be let in
UNREAD = 1 << 22  # bytes that a member may leave unread before it is sent away
TICK = 1.0  # seconds between looks at members that do not ask
MOST = 4096  # worker ids, if their number is not told
TOKEN_VARIABLE = "LACONIC_TOKEN"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Visit(NamedTuple):
    """Where a visitor comes from that has not proved anything yet, and the task that hears it."""

    host: str
    task: asyncio.Task[Any] | None


class Lighthouse:
    """Serves on a thread of its own until `shutdown`."""

    def __init__(
        self,
        bind: str,
        seal: Seal,
        *,
        silence: float = 5.0,
        patience: float = 600.0,
        grace: float | None = None,
        least: int = 1,
        workers: int = MOST,
        tell: Callable[[str], None] = lambda line: None,
        tls: Tls | None = None,
    ):
        """Listen at `bind` ("host:port") for the workers of the seal's identity.

        silence: seconds without a sign of life after which a worker counts as dead
        patience: seconds for workers that are there but not finished with their local steps
        grace: seconds for them once `least` workers are ready; by default the same patience
        workers: how many there are; other ids are refused
        tell: gets a line at the first refusal of each kind
        """
        self.refused: Counter[str] = Counter()
        self._bind, self._seal, self._workers, self._tell = bind, seal, workers, tell
        self._silence, self._patience, self._tls = silence, patience, tls
        self._grace, self._least = grace, least
        self._tick = TICK if grace is None else min(TICK, max(grace / 10, 0.01))
        self._instance = secrets.token_hex(8)
        self._rooms: dict[str, Room] = {}
        self._pending: dict[asyncio.StreamWriter, Visit] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._started, self._failure = threading.Event(), ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="laconic-lighthouse")
        self._thread.start()
        self._started.wait()
        if self._failure:
            raise LaconicError(f"cannot listen at {bind}: {self._failure}.")

    def address(self) -> str:
        """Where it listens."""
        return self._bind

    def shutdown(self) -> None:
        """Close every connection and stop."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # such as no descriptor left for one more visitor: asyncio tries again after a second
        self._loop.set_exception_handler(lambda loop, context: None)
        host, port = split_address(self._bind)
        about = {"limit": 1 << 13, "backlog": BACKLOG}
        try:
            server = await asyncio.start_server(self._meet, host, port, **about)
        except OSError as error:
            self._failure = error.strerror or str(error)
            self._started.set()
            return
        self._bind = with_port(host, server.sockets[0].getsockname()[1])
        self._started.set()
        while not self._stop.is_set():
            for room in list(self._rooms.values()):
                room.look()
            try:
                await asyncio.wait_for(self._stop.wait(), self._tick)
            except TimeoutError:
                continue
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    # --- one connection ---

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From a visitor's first byte to its last."""
        peer = writer.get_extra_info("peername") or ("somewhere",)
        self._make_room()
        self._pending[writer] = Visit(str(peer[0]), asyncio.current_task())
        self._writers.add(writer)
        try:
            async with asyncio.timeout(SECONDS):
                if self._tls is not None:
                    # only here, where a visitor is counted: asyncio's own server lets any number
                    # of them stand in the middle of a handshake
                    await writer.start_tls(self._tls.listens, ssl_handshake_timeout=SECONDS)
                found = await self._greet((reader, writer), str(peer[0]))
            self._pending.pop(writer, None)
            if found is not None:
                await self._attend((reader, writer), *found)
        except (OSError, EOFError, ssl.SSLError):  # it left, or was sent away; a TimeoutError too
            if writer in self._pending:
                self._refuse("a stranger", f" at {peer[0]}")
        except asyncio.CancelledError:  # sent away, to make room
            writer.transport.abort()
            raise
        finally:
            self._pending.pop(writer, None)
            self._writers.discard(writer)
            writer.close()

    def _make_room(self) -> None:
        """Send away one of those that come from where most come from: strangers crowd themselves
        out, not the workers."""
        while len(self._pending) >= ROOM:
            host, _ = Counter(visit.host for visit in self._pending.values()).most_common(1)[0]
            crowd = [writer for writer, visit in self._pending.items() if visit.host == host]
            # to abort the connection instead would leave a handshake in it without a transport
            task = self._pending.pop(random.choice(crowd)).task
            if task is not None:
                task.cancel()

    async def _greet(self, streams: Streams, at: str) -> tuple[Session, Claim] | None:
        """The session of one that may stay, and who it is."""
        reader, writer = streams
        greeted = greeting()
        writer.write(greeted)
        signature, body = await _frame(reader, CLAIM_SIZE)
        hello = greeted + signature + body
        claim = open_claim(self._seal, greeted, signature, body)
        differs = ["token"] if claim is None else self._check(claim, at)
        if claim is None:
            self._refuse("a stranger without the token", f" at {at}. Give all workers one token.")
        about = {"run": self._seal.identity.run, "instance": self._instance}
        said = {"differs": differs} if claim is None else {"differs": differs, **about}
        writer.write(pack_verdict(self._seal, hello, {**said, "silence": self._silence}))
        await writer.drain()
        if claim is None or differs or claim.looks:
            return None
        return Session(self._seal, hello, serves=True), claim

    def _check(self, claim: Claim, at: str) -> list[str]:
        """What of a caller with our token does not belong here."""
        differs = self._seal.identity.differs(claim.identity)
        if differs:
            kinds = " and ".join(differs)
            self._refuse(f"worker {claim.worker} with another {kinds}", f", at {at}")
        elif claim.worker >= self._workers:
            differs = ["worker id"]
            self._refuse(f"worker id {claim.worker} of a run with {self._workers}", f", at {at}")
        room = self._rooms.get(self._name(claim))
        older = None if room is None or claim.looks else room.guests.get(claim.worker)
        if not differs and older is not None and older.born > claim.born:
            differs = [OLDER]
        return differs

    def _name(self, claim: Claim) -> str:
        """The name of its room; there is one only, if this Lighthouse is of one run."""
        return claim.identity.text if self._seal.identity == Identity() else ""

    async def _attend(self, streams: Streams, session: Session, claim: Claim) -> None:
        """A member, as long as it gives signs of life."""
        reader, writer = streams
        send = lambda message: _send(writer, session.pack(message))
        tell = lambda cards: send({"kind": "cards", "cards": cards})
        leave = lambda: send({"kind": "leave"})
        guest, name = Guest(claim.worker, claim.born, tell, leave), self._name(claim)
        fresh = Room(self._patience, grace=self._grace, least=self._least)
        room = self._rooms.setdefault(name, fresh)
        if not room.enter(guest):
            return
        try:
            while True:
                async with asyncio.timeout(self._silence):
                    message = session.open(*await _frame(reader, 2 * CARD_SIZE)) or {}
                card = message.get("card")
                if message.get("kind") == "beat":
                    send({"kind": "beat"})
                elif isinstance(card, str) and len(card) <= CARD_SIZE:
                    room.ask(guest, card)
                else:
                    return
        finally:
            room.go(guest)
            if not room.guests and self._rooms.get(name) is room:
                del self._rooms[name]

    def _refuse(self, reason: str, more: str) -> None:
        kind = reason if len(self.refused) < MOST else "others"
        if kind not in self.refused:
            self._tell(f"refused: {reason}{more}")
        self.refused[kind] += 1


async def _frame(reader: asyncio.StreamReader, most: int) -> tuple[bytes, bytes]:
    """The signature and the body of the next frame, unless it says that it is longer."""
    size, signature = HEAD.unpack(await reader.readexactly(HEAD.size))
    if size > most:
        raise ConnectionAbortedError("a frame over the bound")
    return signature, await reader.readexactly(size)


def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    if writer.transport.get_write_buffer_size() > UNREAD:
        writer.transport.abort()
    elif not writer.is_closing():
        writer.write(frame)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description="says which workers of a run are there")
    option = parser.add_argument
    option("--bind", default="127.0.0.1:29510", help="address to listen on")
    option("--heartbeat-timeout", type=float, default=5.0, help="seconds of silence: it is dead")
    option("--join-timeout", type=float, default=600.0, help="seconds to wait for slow workers")
    option("--grace", type=float, default=None, help="the same, once enough workers are ready")
    option("--min-workers", type=int, default=1, help="how many are enough")
    option("--workers", type=int, default=MOST, help="how many workers there are")
    option("--identity", default="", help="the run's, as JSON; by default each may have its own")
    for name in ("--tls-cert", "--tls-key", "--tls-ca"):
        option(name, type=Path, default=None, help="a file for mutual TLS; all three or none")
    option("--until-eof", action="store_true", help="leave when standard input ends")
    options = parser.parse_args(arguments)
    if options.until_eof:
        end_with_stdin(after=LINGER)
    identity = Identity.read(json.loads(options.identity)) if options.identity else Identity()
    if identity is None:
        parser.error("--identity is none; laconic launch gives it")
    try:
        lighthouse = Lighthouse(
            options.bind,
            Seal.by(os.environ.get(TOKEN_VARIABLE, ""), identity),
            silence=options.heartbeat_timeout,
            patience=options.join_timeout,
            grace=options.grace,
            least=options.min_workers,
            workers=options.workers,
            tell=_say,
            tls=TlsFiles(options.tls_cert, options.tls_key, options.tls_ca).load(),
        )
    except LaconicError as error:
        sys.exit(f"error: {error}")
    _say(f"lighthouse at {options.bind}")
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    lighthouse.shutdown()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
