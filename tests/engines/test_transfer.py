"""State from peer to peer: only the token opens the door, and only the state asked for comes
through."""

import socket

import numpy as np
import pytest

from laconic.engines.address import split_address
from laconic.engines.base import Counts, Interrupted
from laconic.engines.transfer import ANSWER, REQUEST, StateServer, answers, fetch_state
from laconic.engines.wire import Seal

SEAL = Seal.of("secret", "run")
DIGEST = bytes(range(32))
STATE = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)


@pytest.fixture
def server():
    counts = Counts(0, 0, {})
    snapshot = lambda round, digest: STATE if (round, digest) == (7, DIGEST) else None
    made = StateServer(SEAL, "127.0.0.1", snapshot, 5.0, counts)
    yield f"127.0.0.1:{made.port}", counts
    made.close()


def test_the_state_arrives_whole_and_is_counted(server):
    address, sent = server
    received = Counts(0, 0, {})
    assert fetch_state(SEAL, address, 7, DIGEST, 5.0, received) == STATE.tobytes()
    assert received.received == STATE.nbytes + ANSWER.size == 3_000_041
    fetch_state(SEAL, address, 7, DIGEST, 5.0, received)
    assert sent.sent >= 3_000_041
    assert sent.refused == {}


def test_a_state_that_is_gone_is_said_so(server):
    with pytest.raises(Interrupted, match="did not give"):
        fetch_state(SEAL, server[0], 8, DIGEST, 5.0, Counts(0, 0, {}))


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
        fetch_state(Seal.of("guess", "run"), address, 7, DIGEST, 5.0, Counts(0, 0, {}))
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(REQUEST.size)):
        with socket.create_connection(split_address(address), 5.0) as peer:
            peer.sendall(noise)
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(1) == b""
    assert counts.refused == {
        "a stranger at the state port": 2
    }  # the others never finished a request
    assert counts.sent == 0
    assert fetch_state(SEAL, address, 7, DIGEST, 5.0, Counts(0, 0, {})) == STATE.tobytes()


def test_an_impostor_is_not_believed():
    """One who answers without the token, or replays an old answer: the nonce is signed along."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = f"127.0.0.1:{impostor.getsockname()[1]}"
        for body, signature in ((b"fake", bytes(32)), (b"real", SEAL.sign(bytes(16), b"real"))):
            import threading

            def answer(body=body, signature=signature):
                peer, _ = impostor.accept()
                with peer:
                    peer.recv(200)
                    peer.sendall(ANSWER.pack(len(body), signature) + body)

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(Interrupted, match="did not give"):
                fetch_state(SEAL, address, 7, DIGEST, 5.0, Counts(0, 0, {}))
            thread.join()


def test_nobody_there_is_an_interruption():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(Interrupted, match="failed"):
        fetch_state(SEAL, address, 7, DIGEST, 1.0, Counts(0, 0, {}))
