"""Who takes part in a round: clients by id, absent workers, and rounds with nobody."""

import copy
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer
from laconic.outer import OUTER
from laconic.round import Items, RoundState, communication_round, worker_keys
from laconic.tasks.base import Task, plain_task
from tests import reference as ref
from tests import reference_compress as twin
from tests import tiny
from tests.outer.trees import QUICK, assert_close, float64
from tests.tiny import ADAMW, GAMMA, SGD, B, H, K, draw, first_state, set_up


@pytest.mark.parametrize(
    ("local", "spec"),
    [(ADAMW, "dense"), (SGD, "topk:0.4+ef"), (SGD, "sparseloco:0.4")],
    ids=["adamw", "residuals", "decayed residuals"],
)
def test_who_is_absent_changes_nothing_and_states_follow_the_client(local, spec):
    """Six clients, three a round by id, some of them absent: moments and residuals stay with their
    owners."""
    population, rounds = 6, 6
    ids = np.array([[0, 1, 2], [5, 0, 3], [3, 4, 5], [2, 5, 0], [0, 1, 4], [5, 3, 2]], np.int32)
    present = np.array(
        [[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0], [1, 1, 1]], np.float32
    )
    batches = np.random.default_rng(3).integers(0, 64, (rounds, 3, H, B)).astype(np.int32)
    with tiny.lenient(local is ADAMW):
        workers, server = set_up(OUTER["average"].make(), local, spec)
        state = first_state(workers, server, population)
        step = jax.jit(
            lambda s, i: communication_round(workers, server, s, i), compiler_options=QUICK
        )
        now = float64(jax.device_get(state.shared.params))
        clients = [Pair(local, spec) for _ in range(population)]
        for t in range(rounds):
            keys = worker_keys(state, jnp.asarray(ids[t]))
            state, _ = step(
                state, Items(batches[t], keys, jnp.asarray(ids[t]), jnp.asarray(present[t]))
            )
            tried = [copy.deepcopy(clients[i]) for i in ids[t]]
            deltas = [worker.round(now, batches[t, k]) for k, worker in enumerate(tried)]
            for k, i in enumerate(ids[t]):
                if present[t, k]:  # otherwise nothing was delivered, and all is as before
                    clients[i] = tried[k]
            stacked = {n: np.stack([d[n] for d in deltas]) for n in now}
            now = ref.Average().step(
                now, ref.weighted_mean(stacked, [float(p) for p in present[t]])
            )
            assert_close(jax.device_get(state.shared.params), now, 1e-5, f"round {t}")
    zeros = {n: np.zeros_like(x) for n, x in now.items()}
    kept = jax.device_get(state.clients)
    for i, client in enumerate(clients):
        if local is ADAMW:
            assert int(kept.local[0].count[i]) == client.local.steps
            moment = {n: x[i] for n, x in kept.local[0].mu.items()}
            assert_close(moment, client.local.m or zeros, 1e-5, f"moment of client {i}")
        else:
            residual = {n: x[i] for n, x in kept.residual[0].items()}
            assert_close(residual, client.send.e or zeros, 1e-5, f"residual of client {i}")


class Pair:
    """A client by hand: its optimizer and its error feedback."""

    def __init__(self, local: LocalOptimizer, spec: str):
        fraction = 1.0 if spec == "dense" else 0.4
        self.local: Any = twin.AdamW(0.003, weight_decay=0.1) if local is ADAMW else None
        self.send = twin.ErrorFeedback(lambda tree: twin.topk_global(tree, fraction))
        if spec.startswith("sparseloco"):
            self.send = twin.ErrorFeedback(lambda tree: twin.sparseloco(tree, fraction), 0.95)

    def round(self, start: Any, batches_H: np.ndarray) -> Any:
        w = start
        for rows in batches_H:
            g = tiny.gradient(w, rows)
            w = self.local.step(w, g) if self.local else {n: w[n] - GAMMA * g[n] for n in w}
        return self.send({n: start[n] - w[n] for n in w})


@cache
def mid_run() -> tuple[Any, RoundState, Items]:
    """A round's function, and a state with momentum and residuals that are not 0."""
    workers, server = set_up(OUTER["slowmo"].make(gamma=GAMMA), SGD, "topk:0.4+ef")
    step = jax.jit(lambda s, i: communication_round(workers, server, s, i), compiler_options=QUICK)
    state = first_state(workers, server)
    for _ in range(2):
        state, _ = step(state, draw(state))
    return step, state, draw(state)


def test_a_round_with_nobody_moves_only_the_counter():
    step, state, items = mid_run()
    for nobody in (jnp.zeros(K), jnp.zeros(K, bool), jnp.zeros(K, jnp.int32)):
        after, _ = step(state, items._replace(present=nobody))
        assert int(after.round) == int(state.round) + 1
        for a, b in zip(
            jax.tree.leaves(after._replace(round=state.round)), jax.tree.leaves(state), strict=True
        ):
            np.testing.assert_array_equal(bits(a), bits(b))


def test_an_undelivered_message_leaves_its_worker_as_it_was():
    step, state, items = mid_run()
    for absent in (1, 3):
        present = jnp.ones(K).at[absent].set(0.0)
        after, _ = step(state, items._replace(present=present))
        everyone, _ = step(state, items)
        for old, new, full in zip(
            *map(jax.tree.leaves, (state.clients, after.clients, everyone.clients)), strict=True
        ):
            np.testing.assert_array_equal(new[absent], old[absent])
            others = np.arange(K) != absent
            np.testing.assert_array_equal(np.asarray(new)[others], np.asarray(full)[others])
            assert np.any(full[absent] != old[absent])
        assert np.any(after.shared.params["w1"] != everyone.shared.params["w1"])


def test_all_present_is_the_same_as_saying_nothing():
    step, state, items = mid_run()
    quiet, _ = step(state, items)
    for present in (jnp.ones(K), jnp.ones(K, bool), jnp.ones(K, jnp.int32)):
        said, _ = step(state, items._replace(present=present, ids=jnp.arange(K)))
        for a, b in zip(jax.tree.leaves(said), jax.tree.leaves(quiet), strict=True):
            assert_close(bits(a), bits(b), 1e-6)


def bits(x: jax.Array) -> jax.Array:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def test_an_absent_worker_may_hold_garbage():
    workers, server = set_up(OUTER["average"].make())
    state = first_state(workers, server)
    step = jax.jit(lambda s, i: communication_round(workers, server, s, i), compiler_options=QUICK)
    items = draw(state)
    clean, _ = step(state, items._replace(present=jnp.array([1.0, 1.0, 0.0, 1.0])))
    poisoned = set_up(OUTER["average"].make(), task=poisoned_task())[0]
    run = jax.jit(lambda s, i: communication_round(poisoned, server, s, i), compiler_options=QUICK)
    rows = items.batches.at[2].set(0)  # row 0 of the poisoned data is NaN
    after, losses = run(state, Items(rows, items.keys, present=jnp.array([1.0, 1.0, 0.0, 1.0])))
    assert np.all(np.isnan(losses[2]))
    for name, x in after.shared.params.items():
        np.testing.assert_array_equal(x, clean.shared.params[name])


def poisoned_task() -> Task:
    data = jnp.asarray(tiny.X).at[0].set(jnp.nan), jnp.asarray(tiny.Y)
    return plain_task("poisoned", tiny.init, tiny.loss, data)
