"""State from peer to peer: only the token opens the door, and only the state asked for comes
through."""

import contextlib
import resource
import socket
import threading
import time

import numpy as np
import pytest

from laconic.engines import transfer
from laconic.engines.address import split_address
from laconic.engines.base import Counts, Interrupted
from laconic.engines.transfer import ANSWER, GREETING, REQUEST, StateServer, answers, fetch_state
from laconic.engines.wire import Seal
from tests.engines.processes import wait_until

SEAL = Seal.of("secret", "run")
DIGEST = bytes(range(32))
STATE = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)
REASON = "a stranger at the state port"


@pytest.fixture
def server():
    counts = Counts(0, 0, {})
    snapshot = lambda round, digest: STATE if (round, digest) == (7, DIGEST) else None
    made = StateServer(SEAL, "127.0.0.1", snapshot, 5.0, counts)
    yield f"127.0.0.1:{made.port}", counts
    made.close()


def fetch(address, seal=SEAL, now=7, timeout=5.0, counts=None, most=STATE.nbytes):
    return fetch_state(seal, address, now, DIGEST, timeout, counts or Counts(0, 0, {}), most)


def dial(address):
    return socket.create_connection(split_address(address), 5.0)


def test_the_state_arrives_whole_and_is_counted(server):
    address, sent = server
    received = Counts(0, 0, {})
    assert fetch(address, counts=received) == STATE.tobytes()
    assert received.received == STATE.nbytes + ANSWER.size == 3_000_041
    fetch(address, counts=received)
    assert sent.sent >= 3_000_041
    assert sent.refused == {}


def test_a_state_that_is_gone_is_said_so(server):
    with pytest.raises(Interrupted, match="did not give"):
        fetch(server[0], now=8)


def test_who_lives_answers(server):
    address, counts = server
    assert answers(SEAL, address, 5.0)
    assert counts.refused == {}
    assert not answers(Seal.of("guess", "run"), address, 5.0)


def test_who_is_gone_stopped_or_someone_else_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert not answers(SEAL, address, 0.05)  # the kernel takes the call, nobody the question
    assert not answers(SEAL, address, 5.0)


def test_a_stranger_gets_nothing_and_is_counted(server):
    address, counts = server
    with pytest.raises(Interrupted, match="failed"):
        fetch(address, Seal.of("guess", "run"))
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(REQUEST.size)):
        with dial(address) as peer:
            peer.sendall(noise)
            peer.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1000)[:4] == b"LACS"
                assert peer.recv(1) == b""
    wait_until(lambda: counts.refused == {REASON: 4}, "all four to be counted")
    assert counts.sent == 0
    assert fetch(address) == STATE.tobytes()


def test_a_request_that_is_played_back_gets_nothing(server):
    """Each connection is greeted with another nonce, which the request signs."""
    address, counts = server
    said, heard = bytearray(), bytearray()
    with dial(address) as peer:
        heard += peer.recv(GREETING.size)
        head = REQUEST.pack(bytes(32), 7, DIGEST, bytes(32))[:-32]
        said += head + SEAL.sign(b"state request", bytes(heard), head)
        peer.sendall(said)
        with contextlib.closing(peer.makefile("rb")) as stream:
            assert len(stream.read()) == ANSWER.size + STATE.nbytes
    wait_until(lambda: counts.sent, "the answer to the first")
    before = counts.sent
    with dial(address) as peer:
        peer.sendall(said)
        assert len(peer.recv(GREETING.size)) == GREETING.size
        assert peer.recv(1) == b""
    wait_until(lambda: counts.refused == {REASON: 1}, "the second to be counted")
    assert counts.sent == before


class Impostor:
    """Listens where a peer should, and answers a request as it is told."""

    def __init__(self, answer):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        peer, _ = self._server.accept()
        with peer, contextlib.suppress(OSError):
            greeting = GREETING.pack(b"LACS", bytes(32))
            peer.sendall(greeting)
            self._answer(peer, greeting + peer.recv(REQUEST.size))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._server.close()
        self._thread.join(20.0)


@pytest.mark.parametrize("body", [b"fake", b"real"])
def test_an_impostor_is_not_believed(body):
    """One who answers without the token, or plays back an old answer: it signs another request."""

    def answer(peer, asked):
        old = SEAL.sign(b"state answer", bytes(len(asked)), body)
        peer.sendall(ANSWER.pack(len(body), old if body == b"real" else bytes(32)) + body)

    with Impostor(answer) as impostor, pytest.raises(Interrupted, match="did not give"):
        fetch(impostor.address)


def test_a_size_over_the_agreed_one_is_not_believed():
    """Not even of a peer with the token: nothing is buffered."""
    answer = lambda peer, asked: peer.sendall(ANSWER.pack(10**15, bytes(32)))
    said = pytest.raises(Interrupted, match="would send 1000000000000000 bytes where at most")
    with Impostor(answer) as impostor, said:
        fetch(impostor.address)


def test_an_answer_that_trickles_has_one_deadline(monkeypatch):
    """Each byte in time does not make the whole in time."""
    monkeypatch.setattr(transfer, "SLOWEST", 1 << 40)

    def answer(peer, asked):
        peer.sendall(ANSWER.pack(STATE.nbytes, bytes(32)))
        while peer.send(b"x"):
            threading.Event().wait(0.01)

    began = time.monotonic()
    with Impostor(answer) as impostor, pytest.raises(Interrupted, match=r"took too long|timed out"):
        fetch(impostor.address, timeout=0.3)
    assert time.monotonic() - began < 5.0


def test_idle_connections_neither_exhaust_descriptors_nor_keep_a_peer_out(server):
    """A thousand of them aborted a worker."""
    address, _ = server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    idle = []
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                idle.append(dial(address))
        assert fetch(address) == STATE.tobytes()
    finally:
        for peer in idle:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nobody_there_is_an_interruption():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(Interrupted, match="failed"):
        fetch(address, timeout=1.0)
