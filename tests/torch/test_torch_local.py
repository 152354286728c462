"""The recommended local optimizer in PyTorch takes the steps of the one in JAX."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import laconic
from laconic.local import LocalOptimizer
from laconic.torch import LearnedOuter
from laconic.torch.local import local_optimizer

START = [np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.full(3, 0.5, np.float32)]


def in_torch(make, gradients):
    params = [torch.nn.Parameter(torch.tensor(x)) for x in START]
    local = make(params)
    for grads in gradients:
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.tensor(grad)
        local.step()
    return [p.detach().numpy() for p in params]


def in_jax(told, gradients):
    params = [jnp.asarray(x) for x in START]
    tx = told.optax()
    state = tx.init(params)
    with jax.numpy_dtype_promotion("standard"):  # optax's own schedules and AdamW need it
        for grads in gradients:
            updates, state = tx.update([jnp.asarray(g) for g in grads], state, params)
            params = optax.apply_updates(params, updates)
    return params


def gradients_of(sizes):
    rng = np.random.default_rng(0)
    return [[size * rng.normal(size=x.shape).astype(np.float32) for x in START] for size in sizes]


@pytest.mark.parametrize(
    "told",
    [
        LocalOptimizer("sgd", 0.1),
        LocalOptimizer("sgd", 0.5, clip=1.0),
        LocalOptimizer("sgd", 0.1, weight_decay=0.01, clip=0.5),
        LocalOptimizer("adamw", 0.01, weight_decay=0.1, clip=1.0),
        LocalOptimizer("sgd", 0.1, decay_steps=3),
        LocalOptimizer("muon", 0.02, weight_decay=0.1, clip=1.0),
    ],
    ids=str,
)
def test_steps_are_those_of_jax(told):
    gradients = gradients_of([0.01, 1.0, 30.0, 0.1, 2.0])  # below and above the norm to clip to
    ours = in_torch(lambda params: local_optimizer(params, told), gradients)
    for mine, theirs in zip(ours, in_jax(told, gradients), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-7)


def test_a_published_optimizer_gives_the_one_it_was_trained_with():
    gradients = gradients_of([10.0, 1.0])
    outer = LearnedOuter([torch.nn.Parameter(torch.zeros(2))], "lopt-a-fmnist")
    told = laconic.load("lopt-a-fmnist").recommended_local
    assert told.clip > 0
    for mine, theirs in zip(
        in_torch(outer.recommended_local, gradients), in_jax(told, gradients), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("package", "extra"), [("torch", "torch"), ("flwr", "flower")])
def test_without_the_extra_the_import_says_what_to_install(package, extra):
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda name, *more: None if name == {package!r} else find(name, *more)\n"
        f"import laconic.{extra}"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"pip install 'laconic[{extra}]'" in done.stderr.splitlines()[-1]
