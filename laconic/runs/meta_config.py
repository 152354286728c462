"""Meta-training as data: a frozen config. JAX is imported only where it is made into objects."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from laconic.errors import LaconicError, unknown
from laconic.federated.options import KINDS, Federated
from laconic.local import LocalOptimizer
from laconic.relative import INPUTS

if TYPE_CHECKING:
    from laconic.meta.problem import Inner, Learned
    from laconic.meta.train import Outer


@dataclass(frozen=True)
class MetaConfig:
    """Meta-train a learned optimizer on one task or several.

    Every field has a default, and every field is a flag of `laconic meta-train`.

    Example::

        MetaConfig(architecture="lagg-a", tasks=("digits-mlp",), batch=16, steps=1500, pairs=4)
    """

    architecture: Literal["lopt-a", "lagg-a", "lopt", "lagg", "lopt-r"] = "lopt-a"
    """What it sees: lopt-a the mean delta, lagg-a every worker's; without -a no accumulators.
    lopt-r sees ratios, and decides the length of a Nesterov step tensor by tensor."""
    tasks: tuple[str, ...] = ("fmnist-mlp2",)
    """What to train on: names from `laconic tasks`, or tasks of your own as mymodule:make_task; a
    task's own numbers follow an @, as in cifar10-cnn@workers=4,local_steps=2,batch=64,gamma=0.1 or
    fmnist-mlp2@clients=400,alpha=0.1."""
    workers: int = 8
    """K, how many workers a task has unless it says otherwise."""
    local_steps: int = 4
    """H, the local steps of a round."""
    batch: int = 128
    """B, the examples of a local step."""
    local: Literal["sgd", "adamw"] = "sgd"
    """The workers' own optimizer."""
    gamma: float = 0.3
    """The workers' learning rate."""
    local_clip: float = 0.0
    """Norm that the workers clip their gradients to; 0: not clipped."""
    local_decay: float = 0.0
    """The workers' weight decay."""
    compress: str = "dense"
    """How messages are compressed inside the unroll, e.g. topk:0.01+ef."""
    dropout: float = 0.0
    """The probability that a worker is missing from a round."""
    federated: Federated = field(default_factory=Federated)
    """The population that workers are sampled from, unless a task says otherwise; each run has a
    fresh partition."""
    objective: Literal["train", "valid"] = "train"
    """The meta-loss: the workers' train loss, or the validation loss after each server step."""
    spread: float = 0.0
    """0: every run has its task's setting. From 1 on each run draws its own up to that: K, H, its
    examples, and a local rate up to so many times smaller or larger; the meta-loss is then the
    logarithm of train and validation loss, whatever --objective says."""
    steps: int = 6000
    """Outer steps, over which the learning rate is scheduled."""
    estimator: str = "pes"
    """How the meta-gradient is estimated: pes, es, nres, shifts or backprop."""
    pairs: int = 8
    """Antithetic pairs of runs for each task."""
    truncation: int = 25
    """Rounds unrolled for one gradient."""
    sigma: float = 0.01
    """Standard deviation of the perturbations of φ; of shifts, in units of their own, as 1."""
    shortest: int = 100
    """Shortest run, in rounds."""
    longest: int = 1000
    """Longest run, in rounds; lengths are log-uniform between the two."""
    ramp: int = 4800
    """Outer steps over which the longest run grows from the shortest to its full length; 0: at
    once."""
    reset_diverged: bool = True
    """End a pair of runs early when both sit at the loss ceiling."""
    peak: float = 3e-3
    """AdamW's learning rate after warm-up."""
    last: float = 1e-5
    """AdamW's learning rate at the end of its cosine decay."""
    warmup: int = 100
    """Outer steps of linear warm-up."""
    weight_decay: float = 1e-4
    """AdamW's weight decay."""
    clip: float = 1.0
    """Norm that each task's meta-gradient is clipped to; 0: not clipped."""
    average: float = 0.995
    """Decay of a running average of φ, judged beside φ; 0: none."""
    outlying: float = 0.0
    """Pairs whose losses differ by more than so many medians of all pairs' differences count as
    that many; 0: whole."""
    trained: tuple[str, ...] = ()
    """The tensors of φ that are trained, as w1 and b1; none named: all."""
    time: Literal["shifted", "paper"] = "shifted"
    """Time features tanh(t/x − 1) or, as the paper writes them, tanh(t/x)."""
    output_scale: float = 0.01
    """Scales the initial weights of φ's last layer; a small one lets φ begin near doing nothing."""
    widest: int = 0
    """Inputs of a tensor beyond which its steps shrink in proportion; 0: whole steps everywhere, as
    the paper."""
    deepest: int = 0
    """Matrices of a model beyond which all its steps shrink in proportion; 0: whole steps
    everywhere, as the paper."""
    nominal_rate: float = 0.8
    """The rate of the Nesterov step that lopt-r begins with."""
    nominal_momentum: float = 0.9
    """The momentum of that step: 0.5, 0.9 or 0.99."""
    hidden: int = 16
    """The width of lopt-r's hidden layer."""
    gates: int = 0
    """The width of the hidden layer of lopt-r's gates per parameter; 0: none."""
    left_out: tuple[str, ...] = ()
    """Inputs that it does without. Of lopt-r each of these words leaves out those whose names it
    begins, as time or agreement does; of the others they are names of features, as parameter and
    time, which the paper's LOpt and LAgg do not see."""
    seed: int = 0
    """Seed of φ, of perturbations and of everything the runs draw."""
    judge_tasks: tuple[str, ...] = ()
    """Tasks to judge φ on, written as --tasks are; none: on held-out seeds of those."""
    judge_every: int = 500
    """Outer steps between two looks at held-out seeds; the best φ so far is kept."""
    judge_seeds: int = 4
    """How many held-out seeds."""
    checkpoint_every: int = 200
    """Outer steps between two checkpoints."""
    devices: int = 1
    """Spread the pairs over this many devices."""
    minutes: float | None = None
    """Stop cleanly after about this long; --resume goes on."""
    init: str | None = None
    """Begin from this optimizer (a zoo name or a .safetensors file) instead of random weights."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/meta-RECIPE-TIME."""

    def learned(self) -> Learned:
        """The architecture to train; LAgg needs one K for all tasks."""
        from laconic.outer.learned import LearnedOptimizer
        from laconic.outer.relative import RelativeOptimizer

        if self.architecture == "lopt-r":
            return RelativeOptimizer(
                self.nominal_rate,
                self.nominal_momentum,
                self.hidden,
                self.gates,
                self._relative(),
            )
        gathers = self.architecture.startswith("lagg")
        K = self.inners()[0].workers if gathers else None
        shared = {
            name: getattr(self, name) for name in ("time", "output_scale", "widest", "deepest")
        }
        return LearnedOptimizer(self.architecture, K, blind=self.left_out, **shared)

    def _relative(self) -> tuple[str, ...]:
        """The inputs of lopt-r that are not left out."""
        for word in self.left_out:
            if not any(name.startswith(word) for name in INPUTS):
                raise unknown("input of lopt-r", word, INPUTS)
        return tuple(x for x in INPUTS if not x.startswith(self.left_out))

    def inners(self) -> list[Inner]:
        """Each task's setting."""
        if not self.tasks:
            raise LaconicError("meta-training needs at least one task.")
        return [parse_inner(spec, self) for spec in self.tasks]

    def judged(self) -> list[Inner]:
        """The settings of the tasks that φ is judged on, if others than those of training."""
        return [parse_inner(spec, self) for spec in self.judge_tasks]

    def outer(self) -> Outer:
        """How φ is trained."""
        from laconic.meta.estimator import Horizon
        from laconic.meta.train import Outer

        own = {f.name for f in fields(Outer)} - {"horizon"}
        horizon = Horizon(self.shortest, self.longest, self.ramp)
        return Outer(horizon=horizon, **{name: getattr(self, name) for name in own})


TASK_OPTIONS: dict[str, type] = {
    "workers": int,
    "local_steps": int,
    "batch": int,
    "local": str,
    "gamma": float,
    "local_clip": float,
    "local_decay": float,
    "compress": str,
    "dropout": float,
    "objective": str,
    "spread": float,
}
POPULATION_OPTIONS = {
    name: kind for name, kind in KINDS.items() if name not in TASK_OPTIONS
}  # dropout is the task's


def parse_inner(spec: str, config: MetaConfig) -> Inner:
    """`task` or `task@option=value,…`; what it does not say comes from the config."""
    from laconic.meta.problem import Inner

    task, at, tail = spec.partition("@")
    known = TASK_OPTIONS | POPULATION_OPTIONS
    values: dict[str, Any] = {name: getattr(config, name) for name in TASK_OPTIONS}
    population: dict[str, Any] = {}
    for item in tail.split(",") if at else []:
        key, equals, text = item.partition("=")
        if not equals:
            raise LaconicError(
                f"task {spec!r}: {item!r} is not option=value; write {task}@option=value,…."
            )
        if key not in known:
            raise unknown(f"option of task {task}", key, known)
        try:
            (values if key in TASK_OPTIONS else population)[key] = known[key](text)
        except ValueError:
            raise LaconicError(f"task {spec!r}: {key} must be a number, got {text!r}.") from None
    name, rate, clip, decay = (
        values.pop(key) for key in ("local", "gamma", "local_clip", "local_decay")
    )
    local = LocalOptimizer(name, rate, weight_decay=decay, clip=clip)
    return Inner(
        task=task, local=local, **values, federated=replace(config.federated, **population)
    )


def described(inner: Inner) -> str:
    """A task as a card names it, its population after an @."""
    return f"{inner.task}@{inner.federated.words()}" if inner.federated.active else inner.task
