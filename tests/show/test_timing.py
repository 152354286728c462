import math
import time
from fractions import Fraction

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.show import timing
from laconic.show.timing import Link, Traffic


@pytest.mark.parametrize(
    ("text", "rate", "latency"),
    [
        ("100Mbit/20ms", 1e8, 0.02),
        ("10Gbit", 1e10, 0.0),
        ("8bit/1s", 8.0, 1.0),
        ("2.5kbit/150us", 2500.0, 0.00015),
        (" 1Tbit / 0.5 s ", 1e12, 0.5),
        ("1e3 Mbit/0s", 1e9, 0.0),
    ],
)
def test_links_read_as_written(text, rate, latency):
    assert timing.parse_link(text) == Link(rate, latency)


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "100MB/20ms", "100mbit", "-1Mbit", "Mbit", "1,5Gbit", "nanbit"]
)
def test_bad_rates_say_how_to_write_one(raises_clearly, text):
    with raises_clearly(repr(text.partition("/")[0]), "Mbit", "'100Mbit/20ms'"):
        timing.parse_link(text)


@pytest.mark.parametrize(
    "text", ["100Mbit/", "100Mbit/20", "100Mbit/s", "100Mbit/s/20ms", "100Mbit/20min", "1bit/-1s"]
)
def test_bad_latencies_say_how_to_write_one(raises_clearly, text):
    with raises_clearly(repr(text.partition("/")[2]), "s, ms, us", "'12ms'"):
        timing.parse_link(text)


def test_a_link_needs_bandwidth_and_no_negative_latency(raises_clearly):
    for rate in (0, -1, math.nan):
        with raises_clearly("bits_per_second", str(rate)):
            Link(rate)
    with raises_clearly("bits_per_second"):
        timing.parse_link("0Mbit")
    with raises_clearly("latency_seconds", "-1"):
        Link(1, -1)


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_durations_are_the_nearest_floats(n):
    assert timing.parse_duration(f"{n}ms") == float(Fraction(n, 1000))
    assert timing.parse_duration(f"{n} us") == float(Fraction(n, 10**6))
    assert timing.parse_duration(f"{n}s") == n


def test_traffic_of_each_topology():
    assert timing.server_traffic(100, 3200) == Traffic(100, 3200, "server")
    assert timing.all_gather_traffic(100, 8) == Traffic(700, 700, "all-gather")
    assert timing.all_gather_traffic(100, 1) == Traffic(0, 0, "all-gather")
    assert timing.ring_all_reduce_traffic(3200, 8) == Traffic(5600, 5600, "ring all-reduce")
    assert timing.server_traffic(100, 3200).bits == 3300


@settings(deadline=None)
@given(st.integers(0, 10**18), st.integers(1, 100))
def test_the_ring_is_exact(model_bits, K):
    want = math.ceil(Fraction(2 * (K - 1), K) * model_bits)
    assert timing.ring_all_reduce_traffic(model_bits, K) == Traffic(want, want, "ring all-reduce")


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 12))
def test_all_gather_counts_every_message(message_bits, K):
    moved = [(a, b) for a in range(K) for b in range(K) if a != b]  # every ordered pair of workers
    traffic = timing.all_gather_traffic(message_bits, K)
    assert traffic.sent_bits == message_bits * sum(a == 0 for a, _ in moved)
    assert traffic.received_bits == message_bits * sum(b == 0 for _, b in moved)


def test_bad_traffic(raises_clearly):
    for function in (timing.all_gather_traffic, timing.ring_all_reduce_traffic):
        with raises_clearly("K", "0"):
            function(8, 0)
    with raises_clearly("sent_bits", "-8"):
        timing.server_traffic(-8, 8)


def test_a_round_by_hand():
    link = Link(1e6, 0.02)
    traffic = timing.server_traffic(500_000, 2_000_000)
    # 4 steps of 0.25 s, twice 20 ms, half a second up, two down
    assert timing.round_seconds(link, traffic, 4, 0.25) == pytest.approx(
        1 + 0.04 + 0.5 + 2, rel=1e-15
    )
    assert timing.seconds_to_loss(100, link, traffic, 4, 0.25) == pytest.approx(354.0, rel=1e-15)
    assert timing.seconds_to_loss(None, link, traffic, 4, 0.25) is None


def test_bad_rounds(raises_clearly):
    with raises_clearly("step_seconds", "-0.5"):
        timing.round_seconds(Link(1), Traffic(1, 1, "server"), 1, -0.5)


def test_measure_step_is_the_median_up_to_ready_after_a_warm_up(monkeypatch):
    clock, calls, waited = [0.0], [], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def ready(value):
        clock[0] += 0.5
        waited.append(value)
        return value

    def step():
        calls.append(len(calls))
        clock[0] += [100.0, 1.0, 9.0, 2.0][len(calls) - 1]  # the first compiles
        return calls[-1]

    monkeypatch.setattr(jax, "block_until_ready", ready)
    assert timing.measure_step(step, repeats=3) == 2.5
    assert waited == calls == [0, 1, 2, 3]


def test_measure_step_of_a_real_step():
    assert 0 < timing.measure_step(lambda: jax.numpy.ones(3) + 1.0, repeats=2) < 60
    with pytest.raises(LaconicError, match="repeats"):
        timing.measure_step(lambda: None, repeats=0)


def test_a_worker_on_its_own_pays_no_network():
    link = Link(1e6, 0.5)
    assert timing.round_seconds(link, Traffic(0, 0, "one worker"), 32, 0.25) == 8.0
