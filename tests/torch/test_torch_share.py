"""Wide tensors, and deep models, take smaller steps in PyTorch too, by the inputs in torch.nn's
layout."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from laconic.outer.learned import LearnedOptimizer
from tests.outer.trees import QUICK, assert_close, float64
from tests.torch.pairs import Pair

SHARES = {  # in JAX's layout, with whole steps up to four inputs
    (6,): 1.0,
    (4, 9): 1.0,
    (5, 9): 4 / 5,
    (16, 2): 1 / 4,
    (2, 4, 3): 1 / 2,
    (3, 3, 1, 2): 4 / 9,
    (99, 2): 1 / 8,
}
SHAPES = {f"w{i}": shape for i, shape in enumerate(SHARES)}


def pair_of(folder, **rule):
    folder = folder / "-".join(f"{name}{value}" for name, value in rule.items())
    folder.mkdir()
    return Pair(LearnedOptimizer("lopt-a", **rule), folder, SHAPES)


def test_a_steps_share_follows_from_the_inputs(tmp_path):
    whole, less = (pair_of(tmp_path, widest=widest).step(0) for widest in (0, 4))
    for name, share in zip(SHAPES, SHARES.values(), strict=True):
        np.testing.assert_allclose(less[name], share * whole[name], rtol=2e-6, err_msg=name)


def test_a_steps_share_follows_from_the_models_matrices(tmp_path):
    """There are six of them: 3/6 of a step for all, vectors too, and of what wide ones take; JAX
    steps alike."""
    whole, deep, both = (
        pair_of(tmp_path, **rule)
        for rule in ({"deepest": 6}, {"deepest": 3}, {"widest": 4, "deepest": 3})
    )
    outer = both.case.spec(both.case.theta).tx
    state = outer.init(both.case.params)
    jax_step = jax.jit(outer.update, compiler_options=QUICK)(
        both.case.at(0)[0], state, both.case.params
    )[0]
    steps = [pair.step(0) for pair in (whole, deep, both)]
    for name, share in zip(SHAPES, SHARES.values(), strict=True):
        np.testing.assert_allclose(steps[1][name], 0.5 * steps[0][name], rtol=2e-6, err_msg=name)
        np.testing.assert_allclose(
            steps[2][name], 0.5 * share * steps[0][name], rtol=2e-6, err_msg=name
        )
    assert_close(steps[2], float64(jax_step), 1e-5)


def test_matrices_without_a_gradient_count_too(tmp_path):
    """As in DiLoCo with fragments, where a round moves only some of the parameters."""
    all_of_them, some = (pair_of(tmp_path, deepest=deepest) for deepest in (3, 2))
    all_of_them.step(0)
    some.set_grads(0)
    before = [p.detach().clone() for p in some.params]
    for p in some.params[2:]:
        p.grad = None
    some.outer.step()
    changes = [p.detach() - old for p, old in zip(some.params, before, strict=True)]
    first = [p.detach() - old for p, old in zip(all_of_them.params, before, strict=True)]
    for change, expected in zip(changes[:2], first[:2], strict=True):
        torch.testing.assert_close(change, expected * 2 / 3, rtol=2e-6, atol=0)
    assert not any(change.any() for change in changes[2:])


def test_every_group_counts(tmp_path):
    """Six matrices in two groups, or in one."""
    one, two = (pair_of(tmp_path, deepest=deepest) for deepest in (2, 3))
    two.outer.param_groups[0]["params"] = two.params[:4]
    two.outer.add_param_group({"params": two.params[4:]})
    steps = [pair.step(0) for pair in (one, two)]
    for name in SHAPES:
        np.testing.assert_allclose(steps[0][name], steps[1][name] * 2 / 3, rtol=2e-6, err_msg=name)
