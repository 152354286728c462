"""Every input of the learned optimizers' MLP, column by column, against the twin's matrix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.outer import features
from laconic.outer.learned import LearnedOptimizer
from tests import reference as ref
from tests.outer.cases import LOPT_A, ROUNDS, Case, name_of
from tests.outer.trees import QUICK, SHAPES, assert_close, float64, random_tree


def inputs_of(spec: LearnedOptimizer, param: Any, ada: features.Ada, mean: Any, deltas: Any, t: Any) -> jax.Array:
    """The whole [n, F] matrix: `split_inputs` of an identity says where each feature belongs."""
    view, fields = features.fields_of(param, ada, mean, deltas)
    w_param, w_row, w_col, w_time = features.split_inputs(jnp.eye(spec.inputs), deltas.shape[0])

    def place(x: jax.Array, w: jax.Array) -> jax.Array:
        x = jnp.broadcast_to(x, (x.shape[0], *fields.param.shape[1:]))
        x = x * features.normaliser(jnp.mean(jnp.square(x), axis=(1, 2, 3), keepdims=True))
        in_order = [features.from_view(view, row[None], param.shape).reshape(-1) for row in x]
        return jnp.stack(in_order, axis=1) @ w

    time = features.time_features(t, 1.0 if spec.time == "shifted" else 0.0)
    varying = place(features.parameter_features(fields), w_param)
    axes = place(features.axis_features(fields.row), w_row) + place(features.axis_features(fields.col), w_col)
    return varying + axes + (time @ w_time)[None, :]


@pytest.mark.parametrize("spec", [LOPT_A, LearnedOptimizer("lagg-a", 4, time="paper")], ids=name_of)
def test_every_feature_of_every_tensor(spec):
    case, state = Case(spec, seed=50), ref.ada_init(float64(random_tree(SHAPES, 51)))
    betas = ref.betas_of(float64(case.theta))

    def make(params: Any, state: Any, mean: Any, deltas: Any) -> tuple[Any, Any]:
        rates = features.decays(case.theta["decay"])
        ada = {name: features.accumulate(a, mean[name], rates) for name, a in state.ada.items()}
        seen = deltas if spec.gathers else {name: d[None] for name, d in mean.items()}
        args = lambda name: (params[name], ada[name], mean[name], seen[name], state.round)
        return {name: inputs_of(spec, *args(name)) for name in params}, state._replace(round=state.round + 1, ada=ada)

    run, found = jax.jit(make, compiler_options=QUICK), case.init()
    for t in range(ROUNDS):
        mean, deltas = case.at(t)
        matrices, found = run(case.params, found, mean, deltas)
        worker_deltas = float64(deltas) if spec.gathers else None
        time: Any = spec.time
        expected, state = ref.ada_features(
            float64(case.params), state, float64(mean), betas, t, time, worker_deltas=worker_deltas
        )
        matrices = jax.device_get(matrices)
        for name, x in expected.items():
            assert x.shape == (max(1, np.size(case.params[name])), spec.inputs)
            for column in range(spec.inputs):
                what = f"round {t}, column {column} of {name}"
                assert_close(matrices[name][:, column], x[:, column], 1e-5, what)


def test_decay_offsets_are_exact_and_capped():
    offsets = np.array([0.0, 0.1, -0.2, 0.0, 0.5, 0.03, -0.01], np.float32)
    expected = 1 - ref.betas_of({"decay": offsets.astype(np.float64)})
    np.testing.assert_allclose(np.asarray(features.decays(jnp.asarray(offsets)), np.float64), expected, rtol=3e-7)
    assert features.decays(jnp.asarray(offsets))[4] == 1.0  # 0.1·e⁵ would be past 1, and β negative
