"""How long a run would take over a real link: bits of a round ÷ bandwidth, plus the local steps.

The model is small enough to redo by hand (`round_seconds`): each worker owns one link, sends, then
receives, and computes in neither; the server's own time is left out.
"""

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from laconic.errors import LaconicError, require_positive

RATE_UNITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
PARTS_OF_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
LARGEST = 1e18  # of any number in a link or a duration
QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]+)")


@dataclass(frozen=True)
class Link:
    """One worker's connection: bits a second in each direction, and one-way latency in seconds."""

    bits_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        require_positive(bits_per_second=self.bits_per_second)
        _require_not_negative(latency_seconds=self.latency_seconds)


@dataclass(frozen=True)
class Traffic:
    """What one worker moves in one round, and the topology under which that is so."""

    sent_bits: int
    received_bits: int
    topology: str

    def __post_init__(self) -> None:
        _require_not_negative(sent_bits=self.sent_bits, received_bits=self.received_bits)

    @property
    def bits(self) -> int:
        """Both directions together."""
        return self.sent_bits + self.received_bits


def parse_link(text: str) -> Link:
    """A link from "100Mbit/20ms" (rate and one-way latency), or "10Gbit" (no latency)."""
    rate, slash, latency = text.partition("/")
    number, unit = _quantity(rate, RATE_UNITS, "link rate", "100Mbit/20ms")
    return Link(number * RATE_UNITS[unit], parse_duration(latency) if slash else 0.0)


def parse_duration(text: str) -> float:
    """Seconds from "12ms", "0.5s" or "30us"."""
    number, unit = _quantity(text, PARTS_OF_A_SECOND, "duration", "12ms")
    return number / PARTS_OF_A_SECOND[unit]  # a division, so that 12ms is the float nearest 0.012


def server_traffic(message_bits: int, model_bits: int) -> Traffic:
    """Through a server: each worker sends its message and receives the whole new model."""
    return Traffic(message_bits, model_bits, "server")


def all_gather_traffic(message_bits: int, K: int) -> Traffic:
    """Between peers: each worker sends its message to the K−1 others and receives theirs."""
    require_positive(K=K)
    return Traffic((K - 1) * message_bits, (K - 1) * message_bits, "all-gather")


def ring_all_reduce_traffic(model_bits: int, K: int) -> Traffic:
    """Dense averaging in a ring: each worker sends and receives ⌈2(K−1)/K · model⌉ bits."""
    require_positive(K=K)
    bits = -(-2 * (K - 1) * model_bits // K)  # the ceiling, in integers
    return Traffic(bits, bits, "ring all-reduce")


def round_seconds(link: Link, traffic: Traffic, local_steps: int, step_seconds: float) -> float:
    """Seconds of one round: H·step + 2·latency + sent/bandwidth + received/bandwidth.

    H·step alone if nothing is sent. The further 2(K−1)−2 latencies that a ring of K workers pays
    are left out, which favours the ring.
    """
    _require_not_negative(local_steps=local_steps, step_seconds=step_seconds)
    up = traffic.sent_bits / link.bits_per_second
    down = traffic.received_bits / link.bits_per_second
    latency = 2 * link.latency_seconds if traffic.bits else 0.0
    return local_steps * step_seconds + latency + up + down


def streamed_seconds(
    link: Link, traffic: Traffic, local_steps: int, step_seconds: float, count: int, delay: int
) -> float:
    """Seconds of a round in `count` equal fragments: the local steps, and what is left of each
    exchange, 2·latency + (sent + received)/count/bandwidth, once `delay` local steps are over."""
    whole = round_seconds(link, traffic, 0, 0.0)
    latency = 2 * link.latency_seconds if traffic.bits else 0.0
    exchange = latency + (whole - latency) / count
    return local_steps * step_seconds + count * max(0.0, exchange - delay * step_seconds)


def seconds_to_loss(
    rounds: int | None, link: Link, traffic: Traffic, local_steps: int, step_seconds: float
) -> float | None:
    """Seconds of `rounds` such rounds; None when the loss is never reached (`rounds` is None)."""
    seconds = round_seconds(link, traffic, local_steps, step_seconds)
    return None if rounds is None else rounds * seconds


def measure_step(step: Callable[[], Any], repeats: int = 5) -> float:
    """Median seconds of a call of `step` until its arrays are ready, after one call to compile."""
    require_positive(repeats=repeats)
    jax.block_until_ready(step())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(step())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _quantity(text: str, units: dict[str, int], what: str, example: str) -> tuple[float, str]:
    match = QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units or float(match[1]) > LARGEST:
        write = f"write a number and one of {', '.join(units)}, for example {example!r}."
        raise LaconicError(f"{text!r} is not a {what}: {write}")
    return float(match[1]), match[2]


def _require_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise LaconicError(f"{name} must not be negative, got {value}.")
