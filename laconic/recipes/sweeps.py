"""Sweeps by name: the paper's grids and our own. Only those of outer optimizers of one's own need
JAX to be found."""

from collections.abc import Sequence
from dataclasses import replace

from laconic.federated.options import Federated
from laconic.runs.configs import SweepConfig

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
_ADAMW = "gamma=0.01,0.003,0.001,0.0003"  # rates of AdamW and Muon
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
    "fedexp": (
        "local rates and ε of FedExP, our own grid: 16 points",
        SweepConfig(method="fedexp", grid=(_GAMMA, "eps=0.1,0.01,0.001,0")),
    ),
    "diloco": (
        "AdamW's rate and both numbers of the server in DiLoCo, our own grid: 48 points",
        SweepConfig(method="diloco", grid=(_ADAMW, "lr=1,0.7,0.4,0.1", "momentum=0.95,0.9,0.8")),
    ),
    **{
        name: (
            f"{what}, our own grid: {count} points",
            SweepConfig(method=method, grid=grid, workers=workers),
        )
        for name, method, what, count, grid, workers in (
            (
                "nesterov-adamw",
                "diloco",
                "DiLoCo down to no momentum, which few workers like best",
                60,
                (_ADAMW, "lr=1,0.7,0.4", "momentum=0.9,0.8,0.6,0.3,0"),
                8,
            ),
            (
                "diloco-decay",
                "diloco:momentum=0.9",
                "AdamW's rate and weight decay and the rate of the server in DiLoCo",
                36,
                (_ADAMW, "lr=1,0.7,0.4", "decay=0.1,0.01,0.001"),
                8,
            ),
            (
                "slowmo-adamw",
                "slowmo:local=adamw",
                "SlowMo under AdamW workers",
                60,
                (_ADAMW, "alpha=1,0.7,0.4", "beta=0.9,0.8,0.6,0.3,0"),
                8,
            ),
            (
                "fedadam-adamw",
                "fedadam:local=adamw",
                "both rates of FedAdam under AdamW workers",
                28,
                (_ADAMW, _SERVER),
                8,
            ),
            (
                "fedexp-adamw",
                "fedexp:local=adamw",
                "local rates and ε of FedExP under AdamW workers",
                16,
                (_ADAMW, "eps=0.1,0.01,0.001,0"),
                8,
            ),
            (
                "muloco",
                "muloco",
                "Muon's rate and both numbers of the server in MuLoCo",
                60,
                (_ADAMW, "lr=1,0.7,0.4", "momentum=0.9,0.8,0.6,0.3,0"),
                8,
            ),
            (
                "desloc",
                "desloc",
                "the rate of DES-LOC's AdamW workers",
                4,
                (_ADAMW,),
                8,
            ),
            (
                "snoo",
                "snoo",
                "one worker's rate and both numbers of the server in SNOO",
                60,
                (_ADAMW, "lr=1,0.7,0.4", "momentum=0.9,0.8,0.6,0.3,0"),
                1,
            ),
        )
    },
}


def sweeps() -> dict[str, tuple[str, SweepConfig]]:
    """The recipes by name, and the grids that outer optimizers of one's own bring along."""
    from laconic.methods import own_names
    from laconic.outer import OUTER
    from laconic.runs.grid import parse_grid

    found = dict(SWEEPS)
    for name in own_names():
        if OUTER[name].grid and name not in found:
            config = SweepConfig(method=name, grid=OUTER[name].grid)
            found[name] = (f"the grid of {name}: {len(parse_grid(config.grid))} points", config)
    return found
