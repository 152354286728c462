"""Addresses of this machine, against the system's own sockets."""

import socket

import pytest

from laconic.engines import address
from laconic.engines.address import (
    facing,
    free_port,
    is_loopback,
    reached_at,
    split_address,
    with_port,
)


def test_a_host_and_a_port_as_one_word():
    assert with_port("10.0.0.1", 80) == "10.0.0.1:80"
    assert with_port("::1", 80) == "[::1]:80"


def test_a_word_as_a_host_and_a_port(raises_clearly):
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    for bad in ("here", "here:", ":80", "here:x", "here:99999"):
        with raises_clearly("HOST:PORT", bad):
            split_address(bad)


@pytest.mark.parametrize(
    ("host", "stays"),
    [
        ("127.0.0.1", True),
        ("127.8.0.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
    ],
)
def test_what_stays_on_this_machine(host, stays):
    assert is_loopback(host) == stays


def test_the_address_that_faces_another():
    assert facing("127.0.0.1") == "127.0.0.1"


def test_where_others_reach_one_who_listens_everywhere(monkeypatch):
    assert reached_at("10.1.2.3", "10.9.9.9") == "10.1.2.3"
    monkeypatch.setattr(
        address, "facing", {"10.9.9.9": "10.1.2.3", "me": "127.0.1.1", "192.0.2.1": "10.4.5.6"}.get
    )
    assert reached_at("0.0.0.0", "10.9.9.9") == "10.1.2.3"
    assert reached_at("0.0.0.0", "me") == "10.4.5.6"
    monkeypatch.setattr(address, "outward", lambda: None)
    assert reached_at("::", "me") == "127.0.1.1"


def test_any_free_port_is_free_and_a_taken_one_is_refused(raises_clearly):
    port = free_port("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", port)):
        assert free_port("127.0.0.1", 0) != port
        with raises_clearly(
            f"cannot listen at 127.0.0.1:{port}", "in use", "--port", "0 for any free one"
        ):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", port) == port


def test_what_is_no_address_of_this_machine_or_no_port_is_refused(raises_clearly):
    with raises_clearly("cannot listen at 192.0.2.1:0", "--bind"):
        free_port("192.0.2.1", 0)
    with raises_clearly("from 0", "65535", "got 70000"):
        free_port("127.0.0.1", 70000)
    with raises_clearly("'1.2.3.4.5'", "no address"):
        is_loopback("1.2.3.4.5")
