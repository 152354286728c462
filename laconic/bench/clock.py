"""Timing of compiled steps that write over their own state: chained calls, medians, and the memory
they take."""

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
    """A compiled `state, *rest → state` whose state is donated, and its first state; a call takes
    `inner` steps."""

    call: Callable[..., Any]
    state: Any
    rest: tuple[Any, ...]
    temporary_bytes: int | None
    inner: int = 1


def compiled(function: Callable[..., Any], state: Any, *rest: Any, inner: int = 1) -> Step:
    """`function(state, *rest)` ready to be called; the given state is used up by the first call.

    With `inner` a call takes that many steps in a loop on the device: handing over a thousand
    arrays from Python takes about as long as a step on a large GPU. The barrier ties `rest` to the
    state, so that what depends on it alone is not worked out once, before the loop.
    """

    def several(state: Any, *rest: Any) -> Any:
        def one(_: Any, state: Any) -> Any:
            state, held = jax.lax.optimization_barrier((state, rest))
            return function(state, *held)

        return jax.lax.fori_loop(0, inner, one, state)

    program = (
        jax.jit(several if inner > 1 else function, donate_argnums=0).lower(state, *rest).compile()
    )
    memory = program.memory_analysis()
    return Step(program, state, rest, None if memory is None else memory.temp_size_in_bytes, inner)


def medians(
    steps: Mapping[str, Step], repeats: int, tick: Tick = lambda name: None
) -> dict[str, float]:
    """Median seconds of a step of each, in alternation, after a warm-up that also counts how many
    calls to time."""
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
            times[name].append((time.perf_counter() - begin) / (calls[name] * step.inner))
            tick(name)
    return {name: statistics.median(values) for name, values in times.items()}


def bandwidth(parameters: int = 1 << 26, repeats: int = 5) -> float:
    """Bytes a second that this device reads and writes, by adding one to a large array."""
    step = compiled(lambda x: x + 1.0, jnp.zeros(parameters), inner=10)
    return 8 * parameters / medians({"copy": step}, repeats)["copy"]
