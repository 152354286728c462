"""One nursery for all tests of real processes; it takes seconds to import what workers need."""

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
