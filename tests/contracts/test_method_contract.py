"""Every named method: built from numbers and from traced numbers it takes the same rounds, and its
options are documented and checked."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import DENSE
from laconic.method import REFUSALS
from laconic.methods import METHODS, definition_of, own_methods, parse_method
from laconic.outer import OUTER, Entry
from laconic.outer.momentum import nesterov
from laconic.round import Server, communication_round, draw_items, init_round
from laconic.tasks.base import plain_task
from laconic.workers import Simulated
from tests.outer.trees import QUICK

WORKERS = {"snoo": 1}  # of methods for so many; worker-aware published ones are made for 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 5)).astype(np.float32)
Y = RNG.normal(size=64).astype(np.float32)
PUBLISHED = ("lopt-a-digits", "lagg-a-fmnist")
OWN = "own-nesterov"
ROUNDING = 2e-6  # the compiler folds plain numbers into constants, and fuses other sums then
SWEPT = [name for name, found in METHODS.items() if "sweep" not in found.cannot]
ALL = [*METHODS, *PUBLISHED, OWN]
pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """An outer optimizer that is a method by its own name."""
    monkeypatch.setitem(OUTER, OWN, Entry(nesterov, "Nesterov momentum", row=""))
    assert list(own_methods()) == [OWN]


@pytest.fixture(scope="module")
def task():
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    return plain_task(
        "least-squares", lambda key: {"w": jax.random.normal(key, (5,))}, loss, {"x": X, "y": Y}
    )


def workers_of(name):
    return WORKERS.get(name, 8)


def rounds(definition, task, key, numbers):
    """The weights after two rounds with these numbers."""
    K = workers_of(definition.name)
    client, outer = definition.build(K, numbers)
    workers, server = Simulated(client(task), DENSE), Server(outer)

    def one(state, _):
        items = draw_items(task.feed, state, K, 2, 4)
        return communication_round(workers, server, state, items)

    state = init_round(task, workers, server, K, key)
    return jax.lax.scan(one, state, length=2)[0].shared.params["w"]


@pytest.mark.parametrize("name", [*SWEPT, *PUBLISHED, OWN])
def test_traced_numbers_give_the_rounds_of_plain_ones(name, task):
    found = definition_of(name, "sweep")
    points = [
        {option: 0.5**i * (found.defaults[option] or 0.01) for option in found.swept}
        | {name: 0.3 + i for name, option in found.workers.items() if option.swept}
        for i in range(2)
    ]
    arrays = [{key: jnp.float32(value) for key, value in point.items()} for point in points]
    run, compiled = partial(rounds, found, task), partial(jax.jit, compiler_options=QUICK)
    traced, key = compiled(run), jax.random.key(0)
    one, other = (np.asarray(traced(key, numbers)) for numbers in arrays)
    plain = compiled(lambda key: run(key, points[0]))(key)
    np.testing.assert_allclose(one, plain, rtol=ROUNDING)
    assert (one != other).any()
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *arrays)
    side_by_side = compiled(jax.vmap(run, (None, 0)))(
        key, stacked
    )  # sums of a batch are added in another order
    np.testing.assert_allclose(side_by_side, [one, other], rtol=2e-6)


@pytest.mark.parametrize("name", ALL)
def test_options_and_limits_are_documented(name):
    found = definition_of(name)
    assert found.name == name
    assert found.summary
    for option in {**found.options, **found.workers}.values():
        assert option.help
        assert "\n" not in option.help
        assert isinstance(option.default, str) or option.range.holds(option.default)
        assert isinstance(option.default, float) or not option.swept
    assert all(reason and not reason.endswith(".") for reason in found.cannot.values())
    assert set(found.cannot) <= set(REFUSALS)
    assert found.swept or "sweep" in found.cannot


@pytest.mark.parametrize("name", ALL)
def test_the_spec_is_the_label_and_every_option_can_be_given(name):
    found = definition_of(name)
    defaults = found.defaults | {key: option.default for key, option in found.workers.items()}
    spec = f"{name}:{','.join(f'{key}={value}' for key, value in defaults.items())}"
    K = workers_of(name)
    method = parse_method(spec, K)
    assert (method.name, method.label) == (name, spec)
    assert parse_method(f"{name}:label=Mine", K).label == "Mine"


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_option_or_value_is_one_clear_error(name, raises_clearly):
    found, K = definition_of(name), workers_of(name)
    with raises_clearly(f"unknown option of {name} 'colour'", "Known: "):
        parse_method(f"{name}:colour=1", K)
    for key, option in found.options.items():
        if isinstance(option.default, str):
            continue
        with raises_clearly(f"{key} must be a", "'x'"):
            parse_method(f"{name}:{key}=x", K)
        if isinstance(option.default, float):
            with raises_clearly(f"{name}: {key} must be {option.range.words}", "nan"):
                parse_method(f"{name}:{key}=nan", K)
    if "sweep" not in found.cannot:
        point = dict.fromkeys(found.swept, 0.5)
        with raises_clearly(f"unknown hyper-parameter of {name} 'colour'"):
            found.check_points([{**point, "colour": 1.0}])
        with raises_clearly(f"{name}: {found.swept[0]} must be", "inf"):
            found.check_points([{**point, found.swept[0]: np.inf}])


@pytest.mark.parametrize(
    ("name", "use"), [(name, use) for name, found in METHODS.items() for use in found.cannot]
)
def test_what_a_method_cannot_do_is_refused_with_the_reason(name, use, raises_clearly):
    with raises_clearly(f"{name} {REFUSALS[use]}: {METHODS[name].cannot[use]}."):
        parse_method(name, workers_of(name), use=use)
