"""Timing of compiled steps that write over their own state: chained calls, medians, and the memory they take."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tick = Callable[[str], None]  # told the name of what has been timed
LEAST = 0.05  # seconds that one timing lasts, by as many calls as that takes
MOST = 200  # calls in a timing


class Step(NamedTuple):
    """A compiled `state, *rest → state` whose state is donated, with what it starts from."""

    call: Callable[..., Any]
    state: Any
    rest: tuple[Any, ...]
    temporary_bytes: int | None


def compiled(function: Callable[..., Any], state: Any, *rest: Any) -> Step:
    """`function(state, *rest)` ready to be called; the given state is used up by the first call."""
    program = jax.jit(function, donate_argnums=0).lower(state, *rest).compile()
    memory = program.memory_analysis()
    return Step(program, state, rest, None if memory is None else memory.temp_size_in_bytes)


def medians(steps: Mapping[str, Step], repeats: int, tick: Tick = lambda name: None) -> dict[str, float]:
    """Median seconds of a call of each, in alternation, after a warm-up that also counts how many calls to time."""
    states, calls, times = {}, {}, {name: [] for name in steps}
    for name, step in steps.items():
        state = jax.block_until_ready(step.call(step.state, *step.rest))
        begin = time.perf_counter()
        states[name] = jax.block_until_ready(step.call(state, *step.rest))
        calls[name] = min(MOST, max(1, math.ceil(LEAST / max(time.perf_counter() - begin, 1e-6))))
    for _ in range(repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(calls[name]):
                states[name] = step.call(states[name], *step.rest)
            jax.block_until_ready(states[name])
            times[name].append((time.perf_counter() - begin) / calls[name])
            tick(name)
    return {name: statistics.median(values) for name, values in times.items()}


def bandwidth(parameters: int = 1 << 26, repeats: int = 5) -> float:
    """Bytes a second that this device reads and writes, by adding one to a large array."""
    step = compiled(lambda x: x + 1.0, jnp.zeros(parameters))
    return 8 * parameters / medians({"copy": step}, repeats)["copy"]
