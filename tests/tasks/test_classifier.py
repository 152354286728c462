"""Classification tasks against NumPy: loss, accuracy, split modules, and BatchNorm's state."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.tasks import small
from laconic.tasks.classifier import classifier_task, images, score, stateful_classifier_task
from laconic.tasks.layers import Statistics
from laconic.tasks.small import CNN, NormCNN

KEY = jax.random.key(0)


def cross_entropy(logits, labels):
    logits = np.asarray(logits, np.float64)
    likelihood = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return -np.log(np.take_along_axis(likelihood, np.asarray(labels)[..., None], -1)).mean()


def test_score_against_numpy():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 7)).astype(np.float32), rng.integers(0, 7, 50)
    got = score(jnp.asarray(logits), jnp.asarray(labels, dtype=jnp.int32))
    assert float(got["loss"]) == pytest.approx(cross_entropy(logits, labels), rel=1e-6)
    assert float(got["accuracy"]) == pytest.approx(np.mean(logits.argmax(1) == labels), rel=1e-6)


def test_images_are_only_divided_by_255():
    x, y = images({"x": jnp.array([[0, 51, 255]], dtype=jnp.uint8), "y": jnp.array([3])})
    np.testing.assert_allclose(x, [[0, 0.2, 1]], rtol=1e-7)
    assert x.dtype == jnp.float32
    assert y.tolist() == [3]


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("activation", small.ACTIVATIONS)
def test_mlp_task_against_numpy(activation, image_set, started):
    dataset = image_set(4, 3, 1)
    task = classifier_task("mlp", lambda key: small.MLP(key, (12, 5, 6, 10), activation), dataset)
    params, state = started(task)
    batch = task.feed.splits["train"]
    x = np.asarray(batch["x"], np.float64).reshape(20, 12) / 255
    for i, layer in enumerate(params.layers):
        x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        x = ACTIVATIONS[activation](x) if i < 2 else x
    loss, aux = jax.jit(task.loss)(params, state, batch, KEY)
    assert float(loss) == pytest.approx(cross_entropy(x, batch["y"]), rel=1e-5)
    accuracy = np.mean(x.argmax(1) == np.asarray(batch["y"]))
    assert float(aux.metrics["accuracy"]) == pytest.approx(accuracy)
    assert float(jax.jit(task.evaluate)(params, state, batch)["accuracy"]) == pytest.approx(
        accuracy
    )
    assert task.classes == 10


def lax_conv(x, weight, stride):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, weight, (stride, stride), "SAME", dimension_numbers=layout
    )


def test_cnn_is_the_described_network():
    rng = np.random.default_rng(0)
    shapes = eqx.filter_eval_shape(CNN, KEY, 3, 4, 10)
    model = jax.tree.map(lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), shapes)
    x = np.random.default_rng(1).uniform(size=(2, 9, 8, 3)).astype(np.float32)
    assert [conv.weight.shape for conv in model.convs] == [(3, 3, 3, 4), (3, 3, 4, 8), (3, 3, 8, 8)]
    y = x
    for conv, stride in zip(model.convs, (2, 1, 1), strict=True):
        y = np.maximum(np.asarray(lax_conv(y, conv.weight, stride)) + np.asarray(conv.bias), 0)
    assert y.shape == (2, 5, 4, 8)
    expected = y.mean((1, 2)) @ np.asarray(model.head.weight) + np.asarray(model.head.bias)
    np.testing.assert_allclose(jax.jit(lambda m, x: m(x))(model, x), expected, rtol=1e-4, atol=1e-6)


class WithFunction(eqx.Module):
    """A model one of whose leaves is no array."""

    inner: eqx.nn.MLP

    def __call__(self, x):
        return jax.vmap(self.inner)(x.reshape(x.shape[0], -1))


def test_leaves_that_are_no_arrays_stay_out_of_the_parameters(image_set):
    def build(key):
        return WithFunction(eqx.nn.MLP(12, 10, 5, 1, activation=jnp.tanh, key=key))

    task = classifier_task("own", build, image_set(4, 3, 1))
    params, state = jax.jit(task.init)(KEY)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    batch = task.feed.splits["train"]
    logits = eqx.combine(params, eqx.filter(build(KEY), eqx.is_array, inverse=True))(
        images(batch)[0]
    )
    loss, _ = jax.jit(task.loss)(params, state, batch, KEY)
    assert float(loss) == pytest.approx(cross_entropy(logits, batch["y"]), rel=1e-5)


@pytest.fixture
def norm_task(image_set):
    build = lambda key: NormCNN(key, 3, 2, 10)
    return stateful_classifier_task("bn", build, image_set(8, 8, 3))


def test_batch_norm_state_flows_through_aux(norm_task, started):
    params, state = started(norm_task)
    batch = norm_task.feed.splits["train"]
    loss_of = jax.jit(norm_task.loss)
    loss, aux = loss_of(params, state, batch, KEY)
    first = np.asarray(lax_conv(images(batch)[0], params.convs[0].weight, 2), np.float64).reshape(
        -1, 2
    )
    np.testing.assert_allclose(
        aux.model_state[0].mean, 0.9 * state[0].mean + 0.1 * first.mean(0), rtol=1e-4
    )
    np.testing.assert_allclose(
        aux.model_state[0].var, 0.9 * state[0].var + 0.1 * first.var(0), rtol=1e-4
    )
    other_loss, _ = loss_of(params, aux.model_state, batch, KEY)
    assert float(other_loss) == float(loss)  # training sees the batch's statistics only
    evaluate = jax.jit(norm_task.evaluate)
    before, after = (float(evaluate(params, s, batch)["loss"]) for s in (state, aux.model_state))
    assert before != after  # evaluation sees the running ones only


def test_batch_norm_evaluation_does_not_mix_examples(norm_task, started):
    params, state = started(norm_task)
    evaluate = jax.jit(norm_task.evaluate)
    batch = jax.tree.map(np.asarray, norm_task.feed.splits["train"])
    alone = [
        evaluate(params, state, jax.tree.map(lambda a, i=i: a[[i]], batch))["loss"]
        for i in range(4)
    ]
    together = evaluate(params, state, jax.tree.map(lambda a: a[:4], batch))["loss"]
    assert float(together) == pytest.approx(np.mean(alone), rel=1e-5)


def test_batch_norm_with_the_batchs_statistics_evaluates_as_it_trains(norm_task, started):
    params, state = started(norm_task)
    batch = norm_task.feed.splits["train"]
    loss_of = jax.jit(norm_task.loss)
    for _ in range(200):
        loss, aux = loss_of(params, state, batch, KEY)
        state = aux.model_state
    assert all(isinstance(part, Statistics) for part in state)
    assert float(jax.jit(norm_task.evaluate)(params, state, batch)["loss"]) == pytest.approx(
        float(loss), rel=1e-4
    )
