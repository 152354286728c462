"""What a round costs over a link before anything is trained: for each H, compressor and outer
optimizer, from exact bits and from times measured on this machine.

    round = H·step + encode + exchange + decoding and combining + outer step

The exchange is an all-gather, as the engine does it, or a reduce-scatter and an all-gather of its
parts where messages can be summed on the way (dense ones, for an optimizer of the mean). How many
rounds a training needs is not assumed: it depends on H, on the compressor and on the optimizer.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.client import Message
from laconic.compress import DENSE, Compressor, parse_compressor
from laconic.errors import (
    LaconicError,
    require_counts,
    require_parameters,
    require_positive,
    require_some,
)
from laconic.method import Method, check_workers
from laconic.methods import parse_method
from laconic.outer.base import outer_step
from laconic.runs.configs import PlanConfig
from laconic.show.timing import (
    Link,
    Traffic,
    all_gather_traffic,
    measure_step,
    parse_duration,
    parse_link,
    ring_all_reduce_traffic,
)
from laconic.workers import Simulated

LARGEST_TENSOR = 1 << 24  # numbers in one of the tensors that a model is taken to have
HEADERS = 1500 / 1448  # bytes on an Ethernet link for each of a message, by TCP over IPv4
WINDOW = 10 * 1500  # bytes that TCP sends before it hears anything
PAUSE = 0.2  # seconds after which it begins anew
PEERS = 4  # messages that combining is measured on
SHOWN = ("optimizer", "compress", "encode", "combine", "outer")
Tick = Callable[[str], None]


class Cost(NamedTuple):
    """A way to train: its traffic, and the seconds of a round that do not depend on H.

    encode, combine, outer: on this machine, scaled to the model · fast, slow: the exchange, where
    local steps take no longer than TCP remembers its pace, and where they do
    """

    optimizer: str
    compress: str
    traffic: Traffic
    encode: float
    combine: float
    outer: float
    fast: float
    slow: float

    def exchange(self, pause: float) -> float:
        """Seconds of the exchange after so many of local steps."""
        return self.slow if pause > PAUSE else self.fast

    def round(self, H: int, step: float) -> float:
        """Seconds of a round."""
        return H * step + self.encode + self.exchange(H * step) + self.combine + self.outer

    def share(self, H: int, step: float) -> float:
        """The share of a round in which local steps are computed."""
        return H * step / self.round(H, step)

    def least(self, share: float, step: float) -> int:
        """The smallest H with that share."""
        for pause in (PAUSE, math.inf):
            rest = self.round(0, step) - self.fast + self.exchange(pause)
            H = max(1, math.ceil(share / (1 - share) * rest / step - 1e-9))
            if H * step <= pause:
                break
        return H


def plan(config: PlanConfig, tick: Tick = lambda name: None) -> dict[str, Any]:
    """What each way to train costs, and which one has the share of local steps asked for at the
    smallest H.

    Args:
        config: the model's size, the workers, the link and a local step's time.
        tick: is called with the name of what has been measured.

    Returns:
        "rows", a dictionary for each way, and "chosen", one of them.
    """
    link, step = check(config)
    size = int(config.parameters)
    rows = []
    for cost in costs(config, link, tick):
        H = cost.least(config.share, step)
        rows.append(
            {
                **{name: getattr(cost, name) for name in SHOWN},
                **asdict(cost.traffic),
                "exchange": cost.exchange(H * step),
                "rounds": {str(h): cost.round(h, step) for h in config.local_steps},
                "shares": {str(h): cost.share(h, step) for h in config.local_steps},
                "least_local_steps": H,
                "round_seconds": cost.round(H, step),
                "run_seconds": cost.round(H, step) * rounds_of(config, H),
            }
        )
    chosen = min(rows, key=lambda row: (row["least_local_steps"], row["round_seconds"]))
    return {"parameters": size, "probe": min(config.probe, size), "rows": rows, "chosen": chosen}


def check(config: PlanConfig) -> tuple[Link, float]:
    """Refuse what cannot be planned → the link and a local step's seconds."""
    require_some(
        local_steps=config.local_steps, compress=config.compress, optimizers=config.optimizers
    )
    rounds = 1 if config.rounds is None else config.rounds
    counts = {"steps": config.steps, "probe": config.probe, "workers": config.workers}
    require_positive(**counts, rounds=rounds, local_steps=min(config.local_steps))
    require_counts(**counts, rounds=rounds, local_steps=max(config.local_steps))
    if not 0 < config.share < 1:
        raise LaconicError(f"share is a share of a round, above 0 and below 1; got {config.share}.")
    require_parameters(config.parameters)
    for name in config.optimizers:
        check_workers(parse_method(name, config.workers), config.workers)
    for name in config.compress:
        parse_compressor(name)
    step = parse_duration(config.step_time)
    require_positive(step_time=step)
    return parse_link(config.link), step


def rounds_of(config: PlanConfig, H: int) -> int:
    """How many rounds a whole run is."""
    return config.rounds or math.ceil(config.steps / H)


def costs(config: PlanConfig, link: Link, tick: Tick) -> list[Cost]:
    """Every way to train, in the order of compressors and optimizers asked for."""
    K, size = config.workers, int(config.parameters)
    probe = min(config.probe, size)
    methods = [parse_method(name, K) for name in config.optimizers]
    scale = size / probe
    outers = {}
    for method in methods:
        outers[method.label] = scale * outer_seconds(method, K, probe)
        tick(method.label)
    found = []
    for name in config.compress:
        compressor = parse_compressor(name)
        bits = compressor.bits(tensors(size))
        encode, decode = codec_seconds(compressor, min(K, PEERS), probe)
        tick(name)
        for method in methods:
            work = scale * encode, scale * decode * K / min(K, PEERS), outers[method.label]
            for traffic in topologies(bits, K, compressor, method):
                fast = exchange_seconds(link, traffic, K, 0.0)
                slow = exchange_seconds(link, traffic, K, math.inf)
                found.append(Cost(method.label, name, traffic, *work, fast, slow))
    return found


def tensors(parameters: int) -> list[jax.ShapeDtypeStruct]:
    """The tensors of a model of which only the size is known."""
    whole, rest = divmod(parameters, LARGEST_TENSOR)
    sizes = [LARGEST_TENSOR] * whole + [rest] * bool(rest)
    return [jax.ShapeDtypeStruct((n,), jnp.float32) for n in sizes]


def topologies(bits: int, K: int, compressor: Compressor, method: Method) -> list[Traffic]:
    """How messages can travel."""
    found = [all_gather_traffic(bits, K)]
    if compressor.name == DENSE.name and not method.every_message:
        ring = ring_all_reduce_traffic(bits, K)
        found.append(Traffic(ring.sent_bits, ring.received_bits, "reduce-scatter"))
    return found


def exchange_seconds(link: Link, traffic: Traffic, K: int, pause: float) -> float:
    """Seconds until everybody has everything, after a pause of so many seconds.

    A worker asks the Lighthouse who is there (there and back), then sends to all others at once and
    receives from them. The link carries both directions at the same time, and its packets have
    headers. After a pause TCP begins again with ten packets and doubles them each round trip, so a
    long link is not full at once.
    """
    if K == 1:
        return 0.0
    legs = 2 if traffic.topology == "reduce-scatter" else 1
    bits = HEADERS * max(traffic.sent_bits, traffic.received_bits)
    ramp = 0.0
    if pause > PAUSE:
        ramp = ramp_seconds(link, bits / legs, K - 1)
    return (2 + legs) * link.latency_seconds + ramp + bits / link.bits_per_second


def ramp_seconds(link: Link, bits: float, peers: int) -> float:
    """Seconds in which the link carries nothing because TCP waits for an answer."""
    trip, window, idle = 2 * link.latency_seconds, 8 * WINDOW * peers, 0.0
    while bits > window and window < link.bits_per_second * trip:
        idle += trip - window / link.bits_per_second
        bits -= window
        window *= 2
    return idle


# --- measured here --------------------------------------------------------------------------------


def codec_seconds(compressor: Compressor, K: int, parameters: int) -> tuple[float, float]:
    """Seconds to encode a message, and to decode and average K of them."""
    delta = drawn(parameters, 1)
    state, key = compressor.init(delta), jax.random.key(2)
    encode = jax.jit(compressor.encode)
    payload, _ = encode(delta, state, key)
    payloads = jax.tree.map(lambda x: jnp.stack([x] * K), payload)
    workers = Simulated(None, compressor)  # type: ignore[arg-type]  (no client is run)

    def combine(payloads: Any, like: Any) -> Any:
        return workers.combine(Message(payloads, (), jnp.ones(K)), "mean", like).mean_delta

    combined = jax.jit(combine)
    return (
        measure_step(lambda: encode(delta, state, key)),
        measure_step(lambda: combined(payloads, delta)),
    )


def outer_seconds(method: Method, K: int, parameters: int) -> float:
    """Seconds of an outer step."""
    params, mean = drawn(parameters, 1), drawn(parameters, 2)
    deltas = squares = None
    if method.outer.combine == "gather":
        deltas = jax.tree.map(lambda d: jnp.stack([d] * K), mean)
    if method.outer.combine == "norms":
        squares = jax.tree.map(lambda d: jnp.ones(K), mean)
    state = method.outer.tx.init(params)

    def step(mean: Any, state: Any, params: Any, deltas: Any) -> Any:
        return outer_step(
            method.outer, mean, state, params, worker_deltas=deltas, worker_squares=squares
        )

    stepped = jax.jit(step)
    return measure_step(lambda: stepped(mean, state, params, deltas))


def drawn(parameters: int, seed: int) -> list[jax.Array]:
    """One square matrix of about so many numbers."""
    side = max(1, round(math.sqrt(parameters)))
    return [0.01 * jax.random.normal(jax.random.key(seed), (side, side))]
