"""Models as rows: `lopt-r` on rows against its NumPy twin, and runs in rows against plain ones."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import LocalOptimizer
from laconic.data.images import load_digits
from laconic.meta import varied
from laconic.meta.problem import Inner
from laconic.meta.rows import WIDTH, Rows, packed_relative
from laconic.outer.relative import RelativeOptimizer
from laconic.tasks.base import Task
from laconic.tasks.catalog import make_task
from laconic.tasks.classifier import stateful_classifier_task
from laconic.tasks.small import NormCNN
from laconic.workers import weighted_mean
from tests import reference_relative as ref
from tests.outer.trees import QUICK, assert_close, random_deltas, random_relative, random_tree

K, ROUNDS = 5, 12
SHAPES: dict[str, tuple[int, ...]] = {
    "full": (2, WIDTH),
    "kernel": (3, 3, 2, 4),
    "scalar": (),
    "vector": (7,),
    "wide": (3, 40),
}
SPEC = RelativeOptimizer(hidden=5, inputs=RelativeOptimizer().inputs[3:-1])
THETA = random_relative(SPEC.shapes, 7)
PARAMS = random_tree(SHAPES, 0)
DELTAS = random_deltas(SHAPES, ROUNDS, K, 1)  # leaves [T, K, …]
WEIGHTS: Any = np.array([1.0, 2.0, 0.0, 1.0, 0.5], np.float32)
LAYOUT = Rows(jax.tree.structure(PARAMS), tuple(x.shape for x in PARAMS.values()))


def test_tensors_come_back_from_their_rows():
    rows = LAYOUT.pack(PARAMS)
    assert rows.shape == (2 + 2 + 1 + 1 + 2, WIDTH)
    assert list(LAYOUT.tensors) == [0, 0, 1, 1, 2, 3, 4, 4]
    assert_close(jax.device_get(LAYOUT.unpack(rows)), PARAMS, 0)
    assert np.sum(np.abs(rows)) == pytest.approx(sum(np.sum(np.abs(x)) for x in PARAMS.values()))


def in_rows(deltas: Any, agreement: float, **told: int) -> Any:
    """The changes of all rounds, leaves [T, …]."""
    counts = tuple(jnp.int32(told.get(name, 0)) for name in ("workers", "local_steps", "rounds"))

    def body(carry: Any, deltas_K: Any) -> Any:
        rows, state = carry
        packed_K = jax.vmap(LAYOUT.pack)(deltas_K)
        mean = weighted_mean(packed_K, WEIGHTS)
        change, state = tx.update(mean, state, rows, worker_deltas=packed_K, weights=WEIGHTS)
        return (optax.apply_updates(rows, change), state), LAYOUT.unpack(change)

    tx: Any = packed_relative(SPEC, THETA, LAYOUT, counts, jnp.float32(agreement)).tx
    rows = LAYOUT.pack(PARAMS)
    scan = jax.jit(lambda d: jax.lax.scan(body, (rows, tx.init(rows)), d)[1])
    return jax.device_get(scan(deltas))


def twin(deltas: Any, gathered: bool, **told: int) -> list[Any]:
    """The same by the NumPy twin, tensor by tensor."""
    shares, found = WEIGHTS / WEIGHTS.sum(), []
    params = {name: np.float64(p) for name, p in PARAMS.items()}
    tensors = {name: ref.Tensor(p.shape) for name, p in PARAMS.items()}
    for t in range(ROUNDS):
        each = {name: np.asarray(d[t], np.float64) for name, d in deltas.items()}
        changes = {
            name: -ref.step(
                THETA,
                tensors[name],
                np.tensordot(shares, each[name], 1),
                params[name],
                deltas=each[name] if gathered else None,
                weights=WEIGHTS,
                columns=SPEC.columns,
                **told,
            )
            for name in params
        }
        params = {name: p + changes[name] for name, p in params.items()}
        found.append(changes)
    return found


@pytest.mark.parametrize("told", [{}, {"workers": 5, "local_steps": 30, "rounds": 9}])
@pytest.mark.parametrize("agreement", [1.0, 0.0])
def test_a_step_on_rows_is_the_twins_on_every_tensor(told, agreement):
    found = in_rows(DELTAS, agreement, **told)
    for t, expected in enumerate(twin(DELTAS, agreement > 0, **told)):
        assert_close({name: x[t] for name, x in found.items()}, expected, 2e-4, f"round {t}")


def test_a_workers_delta_that_does_not_count_may_be_nan():
    broken = {name: d.copy() for name, d in DELTAS.items()}
    for d in broken.values():
        d[:, 2] = np.nan
    assert_close(in_rows(broken, 1.0), in_rows(DELTAS, 1.0), 1e-6)


def kernels(tensors: int) -> int:
    """Reductions and products in one step on a model of so many tensors."""
    layout = Rows(jax.tree.structure([0] * tensors), ((9, 9),) * tensors)
    tx: Any = packed_relative(SPEC, THETA, layout, (0, 0, 0), jnp.float32(1)).tx
    rows = layout.pack([jnp.ones((9, 9))] * tensors)
    seen = {"worker_deltas": jnp.stack([rows] * K), "weights": jnp.ones(K)}
    text = str(jax.make_jaxpr(lambda r: tx.update(r, tx.init(r), r, **seen))(rows))
    return sum(text.count(f" {name}[") for name in ("reduce_sum", "dot_general"))


def test_more_tensors_are_no_more_kernels():
    assert kernels(2) == kernels(9) < 8


def normed_cnn() -> Task:
    """A task with convolutions, and with statistics beside its weights."""
    build = partial(NormCNN, inputs=1, width=2, classes=10)
    return stateful_classifier_task("digits-cnn-bn", build, load_digits())


@pytest.mark.parametrize(
    ("make", "local"),
    [
        (partial(make_task, "digits-mlp:width=8"), LocalOptimizer("sgd", 0.2)),
        (normed_cnn, LocalOptimizer("adamw", 0.01)),
    ],
)
def test_a_run_in_rows_is_the_plain_run(monkeypatch, standard_promotion, make, local):
    made = make()
    inner = Inner(made.name, 3, 2, 8, local, spread=3.0)
    theta = {name: jnp.asarray(0.3 * x) for name, x in THETA.items()}

    def losses() -> np.ndarray:
        problem = varied.varied_problem(made, SPEC, inner)

        def run(seed: jax.Array) -> jax.Array:
            run = problem.lasting(problem.begin(theta, jax.random.key(seed)), jnp.int32(4))
            return problem.unroll(theta, run, problem.draw(run, 4))[1]

        compiled = jax.jit(run, compiler_options=QUICK)
        return np.array([compiled(seed) for seed in range(3)])

    rows = losses()
    monkeypatch.setattr(varied, "in_rows", lambda learned, inner: False)
    np.testing.assert_allclose(rows, losses(), rtol=1e-3)


def test_what_cannot_lie_in_rows_does_not():
    inner = Inner("digits-mlp:width=8", 4, 3, 8, spread=3.0)
    assert varied.in_rows(SPEC, inner)
    assert not varied.in_rows(RelativeOptimizer(gates=4), inner)
    topk = Inner("digits-mlp:width=8", 4, 3, 8, compress="topk:0.1+ef", spread=3.0)
    assert not varied.in_rows(SPEC, topk)
