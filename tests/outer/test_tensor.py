"""The MLP of a learned step gives what the twin gives, however its sums are written."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.outer import tensor
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.tiles import Walk
from tests import reference
from tests.outer.cases import LAGG_A, LOPT_A, Case, name_of, step
from tests.outer.trees import QUICK, SHAPES, assert_close, float64, random_deltas, random_tree


def compiled(spec: LearnedOptimizer) -> Any:
    return jax.jit(partial(step, spec), compiler_options=QUICK)


@pytest.fixture
def sum_by_sum(monkeypatch):
    """As for large tensors; the fixture's value is a list with an entry for each tensor that was
    stepped so."""
    written_out, traced = tensor.written_out, []

    def counted(theta: Any, h: jax.Array) -> Any:
        traced.append(h.shape)
        return written_out(theta, h)

    monkeypatch.setattr(tensor, "LARGE", 0)
    monkeypatch.setattr(tensor, "written_out", counted)
    return traced


@pytest.mark.parametrize("spec", [LOPT_A, LAGG_A, LearnedOptimizer("lopt")], ids=name_of)
def test_the_last_layer_sum_by_sum_steps_like_the_twin(spec, sum_by_sum):
    case = Case(spec, SHAPES | {"wide": (3, 1700)}, seed=62)  # which is gone over a tile at a time
    run, params, state = compiled(spec), case.params, case.init()
    for t, (_, change, _) in enumerate(case.twin()[:3]):
        params, updates, state = run(case.theta, params, state, *case.at(t))
        assert_close(updates, change, 1e-5, f"round {t}")
    assert len(sum_by_sum) >= len(case.params)


def test_sums_are_written_out_for_large_tensors_and_narrow_layers_on_a_cpu(monkeypatch):
    narrow, wide = ({"b1": jnp.zeros(hidden)} for hidden in (tensor.NARROW, tensor.NARROW + 1))
    large, small = Walk((4, 512, 512), 1152), Walk((4, 512, 511), 1152)
    assert tensor.default_last(narrow, large) is tensor.written_out
    assert [tensor.default_last(*both) for both in ((narrow, small), (wide, large))] == [
        tensor.product
    ] * 2
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert tensor.default_last(narrow, large) is tensor.product


def test_a_wide_mlp_whose_further_units_are_idle_steps_like_a_narrow_one(sum_by_sum):
    """The last layer is written out for narrow ones, and is a product for wide ones."""
    wide, shapes = (
        LearnedOptimizer("lopt-a", hidden=tensor.NARROW + 6),
        {"vector": (7,), "large": (36, 133)},
    )
    case = Case(LOPT_A, shapes, seed=61)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in wide.shapes.items()}
    for name, zero in zeros.items():
        zero[tuple(slice(n) for n in case.theta[name].shape)] = case.theta[name]
    rest = case.params, case.init(), *case.at(0)
    narrow_changes = compiled(LOPT_A)(case.theta, *rest)[1]
    by_sums = len(sum_by_sum)
    assert by_sums >= len(shapes)
    wide_changes = compiled(wide)(zeros | {"decay": case.theta["decay"]}, *rest)[1]
    assert len(sum_by_sum) == by_sums
    assert_close(wide_changes, jax.device_get(narrow_changes), 1e-6, "changes")


@pytest.mark.parametrize("hidden", [1, 2, 3, 5])
@pytest.mark.parametrize("large", [0, tensor.LARGE], ids=["sum by sum", "product"])
def test_a_few_hidden_units_see_all_features_of_tensors_with_an_axis_of_one(
    hidden, large, monkeypatch
):
    """So few that rows and columns can go through the first layer by themselves however short an
    axis is."""
    monkeypatch.setattr(tensor, "LARGE", large)
    shapes = {"column": (9, 1), "row": (1, 9), "matrix": (7, 6), "one": (1, 1)}
    spec, params = LearnedOptimizer("lopt-a", hidden=hidden), random_tree(shapes, 63)
    theta = {name: np.asarray(x) for name, x in spec.init(jax.random.key(64)).items()}
    theta["w2"], theta["b2"] = theta["w2"] / spec.output_scale, np.float32([2, 0.3])
    mean = {name: d[0, 0] for name, d in random_deltas(shapes, 1, 1, 65).items()}
    found = compiled(spec)(theta, params, spec(theta).tx.init(params), mean, None)[1]
    old = float64(params)
    new, _ = reference.lopt_a_update(
        float64(theta), old, reference.ada_init(old), float64(mean), "shifted"
    )
    assert_close(found, {name: new[name] - old[name] for name in old}, 1e-5)
