"""What a plan says, by hand."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from laconic.compress import parse_compressor
from laconic.runs.configs import PlanConfig
from laconic.runs.plan import Cost, exchange_seconds, plan, tensors
from laconic.show.timing import Link, Traffic, all_gather_traffic

SMALL = PlanConfig(
    parameters=2000,
    workers=4,
    link="1Mbit/5ms",
    step_time="10ms",
    local_steps=(1, 8),
    compress=("dense", "topk:0.1+ef"),
    optimizers=("local-sgd", "lopt-a-general"),
    probe=500,
)


@pytest.fixture(scope="module")
def found():
    return plan(SMALL)


def test_every_way_to_train_has_a_row(found):
    ways = [(row["compress"], row["optimizer"], row["topology"]) for row in found["rows"]]
    assert ways == [
        ("dense", "local-sgd", "all-gather"),
        ("dense", "local-sgd", "reduce-scatter"),
        ("dense", "lopt-a-general", "all-gather"),
        ("dense", "lopt-a-general", "reduce-scatter"),
        ("topk:0.1+ef", "local-sgd", "all-gather"),
        ("topk:0.1+ef", "lopt-a-general", "all-gather"),
    ]
    assert found["chosen"]["least_local_steps"] == min(
        r["least_local_steps"] for r in found["rows"]
    )


def test_bits_are_those_of_the_compressor(found):
    bits = parse_compressor("topk:0.1+ef").bits([jnp.zeros(2000)])
    dense, scattered, sparse = (found["rows"][i] for i in (0, 1, 4))
    assert (dense["sent_bits"], dense["received_bits"]) == (3 * 64_000, 3 * 64_000)
    assert scattered["sent_bits"] == 2 * 3 / 4 * 64_000
    assert sparse["sent_bits"] == 3 * bits < dense["sent_bits"]


def test_a_round_is_the_sum_of_its_parts_and_h_the_smallest_with_its_share(found):
    for row in found["rows"]:
        H = row["least_local_steps"]
        rest = row["encode"] + row["exchange"] + row["combine"] + row["outer"]
        assert row["round_seconds"] == pytest.approx(0.01 * H + rest)
        assert 0.01 * H / row["round_seconds"] >= 0.9 - 1e-9
        assert 0.01 * (H - 1) / (0.01 * (H - 1) + rest) < 0.9
        assert row["run_seconds"] == pytest.approx(math.ceil(10_000 / H) * row["round_seconds"])
        assert row["shares"]["8"] == pytest.approx(0.08 / row["rounds"]["8"])
    dense = found["rows"][0]
    by_hand = 3 * 0.005 + 3 * 64_000 * 1500 / 1448 / 1e6  # three trips, then bits at the rate
    assert dense["rounds"]["1"] - 0.01 == pytest.approx(
        by_hand + dense["encode"] + dense["combine"] + dense["outer"]
    )


def test_a_long_pause_makes_tcp_begin_again():
    link, traffic = Link(1e7, 0.05), all_gather_traffic(8_000_000, 2)
    fast, slow = (exchange_seconds(link, traffic, 2, pause) for pause in (0.1, 1.0))
    # A round trip of 100 ms holds 125 kB: windows of 15, 30, 60 and 120 kB do
    # not fill it.
    assert slow - fast == pytest.approx(3 * 0.1 - (120e3 + 240e3 + 480e3) / 1e7 + 0.1 - 960e3 / 1e7)
    assert exchange_seconds(link, traffic, 1, 1.0) == 0
    short = Traffic(1000, 1000, "all-gather")
    assert exchange_seconds(link, short, 2, 1.0) == exchange_seconds(link, short, 2, 0.0)


def test_a_pause_that_h_itself_makes_is_priced():
    cost = Cost("a", "dense", Traffic(1, 1, "all-gather"), 0.0, 0.0, 0.0, 0.01, 0.5)
    assert cost.least(0.5, 0.1) == 1  # 0.1 s of steps, while TCP remembers
    assert cost.least(0.95, 0.1) == 2  # 0.19 of 0.2
    assert cost.least(0.99, 0.1) == 495  # no longer
    assert cost.share(495, 0.1) == pytest.approx(0.99)


def test_rounds_can_be_given_and_large_models_have_many_tensors():
    found = plan(replace(SMALL, rounds=7, optimizers=("local-sgd",), compress=("int8",)))
    row = found["rows"][0]
    assert row["run_seconds"] == pytest.approx(7 * row["round_seconds"])
    sizes = [tensor.size for tensor in tensors(10**9)]
    assert (sum(sizes), len(sizes)) == (10**9, 60)
    assert isinstance(tensors(5)[0], jax.ShapeDtypeStruct)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"share": 1.0}, "share is a share"),
        ({"parameters": 0.0}, "parameters are from 1"),
        ({"parameters": 1e13}, "from 1 to 10^12"),
        ({"local_steps": ()}, "local_steps is empty"),
        ({"step_time": "4"}, "not a duration"),
        ({"link": "fast"}, "not a link rate"),
        ({"workers": 0}, "workers must be positive"),
        ({"optimizers": ("nothing",)}, "nothing"),
        ({"compress": ("nothing",)}, "nothing"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, words, raises_clearly):
    with raises_clearly(words):
        plan(replace(SMALL, **change))
