"""The named tasks, such as `fmnist-mlp2` or `lm-bytes:file=/path/x.txt,context=32`, and the one
place where a word or an object becomes a `Task`.

Adding a task is one entry in `TASKS`. Naming a task reads no data; making it does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from laconic.data import imagenet, images, speakers, text
from laconic.data.bpe import BYTES
from laconic.data.splits import (
    HALVES,
    Dataset,
    half_of_classes,
    image_shape,
    pooled,
    undivided,
)
from laconic.errors import LaconicError, unknown
from laconic.tasks.base import Task
from laconic.tasks.classifier import COMPUTE, classifier_task, stateful_classifier_task
from laconic.tasks.layers import CONVOLUTIONS
from laconic.tasks.lm import POSITIONS, lm_task
from laconic.tasks.own import find_task, is_word
from laconic.tasks.resnet import STEMS, parse_blocks, resnet_task
from laconic.tasks.small import ACTIVATIONS, CNN, MLP, NormCNN
from laconic.tasks.vit import vit_task

Options = Mapping[str, Any]
LARGEST = 1_000_000  # of any number in a spec
OWN_TASK = "given by the caller"  # where the data of a task from Python comes from
# The values of options that are words; an empty default lets the task choose.
CHOICES: dict[str, tuple[str, ...]] = {
    "split": ("80/10/10", "all"),
    "half": HALVES,
    "activation": tuple(ACTIVATIONS),
    "compute": tuple(COMPUTE),
    "conv": tuple(CONVOLUTIONS),
    "stem": tuple(STEMS),
    "tokenizer": ("bytes", "bpe"),
    "positions": tuple(POSITIONS),
    "lines": ("false", "true"),
}


class NamedTask(NamedTuple):
    """A named task: one line about it, its data, its model on that data, and option defaults.

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
    compute = COMPUTE[options["compute"]]
    return classifier_task(name, lambda key: CNN(key, *sizes), dataset, compute=compute)


def _norm_cnn(name: str, dataset: Dataset, options: Options) -> Task:
    sizes = image_shape(dataset)[-1], options["width"], dataset.classes
    compute = COMPUTE[options["compute"]]
    return stateful_classifier_task(
        name, lambda key: NormCNN(key, *sizes), dataset, compute=compute
    )


def _large(
    make: Callable[..., Task], own: tuple[str, ...], name: str, dataset: Dataset, options: Options
) -> Task:
    """A model whose options in `own` are arguments of the function that makes its task."""
    given = {key: options[key] for key in own}
    if "blocks" in given:
        given["blocks"] = parse_blocks(given["blocks"])
    return make(name, dataset, compute=COMPUTE[options.get("compute", "f32")], **given)


def _digits(options: Options) -> Dataset:
    return images.load_digits()


def _fmnist(options: Options) -> Dataset:
    return _divided(images.load_fmnist(), options)


def _cifar10(options: Options) -> Dataset:
    return _divided(images.load_cifar10(), options)


def _imagenet(side: int, options: Options) -> Dataset:
    folder = options["folder"] or None
    if options.get("stream"):  # only the large models have it
        everything = options["split"] == "all"
        return imagenet.stream(folder, side, options["stream"], everything=everything)
    return _divided(imagenet.load(folder, side), options)


def _noise(options: Options) -> Dataset:
    return _divided(images.load_noise(options["side"], options["classes"]), options)


def _divided(dataset: Dataset, options: Options) -> Dataset:
    """By default 80/10/10 of the train file; `split=all` trains on all of it. Small models also
    take smaller images and half of the classes."""
    if options.get("half"):
        dataset = half_of_classes(dataset, options["half"])
    if options.get("pool"):
        dataset = pooled(dataset, options["pool"])
    return undivided(dataset) if options["split"] == "all" else dataset


def _text(options: Options) -> Dataset:
    size = options["vocab"] if options.get("tokenizer") == "bpe" else BYTES
    lines = options.get("lines") == "true"
    return text.load(options["file"] or None, options["context"], vocabulary=size, lines=lines)


def _speakers(options: Options) -> Dataset:
    return speakers.load(options["file"] or None, options["context"], options["least"])


_mlp2 = partial(_mlp, 2)
_mlp3 = partial(_mlp, 3)
_mlp4 = partial(_mlp, 4)
_resnet = partial(_large, resnet_task, ("blocks", "width", "stem", "conv"))
_vit = partial(_large, vit_task, ("patch", "hidden", "heads", "layers"))
_byte_lm = partial(_large, lm_task, ("context", "hidden", "heads", "layers"))
_lm = partial(_large, lm_task, ("context", "hidden", "heads", "layers", "positions"))
_imagenet32 = partial(_imagenet, 32)

_SPLIT = {"split": "80/10/10"}
_COMPUTE = {"compute": "f32", "at_once": 0}
_FOLDER = {"folder": ""}
_SMALL = {"width": 64, "activation": "relu"}
_REDUCED = _SPLIT | {"pool": 0, "half": ""}
_WIDE = {"width": 128, "activation": "relu"} | _REDUCED
_CHANNELS = {"width": 32, "compute": "f32"} | _REDUCED
_DECODER = {"file": "", "context": 64, "hidden": 64, "heads": 4, "layers": 2}
_LM_WORDS = {"tokenizer": "bpe", "vocab": 4096, "lines": "false", "positions": "learned"}
_LM = _DECODER | {"hidden": 192, "heads": 12, "layers": 12} | _LM_WORDS | _COMPUTE
_RESNET50 = {"blocks": "3-4-6-3", "width": 64, "stem": "", "conv": "product"} | _COMPUTE | _SPLIT
_RESNET152 = _RESNET50 | {"blocks": "3-8-36-3"}
_DEIT = {"patch": 4, "hidden": 192, "heads": 3, "layers": 12} | _COMPUTE | _SPLIT
_VIT_B = _DEIT | {"hidden": 768, "heads": 12}
_STREAM = _FOLDER | {"stream": 0}
_NOISE = {"side": 224, "classes": 1000}


def _large_on_imagenet(side: int, patch: int) -> dict[str, NamedTask]:
    """The large models on ImageNet of one size, whose data may be streamed."""
    models = {
        "resnet50": ("ResNet-50", _resnet, _RESNET50),
        "resnet152": ("ResNet-152", _resnet, _RESNET152),
        "deit-tiny": ("DeiT-tiny", _vit, _DEIT | {"patch": patch}),
        "vit-b": ("ViT-B", _vit, _VIT_B | {"patch": patch}),
    }
    data, load = f"ImageNet at {side}×{side}", partial(_imagenet, side)
    return {
        f"imagenet{side}-{name}": NamedTask(f"{data}, {title}", load, model, options | _STREAM)
        for name, (title, model, options) in models.items()
    }


TASKS: dict[str, NamedTask] = {
    "digits-mlp": NamedTask(
        "8×8 digits, MLP 64-64-64-10; needs no download", _digits, _mlp2, _SMALL
    ),
    "fmnist-mlp2": NamedTask("Fashion-MNIST, MLP with two hidden layers", _fmnist, _mlp2, _WIDE),
    "fmnist-mlp3": NamedTask("Fashion-MNIST, MLP with three hidden layers", _fmnist, _mlp3, _WIDE),
    "fmnist-cnn": NamedTask("Fashion-MNIST, three convolutions", _fmnist, _cnn, _CHANNELS),
    "cifar10-mlp2": NamedTask("CIFAR-10, MLP with two hidden layers", _cifar10, _mlp2, _WIDE),
    "cifar10-mlp4": NamedTask("CIFAR-10, MLP with four hidden layers", _cifar10, _mlp4, _WIDE),
    "cifar10-cnn": NamedTask("CIFAR-10, three convolutions", _cifar10, _cnn, _CHANNELS),
    "cifar10-cnn-bn": NamedTask(
        "CIFAR-10, three convolutions with BatchNorm", _cifar10, _norm_cnn, _CHANNELS
    ),
    "imagenet32-mlp2": NamedTask(
        "ImageNet at 32×32, MLP with two hidden layers", _imagenet32, _mlp2, _WIDE | _FOLDER
    ),
    "imagenet32-mlp3": NamedTask(
        "ImageNet at 32×32, MLP with three hidden layers", _imagenet32, _mlp3, _WIDE | _FOLDER
    ),
    "imagenet32-cnn": NamedTask(
        "ImageNet at 32×32, three convolutions", _imagenet32, _cnn, _CHANNELS | _FOLDER
    ),
    "lm-bytes": NamedTask(
        "next byte of a text (by default Python's own library), decoder", _text, _byte_lm, _DECODER
    ),
    "lm-speakers": NamedTask(
        "next byte of Shakespeare's speakers, who are natural clients; decoder",
        _speakers,
        _byte_lm,
        _DECODER | {"context": 80, "least": speakers.LEAST},
    ),
    "cifar10-resnet50": NamedTask("CIFAR-10, ResNet-50", _cifar10, _resnet, _RESNET50),
    "cifar10-deit-tiny": NamedTask(
        "CIFAR-10, vision transformer of DeiT-tiny's size", _cifar10, _vit, _DEIT
    ),
    **_large_on_imagenet(32, patch=4),
    **_large_on_imagenet(64, patch=8),
    "lm-decoder": NamedTask(
        "next token of a text or of sentences, decoder of 12 layers", _text, _lm, _LM
    ),
    "noise-resnet50": NamedTask(
        "random images, ResNet-50; for timing", _noise, _resnet, _RESNET50 | _NOISE
    ),
    "noise-vit-b": NamedTask(
        "random images, ViT-B; for timing", _noise, _vit, _VIT_B | {"patch": 16} | _NOISE
    ),
}


def make_task(spec: str) -> Task:
    """Make a task by its name, reading its data.

    Args:
        spec: a name of the catalog, or with options `name:key=value,key=value`; `laconic tasks`
            lists both, and the spec becomes the task's name. Or a task of your own as
            `module:name`: a `Task`, or a function without arguments that returns one, in a module
            of the current directory or of Python's path.

    Returns:
        The `Task`.

    Raises:
        LaconicError: the name, an option or a value is unknown, the data is missing or damaged, or
            your module does not give a task; the error names the line.

    Example:
        >>> from laconic import make_task
        >>> task = make_task("digits-mlp:width=32")
        >>> task.feed.size("train")
        1200
    """
    return make_task_and_source(spec)[0]


def make_task_and_source(spec: str) -> tuple[Task, str]:
    """The task, and where its data was read from (for the records of a run)."""
    if is_own(spec):
        return find_task(spec), spec
    name, options = parse_spec(spec)
    dataset = TASKS[name].load(options)
    task = TASKS[name].model(spec, dataset, options)
    return replace(task, at_once=options.get("at_once") or None), dataset.source


def given_task(task: Task | None, spec: str) -> tuple[Task, str]:
    """A task from Python, or else the one that a spec names, and where its data comes from."""
    if task is None:
        return make_task_and_source(spec)
    if not isinstance(task, Task):
        kind = type(task).__name__
        raise LaconicError(f"task is a Task, as laconic.plain_task makes one, got a {kind}.")
    return task, OWN_TASK


def is_own(source: str) -> bool:
    """Whether a spec, or where a record says that data came from, is a user's own task."""
    return source == OWN_TASK or (is_word(source) and source.partition(":")[0] not in TASKS)


def parse_spec(spec: str) -> tuple[str, Options]:
    """The task of the catalog a spec names and its options, defaults filled in; reads no data."""
    name, colon, tail = spec.partition(":")
    if name not in TASKS:
        if name.endswith(".py") and is_word(f"{Path(name).stem}:{tail}"):
            raise LaconicError(
                f"task {spec!r}: name the module, not its file, from its folder: "
                f"{Path(name).stem}:{tail}."
            )
        raise LaconicError(
            f"{unknown('task', name, TASKS)} A task of your own is mymodule:make_task."
        )
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
