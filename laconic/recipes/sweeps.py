"""A sweep as data: a frozen config, and the paper's grids by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from laconic.federated.population import Federated
from laconic.methods import own_names
from laconic.outer import OUTER
from laconic.runs.grids import parse_grid


@dataclass(frozen=True)
class SweepConfig:
    """A grid of one method's hyper-parameters on one task with K workers."""

    task: str = "fmnist-mlp2"
    """What to train: a name from `laconic tasks`, with options as name:key=value,key=value."""
    method: str = "local-sgd"
    """Whose hyper-parameters: local-sgd, slowmo, diloco, fedavg, fedavgm, fedprox, scaffold,
    fedadam, fedyogi, fedadagrad, sgd, adam, one of your own, or a learned optimizer by its
    published name or file, which has gamma, the workers' rate, scale, which multiplies its steps,
    and weight_decay, the share of each weight taken off a round."""
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


# --- the grids of the paper -----------------------------------------------------------------------

_RATES = (
    "1",
    "0.5",
    "0.1",
    "0.05",
    "0.01",
    "0.005",
    "0.001",
    "0.0005",
    "0.0001",
    "0.00005",
    "0.00001",
)
_ALPHA = f"alpha={','.join(_RATES)}"
_GAMMA = "gamma=1,0.5,0.3,0.1"
_LOCAL = "gamma=1,0.5,0.3,0.1,0.05,0.03,0.01"
_SERVER = f"eta={','.join(_RATES[1:8])}"


def _over_gamma(rates: Sequence[str]) -> str:
    return f"alpha={','.join(f'{rate}/gamma' for rate in rates)}"


def _federated(method: str, *grid: str) -> SweepConfig:
    """In the paper's federated setting, ranked by validation loss as there; three seeds, as rounds
    differ much."""
    return SweepConfig(
        method=method,
        grid=grid,
        workers=10,
        batch=20,
        federated=Federated(400, 0.1),
        seeds=3,
        rank_by="valid",
    )


_SLOWMO = SweepConfig(
    method="slowmo",
    grid=(_GAMMA, _over_gamma(_RATES), "beta=0.99,0.95,0.9,0.85,0.8,0.75,0.7,0.65,0.6,0.55,0.5"),
    points=(
        "gamma=0.3,alpha=0.01,beta=0.8",
        "gamma=0.1,alpha=5,beta=0.3",
        "gamma=0.3,alpha=1.66,beta=0.9",
    ),
)


def _top_k(name: str, share: str) -> dict[str, tuple[str, SweepConfig]]:
    """The grids of local SGD and SlowMo where a worker sends that share of Δ, as the paper tunes
    them for top-k."""
    kept = f"topk:{share}+ef"
    return {
        f"local-sgd-{name}": (
            f"local SGD's grid under {kept}: 4 points",
            SweepConfig(compress=kept),
        ),
        f"slowmo-{name}": (
            f"SlowMo's grid under {kept}: 484 + 3 points",
            replace(_SLOWMO, compress=kept),
        ),
    }


SWEEPS: dict[str, tuple[str, SweepConfig]] = {
    "local-sgd": ("the paper's grid for local SGD: 4 points", SweepConfig()),
    "sgd": (
        "the paper's grid for synchronous SGD: 11 points",
        SweepConfig(method="sgd", grid=(_ALPHA,)),
    ),
    "adam": (
        "the paper's grid for synchronous Adam: 11 points",
        SweepConfig(method="adam", grid=(_ALPHA,)),
    ),
    "slowmo": (
        "the paper's grid for SlowMo, and the best values it reports from off that grid: 484 + 3 "
        "points",
        _SLOWMO,
    ),
    **_top_k("tenth", "0.1"),
    **_top_k("hundredth", "0.01"),
    "slowmo-coarse": (
        "the better part of SlowMo's grid, for tasks that take long: 80 points",
        SweepConfig(
            method="slowmo", grid=(_GAMMA, _over_gamma(_RATES[:4]), "beta=0.99,0.95,0.9,0.8,0.5")
        ),
    ),
    "slowmo-short": (
        "the best part of SlowMo's grid for 300 rounds, for tasks that take very long; run its "
        "best again: 48 points",
        SweepConfig(
            method="slowmo",
            grid=(_GAMMA, _over_gamma(_RATES[:3]), "beta=0.95,0.9,0.8,0.5"),
            rounds=300,
        ),
    ),
    **{
        name: (
            f"local and server rates of {title}, our own grid: 28 points",
            SweepConfig(method=name, grid=(_GAMMA, _SERVER)),
        )
        for name, title in (
            ("fedadam", "FedAdam"),
            ("fedyogi", "FedYogi"),
            ("fedadagrad", "FedAdagrad"),
        )
    },
    **{
        name: (
            f"{what}, 400 clients with class mixes of Dirichlet(0.1): {count} points",
            _federated(method, *grid),
        )
        for name, method, what, count, grid in (
            ("fedavg", "fedavg", "local rates of FedAvg", 7, (_LOCAL,)),
            ("scaffold", "scaffold", "local rates of SCAFFOLD", 7, (_LOCAL,)),
            (
                "fedprox",
                "fedprox",
                "local rates and μ of FedProx",
                28,
                (_LOCAL, "mu=1,0.1,0.01,0.001"),
            ),
            (
                "fedavgm",
                "fedavgm",
                "all numbers of FedAvgM",
                84,
                (_LOCAL, "eta=3,1,0.3,0.1", "beta=0.97,0.9,0.7"),
            ),
            ("federated-fedadam", "fedadam", "both rates of FedAdam", 49, (_LOCAL, _SERVER)),
            ("federated-fedyogi", "fedyogi", "both rates of FedYogi", 49, (_LOCAL, _SERVER)),
            (
                "federated-fedadagrad",
                "fedadagrad",
                "both rates of FedAdagrad",
                49,
                (_LOCAL, _SERVER),
            ),
            (
                "fedlopt",
                "fedlopt-fmnist",
                "local rate, scale and weight decay of FedLOpt, a published one",
                24,
                ("gamma=0.3,0.1", "scale=1,0.5,0.3", "weight_decay=0,0.001,0.003,0.01"),
            ),
        )
    },
    "diloco": (
        "AdamW's rate and both numbers of the server in DiLoCo, our own grid: 48 points",
        SweepConfig(
            method="diloco",
            grid=("gamma=0.01,0.003,0.001,0.0003", "lr=1,0.7,0.4,0.1", "momentum=0.95,0.9,0.8"),
        ),
    ),
}


def sweeps() -> dict[str, tuple[str, SweepConfig]]:
    """The recipes by name, and the grids that outer optimizers of one's own bring along."""
    found = dict(SWEEPS)
    for name in own_names():
        if OUTER[name].grid and name not in found:
            config = SweepConfig(method=name, grid=OUTER[name].grid)
            found[name] = (f"the grid of {name}: {len(parse_grid(config.grid))} points", config)
    return found
