"""A frozen, textbook LOpt-A step: every feature of every parameter in one [n, 39] matrix, then the
MLP.

It exists to be compared with: `laconic bench round` checks that the package's step gives the same
numbers and measures how much faster it is and how much less memory it takes. It is not tuned, on
purpose, and must not change. Run as a program it prints its own time and memory for one step on ten
million parameters.
"""

import json
import statistics
import time

import jax
import jax.numpy as jnp

TIMESCALES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000)
DECAYS = (0.9, 0.99, 0.999, 0.999, 0.9, 0.99, 0.999)


def init(param):
    """Zero accumulators for one matrix [R, C], C ≥ R."""
    R, C = param.shape
    return {
        "m": jnp.zeros((3, R, C)),
        "v": jnp.zeros((R, C)),
        "r": jnp.zeros((3, R)),
        "c": jnp.zeros((3, C)),
    }


def step(theta, param, state, delta, t):
    """One LOpt-A step on one matrix → (new parameter, new state)."""
    beta = 1 - (1 - jnp.asarray(DECAYS)) * jnp.exp(10 * theta["decay"])
    ema = lambda b, old, new: b * old + (1 - b) * new
    square = delta**2 + 1e-30
    m = jnp.stack([ema(beta[i], state["m"][i], delta) for i in range(3)])
    v = ema(beta[3], state["v"], delta**2)
    r = jnp.stack([ema(beta[4 + i], state["r"][i], square.mean(1)) for i in range(3)])
    c = jnp.stack([ema(beta[4 + i], state["c"][i], square.mean(0)) for i in range(3)])

    safe = lambda x: jax.lax.rsqrt(jnp.maximum(x, 1e-9))
    like = lambda x: jnp.broadcast_to(x, param.shape)
    factor = [safe(r[i] / (r[i].mean() + 1e-9))[:, None] * safe(c[i])[None, :] for i in range(3)]
    inputs = [delta, param, *m, v]
    inputs += [m[i] * jax.lax.rsqrt(v + 1e-6) for i in range(3)] + [jax.lax.rsqrt(v + 1e-6)]
    inputs += [delta * factor[i] for i in range(3)]
    inputs += [like(r[i][:, None]) for i in range(3)] + [like(c[i][None, :]) for i in range(3)]
    inputs += [like(jax.lax.rsqrt(r[i] + 1e-8)[:, None]) for i in range(3)]
    inputs += [like(jax.lax.rsqrt(c[i] + 1e-8)[None, :]) for i in range(3)]
    inputs += [m[i] * factor[i] for i in range(3)]
    inputs = jnp.stack([x.reshape(-1) for x in inputs], axis=1)
    inputs = inputs * jax.lax.rsqrt(1e-5 + jnp.mean(inputs**2, axis=0, keepdims=True))
    time = jnp.tanh(t / jnp.asarray(TIMESCALES, jnp.float32) - 1)
    x = jnp.concatenate([inputs, jnp.broadcast_to(time[None, :], (inputs.shape[0], 11))], axis=1)

    h = jax.nn.relu(x @ theta["w0"] + theta["b0"][None, :])
    h = jax.nn.relu(h @ theta["w1"] + theta["b1"][None, :])
    out = h @ theta["w2"] + theta["b2"][None, :]
    change = 0.001 * out[:, 0] * jnp.exp(0.001 * out[:, 1])
    return param - change.reshape(param.shape), {"m": m, "v": v, "r": r, "c": c}


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
    print(
        json.dumps(
            {
                "benchmark": "textbook",
                "seconds": statistics.median(times),
                "temporary_bytes_per_parameter": temporary,
            }
        )
    )


if __name__ == "__main__":
    main()
