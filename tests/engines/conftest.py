"""One nursery for all tests of real processes, since it takes seconds to import what workers need;
and certificates."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def nursery():
    from tests.engines.cluster import Nursery

    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def cluster(nursery, tmp_path):
    """`cluster(rounds=10, methods=[…])` is a Lighthouse with nobody yet; all its processes end with
    the test.

    `calm`: nobody is to die, so there is time for a slow machine.
    """
    from tests.engines.cluster import CALM, CALM_HEARTBEAT_TIMEOUT, Cluster

    made = []

    def make(calm=False, **spec):
        quiet = ({"timeouts": CALM} | spec, CALM_HEARTBEAT_TIMEOUT)
        made.append(Cluster(nursery, tmp_path, *(quiet if calm else (spec,))))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """`files("worker")`: a certificate that the one authority signed, "other": one of another."""
    from laconic.engines.tls import TlsFiles

    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for ca, name in (("ca", "worker"), ("ca2", "other")):
        openssl("req", "-x509", *kind, "-subj", "/CN=ca", "-keyout", f"{ca}.key", "-out", ca)
        openssl("req", *kind, "-subj", "/CN=w", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("-CA", ca, "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2", "-out", name)
        openssl("x509", "-req", "-in", f"{name}.csr", *sign)
    return lambda name: TlsFiles(folder / name, folder / f"{name}.key", folder / "ca")
