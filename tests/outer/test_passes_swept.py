"""Several scales and weight decays at once, as a sweep has them: the passes take them as traced
numbers too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference as ref
from tests.outer.cases import CUT, LOPT_A, Case
from tests.outer.trees import QUICK, assert_close, float64

KINDS = (0.5, np.float32(0.5), np.array(0.5, np.float32), jnp.float32(0.5))
POINTS = [(1.0, 0.0), (0.1, 0.0), (0.5, 0.01)]


def test_a_number_may_be_an_array_of_any_kind():
    case = Case(LOPT_A, {"vector": (6,)}, seed=360)
    state, (mean, _) = case.init(), case.at(0)
    made = [
        LOPT_A(case.theta, scale=s, weight_decay=s / 50, path="passes", tuning=CUT) for s in KINDS
    ]
    first, *others = (
        jax.jit(outer.tx.update, compiler_options=QUICK)(mean, state, case.params)[0]
        for outer in made
    )
    for other in others:
        assert_close(other, first, 1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_each_point_of_a_sweep_steps_by_its_own_scale_and_decay(in_place):
    case = Case(LOPT_A, {"wide": (7, 40), "vector": (6,)}, seed=350)
    state, (mean, _) = case.init(), case.at(0)

    def step(scale, decay):
        outer = LOPT_A(case.theta, scale=scale, weight_decay=decay, path="passes", tuning=CUT)
        return (outer.step if in_place else outer.tx.update)(mean, state, case.params)[0]

    scales, decays = jnp.asarray(POINTS).T
    swept = jax.jit(jax.vmap(step), compiler_options=QUICK)(scales, decays)
    params = float64(case.params)
    new, _ = ref.lopt_a_update(
        float64(case.theta), params, ref.ada_init(params), float64(mean), "shifted"
    )
    for i, (scale, decay) in enumerate(POINTS):
        expected = {n: scale * (new[n] - params[n]) - decay * params[n] for n in params}
        if in_place:
            expected = {n: params[n] + expected[n] for n in params}
        assert_close(
            {n: x[i] for n, x in swept.items()}, expected, 1e-6 if in_place else 2e-5, f"point {i}"
        )
