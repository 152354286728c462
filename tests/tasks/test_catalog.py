"""Every named task: parameter counts, gradients, the transformations it must survive, and how it is
named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data import imagenet, images, speakers, text
from laconic.tasks.base import Task, count_parameters
from laconic.tasks.catalog import TASKS, make_task, make_task_and_source, parse_spec

SHAPES = {
    "digits": (8, 8, 1),
    "fmnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "imagenet32": (32, 32, 3),
}
SHAPES |= {"imagenet64": (64, 64, 3), "noise": (224, 224, 3)}
CLASSES = {"imagenet32": 200, "imagenet64": 200, "noise": 1000}


def resnet(published, classes):
    """A published count at 224×224 and 1000 classes with the small stem and another number of
    classes."""
    return published - 7 * 7 * 3 * 64 + 3 * 3 * 3 * 64 - (2048 + 1) * (1000 - classes)


def vit(published, hidden, patch, tokens, classes):
    """A published count at 224/16 and 1000 classes, at other patches, tokens and classes."""
    fewer = (16 * 16 * 3 - patch * patch * 3) + (14 * 14 - tokens)
    return published - fewer * hidden - (hidden + 1) * (1000 - classes)


RESNET50, RESNET152, DEIT_TINY, VIT_B = 25_557_032, 60_192_808, 5_717_416, 86_567_656
PARAMETERS = {
    "digits-mlp": 8_970,
    "fmnist-mlp2": 118_282,
    "fmnist-mlp3": 134_794,
    "fmnist-cnn": 56_394,
    "cifar10-mlp2": 411_146,
    "cifar10-mlp4": 444_170,
    "cifar10-cnn": 56_970,
    "cifar10-cnn-bn": 57_130,
    "imagenet32-mlp2": 435_656,  # ImageNet's with 200 classes
    "imagenet32-mlp3": 452_168,
    "imagenet32-cnn": 69_320,
    "lm-bytes": 137_216,
    "lm-speakers": 138_240,
    "cifar10-resnet50": resnet(RESNET50, 10),
    "cifar10-deit-tiny": vit(DEIT_TINY, 192, 4, 64, 10),
    "imagenet32-resnet50": resnet(RESNET50, 200),
    "imagenet32-resnet152": resnet(RESNET152, 200),
    "imagenet32-deit-tiny": vit(DEIT_TINY, 192, 4, 64, 200),
    "imagenet32-vit-b": vit(VIT_B, 768, 4, 64, 200),
    "imagenet64-resnet50": resnet(RESNET50, 200),
    "imagenet64-resnet152": resnet(RESNET152, 200),
    "imagenet64-deit-tiny": vit(DEIT_TINY, 192, 8, 64, 200),
    "imagenet64-vit-b": vit(VIT_B, 768, 8, 64, 200),
    "lm-decoder": 6_928_000,
    "noise-resnet50": RESNET50,
    "noise-vit-b": VIT_B,
}


@pytest.fixture
def made(image_set, text_set):
    """`made(spec)`: the named task on a small made-up data set of the right shape."""

    def make(spec, shape=None) -> Task:
        name, options = parse_spec(spec)
        family = name.split("-")[0]
        shape = shape or SHAPES.get(family, ())
        if family == "lm":
            dataset = text_set(options["context"], options.get("vocab", 256))
        else:
            dataset = image_set(*shape, classes=CLASSES.get(family, 10))
        return TASKS[name].model(spec, dataset, options)

    return make


def test_every_task_is_counted_here():
    assert set(PARAMETERS) == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_parameters(name, made):
    task = made(name)
    assert task.name == name
    params, state = jax.eval_shape(task.init, jax.random.key(0))
    assert count_parameters(params) == PARAMETERS[name]
    assert (state == ()) == (name != "cifar10-cnn-bn" and "resnet" not in name)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((params, state)))


SMALL_RESNET = "cifar10-resnet50:width=2,blocks=1-5"
SMALL_VIT = "cifar10-deit-tiny:patch=1,hidden=8,heads=2,layers=4"
SMALL_LM = "lm-decoder:context=8,hidden=8,heads=2,layers=4,vocab=300"


@pytest.mark.parametrize(
    "name",
    [
        "fmnist-mlp2",
        "imagenet32-mlp3",
        "cifar10-cnn",
        "cifar10-cnn-bn",
        "lm-bytes",
        SMALL_RESNET,
        SMALL_VIT.replace("patch=1", "patch=16"),
        SMALL_LM,
        SMALL_LM + ",positions=rotary",
    ],
)
def test_each_model_has_a_finite_gradient_everywhere(name, made, started):
    task = made(name)
    params, state = started(task)

    def first(task, params, state):
        batch = task.feed.take(jnp.arange(3))
        return jax.grad(task.loss, has_aux=True)(params, state, batch, jax.random.key(0))

    gradient, aux = jax.jit(first)(task, params, state)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert jax.tree.structure(aux.model_state) == jax.tree.structure(state)
    for leaf in jax.tree.leaves(gradient):
        assert np.all(np.isfinite(leaf))
        assert np.any(np.asarray(leaf) != 0)


SMALL = [
    "digits-mlp:width=5",
    "cifar10-cnn-bn:width=2",
    "lm-bytes:context=8,hidden=8,heads=2,layers=1",
]
SMALL += [pytest.param(SMALL_RESNET, marks=pytest.mark.slow)]


def local_steps(task, params, state, items):
    def step(carry, item):
        params, state = carry
        gradient_of = jax.value_and_grad(task.loss, has_aux=True)
        (loss, aux), gradient = gradient_of(params, state, task.feed.take(item), jax.random.key(0))
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), aux.model_state), loss

    return jax.lax.scan(step, (params, state), items)


@pytest.mark.parametrize("spec", SMALL)
def test_seeds_workers_steps_and_data_as_argument(spec, made, started):
    """vmap(seeds) > vmap(workers) > scan(steps), with the task as an argument, against one worker
    at a time."""
    task, S, K, H, B = made(spec, shape=(5, 6, 3)), 2, 2, 3, 4
    params, state = started(task, 0, S)
    items = np.random.default_rng(0).integers(0, 20, (S, K, H, B)).astype(np.int32)
    workers = jax.vmap(local_steps, (None, None, None, 0))
    everyone = jax.vmap(workers, (None, 0, 0, 0))
    together = jax.tree.map(np.asarray, jax.jit(everyone)(task, params, state, items))
    assert together[1].shape == (S, K, H)
    alone = jax.jit(local_steps)
    for seed, worker in np.ndindex(S, K):
        start = jax.tree.map(lambda leaf: leaf[seed], (params, state))  # noqa: B023
        expected = jax.tree.leaves(alone(task, *start, items[seed, worker]))
        got = [leaf[seed, worker] for leaf in jax.tree.leaves(together)]
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_init_under_vmap_over_seeds(made):
    task = made("digits-mlp:width=5")
    keys = jax.random.split(jax.random.key(0), 2)
    together, _ = jax.jit(jax.vmap(task.init))(keys)
    for seed, key in enumerate(keys):
        alone, _ = jax.jit(task.init)(key)
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(np.asarray(a)[seed], b)
    first, second = np.asarray(together.layers[0].weight)
    assert not np.array_equal(first, second)


def test_options(made):
    task = made("fmnist-mlp2:width=64")
    assert task.name == "fmnist-mlp2:width=64"
    params, _ = jax.eval_shape(task.init, jax.random.key(0))
    assert (
        sum(leaf.size for leaf in jax.tree.leaves(params))
        == 784 * 64 + 64 + 64 * 64 + 64 + 640 + 10
    )
    assert parse_spec("lm-bytes:file=/a/b=c.txt,context=32") == (
        "lm-bytes",
        {"file": "/a/b=c.txt", "context": 32, "hidden": 64, "heads": 4, "layers": 2},
    )
    options = {"width": 128, "activation": "relu", "split": "all", "folder": "mine"}
    options |= {"pool": 0, "half": ""}
    assert parse_spec("imagenet32-mlp2:folder=mine,split=all") == ("imagenet32-mlp2", options)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fmnist-mlp", ["unknown task 'fmnist-mlp'", "Did you mean 'fmnist-mlp"]),
        ("", ["unknown task"]),
        ("fmnist-mlp2:widht=64", ["option of task fmnist-mlp2", "'widht'", "Did you mean 'width'"]),
        ("fmnist-mlp2:folder=x", ["'folder'", "Known: activation, half, pool, split, width"]),
        ("fmnist-mlp2:split=70", ["split is 80/10/10 or all", "'70'"]),
        ("fmnist-mlp2:activation=step", ["activation is relu or tanh or gelu or silu", "'step'"]),
        ("cifar10-resnet50:compute=fp8", ["compute is f32 or bf16", "'fp8'"]),
        ("cifar10-resnet50:conv=fft", ["conv is product or xla", "'fft'"]),
        ("cifar10-resnet50:stem=tiny", ["stem is small or pooled or large", "'tiny'"]),
        ("cifar10-resnet50:blocks=3-0", ["blocks of each stage, as in 3-4-6-3", "'3-0'"]),
        ("lm-decoder:tokenizer=words", ["tokenizer is bytes or bpe", "'words'"]),
        ("lm-decoder:positions=none", ["positions is learned or rotary", "'none'"]),
        ("lm-decoder:lines=yes", ["lines is false or true", "'yes'"]),
        ("imagenet32-vit-b:stream=0", ["stream must be a positive whole number", "'0'"]),
        ("fmnist-mlp2:width", ["'width' is not key=value"]),
        ("fmnist-mlp2:", ["is not key=value"]),
        ("fmnist-mlp2:width=64,", ["is not key=value"]),
        ("fmnist-mlp2:width=0", ["width must be a positive whole number", "'0'"]),
        ("fmnist-mlp2:width=-3", ["positive whole number", "'-3'"]),
        ("fmnist-mlp2:width=6.5", ["positive whole number", "'6.5'"]),
        ("fmnist-mlp2:width=", ["positive whole number", "''"]),
    ],
)
def test_bad_specs_are_explained(spec, says, raises_clearly):
    with raises_clearly(*says):
        make_task(spec)


def test_heads_that_do_not_divide(made, raises_clearly):
    with raises_clearly("hidden=64", "heads=3"):
        made("lm-bytes:heads=3")
    with raises_clearly("rotary", "hidden=64", "heads=64", "odd"):
        made("lm-decoder:hidden=64,heads=64,positions=rotary")
    with raises_clearly("patches of 5", "32×32"):
        made("cifar10-deit-tiny:patch=5")


def test_naming_a_task_reads_no_data(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("data was read")

    for loader in ("digits", "fmnist", "cifar10", "noise"):
        monkeypatch.setattr(images, f"load_{loader}", fail)
    for module in (imagenet, text, speakers):
        monkeypatch.setattr(module, "load", fail)
    for name, entry in TASKS.items():
        assert parse_spec(name) == (name, entry.options)
        assert "\n" not in entry.description
        with pytest.raises(AssertionError, match="data was read"):
            make_task(name)


def test_random_images_have_the_sizes_asked_for_and_are_the_same_every_time():
    spec = "noise-vit-b:side=8,classes=5,patch=4,hidden=8,heads=2,layers=1,at_once=16"
    tasks = [make_task(spec) for _ in range(2)]
    train, again = (task.feed.splits["train"] for task in tasks)
    assert train["x"].shape[1:] == (8, 8, 3)
    assert set(np.unique(train["y"])) == set(range(5))
    assert abs(float(np.mean(train["x"])) - 127.5) < 2
    np.testing.assert_array_equal(train["x"], again["x"])
    assert (tasks[0].classes, tasks[0].at_once) == (5, 16)
    assert make_task("digits-mlp").at_once is None


def test_options_reach_the_loaders(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(bytes(range(256)) * 20)
    task, source = make_task_and_source(
        f"lm-bytes:file={path},context=16,hidden=8,heads=1,layers=1"
    )
    assert source.startswith(path.name)
    assert str(path.parent) not in source
    assert task.feed.take(jnp.arange(2))["x"].shape == (2, 17)
    assert task.classes == 256


def test_digits_are_learned():
    task, source = make_task_and_source("digits-mlp")
    assert "scikit-learn" in source

    @jax.jit
    def train(task, key):
        def step(params, key):
            batch = task.feed.take(task.feed.sample(key, (64,)))
            gradient = jax.grad(lambda p: task.loss(p, (), batch, key)[0])(params)
            return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient), None

        params, _ = jax.lax.scan(step, task.init(key)[0], jax.random.split(key, 400))
        return task.evaluate(params, (), task.feed.splits["test"])

    metrics = train(task, jax.random.key(0))
    assert float(metrics["accuracy"]) > 0.93


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("spec", "data", "classes"),
    [
        ("fmnist-mlp2", "fashion-mnist", 10),
        ("imagenet32-cnn:folder=tiny-imagenet-32", "tiny-imagenet-32", 200),
        ("lm-bytes:file=text/tinyshakespeare.txt", "text", 256),
    ],
)
def test_real_data_end_to_end(spec, data, classes, real_data):
    real_data(data)
    task = make_task(spec)
    assert task.classes == classes

    @jax.jit
    def first(task, key):
        params, state = task.init(key)
        batch = task.feed.take(task.feed.sample(key, (8,)))
        test = task.feed.take(task.feed.sample(key, (8,), "test"), "test")
        return task.loss(params, state, batch, key)[0], task.evaluate(params, state, test)["loss"]

    for loss in first(task, jax.random.key(0)):
        assert abs(float(loss) - np.log(classes)) < 1
