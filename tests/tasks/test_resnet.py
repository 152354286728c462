"""Residual networks against NumPy (a block) and torch (a whole network), and their sizes against
the published ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.tasks.base import count_parameters
from laconic.tasks.layers import max_pool, same_conv, xla_conv
from laconic.tasks.resnet import ResNet, resnet_task

KEY = jax.random.key(0)


def drawn(build, seed=0):
    """A model and its state with something in every array; variances are positive."""
    rng = np.random.default_rng(seed)
    model, state = eqx.filter_eval_shape(lambda key: (m := build(key), m.begin()), KEY)
    scale = lambda a: 1 / np.sqrt(np.prod(a.shape[:-1])) if len(a.shape) > 1 else 0.5
    model = jax.tree.map(lambda a: rng.normal(0, scale(a), a.shape).astype(np.float32), model)
    return model, jax.tree.map(lambda a: rng.uniform(0.5, 1.5, a.shape).astype(np.float32), state)


def small(blocks, stem="small", conv="product", width=4):
    return lambda key: ResNet(key, 3, 7, blocks=blocks, width=width, stem=stem, conv=conv)


# --- one block, in NumPy --------------------------------------------------------------------------


def slow_conv(x_BHWC, weight, stride):
    """One place and one tap at a time, "SAME" padding."""
    B, H, W, _ = x_BHWC.shape
    k, out = weight.shape[0], (-(-H // stride), -(-W // stride))
    above, left = (
        max((n - 1) * stride + k - size, 0) // 2 for n, size in zip(out, (H, W), strict=True)
    )
    y = np.zeros((B, *out, weight.shape[-1]))
    for i, j in np.ndindex(*out):
        for a, b in np.ndindex(k, k):
            row, column = i * stride + a - above, j * stride + b - left
            if 0 <= row < H and 0 <= column < W:
                y[:, i, j] += x_BHWC[:, row, column] @ weight[a, b]
    return y


def slow_norm(layer, x, stride):
    y = slow_conv(x, np.asarray(layer.weight, np.float64), stride)
    mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
    return (
        (y - mean) / np.sqrt(var + 1e-5) * np.asarray(layer.scale) + np.asarray(layer.shift),
        mean,
        var,
    )


@pytest.mark.parametrize("index", [0, 1])
def test_a_block_against_numpy(index):
    """The first block of the second stage has stride 2 and a shortcut; the next one has neither."""
    model, (_, states) = drawn(small((1, 2)))
    block, state = model.stages[1][index], states[1][index]
    channels, stride = block.convs[0].weight.shape[2], 2 if index == 0 else 1
    x = np.random.default_rng(5).uniform(size=(2, 6, 6, channels))
    apply = lambda conv, x, running: conv.train(x, running)
    got, after = jax.jit(lambda x, state: block(x, state, apply))(x.astype(np.float32), state)
    y, *_ = slow_norm(block.convs[0], x, 1)
    y, *_ = slow_norm(block.convs[1], np.maximum(y, 0), stride)
    y, mean, var = slow_norm(block.convs[2], np.maximum(y, 0), 1)
    assert (block.shortcut is None) == (index == 1)
    straight = x if block.shortcut is None else slow_norm(block.shortcut, x, stride)[0]
    np.testing.assert_allclose(got, np.maximum(y + straight, 0), rtol=1e-4, atol=1e-5)
    assert got.shape == (2, 6 // stride, 6 // stride, 4 * 8)
    np.testing.assert_allclose(
        after[2].mean, 0.9 * state[2].mean + 0.1 * mean, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(after[2].var, 0.9 * state[2].var + 0.1 * var, rtol=1e-4, atol=1e-6)
    assert len(after) == len(state) == (4 if index == 0 else 3)


# --- a whole network, in torch --------------------------------------------------------------------


class TorchTwin:
    """The network by torch's functions, from the same arrays; running statistics are left as they
    are."""

    def __init__(self, torch, model, state, training):
        self.torch, self.F, self.model, self.state, self.training = (
            torch,
            torch.nn.functional,
            model,
            state,
            training,
        )

    def tensor(self, array):
        return self.torch.tensor(np.asarray(array, np.float64))

    def padded(self, x, kernel, stride, value=0.0):
        total = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:]]
        sides = (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)
        return self.F.pad(x, sides, value=value)

    def conv(self, layer, running, x):
        kernel = self.tensor(layer.weight).permute(3, 2, 0, 1)
        y = self.F.conv2d(
            self.padded(x, kernel.shape[-1], layer.stride), kernel, stride=layer.stride
        )
        mean, var, scale, shift = map(self.tensor, (*running, layer.scale, layer.shift))
        return self.F.batch_norm(
            y, mean, var, scale, shift, training=self.training, momentum=0.0, eps=1e-5
        )

    def block(self, block, state, x):
        y = x
        for i, (conv, running) in enumerate(zip(block.convs, state, strict=False)):
            y = self.conv(conv, running, self.F.relu(y) if i else y)
        return self.F.relu(
            y + (x if block.shortcut is None else self.conv(block.shortcut, state[3], x))
        )

    def logits(self, x_BHWC, pooled):
        x = self.F.relu(
            self.conv(self.model.stem, self.state[0], self.tensor(x_BHWC).permute(0, 3, 1, 2))
        )
        if pooled:
            x = self.F.max_pool2d(self.padded(x, 3, 2, -np.inf), 3, 2)
        for stage, states in zip(self.model.stages, self.state[1], strict=True):
            for block, state in zip(stage, states, strict=True):
                x = self.block(block, state, x)
        return (
            x.mean((2, 3)) @ self.tensor(self.model.head.weight) + self.tensor(self.model.head.bias)
        ).numpy()


@pytest.mark.parametrize("stem", ["small", "pooled", "large"])
def test_the_whole_network_against_torch(stem):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model, state = drawn(small((2, 5), stem))  # the second stage is scanned over
    x = np.random.default_rng(2).uniform(size=(3, 16, 12, 3)).astype(np.float32)

    def both(model, state, x):
        return model.train(x, state)[0], model.infer(x, state)

    trained, inferred = jax.jit(both)(model, state, x)
    for got, training in ((trained, True), (inferred, False)):
        expected = TorchTwin(torch, model, state, training).logits(x, stem != "small")
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_either_convolution_gives_the_same(image_set):
    x = np.random.default_rng(2).uniform(size=(3, 9, 8, 3)).astype(np.float32)
    weight = np.random.default_rng(3).normal(size=(7, 7, 3, 4)).astype(np.float32) / 10
    for stride in (1, 2):
        np.testing.assert_allclose(
            same_conv(x, weight, stride), xla_conv(x, weight, stride), rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            xla_conv(x, weight, stride), slow_conv(x, weight, stride), rtol=1e-4, atol=1e-5
        )
    for conv, count in (("product", 0), ("xla", 4)):
        task = resnet_task("r", image_set(8, 8, 3), blocks=(1,), width=2, conv=conv)
        params, state = jax.eval_shape(task.init, KEY)
        said = str(jax.make_jaxpr(task.evaluate)(params, state, task.feed.splits["test"]))
        # The stem, three, and the shortcut.
        assert said.count("conv_general_dilated[") == count + (conv == "xla")


def test_the_pool_takes_the_largest():
    x = np.random.default_rng(0).normal(size=(1, 5, 6, 2)).astype(np.float32)
    got = np.asarray(max_pool(jnp.asarray(x), 3, 2))
    # XLA's "SAME" of 5 and of 6.
    padded = np.pad(x, ((0, 0), (1, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    for i, j in np.ndindex(3, 3):
        np.testing.assert_array_equal(
            got[:, i, j], padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2))
        )


def test_the_pools_gradient_goes_to_the_largest():
    x = np.random.default_rng(0).permutation(4 * 4 * 2).reshape(1, 4, 4, 2).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x, 3, 2) * 10)))(x)
    expected = np.zeros_like(x)
    for i, j, c in np.ndindex(2, 2, 2):  # XLA's "SAME" of 4: nothing before, one after
        window = x[0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3, c]
        a, b = np.unravel_index(window.argmax(), window.shape)
        expected[0, 2 * i + a, 2 * j + b, c] += 10
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize(
    ("blocks", "published"), [((3, 4, 6, 3), 25_557_032), ((3, 8, 36, 3), 60_192_808)]
)
def test_the_published_sizes(blocks, published):
    """ResNet-50 and -152 at 224×224 and 1000 classes; nothing is allocated."""
    build = lambda key: ResNet(key, 3, 1000, blocks=blocks, width=64, stem="large", conv="product")
    assert count_parameters(eqx.filter_eval_shape(build, KEY)) == published


def test_the_stem_is_chosen_by_the_size(image_set):
    for side, kernel, stride in ((32, 3, 1), (64, 3, 1), (65, 7, 2), (224, 7, 2)):
        task = resnet_task("r", image_set(side, side, 3, rows=1), blocks=(1,), width=2)
        params, _ = jax.eval_shape(task.init, KEY)
        assert params.stem.weight.shape[:2] == (kernel, kernel)
        assert params.stem.stride == stride
