"""Mutual TLS from files, for every connection that is our own: the links between workers and the
state port.

Both ends show a certificate that the same authority has signed. The name in it is not looked at:
which worker one is, the signed greeting says afterwards. Without files connections are plain.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM for mutual TLS between workers; give all three or none.

    Args:
        tls_cert: this worker's certificate.
        tls_key: its private key.
        tls_ca: the authority that signed every worker's certificate.
    """

    tls_cert: Path | None = None
    """This worker's certificate, for mutual TLS between workers; with --tls-key and --tls-ca."""
    tls_key: Path | None = None
    """The private key of --tls-cert."""
    tls_ca: Path | None = None
    """The certificate of the authority that signed every worker's --tls-cert."""

    def load(self) -> "Tls | None":
        """The contexts that these files make; None if there are no files."""
        given = [file for file in (self.tls_cert, self.tls_key, self.tls_ca) if file is not None]
        if not given:
            return None
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            raise LaconicError(
                "mutual TLS needs three files: give --tls-cert, --tls-key and --tls-ca, or none."
            )
        try:
            return Tls.of(self.tls_cert, self.tls_key, self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, given))
            raise LaconicError(
                f"the TLS files {names} cannot be used ({error}): give certificates and a key in "
                "PEM that belong together."
            ) from None


@dataclass(frozen=True)
class Tls:
    """What a socket is wrapped in at the end that listens and at the end that calls."""

    listens: ssl.SSLContext
    calls: ssl.SSLContext

    @classmethod
    def of(cls, cert: Path, key: Path, ca: Path) -> "Tls":
        """From a certificate, its key and the authority of all."""
        made = [ssl.SSLContext(p) for p in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)]
        for context in made:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        return cls(*made)


def wrapped(tls: Tls | None, plain: socket.socket, listens: bool) -> socket.socket:
    """The socket in TLS, if there is any; nothing is said yet."""
    if tls is None:
        return plain
    context = tls.listens if listens else tls.calls
    return context.wrap_socket(plain, server_side=listens, do_handshake_on_connect=False)


def shake_hands(one: socket.socket) -> None:
    """TLS's own handshake, if the socket is wrapped; its time-out is for the whole of it. An
    `OSError` if the other end cannot show a certificate."""
    if isinstance(one, ssl.SSLSocket):
        one.do_handshake()
