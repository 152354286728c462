"""Mutual TLS at the Lighthouse and at the state port; see `test_links` for the links."""

import contextlib
import os
import socket
import ssl

import pytest

from laconic.engines import lighthouse as module
from laconic.engines import meeting
from laconic.engines.address import split_address
from laconic.engines.base import Counts, Interrupted
from laconic.engines.lighthouse import Lighthouse
from laconic.engines.meeting import Caller, LighthouseLink
from laconic.engines.tls import Tls
from laconic.engines.transfer import StateServer, answers, fetch_state
from laconic.engines.wire import Seal

SEAL = Seal.of("secret", "run")
DIGEST, STATE = bytes(range(32)), bytes(1_000_003)


@pytest.fixture
def stranger(files):
    """A call in TLS with the certificate of another authority, which believes ours."""
    good, bad = files("worker"), files("other")
    return Tls.of(bad.tls_cert, bad.tls_key, good.tls_ca)


def test_a_state_travels_in_tls_and_only_to_who_has_a_certificate(files, stranger):
    tls, counts = files("worker").load(), Counts(0, 0, {})
    server = StateServer(SEAL, "127.0.0.1", lambda now, digest: STATE, 5.0, counts, tls)
    address = f"127.0.0.1:{server.port}"
    fetch = lambda tls, seconds=5.0: fetch_state(
        SEAL, address, 7, DIGEST, seconds, Counts(0, 0, {}), len(STATE), tls
    )
    with contextlib.closing(server):
        assert fetch(tls) == STATE
        for wrong in (None, stranger):
            with pytest.raises(Interrupted, match="failed"):
                fetch(wrong, 0.5)
            assert not answers(SEAL, address, 0.5, wrong)
        assert answers(SEAL, address, 5.0, tls)
    assert counts.sent < 2 * len(STATE)


def test_the_lighthouse_lets_in_only_who_has_a_certificate(files, stranger, monkeypatch):
    monkeypatch.setattr(meeting, "CONNECT", 1.0)
    tls = files("worker").load()
    place = Lighthouse("127.0.0.1:0", SEAL, silence=2.0, workers=2, tls=tls)
    call = lambda tls: Caller(place.address(), SEAL, 0, 100, tls=tls)
    try:
        for wrong in (None, stranger):
            with pytest.raises((OSError, ssl.SSLError)):
                call(wrong).call()
        with contextlib.closing(LighthouseLink(call(tls), 0.05, 5.0)) as link:
            assert link.ask("card", 20.0, 20.0) == ["card"]
    finally:
        place.shutdown()


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["idle", "hello"]
)
def test_half_open_handshakes_are_bounded_and_keep_nobody_out(files, said):
    """A stranger stops in the middle of TLS's own handshake, before it could be asked for a
    token; three times as many of them as may be inside."""
    tls = files("worker").load()
    place = Lighthouse("127.0.0.1:0", SEAL, silence=5.0, workers=2, tls=tls)
    before, strangers = len(os.listdir("/proc/self/fd")), []
    try:
        for _ in range(3 * module.ROOM):
            strangers.append(socket.create_connection(split_address(place.address()), 5.0))
            strangers[-1].sendall(said)
        caller = Caller(place.address(), SEAL, 0, 100, tls=tls)
        with contextlib.closing(LighthouseLink(caller, 0.05, 20.0)) as link:
            assert link.ask("card", 20.0, 20.0) == ["card"]
            inside = len(os.listdir("/proc/self/fd")) - before - len(strangers)
            assert inside <= module.ROOM + 16  # threads, selectors and the one worker
    finally:
        for stranger in strangers:
            stranger.close()
        place.shutdown()
