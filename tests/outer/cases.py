"""Random problems for the learned optimizers, with their twin's answers."""

from typing import Any

import jax
import numpy as np
import optax

from laconic.outer import features
from laconic.outer.kernels import Tuning
from laconic.outer.learned import LearnedOptimizer
from tests import reference as ref
from tests.outer.trees import (
    QUICK,
    SHAPES,
    assert_close,
    float64,
    random_deltas,
    random_theta,
    random_tree,
)

ROUNDS = 20
LOPT_A, LAGG_A = LearnedOptimizer("lopt-a"), LearnedOptimizer("lagg-a", 4)
# Blocks far smaller than the tensors, so that every kind of edge occurs: rows and columns that no
# block divides, lanes over several rows, and tensors of several blocks; and "even" ones that the
# blocks cover to the last lane.
CUT = Tuning(lanes=32, rows=2, sum_lanes=64, sum_rows=4, programs=1, sum_programs=1, interpret=True)


def name_of(spec: Any) -> str:
    return f"{spec.architecture}-{spec.deltas}-{spec.time}"


class Case:
    """One random problem for an architecture: φ, first weights, and the deltas of every round."""

    def __init__(
        self, spec: LearnedOptimizer, shapes: dict[str, tuple[int, ...]] = SHAPES, seed: int = 0
    ):
        self.spec = spec
        self.theta = random_theta(spec.inputs, seed, spec.accumulates)
        self.params = random_tree(shapes, seed + 1)
        self.deltas = random_deltas(shapes, ROUNDS, spec.workers or 4, seed + 2)
        self.mean = {
            name: np.asarray(d.mean(axis=1, dtype=np.float64), np.float32)
            for name, d in self.deltas.items()
        }

    def at(self, t: int) -> tuple[dict, dict]:
        return {n: d[t] for n, d in self.mean.items()}, {n: d[t] for n, d in self.deltas.items()}

    def init(self) -> Any:
        return jax.jit(self.spec(self.theta).tx.init, compiler_options=QUICK)(self.params)

    def twin(self) -> list[tuple[dict, dict, Any]]:
        """(weights, their change, state) after each round."""
        params = float64(self.params)
        kind: Any = self.spec.architecture.replace("-", "_")
        time: Any = self.spec.time
        outer = ref.Learned(
            kind, float64(self.theta), ref.ada_init(params) if self.spec.accumulates else 0, time
        )
        history = []
        for t in range(ROUNDS):
            mean, deltas = self.at(t)
            new = outer.step(params, float64(mean), float64(deltas))
            history.append((new, {name: new[name] - params[name] for name in new}, outer.state))
            params = new
        return history


def step(
    spec: LearnedOptimizer,
    theta: Any,
    params: Any,
    state: Any,
    mean: Any,
    deltas: Any,
    **knobs: Any,
) -> Any:
    updates, state = spec(theta, **knobs).tx.update(mean, state, params, worker_deltas=deltas)
    return optax.apply_updates(params, updates), updates, state


def assert_accumulators(ada: features.Ada, twin: ref.AdaState, name: str) -> None:
    col = ada.row if ada.col is None else ada.col
    shape = np.shape(ada.v)
    assert_close(ada.v, twin.v[name].reshape(shape), 1e-5, f"v of {name}")
    for i in range(3):
        assert_close(ada.m[i], twin.m[name][i].reshape(shape), 1e-5, f"m{i} of {name}")
        assert_close(ada.row[i], twin.row[name][i], 1e-5, f"row{i} of {name}")
        assert_close(col[i], twin.col[name][i], 1e-5, f"col{i} of {name}")
