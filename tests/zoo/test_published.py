"""Publishing and loading: nothing is lost on the way, and what is loaded is the optimizer that was
published."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves

from laconic import zoo
from laconic.client import LocalOptimizer
from laconic.outer.guarded import GuardedState
from laconic.outer.learned import LearnedOptimizer
from laconic.zoo.card import from_json
from tests.outer.trees import QUICK, SHAPES, random_deltas, random_tree
from tests.zoo.made import LAGG_A, LEARNED, LOPT_A, a_card, weights


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """An empty folder of published files in the place of the package's own."""
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setattr("laconic.zoo.file.WEIGHTS", folder)
    return folder


def put(folder, learned=LOPT_A, **changes):
    card = a_card(learned, **changes)
    path = folder / f"{card.name}.safetensors"
    zoo.publish(path, learned, weights(learned), card)
    return path


def same_bits(a, b):
    pairs = list(zip(tree_leaves(a), tree_leaves(b), strict=True))
    assert pairs
    for x, y in pairs:
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


@pytest.mark.parametrize("learned", LEARNED, ids=lambda spec: spec.architecture)
def test_what_was_published_is_loaded_to_the_last_bit(tmp_path, learned):
    got = zoo.load(put(tmp_path, learned))
    assert got.learned == learned
    assert got.card == a_card(learned)
    assert got.name == "made-up"
    assert sorted(got.theta) == sorted(weights(learned))
    assert all(isinstance(x, jax.Array) and x.dtype == jnp.float32 for x in got.theta.values())
    same_bits(got.theta, weights(learned))


def test_weights_load_where_64_bits_are_enabled(tmp_path):
    path = put(tmp_path)
    with jax.enable_x64(True):
        same_bits(zoo.load(path).theta, weights())


@pytest.mark.parametrize("learned", LEARNED[:-1], ids=lambda spec: spec.architecture)
def test_optax_is_the_direct_update_bit_for_bit(tmp_path, learned):
    shapes = {name: SHAPES[name] for name in ("scalar", "vector", "kernel")}
    params, deltas = random_tree(shapes, 1), random_deltas(shapes, 2, learned.workers or 3, 2)

    def two_rounds(tx):
        update = jax.jit(tx.update, compiler_options=QUICK)
        state, updates = tx.init(params), ()
        for t in range(2):
            now = {name: d[t] for name, d in deltas.items()}
            mean = {name: d.mean(axis=0) for name, d in now.items()}
            gathered = {"worker_deltas": now} if learned.gathers else {}
            updates, state = update(mean, state, params, **gathered)
        return updates, state.inner if isinstance(state, GuardedState) else state

    got, theta = zoo.load(put(tmp_path, learned)), weights(learned)
    same_bits(two_rounds(got.optax()), two_rounds(learned(theta).tx))
    scaled = two_rounds(learned(theta, scale=0.5, weight_decay=0.01).tx)
    same_bits(two_rounds(got.optax(scale=0.5, weight_decay=0.01)), scaled)
    with pytest.raises(AssertionError):  # the knobs do something
        same_bits(two_rounds(got.optax()), scaled)


def test_the_worker_aware_one_asks_for_the_workers_deltas(tmp_path, raises_clearly):
    tx = zoo.load(put(tmp_path, LAGG_A)).optax()
    params = {"w": jnp.ones((2, 3))}
    with raises_clearly("worker_deltas"):
        tx.update(params, tx.init(params), params)


@pytest.mark.parametrize("learned", LEARNED, ids=lambda spec: spec.architecture)
def test_the_outer_optimizer_knows_its_workers_and_horizon(tmp_path, learned):
    got = zoo.load(put(tmp_path, learned, horizon=[100, 777]))
    outer = got.outer()
    kind = "g" if learned.gathers else learned.architecture[-1]
    assert outer.horizon == 777
    assert outer.workers == learned.workers
    assert outer.combine == {"g": "gather", "r": "norms"}.get(kind, "mean")
    assert got.recommended_local == LocalOptimizer("sgd", 0.07, clip=1.25)


def test_check_workers(tmp_path, raises_clearly):
    aware, plain = zoo.load(put(tmp_path, LAGG_A)), zoo.load(put(tmp_path))
    aware.check_workers(8)
    plain.check_workers(1)
    plain.check_workers(1000)
    with raises_clearly("made-up", "K = 8", "cannot serve 4", "lopt-a"):
        aware.check_workers(4)
    for got in (aware, plain):
        with raises_clearly("at least one worker"):
            got.check_workers(0)


def test_names(shelf, raises_clearly):
    assert zoo.published() == []
    assert zoo.cards() == {}
    with raises_clearly("no optimizer is published", "'made-up'", ".safetensors"):
        zoo.load("made-up")
    put(shelf)
    put(shelf, LAGG_A, name="another")
    (shelf / "notes.txt").write_text("not an optimizer")
    assert zoo.published() == ["another", "made-up"]
    assert zoo.cards() == {"another": a_card(LAGG_A, name="another"), "made-up": a_card()}
    assert zoo.load("another").learned == LAGG_A
    with raises_clearly(
        "unknown published optimizer 'made-op'", "Did you mean 'made-up'?", "another"
    ):
        zoo.load("made-op")
    for name in ("", "..", "made-up.sft"):
        with raises_clearly("unknown published optimizer"):
            zoo.load(name)


def test_paths(shelf, tmp_path, monkeypatch, raises_clearly):
    put(tmp_path)
    monkeypatch.chdir(tmp_path)
    for where in ("made-up.safetensors", "./made-up.safetensors", tmp_path / "made-up.safetensors"):
        assert zoo.load(where).card == a_card()
    os.rename("made-up.safetensors", "renamed")
    assert zoo.load("./renamed").name == "made-up"
    for where in (
        "made-up.safetensors",
        "./made-up",
        tmp_path,
        tmp_path / "x\0y",
        "a" * 300 + "/x",
    ):
        with raises_clearly("is not a file", ".safetensors"):
            zoo.load(where)


def test_a_card_without_its_weights(tmp_path, raises_clearly, monkeypatch):
    weights_file, page, data = zoo.export(put(tmp_path), tmp_path / "out")
    for card in (page, data):
        with raises_clearly(str(card), "only a card", f"give {weights_file}"):
            zoo.load(card)
    weights_file.unlink()
    monkeypatch.chdir(tmp_path / "out")
    with raises_clearly("made-up.json is only a card", "made-up.safetensors is missing"):
        zoo.load("made-up.json")


def test_export(shelf, tmp_path, raises_clearly):
    source, out = put(shelf), tmp_path / "new" / "folder"
    paths = zoo.export("made-up", out)
    assert paths == [out / "made-up.safetensors", out / "made-up.md", out / "made-up.json"]
    assert sorted(out.iterdir()) == sorted(paths)
    assert paths[0].read_bytes() == source.read_bytes()
    assert paths[1].read_text(encoding="utf-8") == zoo.to_markdown(a_card())
    assert from_json(json.loads(paths[2].read_text()), "x") == a_card()
    same_bits(zoo.load(paths[0]).theta, weights())
    with raises_clearly("unknown published optimizer"):
        zoo.export("other", out)


@pytest.mark.parametrize("end", ["safetensors", "md", "json"])
def test_export_overwrites_nothing(shelf, tmp_path, raises_clearly, end):
    put(shelf)
    mine = tmp_path / f"made-up.{end}"
    mine.write_text("mine")
    before = sorted(tmp_path.iterdir())
    with raises_clearly(str(mine), "exists already"):
        zoo.export("made-up", tmp_path)
    assert mine.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_is_little_more_than_its_weights(tmp_path):
    for learned in LEARNED:
        bare = 4 * sum(math.prod(shape) for shape in learned.shapes.values())
        assert bare < put(tmp_path, learned).stat().st_size < bare + 3500
    assert put(tmp_path, LOPT_A).stat().st_size < 13_500


def with_weights(**changes):
    return {**weights(), **changes}


@pytest.mark.parametrize(
    ("theta", "says"),
    [
        (weights(LAGG_A), "these weights are not of lopt-a"),
        (with_weights(w1=np.full((32, 32), np.nan, np.float32)), "w1 are not all finite"),
        (with_weights(decay=np.full(7, np.inf, np.float32)), "decay are not all finite"),
        (with_weights(b0=np.zeros(32, np.float64)), "float32, but b0 is not"),
        (with_weights(b0=jnp.zeros(32, jnp.bfloat16)), "float32, but b0 is not"),
    ],
)
def test_weights_that_could_not_be_loaded_are_not_published(tmp_path, raises_clearly, theta, says):
    with raises_clearly(says):
        zoo.publish(tmp_path / "x.safetensors", LOPT_A, theta, a_card())
    assert list(tmp_path.iterdir()) == []


def test_a_card_of_another_optimizer_is_not_published(tmp_path, raises_clearly):
    with raises_clearly("card.architecture is lagg-a", "lopt-a"):
        zoo.publish(tmp_path / "x.safetensors", LOPT_A, weights(), a_card(LAGG_A))
    with raises_clearly("card.workers is 4", "is 8"):
        zoo.publish(tmp_path / "x.safetensors", LAGG_A, weights(LAGG_A), a_card(LAGG_A, workers=4))
    with raises_clearly("learned.hidden", "to 4096, got 4097"):
        zoo.publish(tmp_path / "x.safetensors", LearnedOptimizer(hidden=4097), weights(), a_card())
    with raises_clearly("must end in .safetensors"):
        zoo.publish(tmp_path / "x.npz", LOPT_A, weights(), a_card())
    spoilt = a_card()
    spoilt.limits.append(3)  # type: ignore[arg-type]
    with raises_clearly("card.limits[2] must be one line of text"):
        zoo.publish(tmp_path / "x.safetensors", LOPT_A, weights(), spoilt)
    assert list(tmp_path.iterdir()) == []


def test_published_is_frozen(tmp_path):
    with pytest.raises(dataclasses.FrozenInstanceError):
        zoo.load(put(tmp_path)).theta = {}  # type: ignore[misc]


def test_importing_the_zoo_touches_no_device():
    """With a platform that does not exist, anything that asks JAX for a device fails."""

    def run(code):
        environment = {**os.environ, "JAX_PLATFORMS": "nowhere"}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run(
        "import laconic.zoo; laconic.zoo.published(); import jax\ntry: jax.devices()\nexcept "
        "RuntimeError: print('ok')"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok\n"
