"""Wide tensors, and all tensors of deep models, take shares of a whole step; the shares are worked
out by hand."""

import jax
import numpy as np
import pytest

from laconic.outer.learned import LearnedOptimizer
from tests import reference as ref
from tests.outer.cases import CUT, LOPT_A, Case
from tests.outer.trees import QUICK, assert_close, float64

# Of a model of five matrices, a vector and a scalar; with widest = 4, with deepest = 2, and with
# both.
SHARES: dict[tuple[int, ...], tuple[float, float, float]] = {
    (4, 9): (1.0, 2 / 5, 2 / 5),
    (5, 9): (4 / 5, 2 / 5, 8 / 25),
    (16, 2): (1 / 4, 2 / 5, 1 / 10),
    (2, 4, 3): (1 / 2, 2 / 5, 1 / 5),
    (99, 2): (1 / 8, 2 / 5, 1 / 20),
    (6,): (1.0, 2 / 5, 2 / 5),
    (): (1.0, 2 / 5, 2 / 5),
}
RULES = ({"widest": 4}, {"deepest": 2}, {"widest": 4, "deepest": 2})
SHAPES = {f"w{i}": shape for i, shape in enumerate(SHARES)}


def first_step(case, options, **rule):
    """What a rule's optimizer changes in the first round."""
    tx = LearnedOptimizer("lopt-a", **rule)(case.theta, **options).tx
    return jax.jit(tx.update, compiler_options=QUICK)(
        case.at(0)[0], tx.init(case.params), case.params
    )[0]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"path": "tensorwise"}, (0, 1, 2)),
        ({"path": "passes", "tuning": CUT}, (2,)),
    ],  # by the interpreter, slowly
    ids=["tensorwise", "passes"],
)
def test_shares_of_the_twins_step(options, rules):
    case = Case(LOPT_A, SHAPES)
    params = float64(case.params)
    twin = ref.lopt_a_update(
        float64(case.theta), params, ref.ada_init(params), float64(case.at(0)[0]), "shifted"
    )[0]
    for i in rules:
        shares = {name: SHARES[shape][i] for name, shape in SHAPES.items()}
        expected = {name: share * (twin[name] - params[name]) for name, share in shares.items()}
        assert_close(first_step(case, options, **RULES[i]), expected, 2e-5, str(RULES[i]))


def test_a_model_of_no_more_matrices_takes_whole_steps():
    case = Case(LOPT_A, SHAPES)
    whole = first_step(case, {})
    for deepest in (5, 6):
        jax.tree.map(np.testing.assert_array_equal, first_step(case, {}, deepest=deepest), whole)


def test_scale_and_weight_decay_are_none_of_a_shares_business():
    case = Case(LOPT_A, SHAPES)
    whole = float64(first_step(case, {}))
    found = first_step(case, {"scale": 0.5, "weight_decay": 0.01}, deepest=2)
    expected = {
        name: 0.5 * 2 / 5 * x - 0.01 * float64(case.params)[name] for name, x in whole.items()
    }
    assert_close(found, expected, 1e-6)
