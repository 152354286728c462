"""The table of features decides order, places and counts in JAX, in GPU kernels and in PyTorch."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

from laconic import architecture
from laconic.architecture import FEATURES, Architecture, Feature, feature_places
from laconic.errors import LaconicError
from laconic.outer import features, fused, kernels
from laconic.outer.learned import LearnedOptimizer
from laconic.torch import features as torch_features
from tests.outer.cases import CUT, Case, step
from tests.outer.trees import QUICK, assert_close
from tests.torch.pairs import Pair

SHAPES: dict[str, tuple[int, ...]] = {"wide": (7, 40), "cube": (2, 5, 4), "vector": (6,)}
ROOTS = (Feature("root_row", 3, "row", 1e-4), Feature("root_col", 3, "column", 1e-4))
SCRATCH = (*FEATURES[:5], Feature("cubed", 3), *FEATURES[5:-1], *ROOTS, FEATURES[-1])
JAX_FORMULAS = {
    "cubed": lambda x, _: x.m * x.m * x.m,
    "root_row": lambda x, epsilon: jnp.sqrt(x.row + epsilon),
    "root_col": lambda x, epsilon: jnp.sqrt(x.col + epsilon),
}
TORCH_FORMULAS = {
    "cubed": lambda x, _, out: torch.mul(x.ada.m, x.ada.m, out=out).mul_(x.ada.m),
    "root_row": lambda x, epsilon, out: out.copy_((x.ada.row + epsilon).sqrt_()),
    "root_col": lambda x, epsilon, out: out.copy_((x.ada.col + epsilon).sqrt_()),
}


@pytest.fixture
def scratch_table(monkeypatch):
    """A table with three more features, which no framework has a formula for."""
    monkeypatch.setattr(architecture, "FEATURES", SCRATCH)
    kernels.bound.cache_clear()  # JAX keeps the traces of kernels
    yield
    kernels.bound.cache_clear()


@pytest.fixture
def formulas(monkeypatch):
    for name, formula in JAX_FORMULAS.items():
        monkeypatch.setitem(features.FORMULAS, name, formula)
    for name, formula in TORCH_FORMULAS.items():
        monkeypatch.setitem(torch_features.FORMULAS, name, formula)


def by_jax(case: Case, **knobs: Any) -> Any:
    run = jax.jit(lambda *args: step(case.spec, *args, **knobs)[1], compiler_options=QUICK)
    return jax.device_get(run(case.theta, case.params, case.init(), *case.at(0)))


def by_kernel(case: Case, monkeypatch: pytest.MonkeyPatch) -> Any:
    learned_step = fused.learned_step
    with monkeypatch.context() as patch:
        patch.setattr(fused, "learned_step", lambda *args: learned_step(*args, interpret=True))
        patch.setattr(jax, "default_backend", lambda: "gpu")
        return by_jax(case, path="tensorwise")


def test_counts_and_places_of_the_paper():
    assert [Architecture("lagg-a", K).inputs for K in (8, 16, 32)] == [46, 54, 70]
    assert (Architecture().inputs, Architecture().normalised) == (39, 28)
    assert (Architecture("lopt").inputs, Architecture("lagg", 4).inputs) == (13, 16)
    places = feature_places(4)
    assert list(places) == [feature.name for feature in FEATURES]
    assert (places["deltas"], places["v"], places["time"]) == (
        slice(0, 4),
        slice(8, 9),
        slice(31, 42),
    )
    assert feature_places(1, accumulates=False)["time"] == slice(2, 13)


@pytest.mark.parametrize("framework", [features, torch_features])
def test_every_framework_has_a_formula_for_every_feature(framework):
    known = {**framework.FORMULAS, **framework.ROUND_FORMULAS}
    assert [feature.name for feature in FEATURES if feature.name not in known] == []


def test_errors_name_the_framework_without_a_formula(scratch_table, monkeypatch, tmp_path):
    pair = Pair(LearnedOptimizer("lopt-a"), tmp_path, SHAPES)
    message = "{} has no formula for the feature 'cubed'"
    for knobs in ({"path": "xla"}, {"path": "passes", "tuning": CUT}):
        with pytest.raises(LaconicError, match=message.format("JAX")):
            by_jax(pair.case, **knobs)
    with pytest.raises(LaconicError, match=message.format("JAX")):
        by_kernel(pair.case, monkeypatch)
    with pytest.raises(LaconicError, match=message.format("PyTorch")):
        pair.step(0)


@pytest.mark.parametrize(
    "spec", [LearnedOptimizer("lopt-a"), LearnedOptimizer("lagg-a", 3)], ids=["lopt-a", "lagg-a"]
)
def test_a_new_feature_is_a_line_and_its_formulas(spec, scratch_table, formulas, monkeypatch):
    """Each of its numbers reaches the MLP of every path, or the steps would differ."""
    assert spec.inputs == spec.deltas + 38 + 9
    case = Case(spec, SHAPES, seed=410)
    by_xla = by_jax(case, path="xla")
    passes = by_jax(case, path="passes", tuning=CUT._replace(precision="float32"))
    assert_close(passes, by_xla, 2e-6)
    assert_close(by_kernel(case, monkeypatch), by_xla, 1e-5)


def test_a_new_feature_in_pytorch(scratch_table, formulas, tmp_path):
    pair = Pair(LearnedOptimizer("lagg-a", 3), tmp_path, SHAPES)
    assert_close(pair.step(0), by_jax(pair.case, path="xla"), 1e-5)
