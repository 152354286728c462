"""The links between the workers of a group: one TCP connection for every pair, and the thread that
moves their bytes.

Every worker listens on one port, which its card names. For a new group the worker with the higher
id calls the one with the lower; both prove that they hold the token (`greeting`), for this group
and no other. The first link that breaks breaks the group: everyone lets go of all links, and the
next quorum forms another group. So no message is ever continued after a failure.

Sizes are agreed beforehand. Bytes go from the arrays they are in straight into the arrays they are
meant for. Between messages links carry signs of life. A peer that computes, or whose packets get
lost, still gives some; one that is silent for `silence` seconds is given up.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.engines import greeting
from laconic.engines.address import split_address
from laconic.engines.base import Counts, Frame, Interrupted
from laconic.engines.door import Door, Visitor
from laconic.engines.stream import Stream
from laconic.engines.tls import Tls, shake_hands, wrapped
from laconic.engines.wire import Seal
from laconic.errors import LaconicError

BEATS = 10  # signs of life in the time after which a worker counts as silent
RETRY = 1.0  # seconds between calls to one that could not be reached
LOOK = 0.5  # seconds to wait for a call before we ask whether the caller is there at all
PAUSE = 0.02  # seconds before a call is repeated that was cut off


@dataclass
class _Group:
    """The links to `peers`, given with their addresses, complete or still being made; `fault` says
    what broke."""

    key: str
    peers: dict[int, str]
    links: dict[int, Stream] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)  # without a link: who answered nevertheless
    fault: str = ""

    @property
    def complete(self) -> bool:
        return not self.fault and len(self.links) == len(self.peers)


class Links:
    """One worker's links to the others."""

    def __init__(
        self,
        seal: Seal,
        worker: int,
        slots: int,
        bind: str,
        host: str,
        counts: Counts,
        *,
        silence: float = 5.0,
        timeout: float = 30.0,
        tls: Tls | None = None,
    ):
        """Worker `worker` of `slots` listens at `bind` (any port), reached by others at `host`.

        silence: seconds without a byte after which a peer is given up, or a link not made
        timeout: seconds in which peers give signs of life but none of the bytes that are due
        """
        self._seal, self._worker, self._slots = seal, worker, slots
        self._counts, self._tls = counts, tls
        self._silence, self._timeout = silence, timeout
        self._group = _Group("", {}, fault="there is no group yet")
        self._early: dict[int, tuple[bytes, socket.socket]] = {}  # who called before we knew why
        self._unreachable: dict[int, str] = {}  # with the address to try again
        self._calling: set[int] = set()  # of those, now
        self._changed = threading.Condition(threading.RLock())
        self._busy: set[Stream] = set()  # with bytes that an exchange waits for
        self._eager: set[Stream] = set()  # to be read without waiting for the socket
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._ear.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ)  # no data: nobody's link
        self._closed = False
        self._door = Door(bind, "the links' port", self._meet, counts, tls)
        self.address = self._door.address(host)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="laconic-links")
        self._thread.start()

    @property
    def key(self) -> str:
        """The group whose links are all there, "" for none."""
        group = self._group
        return group.key if group.complete else ""

    @property
    def unreachable(self) -> tuple[int, ...]:
        """Workers that could not be linked or fell silent, and have not been reached since."""
        with self._changed:
            return tuple(sorted(self._unreachable))

    def forget(self, addresses: Mapping[int, str]) -> None:
        """Call no more those unreachable workers that are not at one of these addresses."""
        with self._changed:
            kept = {w: a for w, a in self._unreachable.items() if addresses.get(w) == a}
            self._unreachable = kept

    # --- groups -----------------------------------------------------------------------------------

    def begin(self, key: str, peers: Mapping[int, str]) -> None:
        """Begin to link all peers, given by id and address, as the group `key`."""
        name = greeting.name_of(key)
        with self._changed:
            self._break(self._group, "another group is formed")
            group = self._group = _Group(key, dict(peers))
            for peer in [p for p, (wanted, _) in self._early.items() if wanted == name]:
                self._add(group, peer, self._early.pop(peer)[1])
        for peer in sorted(peer for peer in peers if peer < self._worker):
            call = (group, peer, time.monotonic() + self._silence)
            threading.Thread(target=self._call, args=call, daemon=True).start()

    def ready(self) -> None:
        """Wait until all peers are linked; raises `Interrupted`."""
        group = self._group
        with self._changed:
            first = min(LOOK, self._silence / 2)
            missing = self._wait(group, first)
            # One that does not call may wait for us no more, or be gone; we can ask.
            for peer in missing:
                threading.Thread(target=self._look_for, args=(group, peer), daemon=True).start()
            missing = self._wait(group, self._silence - first)
            if missing and not group.fault:
                silent = missing - group.heard
                self._unreachable |= {peer: group.peers[peer] for peer in silent}
                self._break(group, f"no link to {_named(missing)} within {self._silence:g} s")
            if group.fault:
                raise Interrupted(f"linking {_named(group.peers)} failed: {group.fault}.")

    def _wait(self, group: _Group, seconds: float) -> set[int]:
        """Wait until all links are there, one broke or the time is over → who is missing."""
        deadline = time.monotonic() + seconds
        while not group.complete and not group.fault and time.monotonic() < deadline:
            self._changed.wait(deadline - time.monotonic())
        return group.peers.keys() - group.links.keys()

    def _look_for(self, group: _Group, peer: int) -> None:
        deadline = time.monotonic() + self._silence / 2
        try:
            self._reach(peer, group.peers[peer], greeting.NO_GROUP, deadline).close()
        except ConnectionRefusedError as error:  # nobody listens there: it has ended
            self._give_up(group, peer, error)
        except (OSError, LaconicError):
            return
        else:
            with self._changed:
                group.heard.add(peer)

    def _give_up(self, group: _Group, peer: int, error: Exception) -> None:
        """Break the group, since this peer cannot be linked."""
        with self._changed:
            if group is self._group and not group.fault:
                self._unreachable[peer] = group.peers[peer]
            self._break(group, f"worker {peer} cannot be reached: {_reason(error)}")

    def leave(self) -> None:
        """Let go of all links, which interrupts all who still wait at their other ends."""
        with self._changed:
            self._break(self._group, "this worker let go of its links")

    def _call(self, group: _Group, peer: int, deadline: float) -> None:
        """Link one peer, on a thread of its own."""
        name, address = greeting.name_of(group.key), group.peers[peer]
        while not group.fault and time.monotonic() < deadline:
            try:
                one = self._reach(peer, address, name, deadline)
            except TimeoutError:
                return  # `ready` sees the time itself
            except ConnectionResetError:  # strangers keep it busy
                time.sleep(PAUSE)
                continue
            except (OSError, LaconicError) as error:
                self._give_up(group, peer, error)
                return
            with self._changed:
                self._add(group, peer, one)
            return

    def _reach(self, peer: int, address: str, name: bytes, deadline: float) -> socket.socket:
        """A connection to a peer that proved that it holds the token, or an `OSError`."""
        left = max(deadline - time.monotonic(), 0.001)
        one = socket.create_connection(split_address(address), left)
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one = wrapped(self._tls, one, listens=False)
            shake_hands(one)
            if not greeting.call(one, self._seal, self._worker, peer, name, deadline):
                raise ConnectionRefusedError("whoever answers there has another token")
        except BaseException:
            one.close()
            raise
        return one

    def _meet(self, visitor: Visitor) -> None:
        """Hear one who calls, on a thread of its own."""
        caller = greeting.hear(visitor.socket, self._seal, self._worker, visitor.deadline)
        if caller is None:
            return
        if not greeting.answer(visitor.socket, self._seal, caller, visitor.deadline):
            return
        visitor.prove()
        with self._changed:
            self._unreachable.pop(caller.worker, None)
            group = self._group
            fits = self._worker < caller.worker < self._slots and not self._closed
            if not fits or caller.group == greeting.NO_GROUP:
                visitor.socket.close()
            elif caller.group == greeting.name_of(group.key) and not group.fault:
                self._add(group, caller.worker, visitor.socket)
            else:
                self._forget_early(caller.worker)
                self._early[caller.worker] = caller.group, visitor.socket

    def _forget_early(self, worker: int) -> None:
        if worker in self._early:
            self._early.pop(worker)[1].close()

    def _add(self, group: _Group, peer: int, connected: socket.socket) -> None:
        """A link is made, unless the group was given up meanwhile."""
        known = peer in group.peers and peer not in group.links
        if group is not self._group or group.fault or not known:
            connected.close()
            return
        link = group.links[peer] = Stream(peer, connected, self._counts)
        self._unreachable.pop(peer, None)
        self._watch(link)
        for one in group.links.values():
            one.heard = time.monotonic()  # silence counts from the last link on
        self._changed.notify_all()

    def _break(self, group: _Group, fault: str) -> None:
        group.fault = group.fault or fault
        for link in group.links.values():
            self._busy.discard(link)
            self._eager.discard(link)
            if link.watched:
                self._selector.unregister(link.socket)
            link.close()
        group.links.clear()
        self._changed.notify_all()

    # --- messages ---------------------------------------------------------------------------------

    def exchange(
        self, sends: Mapping[int, Sequence[Frame]], into: Mapping[int, Sequence[np.ndarray]]
    ) -> None:
        """Send each peer its message, whose parts follow one another, and fill the arrays with the
        messages of these peers; raises `Interrupted`.

        All must agree beforehand on who sends how many bytes to whom.
        """
        with self._changed:
            group = self._group
            if group.complete:
                for peer in sends.keys() | into.keys():
                    group.links[peer].post(sends.get(peer), into.get(peer))
                    self._busy.add(group.links[peer])
            for link in tuple(self._busy):
                self._move(link, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while self._busy and self._thread.is_alive():
                self._changed.wait(self._silence)
            if self._busy or not group.complete:
                fault = group.fault or "the links are not all there"
                raise Interrupted(f"a message between workers failed: {fault}.")

    def _serve(self) -> None:
        every = self._silence / BEATS
        due = time.monotonic() + every
        while True:
            wait = 0.0 if self._eager else max(0.0, due - time.monotonic())
            ready = self._selector.select(wait)
            with self._changed:
                if self._closed:
                    return
                for key, events in ready:
                    if key.data is None:
                        self._ear.recv(4096)
                    else:
                        self._move(key.data, events)
                for link in tuple(self._eager):
                    self._move(link, selectors.EVENT_READ)
                if time.monotonic() >= due:
                    self._look_around(every)
                    due = time.monotonic() + every

    def _move(self, link: Stream, events: int) -> None:
        """Move one link's bytes as far as they go without waiting."""
        group = self._group
        if group.links.get(link.peer) is not link:
            return  # of a group that was given up meanwhile
        more = False
        try:
            if events & selectors.EVENT_WRITE:
                link.write()
            if events & selectors.EVENT_READ:
                more = link.read()
        except OSError as error:
            self._break(group, f"worker {link.peer}: {_reason(error)}")
            return
        if more and link not in self._eager:
            self._eager.add(link)
            self._ring()
        elif not more:
            self._eager.discard(link)
        if not link.sending and not link.receiving and link in self._busy:
            self._busy.discard(link)
            if not self._busy:
                self._changed.notify_all()
        self._watch(link)

    def _watch(self, link: Stream) -> None:
        """Let the selector wait for what the link waits for."""
        if link.events == link.watched:
            return
        if link.watched:
            self._selector.unregister(link.socket)
        if link.events:
            self._selector.register(link.socket, link.events, link)
        link.watched = link.events

    def _look_around(self, every: float) -> None:
        """Give signs of life, and give up those who have given none."""
        group, now = self._group, time.monotonic()
        for peer, link in tuple(group.links.items()):
            try:
                link.beat(every)
            except OSError as error:
                self._break(group, f"worker {peer}: {_reason(error)}")
                break
            silent = group.complete and not link.ahead and now - link.heard > self._silence
            if silent:
                if link.met:  # otherwise it may not have come as far as this group
                    self._unreachable[peer] = group.peers[peer]
                self._break(group, f"worker {peer} was silent for {self._silence:g} s")
                break
        stuck = [link.peer for link in self._busy if now - link.moved > self._timeout]
        if stuck and len(stuck) == len(self._busy):
            self._break(group, f"{_named(stuck)} sent nothing new for {self._timeout:g} s")
        for peer in self._unreachable.keys() - self._calling:
            self._calling.add(peer)
            call = (peer, self._unreachable[peer])
            threading.Thread(target=self._try_again, args=call, daemon=True).start()

    def _try_again(self, peer: int, address: str) -> None:
        """Whether one that was unreachable can be reached again, on a thread of its own."""
        with contextlib.suppress(OSError, LaconicError):
            deadline = time.monotonic() + self._silence
            self._reach(peer, address, greeting.NO_GROUP, deadline).close()
            with self._changed:
                if self._unreachable.get(peer) == address:
                    del self._unreachable[peer]
        time.sleep(RETRY)
        with self._changed:
            self._calling.discard(peer)

    def _ring(self) -> None:
        """Wake the thread that moves bytes."""
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def close(self) -> None:
        """Leave, and listen no more."""
        self._door.close()
        with self._changed:
            self._closed = True
            self._break(self._group, "this worker leaves")
            for worker in tuple(self._early):
                self._forget_early(worker)
            self._ring()
        self._thread.join()
        self._selector.close()
        self._bell.close()
        self._ear.close()


def _named(workers: Iterable[int]) -> str:
    ids = sorted(workers)
    return f"worker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")
