"""What a comparison, a sweep, a training and a plan are told, as flags and records hold it.

Light: JAX is not imported, so that --help and an error in a flag come at once.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laconic.engines.devices import Devices
from laconic.federated.options import Federated
from laconic.tuned import TUNED

if TYPE_CHECKING:
    from laconic.runs.ready import Optimizer
else:
    Optimizer = str  # what a flag and a record hold

Tracker = Literal["csv", "tensorboard", "trackio", "wandb"]


@dataclass(frozen=True)
class CompareConfig:
    """Several optimizers on one task with K workers, over several seeds.

    Every field has a default, and every field is a flag of `laconic compare`.

    Example::

        CompareConfig(task="fmnist-mlp2", optimizers=("local-sgd", "diloco"), rounds=200)
        CompareConfig(optimizers=("local-sgd", ("lion", optax.lion(1e-3)), load("lopt-r")))
    """

    task: str = "digits-mlp"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value, or a
    task of your own as mymodule:make_task."""
    optimizers: tuple[Optimizer, ...] = (
        "local-sgd",
        *TUNED["digits-mlp"],
        "lopt-a-digits",
        "lopt-r",
    )
    """What to compare: names from `laconic optimizers`, with options as name:key=value,key=value.
    From Python also ready objects, alone or as (label, object): a Method, an OuterOptimizer or an
    optax transformation (over SGD workers at rate 0.1), or a loaded optimizer."""
    workers: int = 8
    """K, how many workers there are."""
    local_steps: int = 4
    """H, the local steps each takes in a round."""
    batch: int = 16
    """B, the examples of a local step."""
    rounds: int = 100
    """T, the communication rounds."""
    federated: Federated = field(default_factory=Federated)
    """A population of clients with data of their own, of which K are sampled each round; none
    unless one is given."""
    seeds: int = 5
    """How many seeds, each with its own initial weights, minibatches and, with a population,
    partition of the data."""
    first_seed: int = 0
    """The first seed; the others follow it."""
    seeds_for: Literal["report", "choice", "tuning"] = "report"
    """What the seeds are for: report, a number that is published; choice, to choose among methods,
    checkpoints or settings; tuning, to tune hyper-parameters. A number is honest on seeds that
    nothing was chosen or tuned on. It changes nothing about the run but its record."""
    seeds_at_once: int = 0
    """Seeds that are trained side by side, 0: all; fewer take less memory."""
    evaluate_every: int = 20
    """Rounds between two looks at the test set; also how often a run can be stopped."""
    fresh_statistics: int = 0
    """Training minibatches by which BatchNorm's statistics are estimated anew before each look at
    held-out data, e.g. 50; 0: they are looked at as the workers left them, from before the outer
    step, which may have moved the weights far. Training itself stays the same to the bit."""
    patience: int | None = None
    """Stop a method once so many looks in a row found no lower validation loss (test loss, where
    a task has no validation split), as the mean over seeds; never by default."""
    missing: int = 0
    """How many workers are absent from each round, others every time; what they computed is lost.
    """
    fragments: int = 1
    """F, the parts in which the model is exchanged, each at its own time in a round."""
    delay: int = 0
    """Local steps between sending a fragment and its arrival: the workers go on meanwhile."""
    mix: float = 0.0
    """The share of its own weights that a worker keeps when a fragment arrives."""
    compress: str = "dense"
    """How messages are compressed: dense, topk:0.01, tensor-topk:0.01, chunk-topk:0.01, int8, int4,
    int2, +ef; e.g. topk:0.01+int8+ef; or sparseloco."""
    aggregate: str = "mean"
    """How messages become one: mean, or a mean that withstands attackers: median, trimmed:0.2,
    krum:f=1, multi-krum:f=1, clip:1, centred-clip:1."""
    topology: Literal["server", "all-gather", "ring"] = "server"
    """How messages travel, for counting bits."""
    link: str | None = None
    """Price the rounds on a network: bandwidth/latency, e.g. 100Mbit/20ms."""
    step_time: str | None = None
    """How long one local step takes, e.g. 12ms; with a link and without it, plain SGD is measured
    here."""
    target_loss: float | None = None
    """The train loss to race to; by default the lowest that local SGD reaches."""
    on_nan: Literal["stop", "continue"] = "stop"
    """What to do when a loss is NaN or infinite."""
    devices: int = 1
    """Spread the workers over this many devices (K must be a multiple)."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/TASK-TIME."""


@dataclass(frozen=True)
class SweepConfig:
    """A grid of one method's hyper-parameters on one task with K workers.

    Every field has a default, and every field is a flag of `laconic sweep`.

    Example::

        SweepConfig(task="digits-mlp", method="sgd", grid=("alpha=1,0.5,0.1",), rounds=100)
    """

    task: str = "fmnist-mlp2"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value, or a
    task of your own as mymodule:make_task."""
    method: str = "local-sgd"
    """Whose hyper-parameters: a method from `laconic optimizers`, one of your own, or a learned
    optimizer by its published name or file, which has gamma, the workers' rate, scale, which
    multiplies its steps, and weight_decay, the share of each weight taken off a round. Options that
    follow a colon are the same at every point, as in slowmo:local=adamw."""
    grid: tuple[str, ...] = ("gamma=1,0.5,0.3,0.1",)
    """All values of each hyper-parameter, as name=value,value; a value may be divided by an earlier
    one: 0.5/gamma. clip= and decay= are those of the workers' gradients and weights."""
    points: tuple[str, ...] = ()
    """Single points off the grid, as name=value,name=value."""
    workers: int = 8
    """K, how many workers there are."""
    local_steps: int = 4
    """H, the local steps each takes in a round."""
    batch: int = 128
    """B, the examples of a local step."""
    rounds: int = 1000
    """T, the communication rounds."""
    federated: Federated = field(default_factory=Federated)
    """A population of clients with data of their own, of which K are sampled each round; none
    unless one is given."""
    compress: str = "dense"
    """How messages are compressed, as in `laconic compare`: dense, topk:0.1+ef, int8, …"""
    aggregate: str = "mean"
    """How messages become one: mean, or a mean that withstands attackers: median, trimmed:0.2,
    krum:f=1, multi-krum:f=1, clip:1, centred-clip:1."""
    seeds: int = 1
    """How many seeds each point is run with; one, by default: run the winners of a sweep with more.
    """
    first_seed: int = 0
    """The first seed; the others follow it."""
    rank_by: Literal["minimum", "final", "rounds", "valid"] = "minimum"
    """What is best: the lowest train loss ever or at the end, fewest rounds to the target, lowest
    validation loss."""
    target_loss: float | None = None
    """The train loss that rounds are counted to."""
    points_at_once: int = 44
    """Grid points that are trained side by side; fewer take less memory."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/sweep-METHOD-TASK-TIME."""


@dataclass(frozen=True)
class TrainConfig:
    """One model, trained with K workers and one outer optimizer.

    Every field has a default, and every field is a flag of `laconic train`.

    Example::

        TrainConfig(task="fmnist-mlp2", optimizer="lopt-a-fmnist", workers=8, batch=128)
    """

    task: str = "digits-mlp"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value, or a
    task of your own as mymodule:make_task."""
    optimizer: str = "lopt-a-digits"
    """The outer optimizer and its workers: a name from `laconic optimizers`, with options as
    name:key=value,…."""
    workers: int = 4
    """K, how many workers there are."""
    local_steps: int = 4
    """H, the local steps each takes in a round."""
    batch: int = 16
    """B, the examples of a local step."""
    rounds: int = 100
    """T, the communication rounds."""
    seed: int = 0
    """The seed of initial weights and minibatches."""
    compress: str = "dense"
    """How messages are compressed: dense, topk:0.01, tensor-topk:0.01, chunk-topk:0.01, int8, int4,
    int2, +ef; e.g. topk:0.01+int8+ef; or sparseloco."""
    aggregate: str = "mean"
    """How messages become one: mean, or a mean that withstands attackers: median, trimmed:0.2,
    krum:f=1, multi-krum:f=1, clip:1, centred-clip:1."""
    norm_limit: float = 100.0
    """A message whose norm is over so many times the usual is left out; the usual norm is the
    largest median of a round so far."""
    checkpoint_every: int = 50
    """Rounds between two checkpoints; 0: only at the end."""
    patience: int | None = None
    """Stop once so many looks in a row found no lower validation loss (test loss, where a task has
    no validation split), and keep the best weights in best.safetensors; never by default."""
    evaluate_every: int | None = None
    """Rounds between two looks at held-out data, drawn as curves of all the task's metrics; by
    default none is taken before the end, and one in 10 rounds where there is a patience."""
    devices: Devices = 1
    """Split each local step's minibatch over this many devices, or over all of them; the batch must
    be a multiple. The numbers stay those of one device, up to rounding."""
    fragments: int = 1
    """F, the parts in which the model is exchanged, each at its own time in a round."""
    delay: int = 0
    """Local steps between sending a fragment and its arrival: the workers go on meanwhile."""
    mix: float = 0.0
    """The share of its own weights that a worker keeps when a fragment arrives."""
    exchange: str = "auto"
    """How messages travel between real processes: gather (each to all), reduce (each worker
    averages one piece of all and sends its mean to the others; for optimizers of the mean), or
    auto, whichever sends fewer bytes. LAgg-A and robust means need every message: gather."""
    late: str = "drop"
    """What becomes of the message of a worker that a round did not wait for, between processes:
    drop, or next to have it count in the next round."""
    out: Path | None = None
    """The folder to write, new or empty; by default runs/TASK-TIME."""


@dataclass(frozen=True)
class PlanConfig:
    """What a round costs over a link, before anything is trained.

    Every field has a default, and every field is a flag of `laconic plan`.
    """

    parameters: float = 1e8
    """How many the model has, e.g. 1e9."""
    workers: int = 8
    """K, how many workers there are."""
    link: str = "100Mbit/20ms"
    """Each worker's connection: bandwidth, in each direction at the same time, and one-way latency.
    """
    step_time: str = "100ms"
    """How long one local step takes, e.g. 400ms."""
    local_steps: tuple[int, ...] = (1, 16, 256)
    """Values of H to show."""
    compress: tuple[str, ...] = ("dense", "int8", "int4+ef", "topk:0.01+int8+ef")
    """How messages are compressed, as in `laconic compare`."""
    optimizers: tuple[str, ...] = ("diloco", "lopt-r")
    """Outer optimizers: names from `laconic optimizers`."""
    share: float = 0.9
    """The share of a round that local steps are to have; the smallest H with it is chosen."""
    steps: int = 10_000
    """The local steps of a whole run, which take more rounds the smaller H is."""
    rounds: int | None = None
    """The rounds of a whole run, whatever H is, in place of its local steps."""
    probe: int = 1_000_000
    """Parameters on which encoding, combining and outer steps are timed here; times are taken to
    grow in proportion."""
    out: Path | None = None
    """A JSON file for all of it."""
