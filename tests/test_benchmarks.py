"""Benchmarks end with one JSON object, and the textbook they compare with takes the same step."""

import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import rounding, textbook
from benchmarks.gradient_noise import mean_cosine
from laconic.outer import LearnedOptimizer
from tests import reference
from tests.outer.trees import QUICK

ROOT = Path(__file__).parents[1]


def printed(command):
    """The JSON object on the last line of what a benchmark prints."""
    argv = [sys.executable, *f"benchmarks/{command}".split()]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_round_prints_its_figures_as_json():
    figures = printed("round.py --rounds 2 --parameters 40000 --repeats 1")
    assert figures["round_ratio"] > 0
    assert figures["server_step_speedup"] > 0
    assert (
        figures["temporary_bytes_per_parameter"] < figures["textbook_temporary_bytes_per_parameter"]
    )
    assert figures["relative_difference"] < 1e-4
    assert figures["device"]["platform"] == "cpu"


@pytest.mark.slow
def test_federated_prints_its_figures_as_json():
    figures = printed("federated.py --rounds 2 --repeats 1")
    sizes = [figures[name] for name in ("clients", "workers", "local_steps", "batch")]
    assert sizes == [400, 10, 6, 20]
    for name in ("fedavg", "fedlopt"):
        ratio = figures[f"{name}_rounds_per_second"] / figures["bare_rounds_per_second"]
        assert figures[f"{name}_ratio"] == pytest.approx(ratio, rel=0.05, abs=0.01)


@pytest.mark.slow
def test_attacks_print_accuracies_as_json():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")
    rows = printed("attacks.py --rounds 2 --seeds 1 --means mean median")["rows"]
    assert len(rows) == 2 * 9
    assert all(0 <= accuracy <= 1 for row in rows for accuracy in row["accuracy"])


@pytest.mark.slow
def test_step_accuracy_prints_its_figures_as_json():
    errors = printed("step_accuracy.py --small --rounds 1 --precisions bf16x3")["errors"]
    assert set(errors) == {"lopt-a", "lagg-a"}
    assert all(1e-7 < found["bf16x3"] < 2e-5 for found in errors.values())


@pytest.mark.slow
def test_torch_step_prints_its_figures_as_json():
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'laconic[torch]'")
    found = printed("torch_step.py --small --steps 1")
    names = ("AdamW", "lopt-a-general", "lopt-r")
    ways = [f"{name}, {way}" for name in names for way in ("loop", "foreach")]
    assert set(ways) <= set(found["figures"])
    assert all(x < 1e-4 for x in found["relative_difference_from_cpu"].values())  # with CUDA only
    assert all(figure["seconds"] > 0 for figure in found["figures"].values())


def test_the_torch_step_is_of_vit_b():
    torch_step = pytest.importorskip("benchmarks.torch_step", reason="PyTorch is not installed")
    sizes = [math.prod(shape) for shape in torch_step.shapes(torch_step.WIDTH, torch_step.DEPTH)]
    assert sum(sizes) == 86_567_656  # timm's and torchvision's vit_b_16


@pytest.mark.slow
def test_workers_in_programs_of_their_own_give_the_simulators_rounds():
    """From one state after each round of a whole training, and to its end."""
    rows = list(rounding.growth(rounding.DIGITS, rounding.DIGITS.rounds))
    assert max(row["step"] for row in rows) < 1e-6
    assert max(row["apart"] for row in rows) < 1e-5
    assert max(row["nudged"] for row in rows) > 1e-7  # what is compared does see a last bit
    for row in rows:
        assert row["apart_loss"] == pytest.approx(row["loss"], rel=1e-5)


def test_the_textbook_agrees_with_the_reference():
    rng = np.random.default_rng(0)
    theta = LearnedOptimizer("lopt-a").init(jax.random.key(0))
    theta64 = {name: np.asarray(x, float) for name, x in theta.items()}
    param = rng.normal(size=(6, 9))
    book, state = jnp.asarray(param, jnp.float32), textbook.init(jnp.asarray(param, jnp.float32))
    tree, ada = {"w": param}, reference.ada_init({"w": param})
    step = jax.jit(textbook.step, compiler_options=QUICK)
    for t in range(5):
        delta = 0.01 * rng.normal(size=param.shape)
        book, state = step(theta, book, state, jnp.asarray(delta, jnp.float32), jnp.float32(t))
        tree, ada = reference.lopt_a_update(theta64, tree, ada, {"w": delta}, "shifted")
    moved, expected = np.asarray(book, float) - param, tree["w"] - param
    assert np.linalg.norm(moved - expected) / np.linalg.norm(expected) < 1e-4


@pytest.mark.slow
def test_gradient_noise_prints_a_row_for_each_estimator():
    found = printed("gradient_noise.py --small --pairs 4 --repeats 3")
    rows = {row["estimator"]: row for row in found["rows"]}
    assert set(rows) == {"es", "pes", "nres", "shifts"}
    assert all(-0.5 <= row["cosine"] <= 1 for row in rows.values())  # of three vectors


def test_the_mean_cosine_is_of_different_rows():
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    assert mean_cosine(rows) == pytest.approx((0 + 2 * 0.5**0.5) / 3)
