"""bfloat16 inside, float32 outside: what is computed in which type, and how close the two are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import Shared, local_client
from laconic.tasks.catalog import TASKS, parse_spec

SPECS = [
    "cifar10-cnn:width=4",
    "cifar10-cnn-bn:width=4",
    "cifar10-resnet50:width=8,blocks=1-1",
    "cifar10-deit-tiny:patch=4,hidden=16,heads=2,layers=4",
    "lm-decoder:context=8,hidden=16,heads=2,layers=4,vocab=300,positions=rotary",
]


@pytest.fixture
def pair(image_set, text_set, started):
    """`pair(spec)`: the task in float32 and in bfloat16, with the same parameters and state."""

    def make(spec):
        name, options = parse_spec(spec)
        dataset = text_set(8, 300) if name.startswith("lm") else image_set(8, 8, 3)
        tasks = [
            TASKS[name].model(spec, dataset, {**options, "compute": kind})
            for kind in ("f32", "bf16")
        ]
        return (*tasks, *started(tasks[0]))

    return make


def gradient_of(task):
    def run(params, state, items):
        return jax.value_and_grad(task.loss, has_aux=True)(
            params, state, task.feed.take(items), jax.random.key(0)
        )

    return run


def types_of_products(jaxpr):
    """The types of what matrix products multiply in a program, those inside loops too."""
    products = [eqn for eqn in every_equation(jaxpr.jaxpr) if eqn.primitive.name == "dot_general"]
    return {str(factor.aval.dtype) for eqn in products for factor in eqn.invars}


def every_equation(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, (list, tuple)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from every_equation(inner)


@pytest.mark.parametrize("spec", SPECS)
def test_products_are_bfloat16_and_what_comes_out_is_float32(spec, pair):
    plain, narrow, params, state = pair(spec)
    items = np.arange(16)
    for task, kind in ((plain, "float32"), (narrow, "bfloat16")):
        traced = jax.make_jaxpr(gradient_of(task))(params, state, items)
        assert types_of_products(traced) == {kind}
        # Loss, metrics, statistics, gradients.
        assert {str(aval.dtype) for aval in traced.out_avals} == {"float32"}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.slow
def test_the_two_are_close(spec, pair):
    """bfloat16 keeps 8 bits: a relative 0.4 % a product; errors of many products partly cancel."""
    plain, narrow, params, state = pair(spec)
    items = np.arange(16)
    run = lambda task: jax.jit(gradient_of(task))(params, state, items)
    (loss, aux), gradient = run(plain)
    (narrow_loss, narrow_aux), narrow_gradient = run(narrow)
    assert float(narrow_loss) == pytest.approx(float(loss), rel=0.02)
    assert float(narrow_loss) != float(loss)
    flat, narrow_flat = (
        np.concatenate([np.ravel(g) for g in jax.tree.leaves(tree)])
        for tree in (gradient, narrow_gradient)
    )
    cosine = flat @ narrow_flat / np.linalg.norm(flat) / np.linalg.norm(narrow_flat)
    assert cosine > 0.99
    for a, b in zip(
        jax.tree.leaves(aux.model_state), jax.tree.leaves(narrow_aux.model_state), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02)


def test_a_worker_keeps_float32_weights(pair):
    _, narrow, params, state = pair("cifar10-deit-tiny:patch=4,hidden=16,heads=2,layers=4")
    client = local_client(narrow, optax.sgd(1e-5))
    shared = Shared(params, state)

    def work(shared):
        return client.run(
            shared, client.init(shared), jnp.zeros((20, 4), jnp.int32), jax.random.key(0)
        )

    message, _, losses = jax.jit(work)(shared)
    assert {leaf.dtype for leaf in jax.tree.leaves(message.delta)} == {jnp.dtype("float32")}
    moved = np.abs(np.asarray(message.delta.head.weight))
    assert 0 < moved.max() < 4e-4  # in 20 steps; bfloat16 weights of 0.25 come in steps of 1e-3
    assert np.isfinite(losses).all()
