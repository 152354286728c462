"""The named tasks: `make_task("fmnist-mlp2")`, or with options
`make_task("lm-bytes:file=/path/x.txt,context=32")`.

Adding a task is one line in `TASKS`. Naming a task reads no data; making it does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax

from laconic.data import cifar10, digits, fmnist, imagenet32, imagenet_stream, noise, text
from laconic.data.bpe import BYTES
from laconic.data.splits import Dataset, image_shape, undivided
from laconic.errors import LaconicError, unknown
from laconic.tasks.base import Task
from laconic.tasks.classifier import COMPUTE, classifier_task, stateful_classifier_task
from laconic.tasks.cnn import CNN, NormCNN
from laconic.tasks.layers import CONVOLUTIONS, Statistics
from laconic.tasks.lm import POSITIONS, lm_task
from laconic.tasks.mlp import ACTIVATIONS, MLP
from laconic.tasks.resnet import STEMS, parse_blocks, resnet_task
from laconic.tasks.vit import vit_task

Options = Mapping[str, Any]
LARGEST = 1_000_000  # of any size in a spec
CHOICES: dict[
    str, tuple[str, ...]
] = {  # of an option that is a word; an empty default is the task's own choice
    "split": ("80/10/10", "all"),
    "activation": tuple(ACTIVATIONS),
    "compute": tuple(COMPUTE),
    "conv": tuple(CONVOLUTIONS),
    "stem": tuple(STEMS),
    "tokenizer": ("bytes", "bpe"),
    "positions": tuple(POSITIONS),
    "lines": ("false", "true"),
}


class Entry(NamedTuple):
    """A named task: one line about it, how to read its data, its model on that data, and its
    options' defaults.

    An option's value has the type of its default: a positive whole number (0 only as a default:
    off), or a text (empty: the built-in choice).
    """

    description: str
    load: Callable[[Options], Dataset]
    model: Callable[[str, Dataset, Options], Task]
    options: Mapping[str, int | str]


def _mlp(hidden_layers: int, name: str, dataset: Dataset, options: Options) -> Task:
    sizes = (math.prod(image_shape(dataset)), *[options["width"]] * hidden_layers, dataset.classes)
    return classifier_task(name, lambda key: MLP(key, sizes, options["activation"]), dataset)


def _cnn(name: str, dataset: Dataset, options: Options) -> Task:
    sizes = image_shape(dataset)[-1], options["width"], dataset.classes
    return classifier_task(
        name, lambda key: CNN(key, *sizes), dataset, compute=COMPUTE[options["compute"]]
    )


def _norm_cnn(name: str, dataset: Dataset, options: Options) -> Task:
    sizes = image_shape(dataset)[-1], options["width"], dataset.classes

    def build(key: jax.Array) -> tuple[NormCNN, tuple[Statistics, ...]]:
        model = NormCNN(key, *sizes)
        return model, model.begin()

    return stateful_classifier_task(name, build, dataset, compute=COMPUTE[options["compute"]])


def _resnet(name: str, dataset: Dataset, options: Options) -> Task:
    own = {key: options[key] for key in ("width", "stem", "conv")}
    compute = COMPUTE[options["compute"]]
    return resnet_task(
        name, dataset, blocks=parse_blocks(options["blocks"]), compute=compute, **own
    )


def _vit(name: str, dataset: Dataset, options: Options) -> Task:
    own = {key: options[key] for key in ("patch", "hidden", "heads", "layers")}
    return vit_task(name, dataset, compute=COMPUTE[options["compute"]], **own)


def _byte_lm(name: str, dataset: Dataset, options: Options) -> Task:
    return lm_task(
        name, dataset, **{key: options[key] for key in ("context", "hidden", "heads", "layers")}
    )


def _lm(name: str, dataset: Dataset, options: Options) -> Task:
    own = {key: options[key] for key in ("context", "hidden", "heads", "layers", "positions")}
    return lm_task(name, dataset, compute=COMPUTE[options["compute"]], **own)


def _digits(options: Options) -> Dataset:
    return digits.load()


def _fmnist(options: Options) -> Dataset:
    return _divided(fmnist.load(), options)


def _cifar10(options: Options) -> Dataset:
    return _divided(cifar10.load(), options)


def _imagenet(side: int, options: Options) -> Dataset:
    folder = options["folder"] or None
    if options.get("stream"):  # which only the large models have
        return imagenet_stream.load(
            folder, side, options["stream"], everything=options["split"] == "all"
        )
    return _divided(imagenet32.load(folder, side), options)


def _noise(options: Options) -> Dataset:
    return _divided(noise.load(options["side"], options["classes"]), options)


def _divided(dataset: Dataset, options: Options) -> Dataset:
    """By default 80/10/10 of the train file; `split=all` trains on all of it."""
    return undivided(dataset) if options["split"] == "all" else dataset


def _text(options: Options) -> Dataset:
    return text.load(options["file"] or None, options["context"])


def _tokens(options: Options) -> Dataset:
    size = BYTES if options["tokenizer"] == "bytes" else options["vocab"]
    return text.load(
        options["file"] or None,
        options["context"],
        vocabulary=size,
        lines=options["lines"] == "true",
    )


_mlp2, _mlp3 = partial(_mlp, 2), partial(_mlp, 3)
_imagenet32, _imagenet64 = partial(_imagenet, 32), partial(_imagenet, 64)
_SPLIT, _COMPUTE = {"split": "80/10/10"}, {"compute": "f32", "at_once": 0}
_RELU, _FOLDER = {"activation": "relu"}, {"folder": ""}
_SMALL, _WIDE = {"width": 64} | _RELU, {"width": 128} | _RELU | _SPLIT
_CHANNELS = {"width": 32, "compute": "f32"} | _SPLIT
_DECODER = {"file": "", "context": 64, "hidden": 64, "heads": 4, "layers": 2}
_LM_WORDS = {"tokenizer": "bpe", "vocab": 4096, "lines": "false", "positions": "learned"}
_LM = _DECODER | {"hidden": 192, "heads": 12, "layers": 12} | _LM_WORDS | _COMPUTE
_RESNET = {"width": 64, "stem": "", "conv": "product"} | _COMPUTE | _SPLIT
_RESNET50, _RESNET152 = {"blocks": "3-4-6-3"} | _RESNET, {"blocks": "3-8-36-3"} | _RESNET
_DEIT = {"patch": 4, "hidden": 192, "heads": 3, "layers": 12} | _COMPUTE | _SPLIT
_VIT_B, _PATCH8, _STREAM = (
    _DEIT | {"hidden": 768, "heads": 12},
    {"patch": 8},
    _FOLDER | {"stream": 0},
)
_NOISE = {"side": 224, "classes": 1000}

TASKS: dict[str, Entry] = {
    "digits-mlp": Entry("8×8 digits, MLP 64-64-64-10; needs no download", _digits, _mlp2, _SMALL),
    "fmnist-mlp2": Entry("Fashion-MNIST, MLP with two hidden layers", _fmnist, _mlp2, _WIDE),
    "fmnist-mlp3": Entry("Fashion-MNIST, MLP with three hidden layers", _fmnist, _mlp3, _WIDE),
    "fmnist-cnn": Entry("Fashion-MNIST, three convolutions", _fmnist, _cnn, _CHANNELS),
    "cifar10-mlp2": Entry("CIFAR-10, MLP with two hidden layers", _cifar10, _mlp2, _WIDE),
    "cifar10-cnn": Entry("CIFAR-10, three convolutions", _cifar10, _cnn, _CHANNELS),
    "cifar10-cnn-bn": Entry(
        "CIFAR-10, three convolutions with BatchNorm", _cifar10, _norm_cnn, _CHANNELS
    ),
    "imagenet32-mlp2": Entry(
        "ImageNet at 32×32, MLP with two hidden layers", _imagenet32, _mlp2, _WIDE | _FOLDER
    ),
    "imagenet32-mlp3": Entry(
        "ImageNet at 32×32, MLP with three hidden layers", _imagenet32, _mlp3, _WIDE | _FOLDER
    ),
    "imagenet32-cnn": Entry(
        "ImageNet at 32×32, three convolutions", _imagenet32, _cnn, _CHANNELS | _FOLDER
    ),
    "lm-bytes": Entry(
        "next byte of a text (by default Python's own library), decoder", _text, _byte_lm, _DECODER
    ),
    "cifar10-resnet50": Entry("CIFAR-10, ResNet-50", _cifar10, _resnet, _RESNET50),
    "cifar10-deit-tiny": Entry(
        "CIFAR-10, vision transformer of DeiT-tiny's size", _cifar10, _vit, _DEIT
    ),
    "imagenet32-resnet50": Entry(
        "ImageNet at 32×32, ResNet-50", _imagenet32, _resnet, _RESNET50 | _STREAM
    ),
    "imagenet32-resnet152": Entry(
        "ImageNet at 32×32, ResNet-152", _imagenet32, _resnet, _RESNET152 | _STREAM
    ),
    "imagenet32-deit-tiny": Entry(
        "ImageNet at 32×32, DeiT-tiny", _imagenet32, _vit, _DEIT | _STREAM
    ),
    "imagenet32-vit-b": Entry("ImageNet at 32×32, ViT-B", _imagenet32, _vit, _VIT_B | _STREAM),
    "imagenet64-resnet50": Entry(
        "ImageNet at 64×64, ResNet-50", _imagenet64, _resnet, _RESNET50 | _STREAM
    ),
    "imagenet64-resnet152": Entry(
        "ImageNet at 64×64, ResNet-152", _imagenet64, _resnet, _RESNET152 | _STREAM
    ),
    "imagenet64-deit-tiny": Entry(
        "ImageNet at 64×64, DeiT-tiny", _imagenet64, _vit, _DEIT | _PATCH8 | _STREAM
    ),
    "imagenet64-vit-b": Entry(
        "ImageNet at 64×64, ViT-B", _imagenet64, _vit, _VIT_B | _PATCH8 | _STREAM
    ),
    "lm-decoder": Entry(
        "next token of a text or of sentences, decoder of 12 layers", _tokens, _lm, _LM
    ),
    "noise-resnet50": Entry(
        "random images, ResNet-50; for timing", _noise, _resnet, _RESNET50 | _NOISE
    ),
    "noise-vit-b": Entry(
        "random images, ViT-B; for timing", _noise, _vit, _VIT_B | {"patch": 16} | _NOISE
    ),
}


def make_task(spec: str) -> Task:
    """Make the task `name` or `name:key=value,key=value`; its data is read here. The task's name is
    the spec."""
    return make_task_and_source(spec)[0]


def make_task_and_source(spec: str) -> tuple[Task, str]:
    """The task, and a text that says where its data was read from (for the records of a run)."""
    name, options = parse_spec(spec)
    entry = TASKS[name]
    dataset = entry.load(options)
    return replace(
        entry.model(spec, dataset, options), at_once=options.get("at_once") or None
    ), dataset.source


def parse_spec(spec: str) -> tuple[str, Options]:
    """The task a spec names and its options, defaults filled in; reads no data."""
    name, colon, tail = spec.partition(":")
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    options = dict(TASKS[name].options)
    for item in tail.split(",") if colon else []:
        key, equals, value = item.partition("=")
        if not equals:
            raise LaconicError(
                f"task {spec!r}: {item!r} is not key=value; write {name}:key=value,key=value."
            )
        if key not in options:
            raise unknown(f"option of task {name}", key, options)
        options[key] = value if isinstance(options[key], str) else _positive(spec, key, value)
    for key, value in options.items():
        known = (*CHOICES.get(key, ()), TASKS[name].options[key])
        if key in CHOICES and value not in known:
            raise LaconicError(
                f"task {spec!r}: {key} is {' or '.join(CHOICES[key])}, got {value!r}."
            )
    if "blocks" in options:
        parse_blocks(str(options["blocks"]))
    return name, options


def _positive(spec: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= LARGEST):
        raise LaconicError(
            f"task {spec!r}: {key} must be a positive whole number up to {LARGEST}, got {value!r}."
        )
    return int(value)
