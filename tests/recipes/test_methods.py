"""Methods by name: parsing, defaults, and what each is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.evaluate.run import Setting, Simulation
from laconic.recipes.methods import METHODS, options_of, parse_method
from laconic.tasks.base import plain_task

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("standard_promotion")
X, Y = RNG.normal(size=(64, 4)).astype(np.float32), RNG.normal(size=64).astype(np.float32)


@pytest.fixture(scope="module")
def task():
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    return plain_task("least-squares", lambda key: {"w": jax.random.normal(key, (4,))}, loss, {"x": X, "y": Y})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_its_defaults(name, task):
    simulation = Simulation(task, parse_method(name, 2), Setting(2, 2, 8, 3, (0,), 3))
    (chunk,) = simulation.run(simulation.start())
    assert chunk.losses.shape == (1, 3, simulation.K)
    assert np.isfinite(chunk.losses).all()
    assert METHODS[name].summary


def run(task, spec, K=2, H=2, rounds=5):
    simulation = Simulation(task, parse_method(spec, K), Setting(K, H, 8, rounds, (0,), rounds))
    (chunk,) = simulation.run(simulation.start())
    return np.asarray(chunk.state.shared.params["w"][0]), chunk


def test_options_reach_the_optimizer(task):
    slow, _ = run(task, "slowmo:gamma=0.05,alpha=1,beta=0")
    plain, _ = run(task, "local-sgd:gamma=0.05")
    np.testing.assert_allclose(slow, plain, rtol=1e-6)
    faster, _ = run(task, "local-sgd:gamma=0.1")
    assert np.abs(faster - plain).max() > 1e-3


def test_synchronous_sgd_equals_local_sgd_at_h_1(task):
    """One local step of rate α, averaged, is one step of rate α on the mean gradient."""
    synchronous, _ = run(task, "sgd:alpha=0.05", H=1)
    local, _ = run(task, "local-sgd:gamma=0.05", H=1)
    np.testing.assert_allclose(synchronous, local, rtol=1e-6)


def test_synchronous_adam_is_adam_on_the_big_batch(task):
    import optax

    _, chunk = run(task, "adam:alpha=0.05", K=2, H=3, rounds=4)
    from laconic.round import draw_items

    simulation = Simulation(task, parse_method("adam:alpha=0.05", 2), Setting(2, 3, 8, 4, (0,), 4))
    state = jax.tree.map(lambda x: x[0], simulation.start())
    w, adam = state.shared.params, optax.adam(0.05)
    opt = adam.init(w)
    for _ in range(4):
        rows = np.asarray(draw_items(task.feed, state, 2, 3, 8).batches).reshape(-1)
        x, y = X[rows].astype(float), Y[rows].astype(float)
        gradient = 2 * x.T @ (x @ np.asarray(w["w"], float) - y) / len(rows)
        updates, opt = adam.update({"w": jnp.asarray(gradient, jnp.float32)}, opt, w)
        w, state = optax.apply_updates(w, updates), state._replace(round=state.round + 1)
    np.testing.assert_allclose(np.asarray(chunk.state.shared.params["w"][0]), np.asarray(w["w"]), rtol=1e-5)


def test_small_batch_sgd_takes_all_steps_in_one_place(task):
    method = parse_method("small-batch-sgd", 8)
    assert method.budget(8, 4) == (1, 32)


def test_labels_and_compression(task):
    method = parse_method("slowmo:gamma=0.3,compress=topk:0.5+ef,label=mine", 2)
    assert (method.label, method.compressor.name) == ("mine", "topk:0.5+ef")
    assert parse_method("slowmo:gamma=0.3", 2).label == "slowmo:gamma=0.3"


def test_options_are_listed():
    assert options_of("slowmo") == {"gamma": 0.1, "alpha": 1.0, "beta": 0.95}


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("slomo", ["optimizer", "'slomo'", "Did you mean 'slowmo'?"]),
        ("slowmo:gama=1", ["option of slowmo", "Did you mean 'gamma'?"]),
        ("slowmo:gamma", ["option=value"]),
        ("slowmo:gamma=fast", ["gamma must be a number", "'fast'"]),
        ("slowmo:gamma=nan", ["gamma must be finite"]),
        ("local-sgd:gamma=0", ["learning rate must be positive"]),
        ("local-sgd:gamma=-1", ["learning rate must be positive"]),
        ("local-sgd:clip=-1", ["clip must not be negative"]),
        ("sgd:clip=1", ["no local steps"]),
        ("diloco:local=adma", ["local optimizer", "adamw"]),
        ("optax:name=adm", ["optax optimizer", "Did you mean 'adam'?"]),
        ("slowmo:gamma=1e300", ["gamma must be finite"]),
        ("slowmo:gamma=0.1,gamma=0.2", ["gamma is given twice"]),
        ("lopt-a:seed=1.5", ["seed must be a whole number"]),
        ("lopt-a:seed=-1", ["seed must be between 0"]),
        ("slowmo:compress=topk", ["fraction"]),
        ("slowmo:compress=zip", ["compressor", "'zip'"]),
    ],
)
def test_bad_specs_say_what_is_wrong(spec, parts, raises_clearly):
    with raises_clearly(*parts):
        parse_method(spec, 2)
