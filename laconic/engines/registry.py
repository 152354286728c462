"""The engines between processes, by name, and how a process takes its seat in one.

Adding an engine is a function here and a line in `ENGINES`.
"""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from laconic.engines.base import Engine
from laconic.engines.wire import Seal
from laconic.errors import LaconicError, require_positive, unknown


@dataclass(frozen=True)
class Waits:
    """Seconds that are waited for what may never come."""

    timeout: float = 30.0
    """Seconds for everyone's bytes to arrive once all agreed; a state to catch up with may take
    twice as long."""
    silence: float = 5.0
    """Seconds without a sign of life after which a worker is taken for dead; its messages are
    missed from then on."""
    patience: float = 300.0
    """Seconds to wait for all workers when a worker starts; then those who are there begin."""
    lost: float = 3600.0
    """Seconds without any quorum after which a worker gives up; more than the slowest worker's
    local steps take."""

    def __post_init__(self) -> None:
        require_positive(**vars(self))


@dataclass(frozen=True)
class Seat:
    """Worker `worker` of `workers`, who meet at `address` ("host:port").

    bind: where to listen · host: where others reach this process, if that differs
    """

    worker: int
    workers: int
    address: str
    bind: str = "127.0.0.1"
    host: str = ""
    waits: Waits = field(default_factory=Waits)


class Entry(NamedTuple):
    """`connect` gives a process its engine, before anything else of JAX; `needs` are modules of the
    extra.

    restarts: whether a dead worker may come back · service: whether a Lighthouse must run at the
    address
    """

    connect: Callable[[Seat, Seal], Engine]
    needs: tuple[str, ...]
    restarts: bool
    service: bool
    summary: str


def _torchft(seat: Seat, seal: Seal) -> Engine:
    from laconic.engines.torchft import Timeouts, TorchFTEngine

    waits = seat.waits
    timeouts = Timeouts(
        gather=waits.timeout,
        heal=2 * waits.timeout,
        patience=waits.patience,
        lost=waits.lost,
        heartbeat=min(Timeouts.heartbeat, waits.silence / 5),
    )
    return TorchFTEngine(
        seat.worker,
        seat.workers,
        seat.address,
        seal,
        bind=seat.bind,
        host=seat.host,
        timeouts=timeouts,
    )


def _jax_distributed(seat: Seat, seal: Seal) -> Engine:
    from laconic.engines.jax_distributed import JaxDistributedEngine, join

    silence, patience = (
        math.ceil(seconds) for seconds in (seat.waits.timeout, seat.waits.patience)
    )
    join(
        seat.address,
        seat.workers,
        seat.worker,
        bind=seat.bind,
        heartbeat_timeout=silence,
        patience=patience,
    )  # a false alarm ends the run, so not the short silence
    return JaxDistributedEngine()


ENGINES: dict[str, Entry] = {
    "torchft": Entry(
        _torchft, ("torch", "torchft"), True, True, "survives workers that die, stall or come back"
    ),
    "jax-distributed": Entry(
        _jax_distributed, (), False, False, "for clusters that do not fail: one death ends all"
    ),
}


def engine_entry(name: str) -> Entry:
    """An engine by name, once what it needs is known to be installed."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    missing = [module for module in ENGINES[name].needs if importlib.util.find_spec(module) is None]
    if missing:
        raise LaconicError(
            f"the engine {name} needs {' and '.join(missing)}, not installed here: pip install "
            "'laconic[torchft]'."
        )
    return ENGINES[name]
