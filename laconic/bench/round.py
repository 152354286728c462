"""How fast a simulated round is against bare JAX, and a LOpt-A server step against the textbook and
AdamW.

Ratios are taken within one run, alternating the programs, so that they mean something on a busy
machine too.
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

from laconic.bench import textbook
from laconic.bench.clock import Tick
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
    """A simulated round against bare JAX, and a LOpt-A step against AdamW and a textbook version of
    itself."""

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
    numbers = {
        **bench_round(config.rounds, config.repeats, tick),
        **bench_server_step(config.parameters, config.repeats, tick),
    }
    named = {
        "server step": "server_step_seconds",
        "textbook": "textbook_seconds",
        "adamw": "adamw_seconds",
    }
    steps = {
        "simulator local step": "simulator_steps_per_second",
        "bare local step": "bare_steps_per_second",
    }
    figures = {name: {"seconds": 1 / numbers[key]} for name, key in steps.items()}
    figures |= {name: {"seconds": numbers[key]} for name, key in named.items()}
    return {**numbers, "figures": figures}


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
    """The real task, or one of the same shape on random data where Fashion-MNIST is not to be had."""
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
    """R·K·H minibatch SGD steps of the same MLP, written out by hand: scan over rounds and steps,
    vmap over workers."""

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
    """One LOpt-A step on one square matrix: the package's, the textbook's and AdamW's; time and
    temporaries."""
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
    state, book_state, adamw_state = (
        learned(theta).tx.init(param),
        textbook.init(param),
        adamw.init(param),
    )
    step = jax.jit(ours).lower(theta, param, state, delta).compile()
    book = jax.jit(textbook.step).lower(theta, param, book_state, delta, t).compile()
    plain = jax.jit(adamw_step).lower(param, adamw_state, delta).compile()
    new, book_new = step(theta, param, state, delta)[0], book(theta, param, book_state, delta, t)[0]
    moved, book_moved = new - param, book_new - param
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
        "relative_difference": float(
            jnp.linalg.norm(moved - book_moved) / jnp.linalg.norm(book_moved)
        ),
    }
