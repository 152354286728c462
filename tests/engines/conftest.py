"""One nursery for all tests of real processes; it takes seconds to import what workers need."""

import pytest


@pytest.fixture(scope="session")
def nursery():
    pytest.importorskip("torchft", reason="the torchft engine is an extra: pip install 'laconic[torchft]'")
    from tests.engines.cluster import Nursery

    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def cluster(nursery, tmp_path):
    """`cluster(rounds=10, methods=[…])` is a Lighthouse with nobody yet; all its processes end with the test."""
    from tests.engines.cluster import Cluster

    made = []

    def make(**spec):
        made.append(Cluster(nursery, tmp_path, spec))
        return made[-1]

    yield make
    for one in made:
        one.close()
