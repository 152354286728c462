"""optax's own tests for contributed optimizers (`optax/contrib/_common_test.py`, as installed), on
every outer optimizer of ours. `LEFT_OUT` says what is not asked, and why."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import laconic
from laconic.outer import OUTER, OuterOptimizer
from laconic.zoo.optimizer import Published
from tests.zoo.made import LOPT_R, a_card

K, GAMMA = 8, 2.0**-10  # optax's gradients become the Δ of K workers after one step of rate γ
PUBLISHED = ("lopt-a-general", "lagg-a-fmnist", "lopt-fmnist", "lagg-fmnist")
KWARGS = {"fedadagrad": {"eta": 1.0}}  # for optax's 30,000 steps: its squares only add up
FAST = ("test_state_shape_dtype_shard_stability", "test_preserve_dtype")  # of lopt-a-general's
CONVERGES, INJECTS = "test_optimizers", "test_optimizers_can_be_wrapped_in_inject_hyperparams"
SCHEDULED = "test_optimizers_accept_learning_rate_schedule_if_type_annotated_as_such"
LEFT_OUT: dict[tuple[str, str], str] = {
    **{(name, CONVERGES): "random weights" for name in ("lopt-a", "lagg-a", "lopt", "lagg")},
    **{
        (name, CONVERGES): "meta-trained for 1,000 rounds on one task, and asked for 30,000 others"
        for name in PUBLISHED[1:]
    },
    ("optax", INJECTS): "checks its rate when it is made; inject into the optimizer of optax's",
    ("lopt-r", INJECTS): "rate and momentum are part of the architecture; the published one passes",
    **{(name, SCHEDULED): "takes no schedule by this name" for name in OUTER},
}


def workers(tx: Any, combine: str) -> optax.GradientTransformationExtraArgs:
    """`tx` after workers that all see the same gradient."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        delta = jax.tree.map(lambda g: GAMMA * g, updates)
        if combine != "mean":
            extra["worker_deltas"] = jax.tree.map(lambda d: jnp.stack([d] * K), delta)
        return tx.update(delta, state, params, **extra)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def registered(make: Callable[..., OuterOptimizer]) -> Callable[..., Any]:
    def factory(**options: Any) -> Any:
        outer = make(**options)
        return workers(outer.tx, outer.combine)

    parameters = inspect.signature(make).parameters.values()
    numbers = [p for p in parameters if not isinstance(p.default, int)]  # not K or a seed
    factory.__signature__ = inspect.Signature(numbers)
    return factory


def published(one: Published) -> Callable[..., Any]:
    def factory(learning_rate: optax.ScalarOrSchedule = 1.0, weight_decay: float = 0.0) -> Any:
        tx = one.optax(scale=learning_rate, weight_decay=weight_decay)
        return workers(tx, one.outer().combine)

    return factory


def slowmo(learning_rate: optax.ScalarOrSchedule = 0.1) -> Any:
    return workers(OUTER["slowmo"].make(gamma=learning_rate).tx, "mean")


FACTORIES = {name: registered(entry.make) for name, entry in OUTER.items()}
FACTORIES |= {name: published(laconic.load(name)) for name in PUBLISHED}
LOPT_R_FILE = Published(LOPT_R, LOPT_R.init(jax.random.key(0)), a_card(LOPT_R))
FACTORIES |= {"slowmo, scheduled": slowmo, "lopt-r, published": published(LOPT_R_FILE)}


def generated(name: str) -> Any:
    """optax's test class, generated for one of our optimizers alone."""
    spec = importlib.util.find_spec("optax.contrib._common_test")
    assert spec is not None
    assert spec.origin is not None
    cut = "\n\nclass ContribTest("
    head, found, tests = Path(spec.origin).read_text().partition(cut)
    assert found, "optax's file of common tests has another form"
    register = "\n_ALL_OPTIMIZERS_UNDER_TEST = _MAIN_OPTIMIZERS_UNDER_TEST = OURS"
    kwargs = KWARGS.get(name, {})
    case = {"opt_name": name, "opt_kwargs": kwargs, "wrapper_name": None, "wrapper_kwargs": None}
    scope: dict[str, Any] = {"__name__": __name__, "OURS": (case,)}
    exec(compile(head + register + cut[1:] + tests, spec.origin, "exec"), scope)
    scope["_get_opt_factory"] = FACTORIES.__getitem__
    tests, learned = scope["ContribTest"], name.startswith(("lopt", "lagg"))
    for test in [n for n in dir(tests) if n.startswith("test")]:
        if (name, test.rstrip("0123456789")) in LEFT_OUT:
            delattr(tests, test)
        elif learned and not (name == PUBLISHED[0] and test.startswith(FAST)):
            setattr(tests, test, pytest.mark.slow(getattr(tests, test)))
    return tests


for _name in FACTORIES:
    globals()[f"Test {_name}"] = generated(_name)


@pytest.mark.parametrize("name", [name for name, test in LEFT_OUT if test == CONVERGES])
def test_a_state_can_be_mapped_over_its_parameters(name):
    """The part of optax's convergence test that is not about convergence."""
    tx = FACTORIES[name]()
    state = tx.init(jnp.ones((2, 3)))
    mapped = optax.tree.map_params(tx, lambda x: x + 1, state)
    pairs = zip(jax.tree.leaves(mapped), jax.tree.leaves(state), strict=True)
    changed = sum(bool((x != y).any()) for x, y in pairs)
    assert changed == (4 if "-a" in name else 0)  # m, v, row and col; neither rounds nor a digest


def test_an_optimizer_may_be_loaded_while_jax_traces():
    """As `optax.inject_hyperparams` does with a function that loads and makes one."""
    make = optax.inject_hyperparams(lambda scale: laconic.load(PUBLISHED[2]).optax(scale))
    tx, params = make(scale=2.0), jnp.ones((2, 3))
    init, update = jax.jit(tx.init), jax.jit(tx.update)
    twice: Any = laconic.load(PUBLISHED[2]).optax(2.0)
    expected, _ = twice.update(params, twice.init(params), params)
    np.testing.assert_allclose(update(params, init(params), params)[0], expected, rtol=1e-5)


@pytest.fixture(autouse=True)
def promotion():
    """optax's tests promote dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_the_docs_say_what_is_asked_and_what_is_left_out():
    page = (Path(__file__).parents[2] / "docs/checks.md").read_text()
    rows = {row.split("`")[1]: row for row in page.splitlines() if row.startswith("| `test_")}
    asked = {test.rstrip("0123456789") for name in FACTORIES for test in dir(generated(name))}
    assert set(rows) == {name for name in asked if name.startswith("test_")}
    for (name, test), reason in LEFT_OUT.items():
        assert reason in rows[test]
        assert f"`{name}`" in rows[test] or "all of the registry" in rows[test]
