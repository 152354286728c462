"""The paper's numbers, as its tables print them, and settings that experiments share."""

from dataclasses import dataclass, replace
from typing import Any

from laconic.recipes.meta_trainings import META_RECIPES
from laconic.reproduce.experiment import Listing
from laconic.reproduce.panel import Learned, Number, Use
from laconic.runs.configs import CompareConfig
from laconic.runs.meta_config import MetaConfig
from laconic.zoo import published

# --- results --------------------------------------------------------------------------------------

# Table 1 (speedup over local SGD): columns and rows. None: the hyphen, local SGD's minimum was
# never reached.
SPEEDUP_COLUMNS = (
    *("FMNIST MLP", "CIFAR10 MLP", "ImageNet MLP"),
    *("ImageNet ResNet50", "ImageNet ViT", "LM1B Transformer"),
)
_SPEEDUP = {  # the value and, unless it is local SGD's, its standard error
    "Local SGD": "1 1 1 1 1 1",
    "Adam": "3.11±0.42 1.69±0.16 2.00±0.15 2.10±0.06 2.18±0.04 3.56±0.09",
    "SlowMo": "4.10±0.38 4.81±0.74 2.48±0.09 1.99±0.08 – 1.26±0.02",
    "LOpt-A": "8.47±0.72 9.62±0.36 4.26±0.41 2.56±0.12 2.31±0.12 6.76±0.43",
    "LAgg-A": "9.80±0.54 7.69±0.70 4.63±0.26 2.48±0.09 1.88±0.08 6.02±0.56",
}


def _number(text: str) -> Number:
    value, _, error = text.partition("±")
    return Number(None if value == "–" else float(value), float(error) if error else None)


SPEEDUP = {label: tuple(map(_number, row.split())) for label, row in _SPEEDUP.items()}
SPEEDUP_AVERAGE = {"Local SGD": 1.00, "Adam": 2.44, "SlowMo": 2.93, "LOpt-A": 5.66, "LAgg-A": 5.42}

# Table 2: communication rounds to a train loss of 0.2 on Fashion-MNIST's 2-layer MLP, K = 8.
ROUNDS_TARGET = 0.2
ROUNDS: dict[str, dict[int, Number]] = {
    "Local SGD": {4: Number(None), 8: Number(721), 16: Number(625)},
    "SlowMo": {4: Number(311), 8: Number(182), 16: Number(121)},
    "LOpt-A": {4: Number(119), 8: Number(121), 16: Number(89)},
    "LAgg-A": {4: Number(122), 8: Number(81), 16: Number(55)},
}

# The table of times: model → H → seconds of a round and overhead, of local SGD, LOpt-A and LAgg-A.
# On A6000 GPUs.
TIMES: dict[str, dict[int, tuple[tuple[float, float], ...]]] = {
    "ViT-Base": {
        8: ((0.58, 1.00), (0.64, 1.11), (0.68, 1.17)),
        16: ((2.05, 1.00), (2.13, 1.04), (2.16, 1.05)),
        32: ((3.93, 1.00), (4.02, 1.02), (4.04, 1.03)),
        64: ((7.71, 1.00), (7.83, 1.02), (7.86, 1.02)),
    },
    "ResNet50": {
        8: ((0.57, 1.00), (0.65, 1.14), (0.71, 1.25)),
        16: ((2.11, 1.00), (2.19, 1.04), (2.25, 1.07)),
        32: ((4.19, 1.00), (4.25, 1.01), (4.32, 1.03)),
        64: ((8.51, 1.00), (8.60, 1.01), (8.66, 1.02)),
    },
}


def speedups(column: str) -> dict[str, Number]:
    """A column of Table 1, by method."""
    return {label: row[SPEEDUP_COLUMNS.index(column)] for label, row in SPEEDUP.items()}


def rounds_at(H: int) -> dict[str, Number]:
    """A column of Table 2, by method."""
    return {label: row[H] for label, row in ROUNDS.items()}


# --- tuned values ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuned:
    """A row of the table of the baselines' best hyper-parameters; SlowMo's are γ, α, β."""

    title: str
    task: str
    workers: int
    local_steps: int
    objective: str
    sgd: str
    adam: str
    local_sgd: str
    slowmo: tuple[str, str, str]

    def specs(self) -> tuple[str, ...]:
        """The methods at these values, as `laconic compare` reads them."""
        gamma, alpha, beta = self.slowmo
        return (
            f"local-sgd:gamma={self.local_sgd},label=Local SGD",
            f"slowmo:gamma={gamma},alpha={alpha},beta={beta},label=SlowMo",
            f"sgd:alpha={self.sgd},label=SGD",
            f"adam:alpha={self.adam},label=Adam",
        )


_MLP = ("FMNIST, 2-Layer MLP", "fmnist-mlp2")
_SLOWMO = ("0.1", "1", "0.95")
FMNIST_VALID = Tuned(*_MLP, 8, 4, "valid", "0.1", "0.001", "0.5", ("0.3", "0.01", "0.8"))
FMNIST = Tuned(*_MLP, 8, 4, "train", "0.1", "0.01", "0.3", _SLOWMO)
FMNIST_H8 = Tuned(*_MLP, 8, 8, "train", "0.1", "0.005", "0.3", _SLOWMO)
FMNIST_H16 = Tuned(*_MLP, 8, 16, "train", "0.1", "0.005", "0.1", _SLOWMO)
FMNIST_K16 = Tuned(*_MLP, 16, 4, "train", "0.1", "0.005", "0.5", _SLOWMO)
FMNIST_K32 = Tuned(*_MLP, 32, 4, "train", "0.1", "0.005", "0.5", ("0.3", "1.66", "0.9"))
_CNN = ("CIFAR-10, CNN", "cifar10-cnn")
CIFAR_CNN = Tuned(*_CNN, 8, 4, "train", "1", "0.01", "1", ("0.5", "2", "0.9"))
_IMAGENET = ("ImageNet, 3-Layer MLP", "imagenet32-mlp3")
IMAGENET = Tuned(*_IMAGENET, 8, 4, "train", "1", "0.001", "0.3", ("0.1", "1", "0.85"))
TUNED = (FMNIST_VALID, FMNIST, FMNIST_H8, FMNIST_H16, FMNIST_K16, FMNIST_K32, CIFAR_CNN, IMAGENET)

# The small-batch baseline (K = H = 1): task, steps, α.
SMALL_BATCH = (
    (*_MLP, 32_000, "0.05"),
    (*_MLP, 64_000, "0.05"),
    (*_MLP, 128_000, "0.05"),
    (*_IMAGENET, 32_000, "0.05"),
)
SMALL_BATCH_SPEC = "small-batch-sgd:alpha=0.05,label=SGD (K·H steps)"

# Top-k: share kept → γ, α, β of SlowMo, and local SGD's γ.
TOPK_SLOWMO = {
    "1": ("0.1", "1", "0.95"),
    "0.1": ("0.3", "1.66", "0.8"),
    "0.01": ("0.1", "5", "0.3"),
}
TOPK_LOCAL_SGD = {"1": "0.3", "0.1": "0.3", "0.01": "0.5"}

# Federated: (method, task) → Dirichlet α → (local rate γ, server rate η).
FEDERATED: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("FedAdam", "FMNIST MLP"): {"100": ("0.1", "0.001"), "0.1": ("0.1", "0.001")},
    ("FedAdam", "CIFAR-10 CNN"): {"100": ("0.1", "0.01"), "0.1": ("0.1", "0.01")},
    ("FedYogi", "FMNIST MLP"): {"100": ("0.1", "0.001"), "0.1": ("0.1", "0.001")},
    ("FedYogi", "CIFAR-10 CNN"): {"100": ("0.1", "0.01"), "0.1": ("0.1", "0.01")},
    ("FedAdagrad", "FMNIST MLP"): {"100": ("0.1", "0.01"), "0.1": ("0.1", "0.01")},
    ("FedAdagrad", "CIFAR-10 CNN"): {"100": ("0.1", "0.1"), "0.1": ("0.1", "0.1")},
    ("FedAvg", "FMNIST MLP"): {"100": ("0.1", "–"), "0.1": ("0.1", "–")},
    ("FedAvg", "CIFAR-10 CNN"): {"100": ("1", "–"), "0.1": ("0.1", "–")},
    ("SCAFFOLD", "FMNIST MLP"): {"100": ("0.01", "1"), "0.1": ("0.01", "1")},
    ("SCAFFOLD", "CIFAR-10 CNN"): {"100": ("0.05", "1"), "0.1": ("0.05", "1")},
}

TOPK_LISTING = Listing(
    "Best hyper-parameters under top-k, as the paper lists them",
    ("optimizer", "share kept", "γ", "α", "β"),
    (
        *(("SlowMo", k, *values) for k, values in TOPK_SLOWMO.items()),
        *(("Local SGD", k, gamma, "–", "–") for k, gamma in TOPK_LOCAL_SGD.items()),
    ),
)
FEDERATED_LISTING = Listing(
    "Best hyper-parameters of federated baselines, as the paper lists them",
    ("optimizer", "task", "Dirichlet α", "γ", "η"),
    tuple(
        (method, task, alpha, *v)
        for (method, task), row in FEDERATED.items()
        for alpha, v in row.items()
    ),
)

# --- settings -------------------------------------------------------------------------------------

SHORT = {"fmnist-mlp2": "fmnist"}  # a task's name in an optimizer's, where it is not its own
SHARES = {"0.1": "tenth", "0.01": "hundredth"}  # kept of messages, in names of optimizers
# on seeds that nothing was tuned on
FULL = CompareConfig(batch=128, rounds=1000, seeds=10, first_seed=100, on_nan="continue")
# on seeds that no other record has: of experiments that came later
FRESH = replace(FULL, first_seed=300)
STEPS = 5000


def comparison(
    tuned: Tuned,
    *more: str,
    task: str | None = None,
    base: CompareConfig = FULL,
    **options: Any,
) -> CompareConfig:
    """The paper's tuned baselines in their setting, or on another task, and `more` methods."""
    return replace(
        base,
        task=task or tuned.task,
        workers=tuned.workers,
        local_steps=tuned.local_steps,
        optimizers=(*tuned.specs(), *more),
        **options,
    )


def trained(
    architecture: str, *tasks: str, K: int = 8, H: int = 4, steps: int = STEPS, **options: Any
) -> MetaConfig:
    """Meta-training by our defaults; the longest horizon grows over 4/5 of the steps."""
    config = MetaConfig(
        architecture=architecture,  # type: ignore[arg-type]
        tasks=tasks or ("fmnist-mlp2",),
        workers=K,
        local_steps=H,
        steps=steps,
        ramp=steps * 4 // 5,
    )
    return replace(config, **options)


def learned(architecture: str, *tasks: str, K: int = 8, H: int = 4, share: str = "1") -> Learned:
    """A learned optimizer for train loss, by the recipe or the zoo's of its name, else by defaults.

    `share` is what messages keep, by top-k with error feedback; "1": everything.
    """
    tasks = tasks or ("fmnist-mlp2",)
    parts = [architecture, *(SHORT.get(task, task) for task in tasks)]
    parts += [f"k{K}"] if K != 8 else []
    parts += [f"h{H}"] if H != 4 else []
    parts += [SHARES[share]] if share != "1" else []
    name = "-".join(parts)
    if name in META_RECIPES:
        return by_recipe(name)
    return Learned(name, trained(architecture, *tasks, K=K, H=H, compress=top_k(share)))


def by_recipe(name: str) -> Learned:
    """The learned optimizer of a recipe, from the zoo where it is published under the same name."""
    return Learned(name, META_RECIPES[name][1], zoo=name if name in published() else None)


def both(*tasks: str, K: int = 8, H: int = 4, share: str = "1") -> tuple[Use, Use]:
    """LOpt-A and LAgg-A meta-trained on the same."""
    return (
        Use("LOpt-A", learned("lopt-a", *tasks, K=K, H=H, share=share)),
        Use("LAgg-A", learned("lagg-a", *tasks, K=K, H=H, share=share)),
    )


def top_k(share: str) -> str:
    """How messages are compressed that keep that share of their entries."""
    return "dense" if share == "1" else f"topk:{share}+ef"
