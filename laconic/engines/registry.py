"""The engines between processes, by name, and how a process joins one.

Adding an engine is a function here and a line in `ENGINES`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from laconic.engines.base import Engine
from laconic.engines.meeting import meet
from laconic.engines.tls import Tls
from laconic.engines.wire import Seal
from laconic.errors import LaconicError, require_positive, unknown


@dataclass(frozen=True)
class Waits:
    """Seconds to wait before giving up."""

    timeout: float = 30.0
    """Seconds without any bytes of a round's messages from workers that do give signs of life;
    twice as many for a peer's state."""
    silence: float = 5.0
    """Seconds without a sign of life after which a worker counts as dead, or a link as cut."""
    patience: float = 300.0
    """Seconds to wait for all workers at the start; then those that are there begin."""
    lost: float = 3600.0
    """Seconds without any quorum before a worker gives up; longer than the slowest local steps."""

    def __post_init__(self) -> None:
        require_positive(**vars(self))


@dataclass(frozen=True)
class Seat:
    """Worker `worker` of `workers`, who meet at `address` ("host:port").

    bind: where to listen · host: where others reach this process, if that differs
    yields: whether it ends at its start if most others have another token or other settings
    tls: what connections between workers are wrapped in
    least: how many workers a round needs, by default a majority of them
    again: whether an earlier process was this worker
    grace: seconds that a round waits for slower workers once enough are ready; None: for all
    """

    worker: int
    workers: int
    address: str
    bind: str = "127.0.0.1"
    host: str = ""
    waits: Waits = field(default_factory=Waits)
    yields: bool = False
    tls: Tls | None = None
    least: int | None = None
    again: bool = False
    grace: float | None = None


class EngineEntry(NamedTuple):
    """An engine.

    meet: reaches the others and gives the seal of the run they are of, before JAX is used
    restarts: whether a dead worker may come back · service: whether it needs a Lighthouse
    """

    meet: Callable[[Seat, Seal], Seal]
    connect: Callable[[Seat, Seal], Engine]
    restarts: bool
    service: bool
    summary: str


def _at_the_lighthouse(seat: Seat, seal: Seal) -> Seal:
    return meet(seat.address, seal, seat.worker, seat.waits.patience, seat.tls)


def _elastic(seat: Seat, seal: Seal) -> Engine:
    from laconic.engines.elastic import ElasticEngine, Timeouts

    waits = seat.waits
    timeouts = Timeouts(
        gather=waits.timeout,
        silence=waits.silence,
        heal=2 * waits.timeout,
        patience=waits.patience,
        lost=waits.lost,
        heartbeat=min(Timeouts.heartbeat, waits.silence / 5),
    )
    return ElasticEngine(
        seat.worker,
        seat.workers,
        seat.address,
        seal,
        bind=seat.bind,
        host=seat.host,
        timeouts=timeouts,
        yields=seat.yields,
        tls=seat.tls,
        least=seat.least,
        again=seat.again,
    )


def _in_the_mesh(seat: Seat, seal: Seal) -> Seal:
    from laconic.engines.jax_distributed import join, same_run

    if seat.tls is not None:
        raise LaconicError(
            "jax-distributed cannot encrypt what its processes say: leave out the --tls files, or "
            "choose the engine elastic."
        )
    # `timeout`, not the short `silence`: a false alarm ends the run
    silence = math.ceil(seat.waits.timeout)
    waits = {"heartbeat_timeout": silence, "patience": math.ceil(seat.waits.patience)}
    join(seat.address, seat.workers, seat.worker, bind=seat.bind, **waits)
    return same_run(seal)


def _jax_distributed(seat: Seat, seal: Seal) -> Engine:
    from laconic.engines.jax_distributed import JaxDistributedEngine

    return JaxDistributedEngine()


ENGINES: dict[str, EngineEntry] = {
    "elastic": EngineEntry(
        _at_the_lighthouse,
        _elastic,
        True,
        True,
        "survives workers that die, stall or come back",
    ),
    "jax-distributed": EngineEntry(
        _in_the_mesh,
        _jax_distributed,
        False,
        False,
        "for clusters that do not fail: one death ends all",
    ),
}


def engine_entry(name: str) -> EngineEntry:
    """An engine by name."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return ENGINES[name]
