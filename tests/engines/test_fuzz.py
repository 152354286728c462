"""Whatever strangers say at any port, a run goes on and they cost a bounded amount of all."""

from benchmarks.fuzz_ports import KINDS, SLOW, fuzz
from laconic.engines.door import ROOM
from laconic.engines.lighthouse import ROOM as LOBBY


def test_five_hundred_messages_at_every_port_spoil_nothing():
    """Ten thousand are a benchmark."""
    found = fuzz(500)
    assert found["faults"] == []
    assert set(found["messages"]) == set(KINDS)
    assert min(found["messages"].values()) >= 83
    assert sum(found["refused"].values()) >= 400  # the others were still trickling
    assert found["rounds"] > 5
    assert found["longest_gap"] < 5.0
    before, after = found["before"], found["after"]
    assert after["threads"] <= before["threads"] + 4 * ROOM
    assert after["descriptors"] <= before["descriptors"] + 4 * ROOM + LOBBY + SLOW
    assert after["resident_mb"] < before["resident_mb"] + 50
