"""Addresses: how they are written, which ones stay on this machine, which one others see, which
ports are free."""

import ipaddress
import socket

from laconic.errors import LaconicError

EVERYWHERE = ("0.0.0.0", "::")
SPARE_PORT = 9  # any will do where nothing is sent
ELSEWHERE = "192.0.2.1"  # an address that is nobody's


def with_port(host: str, port: int) -> str:
    """ "host:port"; a host with colons goes into brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; a host in brackets may hold colons."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise LaconicError(f"{address!r} is not HOST:PORT; write for example 127.0.0.1:29510.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether whatever the name stands for can be reached from this machine only."""
    return all(ipaddress.ip_address(address).is_loopback for address in _resolved(host))


def facing(host: str) -> str:
    """The address of this machine on the way to `host`; nothing is sent."""
    target = _resolved(host)[0]
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, SPARE_PORT))
        except OSError as error:
            raise LaconicError(f"there is no way from here to {host}: {error.strerror}.") from None
        return probe.getsockname()[0]


def outward() -> str | None:
    """The address of this machine on the way to the world; None if there is no such way."""
    try:
        return facing(ELSEWHERE)
    except LaconicError:
        return None


def reached_at(bind: str, meeting: str) -> str:
    """Where others reach a process that listens at `bind`, given the host where all of them meet."""
    if bind not in EVERYWHERE:
        return bind
    towards = facing(meeting)
    # a machine's own name often means its loopback to itself
    return outward() or towards if is_loopback(towards) else towards


def free_port(bind: str, port: int) -> int:
    """`port` at the address `bind`, or any free one if it is 0; refused if it is taken or the
    address is not ours."""
    if not 0 <= port <= 65535:
        raise LaconicError(f"a port is a number from 0 (any free one) to 65535, got {port}.")
    address = _resolved(bind)[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, port), family=family) as server:
            return server.getsockname()[1]
    except OSError as error:
        hint = (
            "give another --port, or 0 for any free one"
            if port
            else "give an address of this machine as --bind"
        )
        raise LaconicError(
            f"cannot listen at {with_port(bind, port)}: {error.strerror}; {hint}."
        ) from None


def _resolved(host: str) -> list[str]:
    try:
        return [
            str(found[4][0]).partition("%")[0]
            for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        ]
    except (OSError, UnicodeError) as error:
        raise LaconicError(
            f"{host!r} is no address that this machine knows ({error}): check its spelling."
        ) from None
