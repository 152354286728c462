"""Links that die between workers that both reach the Lighthouse."""

import pytest

from laconic.engines.elastic import Timeouts
from laconic.engines.lighthouse import Lighthouse
from tests.engines.crew import SEAL, Crew
from tests.engines.processes import wait_until


@pytest.fixture
def crew():
    """`crew(4)` is four workers and a Lighthouse."""
    waits = Timeouts(silence=1.0, heartbeat=0.1, patience=60.0, lost=120.0, gather=60.0)
    lighthouse = Lighthouse("127.0.0.1:0", SEAL, silence=3.0)
    address = lighthouse.address()
    made = []

    def make(slots: int, **more):
        made.append(Crew(slots, address, timeouts=waits, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
    lighthouse.shutdown()


@pytest.mark.parametrize("ways", [("there", "back"), ("there",)], ids=["both ways", "one way"])
def test_a_dead_link_leaves_one_end_out_until_it_is_back(crew, ways):
    four = crew(4)
    wires = four.wire(1, 0)
    four.begin()
    four.wait_rounds((0, 1, 2, 3))
    for way in ways:
        getattr(wires[0], way).clear()
        getattr(wires[1], "back" if way == "there" else "there").clear()
    four.wait_rounds((0, 2, 3), 20)
    wait_until(lambda: any("dead links: 0-1" in line for line in four.told[1]), "a word of it")
    for wire in wires:
        wire.mend()
    four.wait_rounds((0, 1, 2, 3), 20)
    assert four.histories() == set()
    assert any(line.startswith("goes on, after") for line in four.told[1])


def test_two_workers_without_their_link_wait_and_say_why(crew):
    two = crew(2)
    wires = two.wire(1, 0)
    two.begin()
    two.wait_rounds((0, 1))
    for wire in wires:
        wire.there.clear()
        wire.back.clear()
    wait_until(lambda: any("links 0-1 are dead" in line for line in two.told[0]), "a word of it")
    before = [len(two.commits[w]) for w in range(2)]
    for wire in wires:
        wire.mend()
    two.wait_rounds((0, 1))
    assert [len(two.commits[w]) > before[w] for w in range(2)] == [True, True]
    assert two.histories() == set()
