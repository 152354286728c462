"""Methods by name: parsing, defaults, and what each is made of."""

from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic import zoo
from laconic.client import LocalOptimizer, Shared
from laconic.compress import parse_compressor
from laconic.errors import LaconicError
from laconic.method import Setting, local_method
from laconic.methods import METHODS, definition_of, parse_method, published_methods
from laconic.runs.simulate import Simulation
from laconic.tasks.base import plain_task
from tests.outer.trees import QUICK
from tests.zoo.made import LAGG_A, LOPT_A, LOPT_R, a_card, weights

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("standard_promotion")
X, Y = RNG.normal(size=(64, 4)).astype(np.float32), RNG.normal(size=64).astype(np.float32)


@pytest.fixture(scope="module")
def task():
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    return plain_task(
        "least-squares", lambda key: {"w": jax.random.normal(key, (4,))}, loss, {"x": X, "y": Y}
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_its_defaults(name, task):
    K = 1 if name == "snoo" else 2
    simulation = Simulation(task, parse_method(name, K), Setting(K, 2, 8, 3, (0,), 3))
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
    np.testing.assert_allclose(
        np.asarray(chunk.state.shared.params["w"][0]), np.asarray(w["w"]), rtol=1e-5
    )


def test_small_batch_sgd_takes_all_steps_in_one_place(task):
    method = parse_method("small-batch-sgd", 8)
    assert method.budget(8, 4) == (1, 32)


def test_labels_and_compression(task):
    method = parse_method("slowmo:gamma=0.3,compress=topk:0.5+ef,label=mine", 2)
    assert (method.label, method.compressor.name) == ("mine", "topk:0.5+ef")
    assert parse_method("slowmo:gamma=0.3", 2).label == "slowmo:gamma=0.3"


def test_options_are_listed():
    assert definition_of("slowmo").defaults == {"gamma": 0.1, "alpha": 1.0, "beta": 0.95}


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("slomo", ["optimizer", "'slomo'", "Did you mean 'slowmo'?"]),
        ("slowmo:gama=1", ["option of slowmo", "Did you mean 'gamma'?"]),
        ("slowmo:gamma", ["option=value"]),
        ("slowmo:gamma=fast", ["gamma must be a number", "'fast'"]),
        ("slowmo:gamma=nan", ["gamma must be positive and finite"]),
        ("local-sgd:gamma=0", ["local-sgd: gamma must be positive and finite, got 0.0"]),
        ("local-sgd:gamma=-1", ["local-sgd: gamma must be positive and finite, got -1.0"]),
        ("local-sgd:clip=-1", ["clip must be finite and not negative"]),
        ("sgd:clip=1", ["no local steps"]),
        ("fedavgm:beta=1.5", ["fedavgm: beta must be at least 0 and below 1, got 1.5"]),
        ("slowmo:beta=1.5", ["slowmo: beta must be at least 0 and below 1, got 1.5"]),
        ("diloco:lr=0", ["diloco: lr must be positive and finite, got 0.0"]),
        ("optax:lr=-1", ["optax: lr must be positive and finite, got -1.0"]),
        ("scaffold:eta=-1", ["scaffold: eta must be positive and finite, got -1.0"]),
        ("fedadam:tau=0", ["fedadam: tau must be positive and finite, got 0.0"]),
        ("fedyogi:beta2=1", ["fedyogi: beta2 must be at least 0 and below 1"]),
        ("fedadagrad:eta=0", ["fedadagrad: eta must be positive"]),
        ("diloco:local=adma", ["local optimizer", "Did you mean 'adamw'?"]),
        ("fedadam:local=", ["local optimizer", "adamw, muon, sgd"]),
        ("scaffold:local=adamw", ["unknown option of scaffold 'local'"]),
        ("adam:local=adamw", ["adam takes no local steps, so it has no local"]),
        ("snoo", ["snoo is for one worker, and there are 2", "take diloco"]),
        ("fedexp:eps=-1", ["eps must be finite and not negative"]),
        ("muloco:decay=-0.1", ["decay must be finite and not negative"]),
        ("optax:name=adm", ["optax optimizer", "Did you mean 'adam'?"]),
        ("slowmo:gamma=1e300", ["gamma must be positive and finite"]),
        ("slowmo:gamma=0.1,gamma=0.2", ["gamma is given twice"]),
        ("lopt-a:seed=1.5", ["seed must be a whole number"]),
        ("lopt-a:seed=-1", ["seed must be between 0"]),
        ("slowmo:compress=topk", ["fraction"]),
        ("slowmo:compress=zip", ["compressor", "'zip'"]),
        ("sparseloco:lr=0", ["sparseloco: lr must be positive"]),
    ],
)
def test_bad_specs_say_what_is_wrong(spec, parts, raises_clearly):
    with raises_clearly(*parts):
        parse_method(spec, 2)


# --- published optimizers -------------------------------------------------------------------------

LOCAL = LocalOptimizer("sgd", 0.07, weight_decay=0.01, clip=1.25)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Two published optimizers: one of the mean delta, one for eight workers."""
    folder = tmp_path / "weights"
    monkeypatch.setattr("laconic.zoo.file.WEIGHTS", folder)
    card = {"local": asdict(LOCAL), "summary": "for tests"}
    zoo.publish(folder / "made-up.safetensors", LOPT_A, weights(), a_card(name="made-up", **card))
    zoo.publish(
        folder / "eight.safetensors", LAGG_A, weights(LAGG_A), a_card(LAGG_A, name="eight", **card)
    )
    return folder


def by_hand(w, batches, gamma, clip, decay):
    """Δ of clipped SGD steps with weight decay on the mean square error, in float64."""
    start = w = np.asarray(w, np.float64)
    for rows in batches:
        x, y = X[rows].astype(np.float64), Y[rows].astype(np.float64)
        gradient = 2 * x.T @ (x @ w - y) / len(rows)
        if clip:
            gradient *= min(1.0, clip / np.linalg.norm(gradient))
        w = w - gamma * (gradient + decay * w)
    return start - w


@pytest.mark.parametrize("by_path", [False, True])
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ("", (0.07, 1.25, 0.01)),
        (":gamma=0.2", (0.2, 1.25, 0.01)),
        (":clip=0.5", (0.07, 0.5, 0.01)),
        (":decay=0.3,scale=2", (0.07, 1.25, 0.3)),
        (":clip=0,decay=0", (0.07, 0.0, 0.0)),
    ],
)
def test_the_local_optimizer_is_the_cards_unless_the_spec_says_otherwise(
    shelf, task, by_path, options, numbers
):
    name = str(shelf / "made-up.safetensors") if by_path else "made-up"
    method = parse_method(name + options, 5)
    assert (method.name, method.label) == (name, name + options)
    client, shared = method.client(task), Shared({"w": jnp.asarray([3.0, -1.0, 0.5, 2.0])})
    batches = np.arange(24).reshape(3, 8)
    message, _, _ = client.run(shared, client.init(shared), jnp.asarray(batches), jax.random.key(0))
    expected = by_hand(shared.params["w"], batches, *numbers)
    np.testing.assert_allclose(message.delta["w"], expected, rtol=1e-5)


def final_weights(task, method, K):
    simulation = Simulation(task, method, Setting(K, 2, 8, 4, (0, 1), 4, missing=K // 4))
    (chunk,) = simulation.run(simulation.start())
    return np.asarray(chunk.state.shared.params["w"])


@pytest.mark.parametrize(
    ("spec", "learned", "K", "knobs"),
    [
        ("made-up", LOPT_A, 3, {}),
        (
            "{shelf}/eight.safetensors:scale=0.5,weight_decay=0.125",
            LAGG_A,
            8,
            {"scale": 0.5, "weight_decay": 0.125},
        ),
        ("eight:fill=zero", LAGG_A, 8, {"fill": "zero"}),
    ],
    ids=["by-name", "by-path", "filled"],
)
def test_a_published_optimizer_is_its_weights_bit_for_bit(
    spec, learned, K, knobs, shelf, task, monkeypatch
):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
    theta = {part: jnp.asarray(x) for part, x in weights(learned).items()}
    direct = local_method("direct", LOCAL, learned(theta, **knobs))
    found = final_weights(task, parse_method(spec.format(shelf=shelf), K), K)
    np.testing.assert_array_equal(found, final_weights(task, direct, K))


def test_a_run_tells_lopt_r_what_it_is(shelf, task, monkeypatch):
    """K, H and T are told, agreement is seen unless told otherwise, and workers may be AdamW."""
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
    path = shelf / "relative.safetensors"
    zoo.publish(path, LOPT_R, weights(LOPT_R), a_card(LOPT_R, local=asdict(LOCAL)))
    theta = {part: jnp.asarray(x) for part, x in weights(LOPT_R).items()}
    told = LOPT_R(theta, workers=4, local_steps=2, rounds=4)
    for options, local, outer in [
        ("", LOCAL, told),
        (":agreement=unseen", LOCAL, told._replace(combine="mean")),
        (":local=adamw,gamma=0.01", replace(LOCAL, name="adamw", learning_rate=0.01), told),
    ]:
        found = final_weights(task, parse_method(f"{path}{options}", 4), 4)
        direct = local_method("direct", local, outer._replace(tell=None))
        np.testing.assert_array_equal(found, final_weights(task, direct, 4), options)
    every = [
        final_weights(task, parse_method(f"{path}{o}", 4), 4) for o in ("", ":agreement=unseen")
    ]
    assert np.abs(every[0] - every[1]).max() > 1e-4
    with pytest.raises(LaconicError, match="unknown agreement 'maybe'"):
        parse_method(f"{path}:agreement=maybe", 4)


def test_published_options_labels_and_horizon(shelf):
    assert definition_of("made-up").defaults == {"gamma": 0.07, "scale": 1.0, "weight_decay": 0.0}
    method = parse_method("made-up:compress=topk:0.5+ef,label=mine", 3)
    assert (method.name, method.label, method.compressor.name) == ("made-up", "mine", "topk:0.5+ef")
    assert (method.outer.combine, method.outer.workers, method.outer.horizon) == (
        "mean",
        None,
        1000,
    )
    method = parse_method("eight", 8)
    assert (method.outer.combine, method.outer.workers) == ("gather", 8)
    assert {name: entry.summary for name, entry in published_methods().items()} == {
        "eight": "for tests",
        "made-up": "for tests",
    }


def test_published_optimizers_that_cannot_be_used_say_so(shelf, raises_clearly):
    with raises_clearly("eight", "K = 8 workers", "cannot serve 3"):
        parse_method("eight", 3)
    with raises_clearly("cannot serve 2"):
        parse_method(str(shelf / "eight.safetensors"), 2)
    with raises_clearly(
        "unknown optimizer 'made-dup'", "Did you mean 'made-up'?", "eight", "slowmo"
    ):
        parse_method("made-dup", 3)
    with raises_clearly("option of made-up", "Did you mean 'scale'?"):
        parse_method("made-up:scales=2", 3)
    with raises_clearly("option of made-up", "'fill'"):
        parse_method("made-up:fill=zero", 3)
    with raises_clearly("fill", "'ones'", "mean, zero"):
        parse_method("eight:fill=ones", 8)
    with raises_clearly("made-up: gamma must be positive and finite"):
        parse_method("made-up:gamma=0", 3)
    with raises_clearly("nowhere.safetensors is not a file"):
        parse_method("nowhere.safetensors", 3)
    data = bytearray((shelf / "made-up.safetensors").read_bytes())
    data[-1] ^= 1
    (shelf / "made-up.safetensors").write_bytes(bytes(data))
    for name in ("made-up", str(shelf / "made-up.safetensors")):
        with raises_clearly("made-up.safetensors is damaged"):
            parse_method(name, 3)
    assert list(published_methods()) == ["eight"]


def test_sparseloco_brings_its_compressor_which_its_text_may_replace():
    run_wide = parse_compressor("int4")
    assert parse_method("sparseloco", 8, run_wide).compressor.name == "sparseloco"
    denser = parse_method("sparseloco:compress=sparseloco:0.03", 8, run_wide)
    assert denser.compressor.name == "sparseloco:0.03"
    assert parse_method("diloco", 8, run_wide).compressor.name == "int4"
