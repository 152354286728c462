"""Ready optimizer objects in a comparison, mixed with words."""

from dataclasses import replace

import jax
import optax
import pytest

from laconic import CompareConfig, Interrupted, LocalOptimizer, compare, from_optax, load, resume
from laconic.method import local_method
from laconic.methods import parse_method
from tests import tiny
from tests.runs.notes import Notes

pytestmark = pytest.mark.usefixtures("standard_promotion")
WORDS = CompareConfig(
    optimizers=(
        "optax:name=sgd,lr=0.7,gamma=0.1",
        "local-sgd:gamma=0.05",
        "lopt-a-digits",
        "slowmo:gamma=0.1",
    ),
    workers=2,
    local_steps=2,
    batch=8,
    rounds=4,
    seeds=1,
    evaluate_every=2,
)
OBJECTS = (
    ("mine", optax.sgd(0.7)),
    local_method("averaged", LocalOptimizer("sgd", 0.05), from_optax(optax.sgd(1.0))),
    load("lopt-a-digits"),
    "slowmo:gamma=0.1",
)
LABELS = ["mine", "averaged", "lopt-a-digits", "slowmo:gamma=0.1"]


@pytest.fixture(scope="module")
def task():
    return tiny.task()


@pytest.fixture(scope="module")
def finished(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ready")
    with jax.numpy_dtype_promotion("standard"):
        words = compare(replace(WORDS, out=folder / "words"), task)[1]
        return words, compare(replace(WORDS, optimizers=OBJECTS, out=folder / "ready"), task)[1]


def test_an_object_trains_to_the_bits_of_its_word(finished):
    words, objects = ([r for r in found if r["kind"] == "method"] for found in finished)
    assert [method["label"] for method in objects] == LABELS
    for word, ready in zip(words, objects, strict=True):
        assert word["params_sha256"] == ready["params_sha256"]
    assert [method["method"] for method in objects] == ["own", "own", "lopt-a-digits", "slowmo"]
    assert objects[2]["optimizer_sha256"] == words[2]["optimizer_sha256"] is not None


def test_records_name_objects_as_objects(finished):
    words, objects = (found[0] for found in finished)
    assert "ready" not in words
    assert objects["config"]["optimizers"] == LABELS
    assert objects["ready"] == {
        "mine": "GradientTransformationExtraArgs from Python over SGD workers at rate 0.1",
        "averaged": "Method from Python",
        "lopt-a-digits": "Published from Python",
    }
    assert objects["command"] == "laconic.compare, from Python"


def test_a_resumed_run_needs_its_objects_again(task, finished, tmp_path, raises_clearly):
    watcher, config = Notes(), replace(WORDS, optimizers=OBJECTS, out=tmp_path / "run")
    with pytest.raises(Interrupted):
        compare(config, task, observer=watcher, stop=lambda: watcher.calls >= 1)
    with raises_clearly("ready optimizers (mine, averaged, lopt-a-digits)", "optimizers=(…)"):
        resume(config.out, task)
    with raises_clearly("was begun with the optimizers mine,", "now they are own-1,"):
        resume(config.out, task, optimizers=[optax.sgd(0.7), *OBJECTS[1:]])
    _, records = resume(config.out, task, optimizers=OBJECTS)
    kept = ("label", "train", "heldout", "params_sha256")
    shown = lambda found: [[r[k] for k in kept] for r in found if r["kind"] == "method"]
    assert shown(records) == shown(finished[1])


@pytest.mark.parametrize(
    ("optimizers", "parts"),
    [
        ("local-sgd", ["optimizers is a tuple"]),
        (optax.sgd(1.0), ["optimizers is a tuple"]),
        ((optax.sgd,), ["optimizer 1 is of type function", "an optax transformation"]),
        (("slowmo", None), ["optimizer 2 is of type NoneType"]),
        ((("", optax.sgd(1.0)),), ["optimizer 1 is of type tuple"]),
        ((("a", "slowmo"),), ["optimizer 1 is of type str"]),
        ((("a", optax.sgd(1.0)), ("a", optax.sgd(1.0))), ["same label"]),
        ((load("lagg-a-fmnist"),), ["lagg-a-fmnist", "cannot serve 2"]),
    ],
)
def test_what_is_no_optimizer_is_refused(optimizers, parts, task, tmp_path, raises_clearly):
    with raises_clearly(*parts):
        compare(replace(WORDS, optimizers=optimizers, out=tmp_path / "run"), task)
    assert not (tmp_path / "run").exists()


def test_a_method_of_words_may_be_an_object_too(task, tmp_path):
    given = (("fast", parse_method("local-sgd:gamma=0.1", 2)), optax.sgd(0.5))
    config = replace(WORDS, optimizers=given, rounds=2, out=tmp_path / "run")
    rows = compare(config, task)[1][-1]["rows"]
    assert [row["label"] for row in rows] == ["fast", "own-2"]
    assert rows[0]["speedup"] is not None  # it is local SGD, and so the reference
