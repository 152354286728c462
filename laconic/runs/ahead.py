"""While an accelerator runs one method of a comparison, idle cores compile the next ones.

A GPU runs a short method in less time than it takes to compile one. On a CPU the cores are busy.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import jax

from laconic.runs.simulate import Simulation

MOST = 4  # programs compiled side by side; XLA uses several threads for each


@dataclass
class Ahead:
    """Compiles programs in the background, in order, once told to begin."""

    threads: int
    waiting: list[Simulation]
    pool: ThreadPoolExecutor | None = None
    under_way: dict[str, Future[None]] = field(default_factory=dict)

    def begin(self) -> None:
        """Compile all that wait. The first program should be there by then, since XLA times
        kernels on the device, which nothing else must use, and the others take over its choice."""
        if self.pool is not None or not self.threads or not self.waiting:
            return
        self.pool = ThreadPoolExecutor(self.threads, "compile")
        for simulation in self.waiting:
            self.under_way[simulation.method.label] = self.pool.submit(simulation.compile_first)

    def wait(self, label: str) -> None:
        """Return once this program is compiled, or is left to the caller. What is wrong with it the
        caller finds too."""
        found = self.under_way.pop(label, None)
        if found is not None and not found.cancel():
            with suppress(Exception):
                found.result()


def idle_threads() -> int:
    """How many programs may be compiled while one runs."""
    return 0 if jax.default_backend() == "cpu" else min(MOST, (os.cpu_count() or 1) - 1)


@contextmanager
def compiled_ahead(remaining: Sequence[Simulation]) -> Iterator[Ahead]:
    """Those after the first are compiled while others run, if that is an accelerator's work."""
    ahead = Ahead(idle_threads(), list(remaining[1:]))
    try:
        yield ahead
    finally:
        if ahead.pool is not None:
            ahead.pool.shutdown(cancel_futures=True)
