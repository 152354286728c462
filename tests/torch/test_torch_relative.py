"""lopt-r in PyTorch against JAX on transposed arrays and the float64 twin, round by round."""

import copy
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

from laconic import zoo
from laconic.torch import LearnedOuter
from tests import reference_relative as ref
from tests.outer.trees import QUICK, assert_close, random_deltas, random_tree
from tests.torch.pairs import from_torch, tensor, to_torch
from tests.zoo.made import LOPT_R, a_card, weights

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "vector": (7,),
    "wide": (3, 8),
    "kernel": (3, 3, 2, 4),
}
K, ROUNDS = 4, 20
PARAMS = random_tree(SHAPES, 1)
DELTAS = random_deltas(SHAPES, ROUNDS, K, 5)
SHARES = [1.0, 0.0, 2.0, 0.5]
TOLD = {"workers": 4, "local_steps": 30, "rounds": 12}


@pytest.fixture(scope="module", params=[0, 4], ids=["head", "gates"])
def spec(request):
    return replace(LOPT_R, gates=request.param)


@pytest.fixture(scope="module")
def path(tmp_path_factory, spec):
    found = tmp_path_factory.mktemp("zoo") / "made-up.safetensors"
    zoo.publish(found, spec, weights(spec), a_card(spec))
    return found


def mean_of(name, t, shares):
    return np.average(np.asarray(DELTAS[name][t], np.float64), axis=0, weights=shares)


def params_of(dtype=torch.float64):
    return [torch.nn.Parameter(tensor(x, dtype)) for x in PARAMS.values()]


def change(outer, params, t, shares=None, gathered=True):
    """Round t → what every parameter changed by, in JAX's layout."""
    before = [p.detach().clone() for p in params]
    for p, name in zip(params, SHAPES, strict=True):
        p.grad = tensor(np.float32(mean_of(name, t, shares)), p.dtype)
    each = [torch.tensor(to_torch(d[t], 1).copy()) for d in DELTAS.values()] if gathered else None
    outer.step(worker_deltas=each, weights=shares)
    rows = zip(SHAPES, params, before, strict=True)
    return {name: from_torch((p.detach() - old).double().numpy()) for name, p, old in rows}


@pytest.mark.parametrize(
    ("told", "shares", "gathered"),
    [({}, None, False), (TOLD, None, True), ({"rounds": 12}, SHARES, True)],
)
def test_rounds_like_jax_and_the_twin(path, spec, told, shares, gathered):
    params = params_of()
    outer = LearnedOuter(params, path, **told)
    tx = zoo.load(path).optax(**told)
    update = jax.jit(tx.update, compiler_options=QUICK)
    state, now = tx.init(PARAMS), {n: jnp.asarray(p) for n, p in PARAMS.items()}
    twins = {name: ref.Tensor(p.shape) for name, p in PARAMS.items()}
    there: Any = {name: np.float64(p) for name, p in PARAMS.items()}
    for t in range(ROUNDS):
        found = change(outer, params, t, shares, gathered)
        mean = {n: np.float32(mean_of(n, t, shares)) for n in SHAPES}
        seen = {"worker_deltas": {n: d[t] for n, d in DELTAS.items()}} if gathered else {}
        given = None if shares is None else jnp.asarray(shares)
        changes, state = update(mean, state, now, weights=given, **seen)
        now = {n: p + changes[n] for n, p in now.items()}
        assert_close(found, changes, 1e-5, f"round {t}, JAX")
        for name, twin in twins.items():
            more = {"deltas": DELTAS[name][t], "weights": shares} if gathered else {}
            workers = told.get("workers", 3 if gathered else None)  # of four one is absent
            more |= {**told, "workers": workers, "rate": 0.75, "momentum": 0.5}
            expected = -ref.step(weights(spec), twin, mean[name], there[name], **more)
            there[name] = there[name] + expected
            assert_close({name: found[name]}, {name: expected}, 1e-5, f"round {t}, twin")


def test_a_mean_alone_a_part_and_a_copy(path):
    """Where nobody gathers, agreement is unknown; a part of a model takes the step of the whole;
    a state saved and loaded goes on to the same bits."""
    params, few = params_of(torch.float32), params_of(torch.float32)[2:]
    outer, part = LearnedOuter(params, path), LearnedOuter(few, path)
    whole: Any = {}
    for t in range(3):
        whole = change(outer, params, t, gathered=False)
        for p, name in zip(few, list(SHAPES)[2:], strict=True):
            p.grad = tensor(np.float32(mean_of(name, t, None)))
        part.step()
    assert all(np.any(x) for x in whole.values())
    for a, b in zip(params[2:], few, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = LearnedOuter(again, path)
    other.load_state_dict(copy.deepcopy(outer.state_dict()))
    change(outer, params, 3)
    change(other, again, 3)
    for a, b in zip(params, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_zeros_and_what_is_not_finite(path, raises_clearly):
    p = torch.nn.Parameter(torch.zeros(3, 2))
    outer = LearnedOuter([p], path, on_nonfinite="skip", lr=0.5, weight_decay=0.1)
    for value in (0.0, float("nan")):
        p.grad = torch.full_like(p, value)
        outer.step()
        assert not p.detach().any()
    p.grad = torch.full_like(p, float("inf"))
    with raises_clearly("some worker diverged"):
        LearnedOuter([p], path).step()
    empty = torch.nn.Parameter(torch.zeros(0, 2))
    empty.grad = torch.zeros(0, 2)
    LearnedOuter([empty], path).step()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"worker_deltas": [torch.zeros(4, 3, 3)]}, "must be [K, …] = (4, 3, 2)"),
        ({"worker_deltas": []}, "worker_deltas has 0 entries"),
        ({"worker_deltas": [torch.zeros(4, 3, 2)], "weights": [1.0]}, "4 in all, got 1"),
    ],
)
def test_deltas_of_another_shape_are_refused(path, raises_clearly, given, words):
    p = torch.nn.Parameter(torch.zeros(3, 2))
    p.grad = torch.zeros(3, 2)
    with raises_clearly(words):
        LearnedOuter([p], path).step(**given)


def test_it_needs_no_jax(path):
    """And the counts that it is told are checked."""
    code = f"""
import sys
from dataclasses import replace
from typing import Any
sys.modules["jax"] = None
import torch
from laconic.errors import LaconicError
from laconic.torch import LearnedOuter
p = torch.nn.Parameter(torch.ones(3, 2))
p.grad = torch.ones(3, 2)
LearnedOuter([p], {str(path)!r}, workers=8).step()
assert (p < 1).all()
try:
    LearnedOuter([p], {str(path)!r}, rounds=0)
except LaconicError as error:
    assert "rounds must be at least 1" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
