"""The same run in the simulator: the independent answer to compare real processes with."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.data.feed import Resident
from laconic.method import Method
from laconic.round import Server, communication_round, draw_items, init_round
from laconic.tasks.base import Task
from laconic.workers import Simulated
from tests.outer.trees import QUICK

SHAPE = (4, 2, 16)  # K, H, B of the worker processes


def simulate(
    task: Task,
    method: Method,
    present_RK: np.ndarray,
    restarts: Mapping[int, list[int]] = MappingProxyType({}),
) -> tuple[Any, np.ndarray]:
    """The shared state after as many rounds as `present_RK` has rows, and the workers' mean losses
    [R, K].

    `restarts`: for a round, the workers that begin it with nothing kept from before.
    """
    _, H, B = SHAPE
    K = present_RK.shape[1]
    workers, server = Simulated(method.client(task), method.compressor), Server(method.outer)
    feed = task.feed
    assert isinstance(feed, Resident)

    def one(state: Any, present_K: jax.Array) -> Any:
        items = draw_items(feed, state, K, H, B)._replace(present=present_K)
        state, losses_KH = communication_round(workers, server, state, items)
        return state, jnp.mean(losses_KH, axis=1)

    step = jax.jit(one, compiler_options=QUICK)
    state = init_round(task, workers, server, K, jax.random.key(0))
    losses, first = [], state.clients
    for t, present_K in enumerate(present_RK):
        for k in restarts.get(t, []):
            state = state._replace(
                clients=jax.tree.map(lambda c, f, k=k: c.at[k].set(f[k]), state.clients, first)
            )
        state, losses_K = step(state, jnp.asarray(present_K, jnp.float32))
        losses.append(np.asarray(losses_K))
    return state.shared, np.stack(losses)


def assert_same_weights(
    leaves: list[np.ndarray], shared: Any, what: str, rtol: float = 1e-5
) -> None:
    wanted = [np.asarray(x) for x in jax.tree.leaves(shared)]
    assert len(leaves) == len(wanted)
    for i, (have, want) in enumerate(zip(leaves, wanted, strict=True)):
        assert np.all(np.isfinite(want))
        error = np.max(np.abs(have - want)) / np.max(np.abs(want))
        assert error <= rtol, f"{what}: leaf {i} is off by {error:.2e}"


def present_of(rows: list[dict[str, Any]], rounds: int) -> np.ndarray:
    """Whose message counted in each round, from a worker's log."""
    present_RK = np.zeros((rounds, SHAPE[0]), np.float32)
    for row in rows:
        for worker in row["losses"]:
            present_RK[row["round"] - 1, int(worker)] = 1
    return present_RK
