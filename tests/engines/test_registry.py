"""Engines by name: what they need, and what a seat in them is."""

import pytest

from laconic.engines import address
from laconic.engines.registry import ENGINES, Seat, Waits, engine_entry
from laconic.engines.wire import Seal


def test_every_engine_says_what_it_is():
    for name, entry in ENGINES.items():
        assert entry.summary
        assert entry.restarts == entry.service, (
            f"{name}: who may come back needs a place to ask who is there"
        )


def test_an_unknown_engine_is_an_error(raises_clearly):
    with raises_clearly("unknown engine", "Did you mean 'elastic'?"):
        engine_entry("elastik")
    assert engine_entry("jax-distributed") is ENGINES["jax-distributed"]


@pytest.mark.parametrize("name", ["timeout", "silence", "patience", "lost"])
def test_waits_are_positive(name, raises_clearly):
    with raises_clearly(f"{name} must be positive"):
        Waits(**{name: 0.0})


def test_waits_reach_the_elastic_engine():
    waits = Waits(timeout=7.0, silence=0.2, patience=9.0, lost=11.0)
    seat = Seat(1, 3, "127.0.0.1:1", "127.0.0.2", "127.0.0.3", waits)
    engine = ENGINES["elastic"].connect(seat, Seal.of("secret", "run"))
    assert (engine.slots, engine.mine) == (3, (1,))
    seconds = engine._timeouts
    assert (seconds.gather, seconds.heal, seconds.patience, seconds.lost) == (7.0, 14.0, 9.0, 11.0)
    assert seconds.silence == 0.2
    assert seconds.heartbeat <= 0.2 / 5  # several signs of life fit into the silence
    assert (engine._bind, engine._host) == ("127.0.0.2", "127.0.0.3")
    assert (engine._least, engine._again) == (2, False)


def test_who_listens_everywhere_is_reached_where_it_faces_the_lighthouse(monkeypatch):
    monkeypatch.setattr(address, "facing", {"10.9.9.9": "10.1.2.3"}.get)
    engine = ENGINES["elastic"].connect(
        Seat(0, 2, "10.9.9.9:1", "0.0.0.0"), Seal.of("secret", "run")
    )
    assert engine._host == "10.1.2.3"
