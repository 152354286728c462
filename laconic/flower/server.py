"""The server's part of a round, apart from Flower: which replies count, and the outer step on those
that do."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines import guard
from laconic.errors import require_positive
from laconic.flower.model import Arrays, Model, weighted_mean
from laconic.flower.replies import Refused, Reply
from laconic.outer import OuterOptimizer


class ServerState(NamedTuple):
    """The outer optimizer's accumulators, and the norms that the guard remembers."""

    outer: Any
    norms_W: jax.Array
    seen: jax.Array


class Limits(NamedTuple):
    """How many times the usual norm of Δ, and the median weight, a reply may have."""

    norm: float = guard.LIMIT
    weight: float = 100.0


class OuterServer:
    """An outer optimizer and the guard before it, compiled."""

    def __init__(self, outer: OuterOptimizer, limits: Limits) -> None:
        require_positive(norm_limit=limits.norm, weight_limit=limits.weight)
        self.outer, self.limits = outer, limits
        self._init = jax.jit(outer.tx.init)
        self._judge = jax.jit(partial(guard.judge, limit=limits.norm))
        self._update = jax.jit(self._step)

    def init(self, params: Arrays) -> ServerState:
        """The state before the first round."""
        fresh = guard.init_guard(0)
        return ServerState(self._init(params), fresh.norms_W, fresh.seen)

    def judge(
        self, state: ServerState, replies: Sequence[Reply]
    ) -> tuple[list[Reply], list[Refused], ServerState]:
        """Those replies that may count, those that may not, and the state that remembers the norms
        of the former."""
        if not replies:
            return [], [], state
        norms_K = np.array([_norm(reply.delta) for reply in replies])
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused
            norms_K = norms_K.astype(np.float32)
        heavy_K = self._heavy([reply.weight for reply in replies])
        codes_K = np.where(heavy_K, guard.CODE["weight"], guard.CODE["ok"]).astype(np.int32)
        K = len(replies)
        past = guard.GuardState(state.norms_W, state.seen, jnp.zeros(K, jnp.int32))
        verdicts_K, past = self._judge(
            past, norms_K, np.ones(K, bool), np.ones(K, np.float32), codes_K
        )
        good, bad = [], []
        for reply, norm, code in zip(replies, norms_K, np.asarray(verdicts_K), strict=True):
            if code == guard.CODE["ok"]:
                good.append(reply)
            elif code == guard.CODE["weight"]:
                bad.append(
                    Refused(
                        reply.node,
                        "weight",
                        f"its weight of {reply.weight:g} is far above the others'",
                    )
                )
            else:
                bad.append(
                    Refused(
                        reply.node,
                        "norm",
                        f"the norm of its change, {norm:g}, is far above the usual",
                    )
                )
        return good, bad, ServerState(state.outer, past.norms_W, past.seen)

    def step(
        self,
        state: ServerState,
        model: Model,
        before: Arrays,
        replies: Sequence[Reply],
        slots: Sequence[int],
    ) -> tuple[Arrays, ServerState]:
        """The model after a round; `slots` are the nodes that were asked. Nobody with weight:
        nothing moves."""
        counting = [reply for reply in replies if reply.weight > 0]
        if not counting:
            return before, state
        deltas = {reply.node: reply.delta for reply in counting}
        weights = {reply.node: reply.weight for reply in counting}
        mean = weighted_mean(list(deltas.values()), list(weights.values()))
        extra: tuple[Any, Any] = (None, None)
        if (
            self.outer.combine == "gather"
        ):  # slots are in the order of node ids; empty ones are filled by the optimizer
            absent = {name: np.zeros_like(x) for name, x in mean.items()}
            rows = [deltas.get(node, absent) for node in slots]
            stacked = {name: np.stack([row[name] for row in rows]) for name in mean}
            extra = (stacked, np.array([weights.get(node, 0.0) for node in slots], np.float32))
        updates, outer = self._update(mean, state.outer, model.params(before), *extra)
        after = model.moved(before, jax.tree.map(np.asarray, updates))
        if model.averaged:
            after |= weighted_mean([reply.averaged for reply in counting], list(weights.values()))
        return {name: after[name] for name in model.forms}, state._replace(outer=outer)

    def _step(
        self, mean: Any, outer: Any, params: Any, worker_deltas: Any, weights_K: Any
    ) -> tuple[Any, Any]:
        return self.outer.tx.update(
            mean, outer, params, worker_deltas=worker_deltas, weights=weights_K
        )

    def _heavy(self, weights: Sequence[float]) -> np.ndarray:
        """Which weights are far above the median, the lower of two, so that a minority cannot raise
        it."""
        present = sorted(weight for weight in weights if weight > 0)
        usual = present[(len(present) - 1) // 2] if present else 0.0
        return np.array([weight > self.limits.weight * usual for weight in weights])


def _norm(delta: Arrays) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in delta.values())))
