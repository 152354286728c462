"""Links between workers: what is sent arrives in its place, whoever is no worker stays outside, and
a dead or silent peer interrupts at once."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from laconic.engines import greeting
from laconic.engines.address import split_address
from laconic.engines.base import Counts, Interrupted
from laconic.engines.door import ROOM
from laconic.engines.links import Links
from laconic.engines.stream import HEAD
from laconic.engines.tls import TlsFiles
from laconic.engines.wire import Seal

SEAL = Seal.of("secret", "run")
STRANGER = "a stranger at the links' port"
LARGE = 3_000_001


class Party:
    """Some workers' links in this process."""

    def __init__(self, count: int, **more: Any):
        self.counts = [Counts(0, 0, {}) for _ in range(count)]
        host = "127.0.0.1"
        waits: dict[str, Any] = {"silence": 1.0, "timeout": 5.0} | more
        self.links = [
            Links(SEAL, k, count, host, host, self.counts[k], **waits) for k in range(count)
        ]
        self.threads = ThreadPoolExecutor(count)

    def peers(self, k: int) -> dict[int, str]:
        return {j: one.address for j, one in enumerate(self.links) if j != k}

    def join(self, key: str, who=None) -> None:
        def one(k: int) -> None:
            self.links[k].begin(key, self.peers(k))
            self.links[k].ready()

        self.all(one, who)

    def all(self, work, who=None) -> list:
        """Everyone does it at the same time."""
        pending = [self.threads.submit(work, k) for k in who or range(len(self.links))]
        return [one.result(20) for one in pending]

    def gather(self, messages) -> list[dict[int, np.ndarray]]:
        def one(k: int):
            rooms = {j: np.zeros_like(messages[j]) for j in range(len(messages)) if j != k}
            into = {j: (room[:3], room[3:]) for j, room in rooms.items()}
            self.links[k].exchange(dict.fromkeys(rooms, (messages[k],)), into)
            return rooms | {k: messages[k]}

        return self.all(one)

    def close(self) -> None:
        for one in self.links:
            one.close()
        self.threads.shutdown()


@pytest.fixture
def party():
    made = []

    def make(*args, **more):
        made.append(Party(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("size", [0, 1, 5000, LARGE])
def test_everyone_gets_every_message(party, size):
    four = party(4)
    four.join("g")
    rng = np.random.default_rng(size)
    for _ in range(3):
        messages = [rng.integers(0, 256, size, np.uint8) for _ in range(4)]
        for found in four.gather(messages):
            for k in range(4):
                np.testing.assert_array_equal(found[k], messages[k])
    assert [one.refused for one in four.counts] == [{}] * 4


def test_bytes_are_those_of_the_sockets(party):
    two = party(2, silence=60.0)  # no sign of life in between
    two.join("g")
    before = [(one.sent, one.received) for one in two.counts]
    two.gather([np.ones(LARGE, np.uint8)] * 2)
    for (sent, received), after in zip(before, two.counts, strict=True):
        assert after.sent - sent == after.received - received == LARGE + HEAD.size


def test_a_link_that_breaks_interrupts_everyone_and_is_formed_anew(party):
    four = party(4)
    four.join("g")
    waiting = [k for k in (0, 1, 3)]

    def wait(k: int) -> str:
        rooms = {j: np.zeros(8, np.uint8) for j in range(4) if j != k}
        into = {j: (room,) for j, room in rooms.items()}
        with pytest.raises(Interrupted) as caught:
            four.links[k].exchange(dict.fromkeys(rooms, (np.ones(8, np.uint8),)), into)
        four.links[k].leave()
        return str(caught.value)

    pending = [four.threads.submit(wait, k) for k in waiting]
    four.links[2].leave()
    reasons = [one.result(10) for one in pending]
    assert any("worker 2" in reason for reason in reasons)
    assert [one.key for one in four.links] == [""] * 4
    assert [one.unreachable for one in four.links] == [()] * 4  # all of them could be reached
    four.join("h")
    assert [one.key for one in four.links] == ["h"] * 4
    assert len(four.gather([np.ones(8, np.uint8)] * 4)) == 4


def test_who_comes_late_is_waited_for_and_who_does_not_come_is_told(party):
    three = party(3, silence=0.5)
    three.links[2].begin("g", three.peers(2))  # before the others know of it
    three.join("g", who=[0, 1])
    three.links[2].ready()
    three.links[1].begin("h", three.peers(1))
    with pytest.raises(Interrupted, match=r"no link to worker 2 within 0\.5 s"):
        three.links[1].ready()
    assert three.links[1].unreachable == ()  # it does not call, but it is there
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for k, other in ((1, 2), (1, 0)):
            three.links[k].begin("i", {other: address})
            with pytest.raises(Interrupted, match=f"no link to worker {other} within"):
                three.links[k].ready()
    assert three.links[1].unreachable == (0, 2)


def test_one_who_is_gone_is_told_at_once_and_called_again_until_back(party, monkeypatch):
    monkeypatch.setattr("laconic.engines.links.RETRY", 0.01)
    two = party(2, silence=0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    two.links[1].begin("g", {0: address})
    with pytest.raises(Interrupted, match="worker 0 cannot be reached"):
        two.links[1].ready()
    assert two.links[1].unreachable == (0,)
    two.links[1].forget({0: "127.0.0.1:1"})  # it is elsewhere now
    assert two.links[1].unreachable == ()
    two.links[1].begin("g", {0: address})
    with pytest.raises(Interrupted):
        two.links[1].ready()
    two.links[1]._unreachable[0] = two.links[0].address  # as if a cut had ended
    wait_for(lambda: two.links[1].unreachable == ())


def test_one_who_was_to_call_and_has_ended_is_not_waited_for(party):
    """A worker that dies between the quorum and its call to one with a lower id."""
    two = party(2, silence=60.0)
    peers = two.peers(0)
    two.links[1].close()
    two.links[0].begin("g", peers)
    with pytest.raises(Interrupted, match="worker 1 cannot be reached"):
        two.links[0].ready()
    assert two.links[0].unreachable == (1,)


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


def greeted(party_of_two: Party, key: str) -> socket.socket:
    """A worker 1 by hand, linked to worker 0 for this group, that says nothing by itself."""
    peer = socket.create_connection(split_address(party_of_two.links[0].address), 5.0)
    deadline = time.monotonic() + 5.0
    assert greeting.call(peer, SEAL, 1, 0, greeting.name_of(key), deadline)
    return peer


def test_a_silent_peer_is_given_up_and_a_slow_one_is_not(party):
    two = party(2, silence=0.4)
    with greeted(two, "g") as peer:
        two.links[0].begin("g", {1: two.links[1].address})
        two.links[0].ready()
        room = np.zeros(4, np.uint8)
        pending = two.threads.submit(two.links[0].exchange, {}, {1: (room,)})
        head = HEAD.pack(1, 4)
        for byte in head + b"abcd":  # one byte at a time, for longer than the silence
            peer.sendall(bytes([byte]))
            threading.Event().wait(0.03)
        pending.result(5)
        assert room.tobytes() == b"abcd"
        for _ in range(5):
            peer.sendall(HEAD.pack(0, 0))
            threading.Event().wait(0.15)
        assert two.links[0].key == "g"
        start = time.monotonic()
        with pytest.raises(Interrupted, match=r"worker 1 was silent for 0\.4 s"):
            two.links[0].exchange({}, {1: (room,)})
        assert time.monotonic() - start < 2.0
    assert two.links[0].unreachable == (1,)


def test_one_that_lives_and_sends_nothing_is_given_up_after_the_timeout(party):
    two = party(2, silence=0.4, timeout=0.8)
    two.join("g")
    with pytest.raises(Interrupted, match=r"worker 1 sent nothing new for 0\.8 s"):
        two.links[0].exchange({}, {1: (np.zeros(4, np.uint8),)})
    assert two.links[0].unreachable == ()


@pytest.mark.parametrize(
    "said",
    [HEAD.pack(1, 5), HEAD.pack(2, 4), HEAD.pack(1, 1 << 60), b"\xff" * HEAD.size, HEAD.pack(0, 9)],
    ids=["longer", "another", "huge", "noise", "beat with a size"],
)
def test_sizes_from_the_wire_are_not_believed(party, said):
    two = party(2)
    with greeted(two, "g") as peer:
        two.links[0].begin("g", {1: ""})
        two.links[0].ready()
        peer.sendall(said)
        with pytest.raises(Interrupted, match="worker 1: it sent message"):
            two.links[0].exchange({}, {1: (np.zeros(4, np.uint8),)})


def test_messages_that_come_early_stay_where_they_are_until_they_are_due(party):
    two = party(2, silence=0.3)
    two.join("g")
    numbers = [np.full(100_000, k, np.uint8) for k in range(4)]
    for one in numbers[:2]:
        two.links[1].exchange({0: (one,)}, {})
    threading.Event().wait(0.6)  # longer than the silence: nobody waits for it
    room = np.zeros(100_000, np.uint8)
    for one in numbers[:2]:
        two.links[0].exchange({}, {1: (room,)})
        np.testing.assert_array_equal(room, one)


# --- strangers ------------------------------------------------------------------------------------


def test_strangers_get_nothing_and_are_counted(party):
    two = party(2)
    where = split_address(two.links[0].address)
    hello = greeting.HELLO.pack(greeting.MAGIC, 1, 1, 0, bytes(32), bytes(32), bytes(32))
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000), hello):
        with socket.create_connection(where, 5.0) as peer:
            peer.sendall(noise)
            with contextlib.suppress(OSError):  # the other end may have hung up first
                peer.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
    wait_for(lambda: two.counts[0].refused == {STRANGER: 4})
    assert two.counts[0].sent == 0


@pytest.mark.parametrize(
    ("seal", "worker", "other"),
    [
        (Seal.of("guess", "run"), 1, 0),
        (Seal.of("secret", "another"), 1, 0),
        (SEAL, 1, 3),
    ],
    ids=["token", "run", "meant for another"],
)
def test_another_token_run_or_recipient_is_refused(party, seal, worker, other):
    two = party(2)
    with (
        socket.create_connection(split_address(two.links[0].address), 5.0) as peer,
        pytest.raises(OSError, match=r"closed early|reset"),
    ):
        greeting.call(peer, seal, worker, other, bytes(32), time.monotonic() + 5)
    wait_for(lambda: two.counts[0].refused == {STRANGER: 1})


def test_a_greeting_cannot_be_replayed(party):
    """Someone hears a whole greeting and says it again, word for word."""
    two, heard = party(2), []

    class Ear(socket.socket):
        def sendall(self, words, *rest):
            heard.append(bytes(words))
            return super().sendall(words, *rest)

    name = greeting.name_of("g")
    with Ear() as peer:
        peer.connect(split_address(two.links[0].address))
        assert greeting.call(peer, SEAL, 1, 0, name, time.monotonic() + 5)
    assert len(heard) == 2
    with socket.create_connection(split_address(two.links[0].address), 5.0) as peer:
        for words in heard:
            peer.sendall(words)
        peer.settimeout(5.0)
        assert len(greeting.receive(peer, greeting.ANSWER.size, time.monotonic() + 5)) == 64
        assert peer.recv(1) == b""
    wait_for(lambda: two.counts[0].refused == {STRANGER: 1})


def test_an_impostor_is_not_linked(party):
    two = party(2)
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def pretend() -> None:
            peer, _ = impostor.accept()
            with peer:
                greeting.receive(peer, greeting.HELLO.size, time.monotonic() + 5)
                peer.sendall(bytes(greeting.ANSWER.size))

        pending = two.threads.submit(pretend)
        two.links[1].begin("g", {0: f"127.0.0.1:{impostor.getsockname()[1]}"})
        with pytest.raises(Interrupted, match="another token"):
            two.links[1].ready()
        pending.result(5)


def test_many_idle_strangers_take_a_bounded_number_of_descriptors(party):
    two = party(2, silence=20.0)
    where = split_address(two.links[0].address)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(where, 5.0)) for _ in range(5 * ROOM)]
        two.join("g")  # workers come through
        wait_for(lambda: two.counts[0].refused.get(STRANGER, 0) >= 4 * ROOM)
        assert len(two.links[0]._door._inside) <= ROOM
        gone = 0
        for peer in crowd:
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                gone += peer.recv(1) == b""
        assert gone >= 4 * ROOM
    assert len(two.gather([np.ones(8, np.uint8)] * 2)) == 2


def test_no_descriptor_left_is_waited_out(party, monkeypatch):
    """`accept` fails for a while; it neither ends the worker nor is called without pause."""
    two = party(2)
    door, calls = two.links[0]._door, []
    accept = type(door._listener).accept

    class Full:
        def __init__(self, listener):
            self._listener = listener

        def __getattr__(self, name):
            return getattr(self._listener, name)

        def accept(self):
            calls.append(time.monotonic())
            if len(calls) < 4:
                raise OSError(24, "Too many open files")
            return accept(self._listener)

    door._listener = Full(door._listener)
    with socket.create_connection(split_address(two.links[0].address), 5.0):  # ends the old accept
        pass
    two.join("g")
    assert len(calls) >= 4
    assert calls[3] - calls[0] >= 0.25


# --- TLS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, LARGE])
def test_links_work_in_tls(party, files, size):
    three = party(3, tls=files("worker").load())
    three.join("g")
    rng = np.random.default_rng(size)
    for _ in range(3):
        messages = [rng.integers(0, 256, size, np.uint8) for _ in range(3)]
        for found in three.gather(messages):
            for k in range(3):
                np.testing.assert_array_equal(found[k], messages[k])


def test_without_a_certificate_of_ours_nobody_is_linked(party, files):
    two = party(2, tls=files("worker").load(), silence=0.5)
    for tls in (None, files("other").load()):
        stranger = Links(
            SEAL, 1, 2, "127.0.0.1", "127.0.0.1", Counts(0, 0, {}), silence=0.5, tls=tls
        )
        stranger.begin("g", {0: two.links[0].address})
        with pytest.raises(Interrupted):
            stranger.ready()
        stranger.close()
    wait_for(lambda: two.counts[0].refused.get(STRANGER, 0) >= 2)
    two.links[0].begin("g", two.peers(0))
    with pytest.raises(Interrupted, match="no link to worker 1"):
        two.links[0].ready()


def test_tls_files_that_do_not_fit_are_told(files, raises_clearly, tmp_path):
    good = files("worker")
    assert TlsFiles().load() is None
    with raises_clearly("--tls-cert, --tls-key and --tls-ca"):
        TlsFiles(tls_cert=good.tls_cert).load()
    for wrong in (tmp_path / "nowhere", files("other").tls_key):
        with raises_clearly("cannot be used", "PEM"):
            TlsFiles(good.tls_cert, wrong, good.tls_ca).load()
