"""The GPU kernel of the learned step, run by Pallas's interpreter on the CPU, against the twin and
the XLA path."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from laconic.outer import features, fused
from laconic.outer.learned import LearnedOptimizer
from tests.outer.cases import LOPT_A, Case, name_of, step
from tests.outer.trees import QUICK, assert_close, text_for_cuda

SPECS = [LOPT_A, LearnedOptimizer("lagg-a", 2, time="paper"), LearnedOptimizer("lagg-a", 8)]
# Wide and tall, several layers, columns that are no multiple of a block, more columns than a block
# has, single ones.
FACTORED = [
    (20, 37),
    (37, 20),
    (5, 4, 6),
    (3, 3, 5, 16),
    (1, 9),
    (9, 1),
    (1, 1),
    (7, 130),
    (128, 128),
]
SOME = [(20, 37), (3, 3, 5, 16), (9, 1), (7, 130)]  # interpreting is slow to compile
FEW = {str(shape): shape for shape in [(19, 6), (2, 5, 4)]}

serves, learned_step = fused.serves, fused.learned_step


@pytest.fixture(scope="module")
def interpreter():
    """Newer versions of JAX load it at its first use and trace again what was traced before."""

    def copy(given, out):
        out[...] = given[...]

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    pl.pallas_call(copy, out_shape=scalar, interpret=True)(jnp.zeros(()))


@pytest.fixture
def kernel(interpreter, monkeypatch):
    """The kernel takes what a GPU would give it; the shapes [L, A, B] it was given are the
    fixture's value."""
    given: list[tuple[int, ...]] = []

    def interpreted(theta: Any, fields: features.Fields, *rest: Any) -> jax.Array:
        given.append(fields.param.shape[1:])
        return learned_step(theta, fields, *rest, interpret=True)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "learned_step", interpreted)
    return given


@pytest.mark.parametrize(
    ("spec", "shapes"), [(SPECS[0], FACTORED), (SPECS[1], SOME), (SPECS[2], SOME)]
)
def test_the_kernel_steps_like_the_twin_and_like_the_xla_path(spec, shapes, kernel, monkeypatch):
    case = Case(spec, {str(shape): shape for shape in [*shapes, (7,)]}, seed=120)
    compiled = lambda: jax.jit(lambda *args: step(spec, *args), compiler_options=QUICK)
    run, params, state = compiled(), case.params, case.init()
    before, updates = (params, state), {}
    for t, (_, change, _) in enumerate(case.twin()[:3]):
        before = params, state
        params, updates, state = run(case.theta, *before, *case.at(t))
        assert_close(updates, change, 1e-5, f"round {t}")
    assert len(kernel) == len(shapes)  # traced once, and vectors go elsewhere
    assert (9, 5, 16) in kernel
    monkeypatch.undo()
    by_xla = compiled()(case.theta, *before, *case.at(2))[1]
    assert_close(updates, jax.device_get(by_xla), 1e-6)
    assert len(kernel) == len(shapes)


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_three_kernels_in_a_vmap(spec, kernel):
    cases = [Case(spec, FEW, seed) for seed in (140, 150, 160)]
    each = [(case.theta, case.params, case.init(), *case.at(0)) for case in cases]
    stacked = jax.tree.map(lambda *x: np.stack(x), *each)
    found = jax.jit(jax.vmap(lambda *args: step(spec, *args)[1]), compiler_options=QUICK)(*stacked)
    assert len(kernel) == len(FEW)
    for i, case in enumerate(cases):
        assert_close({name: x[i] for name, x in found.items()}, case.twin()[0][1], 1e-5)


def test_it_serves_factored_tensors():
    matrix, vector, scalar = (features.init_ada(jnp.zeros(shape)) for shape in [(4, 5), (7,), ()])
    assert all(serves(hidden, matrix) for hidden in (16, 32, 64))
    assert not any(serves(hidden, matrix) for hidden in (1, 8, 24, 33, 48))
    assert not any(
        serves(32, ada) for ada in (vector, scalar, None)
    )  # None: LOpt and LAgg, without -a


@pytest.mark.parametrize(
    ("spec", "runs"), [(LOPT_A, None), (SPECS[2], 2), (LearnedOptimizer("lagg", 4), None)]
)
def test_it_lowers_for_cuda_where_there_is_no_gpu(spec, runs, monkeypatch):
    case = Case(spec, FEW | {"vector": (7,)}, seed=170)
    args = (case.theta, case.params, case.init(), *case.at(0))
    update = lambda *args: step(spec, *args)[1]
    if runs is not None:
        update, args = jax.vmap(update), jax.tree.map(lambda x: np.stack([x] * runs), args)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    text = text_for_cuda(update, *args)
    assert text.count('name = "learned_step"') == (len(FEW) if spec.accumulates else 0)
