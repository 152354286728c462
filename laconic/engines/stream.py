"""One link's bytes: messages of agreed sizes in both directions, and signs of life between them.

A message is preceded by a head of 16 bytes: its number and its size, which must be the ones that
the receiver expects. So nothing on the wire decides how much is read, or where to. A head with the
number 0 is a sign of life. Nothing here blocks; `Links` calls `read` and `write` when the socket is
ready.
"""

import contextlib
import selectors
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from laconic.engines.base import Counts, Frame

HEAD = struct.Struct("<QQ")  # number size
BEAT = HEAD.pack(0, 0)
AT_ONCE = 1 << 22  # bytes that one link may move before the others have their turn
SMALL = 1 << 14  # up to this size a head and its message leave in one piece
WAIT = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Broken(OSError):
    """The other end closed the link, or said what it must not say."""


class Stream:
    """One worker's end of the link to the worker `peer`."""

    def __init__(self, peer: int, connected: socket.socket, counts: Counts):
        connected.setblocking(False)
        self.peer = peer
        self.socket = connected
        self.heard = self.spoke = self.moved = time.monotonic()
        self.met = False  # whether anything has come
        self.watched = 0  # the events that a selector waits for
        self.ahead = False  # it has sent more than was asked for so far; left unread
        self._counts = counts
        self._out: deque[memoryview] = deque()
        self._head, self._heads = bytearray(HEAD.size), 0  # the head now coming, how much is there
        self._into: list[memoryview] | None = None  # what of the message is still to be filled
        self._due = self._got = 0  # bytes of the message, and how many are there
        self._sent_number = self._read_number = 0

    @property
    def sending(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._out)

    @property
    def receiving(self) -> bool:
        """Whether a message is still to come."""
        return self._into is not None

    @property
    def events(self) -> int:
        """What to wait for."""
        reads = 0 if self.ahead else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self._out else 0)

    def post(self, parts: Sequence[Frame] | None, into: Sequence[np.ndarray] | None) -> None:
        """Send the parts as one message, and let the next one fill these arrays."""
        now = time.monotonic()
        if parts is not None:
            views = [view for view in map(_bytes_of, parts) if view.nbytes]
            self._sent_number += 1
            size = sum(view.nbytes for view in views)
            head = HEAD.pack(self._sent_number, size)
            if size <= SMALL:
                self._out.append(memoryview(b"".join([head, *views])))
            else:
                self._out.extend([memoryview(head), *views])
        if into is not None:
            self._into = [view for view in map(_bytes_of, into) if view.nbytes]
            self._due, self._got = sum(view.nbytes for view in self._into), 0
            self._read_number += 1
            self.ahead = False
        self.heard = self.moved = now

    def beat(self, every: float) -> None:
        """Give a sign of life if there has been none for so long."""
        now = time.monotonic()
        if self._out or now - self.spoke < every:
            return
        with contextlib.suppress(*WAIT):
            sent = self.socket.send(BEAT)
            self._counts.sent += sent
            self.spoke = now
            if sent < len(BEAT):
                self._out.append(memoryview(BEAT)[sent:])

    def write(self) -> bool:
        """Send what the socket takes now → whether there is more that it would take."""
        room = AT_ONCE
        while self._out and room > 0:
            try:
                sent = self.socket.send(self._out[0][:room])
            except WAIT:
                return False
            self._counts.sent += sent
            room -= sent
            self.spoke = self.moved = time.monotonic()
            if sent == self._out[0].nbytes:
                self._out.popleft()
            else:
                self._out[0] = self._out[0][sent:]
        return bool(self._out)

    def read(self) -> bool:
        """Take what is there → whether there may be more."""
        room = AT_ONCE
        if self._into is not None and self._heads == HEAD.size and not self._got:
            self._check(*HEAD.unpack(self._head))  # it came before it was due
            self._end()
        while room > 0 and not self.ahead:
            whole = self._heads == HEAD.size
            target = self._into[0][:room] if whole and self._into else None
            try:
                count = self.socket.recv_into(target or memoryview(self._head)[self._heads :])
            except WAIT:
                return False
            if count == 0:
                raise Broken("it closed the link")
            self._counts.received += count
            self.heard, self.met = time.monotonic(), True
            room -= count
            if target is not None:
                self.moved = self.heard
                self._fill(count)
            else:
                self._heads += count
                if self._heads == HEAD.size:
                    self._begin()
            self._end()
        return not self.ahead

    def _fill(self, count: int) -> None:
        assert self._into
        self._got += count
        self._into[0] = self._into[0][count:]
        if not self._into[0].nbytes:
            self._into.pop(0)

    def _begin(self) -> None:
        """A head is there."""
        number, size = HEAD.unpack(self._head)
        if number == 0 and size == 0:
            self._heads = 0
            return
        if self._into is None and number == self._read_number + 1:
            self.ahead = True  # its size is looked at once it is due
            return
        self._check(number, size)

    def _check(self, number: int, size: int) -> None:
        wanted = 0 if self._into is None else self._due
        if self._into is None or (number, size) != (self._read_number, wanted):
            raise Broken(
                f"it sent message {number} of {size} bytes where message {self._read_number} of "
                f"{wanted} was due"
            )

    def _end(self) -> None:
        """If the message is complete, the next bytes are a head."""
        if self._heads == HEAD.size and self._into is not None and self._got == self._due:
            self._into, self._heads = None, 0

    def close(self) -> None:
        """Let go."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.socket.close()


def _bytes_of(part: Any) -> memoryview:
    return memoryview(part).cast("B")
