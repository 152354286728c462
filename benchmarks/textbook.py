"""Time and memory of the frozen textbook step (in `laconic/bench/round.py`) on 10 M parameters."""

import json
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1]))

from laconic.bench.round import textbook_init as init
from laconic.bench.round import textbook_step as step


def main():
    """Median seconds of five steps on a 3162 × 3162 matrix, and XLA's count of temporary bytes."""
    keys = jax.random.split(jax.random.key(0), 5)
    sizes = (39, 32, 32, 2)
    theta = {
        f"w{i}": jax.random.normal(keys[i], sizes[i : i + 2]) / sizes[i] ** 0.5 for i in range(3)
    }
    theta |= {f"b{i}": jnp.zeros(sizes[i + 1]) for i in range(3)} | {"decay": jnp.zeros(7)}
    param, delta = (0.1 * jax.random.normal(key, (3162, 3162)) for key in keys[3:])
    args = (theta, param, init(param), delta, jnp.float32(0))
    program = jax.jit(step).lower(*args).compile()
    jax.block_until_ready(program(*args))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(program(*args))
        times.append(time.perf_counter() - begin)
    memory = program.memory_analysis()
    temporary = memory.temp_size_in_bytes / param.size if memory else None
    figures = {"seconds": statistics.median(times), "temporary_bytes_per_parameter": temporary}
    print(json.dumps({"benchmark": "textbook", **figures}))


if __name__ == "__main__":
    main()
