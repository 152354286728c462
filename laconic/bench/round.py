"""A simulated round against bare JAX, and a LOpt-A server step against the textbook's and AdamW.

Ratios are taken within one run, alternating the programs, so that they hold on a busy machine too.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from laconic.bench.timing import Tick
from laconic.data.feed import Resident
from laconic.data.splits import Dataset
from laconic.errors import LaconicError, require_positive
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.outer import LearnedOptimizer
from laconic.runs.simulate import Simulation
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task
from laconic.tasks.classifier import classifier_task
from laconic.tasks.small import MLP

K, H, B, GAMMA = 8, 4, 128, 0.5
SIZES = (784, 128, 128, 10)


@dataclass(frozen=True)
class RoundConfig:
    """A simulated round against bare JAX, and a LOpt-A step against AdamW and the textbook's."""

    rounds: int = 20
    """Rounds in one timed call."""
    parameters: int = 10_000_000
    """Size of the server step's matrix."""
    repeats: int = 5
    """Timed calls of each program; the median counts."""

    def check(self) -> None:
        """Refuse empty measurements."""
        require_positive(rounds=self.rounds, parameters=self.parameters, repeats=self.repeats)


def measure(config: RoundConfig, tick: Tick = lambda name: None) -> dict[str, Any]:
    """All numbers of both, and the seconds of each program."""
    config.check()
    numbers = bench_round(config.rounds, config.repeats, tick)
    numbers |= bench_server_step(config.parameters, config.repeats, tick)
    seconds = {
        "simulator local step": 1 / numbers["simulator_steps_per_second"],
        "bare local step": 1 / numbers["bare_steps_per_second"],
        "server step": numbers["server_step_seconds"],
        "textbook": numbers["textbook_seconds"],
        "adamw": numbers["adamw_seconds"],
    }
    return {**numbers, "figures": {name: {"seconds": value} for name, value in seconds.items()}}


def seconds(
    programs: dict[str, Callable[[], Any]], repeats: int, tick: Tick = lambda name: None
) -> dict[str, float]:
    """Median seconds of each program, alternating, after a warm-up call of each."""
    for program in programs.values():
        jax.block_until_ready(program())
    times = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            begin = time.perf_counter()
            jax.block_until_ready(program())
            times[name].append(time.perf_counter() - begin)
            tick(name)
    return {name: statistics.median(values) for name, values in times.items()}


def fmnist() -> tuple[Task, str]:
    """The real task, or one of its shape on random data where Fashion-MNIST is missing."""
    try:
        task, data = make_task("fmnist-mlp2"), "fashion-mnist"
        train = task.feed.splits["train"]
    except LaconicError:
        rng = np.random.default_rng(0)
        train = {
            "x": rng.integers(0, 256, (48_000, 28, 28, 1), np.uint8),
            "y": rng.integers(0, 10, 48_000, np.int32),
        }
        data = "random"
        dataset = Dataset(Resident({"train": train}), 10, "random")
        task = classifier_task("fmnist-mlp2", lambda key: MLP(key, SIZES), dataset)
    return replace(task, feed=Resident({"train": train})), data


def first_weights(workers: int) -> Any:
    """Weights of that MLP's shapes, a copy for each worker."""
    keys = jax.random.split(jax.random.key(0), len(SIZES) - 1)
    params = [
        (jax.random.normal(key, shape) / shape[0] ** 0.5, jnp.zeros(shape[1]))
        for key, shape in zip(keys, itertools.pairwise(SIZES), strict=True)
    ]
    return jax.tree.map(lambda p: jnp.broadcast_to(p, (workers, *p.shape)) + 0.0, params)


def bare_steps(arrays: Any, params_K: Any, indices_RKHB: jax.Array, gamma: float) -> Any:
    """R·K·H minibatch SGD steps of the same MLP by hand: scan over rounds, vmap over workers."""

    def loss(params, batch):
        x = batch["x"].reshape(len(batch["y"]), -1).astype(jnp.float32) / 255
        for i, (w, b) in enumerate(params):
            x = x @ w + b[None, :]
            x = jax.nn.relu(x) if i < 2 else x
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x, batch["y"]))

    def step(params, indices):
        value, grads = jax.value_and_grad(loss)(params, jax.tree.map(lambda a: a[indices], arrays))
        return jax.tree.map(lambda p, g: p - gamma * g, params, grads), value

    def one_round(params_K, indices_KHB):
        return jax.vmap(lambda p, i: jax.lax.scan(step, p, i))(params_K, indices_KHB)

    return jax.lax.scan(one_round, params_K, indices_RKHB)


def bench_round(rounds: int, repeats: int, tick: Tick = lambda name: None) -> dict[str, Any]:
    """Local gradient steps a second: the simulator with local SGD, and bare JAX."""
    task, data = fmnist()
    setting = Setting(K, H, B, rounds, (0,), rounds)
    simulation = Simulation(task, parse_method(f"local-sgd:gamma={GAMMA}", K), setting)
    state = simulation.start()
    indices = jax.random.randint(jax.random.key(1), (rounds, K, H, B), 0, task.feed.size())
    arrays, params_K = jax.device_put(task.feed.splits["train"]), first_weights(K)
    bare = jax.jit(partial(bare_steps, gamma=GAMMA))
    took = seconds(
        {
            "simulator": lambda: [chunk.losses for chunk in simulation.run(state)],
            "bare": lambda: bare(arrays, params_K, indices),
        },
        repeats,
        tick,
    )
    steps = rounds * K * H
    return {
        "data": data,
        "simulator_steps_per_second": round(steps / took["simulator"], 1),
        "bare_steps_per_second": round(steps / took["bare"], 1),
        "round_ratio": round(took["bare"] / took["simulator"], 4),
    }


def bench_server_step(
    parameters: int, repeats: int, tick: Tick = lambda name: None
) -> dict[str, Any]:
    """One step on one square matrix, ours, the textbook's and AdamW's: time and temporaries."""
    learned = LearnedOptimizer("lopt-a")
    theta = learned.init(jax.random.key(0))
    side = round(parameters**0.5)
    param = jax.random.normal(jax.random.key(1), (side, side))
    delta = 0.01 * jax.random.normal(jax.random.key(2), (side, side))
    t = jnp.float32(0)

    def ours(theta: Any, param: Any, state: Any, delta: Any) -> Any:
        step = learned(theta).step
        assert step is not None
        return step(delta, state, param)

    def adamw_step(param: Any, state: Any, delta: Any) -> Any:
        updates, state = adamw.update(delta, state, param)
        return optax.apply_updates(param, updates), state

    adamw = optax.adamw(1e-3)
    state = learned(theta).tx.init(param)
    book_state = textbook_init(param)
    adamw_state = adamw.init(param)
    step = jax.jit(ours).lower(theta, param, state, delta).compile()
    book = jax.jit(textbook_step).lower(theta, param, book_state, delta, t).compile()
    plain = jax.jit(adamw_step).lower(param, adamw_state, delta).compile()
    moved = step(theta, param, state, delta)[0] - param
    book_moved = book(theta, param, book_state, delta, t)[0] - param
    difference = jnp.linalg.norm(moved - book_moved) / jnp.linalg.norm(book_moved)
    took = seconds(
        {
            "ours": lambda: step(theta, param, state, delta),
            "textbook": lambda: book(theta, param, book_state, delta, t),
            "adamw": lambda: plain(param, adamw_state, delta),
        },
        repeats,
        tick,
    )
    temporary = lambda program: round(program.memory_analysis().temp_size_in_bytes / param.size, 1)
    return {
        "parameters": param.size,
        "server_step_seconds": round(took["ours"], 4),
        "textbook_seconds": round(took["textbook"], 4),
        "adamw_seconds": round(took["adamw"], 5),
        "ratio_to_adamw": round(took["ours"] / took["adamw"], 2),
        "textbook_ratio_to_adamw": round(took["textbook"] / took["adamw"], 2),
        "server_step_speedup": round(took["textbook"] / took["ours"], 3),
        "temporary_bytes_per_parameter": temporary(step),
        "textbook_temporary_bytes_per_parameter": temporary(book),
        "relative_difference": float(difference),
    }


# --- the textbook step: frozen, untuned on purpose, compared with above ---------------------------
# Every feature of every parameter in one [n, 39] matrix, then the MLP. It must not change.

TEXTBOOK_TIMESCALES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000)
TEXTBOOK_DECAYS = (0.9, 0.99, 0.999, 0.999, 0.9, 0.99, 0.999)


def textbook_init(param):
    """Zero accumulators for one matrix [R, C], C ≥ R."""
    R, C = param.shape
    return {
        "m": jnp.zeros((3, R, C)),
        "v": jnp.zeros((R, C)),
        "r": jnp.zeros((3, R)),
        "c": jnp.zeros((3, C)),
    }


def textbook_step(theta, param, state, delta, t):
    """One LOpt-A step on one matrix → (new parameter, new state)."""
    beta = 1 - (1 - jnp.asarray(TEXTBOOK_DECAYS)) * jnp.exp(10 * theta["decay"])
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
    time = jnp.tanh(t / jnp.asarray(TEXTBOOK_TIMESCALES, jnp.float32) - 1)
    x = jnp.concatenate([inputs, jnp.broadcast_to(time[None, :], (inputs.shape[0], 11))], axis=1)

    h = jax.nn.relu(x @ theta["w0"] + theta["b0"][None, :])
    h = jax.nn.relu(h @ theta["w1"] + theta["b1"][None, :])
    out = h @ theta["w2"] + theta["b2"][None, :]
    change = 0.001 * out[:, 0] * jnp.exp(0.001 * out[:, 1])
    return param - change.reshape(param.shape), {"m": m, "v": v, "r": r, "c": c}
