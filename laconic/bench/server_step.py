"""Server steps on the shapes of real models: learned ones and AdamW, against memory traffic."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from laconic.architecture import RELATIVE
from laconic.bench.timing import Step, Tick, bandwidth, compiled, medians
from laconic.errors import LaconicError, require_positive, require_some, unknown
from laconic.outer.kernels import Tuning
from laconic.outer.learned import PATHS, LearnedOptimizer
from laconic.outer.relative import RelativeOptimizer
from laconic.outer.together import together

STEPPERS = ("adamw", "lopt-a", "lagg-a")  # by default
TOGETHER = f"{RELATIVE}-together"  # its step in two passes over all tensors
KNOWN = (*STEPPERS, RELATIVE, TOGETHER)
# What `tune` tries, one knob after another, keeping what was fastest.
KNOBS: dict[str, tuple[Any, ...]] = {
    "lanes": (64, 128, 256),
    "warps": (4, 8),
    "rows": (4, 8, 16, 32),
    "together": (1, 4),
    "programs": (600, 1200, 2400),
    "ahead": (0, 1),
    "hold": (0, 1),
    "stages": (1, 2),
    "sum_lanes": (256, 512, 1024),
    "sum_rows": (4, 16, 64),
    "sum_programs": (600, 1200),
    "sum_warps": (4, 8),
}
# A transformer's tensors, none of which fills a large GPU.
TUNED_ON = [(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 5

Shapes = list[tuple[int, ...]]


class Model(NamedTuple):
    """A model by the shapes of its tensors, and a line about it."""

    summary: str
    shapes: Shapes

    @property
    def parameters(self) -> int:
        """How many numbers they hold."""
        return sum(math.prod(shape) for shape in self.shapes)


def mlp(sizes: tuple[int, ...]) -> Shapes:
    """Weights and biases of a multi-layer perceptron."""
    return [shape for n_in, n_out in pairwise(sizes) for shape in ((n_in, n_out), (n_out,))]


def transformer(layers: int, width: int) -> Shapes:
    """Transformer blocks: two norms, joint q, k, v, projection, an MLP four times as wide."""
    block = [(width,)] * 4 + [(width, 3 * width), (3 * width,), (width, width), (width,)]
    return (block + mlp((width, 4 * width, width))) * layers + [(width,)] * 2


def vit(layers: int, width: int, patch: int, tokens: int, classes: int) -> Shapes:
    """A vision transformer: patches, class token, positions, blocks, head."""
    stem = [(patch * patch * 3, width), (width,), (1, 1, width), (1, tokens, width)]
    return stem + transformer(layers, width) + mlp((width, classes))


def gpt(layers: int, width: int, vocabulary: int, context: int) -> Shapes:
    """A decoder whose head is its embedding."""
    return [(vocabulary, width), (context, width), *transformer(layers, width)]


def resnet(blocks: tuple[int, ...], classes: int) -> Shapes:
    """A bottleneck ResNet: kernels as [height, width, in, out], two vectors a BatchNorm, head."""
    conv = lambda k, n_in, n_out: [(k, k, n_in, n_out), (n_out,), (n_out,)]
    shapes, channels = conv(7, 3, 64), 64
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        for i in range(count):
            shapes += conv(1, channels, inner) + conv(3, inner, inner) + conv(1, inner, 4 * inner)
            shapes += conv(1, channels, 4 * inner) if i == 0 else []
            channels = 4 * inner
    return shapes + mlp((channels, classes))


MODELS: dict[str, Model] = {
    "mlp": Model("2-layer MLP on 28 × 28 images", mlp((784, 128, 128, 10))),
    "matrix": Model("one 3162 × 3162 matrix, for comparisons between machines", [(3162, 3162)]),
    "resnet50": Model("ResNet-50 with 1000 classes", resnet((3, 4, 6, 3), 1000)),
    "vit-b": Model("ViT-B/16 with 1000 classes", vit(12, 768, 16, 197, 1000)),
    "gpt2-medium": Model("GPT-2 medium", gpt(24, 1024, 50257, 1024)),
}


@dataclass(frozen=True)
class ServerStepConfig:
    """One server step: learned optimizers against optax's AdamW on the same tensors."""

    sizes: tuple[str, ...] = ("mlp", "matrix")
    """Models: mlp (0.1 M), matrix (10 M), resnet50 (25.6 M), vit-b (86.6 M), gpt2-medium
    (355 M)."""
    steppers: tuple[str, ...] = STEPPERS
    """Which of adamw, lopt-a, lagg-a, lopt-r, lopt-r-together (a step in two passes)."""
    workers: int = 8
    """K, the deltas that lagg-a sees."""
    path: str = "auto"
    """How the learned step runs: auto, xla, tensorwise or passes."""
    accumulators: str = "float32"
    """How momenta and second moments are kept: float32 or bfloat16."""
    tuning: Tuning = field(default_factory=Tuning)
    """Block sizes and precision of the kernels of `passes`."""
    tune: bool = False
    """First find the fastest tuning for this GPU on 35 M parameters, and measure with it."""
    precisions: tuple[str, ...] = ()
    """Measure `passes` at these precisions too, for example: --precisions fp16 tf32."""
    repeats: int = 5
    """Timings of each; the median counts."""
    inner: int | None = None
    """Steps in one call on the device; 10, or 1 on a CPU."""

    @property
    def steps(self) -> int:
        """`inner`, or what suits the platform."""
        return self.inner or (1 if jax.default_backend() == "cpu" else 10)

    def check(self) -> None:
        """Refuse what is unknown before anything is compiled."""
        require_some(sizes=self.sizes, steppers=self.steppers)
        given = [("size", size, MODELS) for size in self.sizes]
        given += [("stepper", stepper, KNOWN) for stepper in self.steppers]
        for what, name, known in [*given, ("path", self.path, PATHS)]:
            if name not in known:
                raise unknown(what, name, known)
        inner = 1 if self.inner is None else self.inner
        require_positive(workers=self.workers, repeats=self.repeats, inner=inner)
        for tuning in (self.tuning, *(self.tuning._replace(precision=p) for p in self.precisions)):
            tuning.check()
        compiled = not self.tuning.interpret
        asked = {
            "--tune": self.tune,
            "--path passes": self.path == "passes" and compiled,
            "--precisions": self.precisions and compiled,
        }
        for words, is_asked in asked.items():
            if is_asked and jax.default_backend() != "gpu":
                raise LaconicError(
                    f"{words} is for GPU kernels, and JAX sees no GPU here; leave it out."
                )


def bytes_moved(stepper: str, K: int) -> int:
    """Bytes a parameter that a float32 step reads and writes at least.

    AdamW: Δ, W, m, v in, W, m, v out. A learned step: Δ for the row and column means; Δ, W, m₁₋₃, v
    (and K deltas) for the second moments of the features; the same again for the MLP, and W, m₁₋₃,
    v out. lopt-r: Δ, W, b₁₋₃, v in and b₁₋₃, v out for its inputs; the six in again, and W out.
    In two passes: all but v in for its inputs; the six in again, and W, b₁₋₃, v out.
    """
    more = K if stepper == "lagg-a" else 0
    fixed = {"adamw": 7, RELATIVE: 10 + 7, TOGETHER: 5 + 6 + 5}
    return 4 * fixed.get(stepper, 1 + (6 + more) + (11 + more))


def measure(config: ServerStepConfig, tick: Tick = lambda name: None) -> dict[str, Any]:
    """Figures by size and stepper: seconds, ratio to AdamW, share of memory floor, temporaries."""
    config.check()
    rate = bandwidth()
    tuning, tried = tuned(config, tick) if config.tune else (config.tuning, {})
    figures = {}
    for size in config.sizes:
        shapes = MODELS[size].shapes
        steps = dict(_steps(config, shapes, tuning))
        took = medians(steps, config.repeats, lambda name, size=size: tick(f"{size}: {name}"))
        parameters = MODELS[size].parameters
        for name, seconds in took.items():
            least = bytes_moved(name.split(" ")[0], config.workers)
            temporary = steps[name].temporary_bytes
            per_parameter = None if temporary is None else temporary / parameters
            figures[f"{size} {name}"] = {
                "seconds": seconds,
                "parameters": parameters,
                "ratio_to_adamw": seconds / took["adamw"] if "adamw" in took else None,
                "bytes_per_parameter": least,
                "share_of_memory_floor": least * parameters / rate / seconds,
                "temporary_bytes_per_parameter": per_parameter,
            }
    found = {"bandwidth_bytes_per_second": rate, "tuning": tuning._asdict(), "figures": figures}
    return found | ({"tried": tried} if tried else {})


def tuned(config: ServerStepConfig, tick: Tick) -> tuple[Tuning, dict[str, float]]:
    """The fastest tuning of a LOpt-A step by the passes, knob by knob, and all seconds."""
    best, tried = config.tuning, {}

    def time_of(tuning: Tuning) -> float:
        name = " ".join(f"{knob}={getattr(tuning, knob)}" for knob in KNOBS)
        if name not in tried:
            try:
                step = learned_step(
                    "lopt-a", TUNED_ON, 1, "passes", config.accumulators, tuning, config.steps
                )
                tried[name] = medians({name: step}, 3, tick)[name]
            except jax.errors.JaxRuntimeError:  # too many registers or too much shared memory
                tried[name] = math.inf  # null in the record
        return tried[name]

    for knob, values in KNOBS.items():
        best = min((best._replace(**{knob: value}) for value in values), key=time_of)
    return best, tried


def _steps(
    config: ServerStepConfig, shapes: Sequence[tuple[int, ...]], tuning: Tuning
) -> Iterator[tuple[str, Step]]:
    for stepper in config.steppers:
        if stepper == "adamw":
            yield stepper, adamw_step(shapes, config.steps)
            continue
        if stepper in (RELATIVE, TOGETHER):
            yield stepper, relative_step(stepper, shapes, config.accumulators, config.steps)
            continue
        make = partial(learned_step, stepper, shapes, config.workers)
        yield stepper, make(config.path, config.accumulators, tuning, config.steps)
        for precision in config.precisions:
            other = tuning._replace(precision=precision)
            yield f"{stepper} {precision}", make("passes", config.accumulators, other, config.steps)


def adamw_step(shapes: Sequence[tuple[int, ...]], inner: int) -> Step:
    """One step of optax's AdamW, parameters and state in place."""
    tx = optax.adamw(1e-3)
    return _optax_step(tx, shapes, inner)


def relative_step(
    stepper: str, shapes: Sequence[tuple[int, ...]], accumulators: str, inner: int
) -> Step:
    """One step of lopt-r on the mean, parameters and accumulators in place."""
    learned = RelativeOptimizer()
    theta = learned.init(jax.random.key(0))
    if stepper == TOGETHER:
        return _optax_step(together(learned, theta, accumulators=accumulators), shapes, inner)
    return _optax_step(learned(theta, accumulators=accumulators).tx, shapes, inner)


def _optax_step(
    tx: optax.GradientTransformation, shapes: Sequence[tuple[int, ...]], inner: int
) -> Step:
    params, delta = _tensors(shapes, 1), _tensors(shapes, 2)

    def step(both: Any, delta: Any) -> Any:
        updates, state = tx.update(delta, both[1], both[0])
        return optax.apply_updates(both[0], updates), state

    return compiled(step, (params, tx.init(params)), delta, inner=inner)


def learned_step(
    architecture: str,
    shapes: Sequence[tuple[int, ...]],
    K: int,
    path: str,
    accumulators: str,
    tuning: Tuning,
    inner: int,
) -> Step:
    """One learned step, parameters and accumulators in place."""
    learned = LearnedOptimizer(architecture, K if architecture.startswith("lagg") else None)
    theta = learned.init(jax.random.key(0))
    outer = learned(theta, path=path, accumulators=accumulators, tuning=tuning)
    params, mean = _tensors(shapes, 1), _tensors(shapes, 2)
    deltas = None
    if learned.gathers:
        deltas = [jnp.stack([d * (1 + k / K) for k in range(K)]) for d in mean]
    take = outer.step
    assert take is not None

    def step(both: Any, mean: Any, deltas: Any) -> Any:
        return take(mean, both[1], both[0], worker_deltas=deltas)

    return compiled(step, (params, outer.tx.init(params)), mean, deltas, inner=inner)


def _tensors(shapes: Sequence[tuple[int, ...]], seed: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [0.01 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
