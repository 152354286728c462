"""What tests of outer optimizers share: awkward trees, realistic deltas, random φ, and what "close"
means."""

import math
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from laconic.outer.base import OuterOptimizer

# Every rank the features treat differently: tall, wide and tied matrices, kept axes, a convolution
# kernel, and a matrix whose axes are longer than the hidden layers are wide.
SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "vector": (7,),
    "tall": (6, 4),
    "wide": (3, 8),
    "square": (5, 5),
    "cube": (2, 4, 3),
    "kernel": (3, 3, 4, 6),
    "large": (36, 33),
}
SMALL: dict[str, tuple[int, ...]] = {"vector": (7,), "wide": (3, 8)}


def gpus(count: int, name: str, kind: AxisType) -> AbstractMesh:
    """GPUs to lower for where there are none: newer versions of JAX ask which ones."""
    gpu = AbstractDevice(device_kind="NVIDIA H100", num_cores=132, platform="gpu")
    return AbstractMesh((count,), (name,), (kind,), abstract_device=gpu)


def text_for_cuda(function: Any, *args: Any) -> str:
    """The program XLA is given for one GPU."""
    with use_abstract_mesh(gpus(1, "gpu", AxisType.Explicit)):
        return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def accepted(options: dict[str, Any]) -> dict[str, Any]:
    """The compiler options that the installed XLA knows."""

    def known(option: tuple[str, Any]) -> bool:
        try:
            jax.jit(lambda x: x, compiler_options=dict([option])).lower(0.0).compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    return dict(filter(known, options.items()))


# Compiling is most of a test's time, and the sums are the same however little LLVM tries.
QUICK = accepted(
    {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    }
)


def random_tree(
    shapes: dict[str, tuple[int, ...]], seed: int, scale: float = 1.0
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(scale * rng.normal(size=s), np.float32) for name, s in shapes.items()}


def random_deltas(
    shapes: dict[str, tuple[int, ...]], rounds: int, K: int, seed: int
) -> dict[str, Any]:
    """Leaves [rounds, K, …]: entries of unlike sizes, shrinking in time; each worker adds noise to
    the common part.

    The common part has a drift, as real deltas do: without it a scalar's momentum passes through 0
    now and then, where no relative error means anything.
    """
    rng = np.random.default_rng(seed)
    size_T = 1e-2 * np.exp(-np.arange(rounds) / 15) * (1 + 0.5 * np.sin(np.arange(rounds)))
    deltas = {}
    for name, s in shapes.items():
        sizes = size_T.reshape(-1, *[1] * (1 + len(s))) * np.exp(rng.normal(size=s))
        drift = 2 * np.sign(rng.normal(size=s))
        noise = rng.normal(size=(rounds, 1, *s)) + rng.normal(size=(rounds, K, *s))
        deltas[name] = np.asarray(sizes * (drift + noise), np.float32)
    return deltas


def random_theta(inputs: int, seed: int, decay: bool) -> dict[str, Any]:
    """Random φ with every bias and offset in use; its d stays off 0, so that even one step has a
    relative error."""
    rng = np.random.default_rng(seed)
    theta = {"decay": np.asarray(0.05 * rng.normal(size=7), np.float32)} if decay else {}
    for i, (fan_in, fan_out) in enumerate([(inputs, 32), (32, 32), (32, 2)]):
        theta[f"w{i}"] = np.asarray(
            rng.normal(size=(fan_in, fan_out)) / math.sqrt(fan_in), np.float32
        )
        theta[f"b{i}"] = np.asarray(0.3 * rng.normal(size=fan_out), np.float32)
    theta["b2"][0] += 2
    return theta


def random_relative(shapes: Any, seed: int) -> dict[str, Any]:
    """Random φ of lopt-r, whose outputs reach most of their range."""
    rng = np.random.default_rng(seed)
    draw = lambda shape: np.asarray(rng.normal(size=shape) / shape[0] ** 0.5, np.float32)
    return {name: draw(shape) for name, shape in shapes.items()}


def run_outer(outer: OuterOptimizer, params: Any, mean_T: Any) -> Any:
    """(weights, changes, states) of every round, leaves [rounds, …], from one jitted scan."""

    def body(carry: Any, mean: Any) -> Any:
        params, state = carry
        updates, state = outer.tx.update(mean, state, params, worker_deltas=None, weights=None)
        params = optax.apply_updates(params, updates)
        return (params, state), (params, updates, state)

    run = jax.jit(
        lambda p, d: jax.lax.scan(body, (p, outer.tx.init(p)), d)[1], compiler_options=QUICK
    )
    return jax.device_get(run(params, mean_T))


def assert_rounds_like(
    outer: OuterOptimizer, twin: Any, rtol: float, before_round: Any = lambda t: None
) -> None:
    """Twenty rounds of both on every shape: weights and their changes agree after each."""
    params, mean_T = (
        random_tree(SHAPES, 1),
        {name: d[:, 0] for name, d in random_deltas(SHAPES, 20, 1, 2).items()},
    )
    found, changes, _ = run_outer(outer, params, mean_T)
    now = float64(params)
    for t in range(20):
        before_round(t)
        new = twin.step(now, {name: np.asarray(d[t], np.float64) for name, d in mean_T.items()})
        assert_close({name: x[t] for name, x in found.items()}, new, rtol, f"round {t} weights")
        change = {name: new[name] - now[name] for name in new}
        assert_close({name: x[t] for name, x in changes.items()}, change, rtol, f"round {t} change")
        now = new


def float64(tree: Any) -> Any:
    """A tree for the twin."""
    return {name: np.asarray(x, np.float64) for name, x in tree.items()}


def assert_close(actual: Any, expected: Any, rtol: float, what: str = "") -> None:
    """Tensor by tensor: the difference is within rtol of the whole, and each entry within rtol of
    the largest."""
    if isinstance(expected, dict):
        assert sorted(actual) == sorted(expected), what
        for name in expected:
            assert_close(actual[name], expected[name], rtol, f"{what} {name}")
        return
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert a.shape == b.shape, what
    gap = np.abs(a - b)
    assert np.linalg.norm(gap) <= rtol * np.linalg.norm(b), (
        f"{what}: off by {np.linalg.norm(gap):.3g}"
    )
    assert np.max(gap, initial=0.0) <= rtol * np.max(np.abs(b), initial=0.0), (
        f"{what}: off by {np.max(gap):.3g}"
    )
