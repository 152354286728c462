"""Comparisons by name."""

from laconic.federated.options import Federated
from laconic.runs.configs import CompareConfig


def _federated(task: str, alpha: float, *optimizers: str) -> CompareConfig:
    return CompareConfig(
        task=task,
        optimizers=optimizers,
        workers=10,
        batch=20,
        federated=Federated(400, alpha),
        rounds=1000,
        seeds=3,
        first_seed=100,
        on_nan="continue",
    )


# The paper's tuned values; FedAvgM and FedProx, which it does not have, are at FedAvg's local rate.
_FEDERATED_FMNIST = (
    "fedavg:gamma=0.1",
    "fedavgm:gamma=0.1,eta=1,beta=0.9",
    "fedprox:gamma=0.1,mu=0.01",
    "fedadagrad:gamma=0.1,eta=0.01",
    "fedyogi:gamma=0.1,eta=0.001",
    "fedadam:gamma=0.1,eta=0.001",
    "scaffold:gamma=0.01",
)
_FEDERATED_CIFAR = (
    "fedavg:gamma=0.1",
    "fedavgm:gamma=0.1,eta=1,beta=0.9",
    "fedprox:gamma=0.1,mu=0.01",
    "fedadagrad:gamma=0.1,eta=0.1",
    "fedyogi:gamma=0.1,eta=0.01",
    "fedadam:gamma=0.1,eta=0.01",
    "scaffold:gamma=0.05",
)

RECIPES: dict[str, tuple[str, CompareConfig]] = {
    "digits": (
        "five hand-designed optimizers and two learned ones on the bundled digits, about a minute "
        "on a laptop",
        CompareConfig(),
    ),
    "digits-rivals": (
        "FedExP, DiLoCo, MuLoCo and servers over AdamW workers on the bundled digits, each at the "
        "best of a small grid on another seed",
        CompareConfig(
            optimizers=(
                "local-sgd",
                "slowmo:gamma=0.3,beta=0.8",
                "fedexp:gamma=0.5,eps=0",
                "diloco:gamma=0.01,lr=0.7,momentum=0.6",
                "diloco:gamma=0.01,lr=0.7,momentum=0.6,decay=0.1",
                "slowmo:local=adamw,gamma=0.01,alpha=0.7,beta=0.3",
                "fedadam:local=adamw,gamma=0.01,eta=0.003",
                "muloco:gamma=0.01,lr=0.7,momentum=0.3",
            ),
            seeds=3,
            first_seed=100,
        ),
    ),
    "digits-learned": (
        "the same with DiLoCo's usual numbers and an optimizer that never saw digits, on ten seeds "
        "that nothing was trained or tuned on",
        CompareConfig(
            optimizers=(
                "local-sgd",
                "slowmo:gamma=0.3,beta=0.8",
                "fedadam:gamma=0.3,eta=0.03",
                "adam:alpha=0.02",
                "diloco",
                "lopt-a-digits",
                "lopt-a-general",
                "lopt-a-fmnist",
            ),
            seeds=10,
            first_seed=100,
        ),
    ),
    "fmnist-baselines": (
        "the paper's tuned baselines on Fashion-MNIST: 2-layer MLP, K = 8, H = 4, B = 128, 1000 "
        "rounds, 10 seeds",
        CompareConfig(
            task="fmnist-mlp2",
            optimizers=(
                *(f"local-sgd:gamma={gamma}" for gamma in (1, 0.5, 0.3, 0.1)),
                "slowmo:gamma=0.1,alpha=1,beta=0.95",
                "sgd:alpha=0.1",
                "adam:alpha=0.01",
                "diloco",
            ),
            batch=128,
            rounds=1000,
            seeds=10,
            target_loss=0.2,
            on_nan="continue",
        ),
    ),
    "fmnist-learned": (
        "learned optimizers against baselines tuned on the paper's whole grids, on seeds that "
        "nothing was tuned on",
        CompareConfig(
            task="fmnist-mlp2",
            optimizers=(
                "local-sgd:gamma=0.5",
                "local-sgd:gamma=0.3",
                "sgd:alpha=0.5",
                "adam:alpha=0.005",
                "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8",
                "slowmo:gamma=0.1,alpha=1,beta=0.95",
                "slowmo:gamma=0.1,alpha=1,beta=0.9",
                "lopt-a-fmnist",
                "lagg-a-fmnist",
            ),
            batch=128,
            rounds=1000,
            seeds=10,
            first_seed=100,
            target_loss=0.2,
            on_nan="continue",
        ),
    ),
    "fmnist-undivided": (
        "tuned local SGD and SlowMo on all 60,000 images of Fashion-MNIST's train file instead of "
        "80 % of them",
        CompareConfig(
            task="fmnist-mlp2:split=all",
            optimizers=(
                "local-sgd:gamma=0.5",
                "local-sgd:gamma=0.3",
                "slowmo:gamma=0.1,alpha=1,beta=0.95",
            ),
            batch=128,
            rounds=1000,
            seeds=10,
            target_loss=0.2,
        ),
    ),
    "fmnist-compress": (
        "local SGD and SlowMo on Fashion-MNIST, dense and compressed, priced on a 100 Mbit link",
        CompareConfig(
            task="fmnist-mlp2",
            optimizers=(
                "local-sgd",
                "slowmo",
                "slowmo:gamma=0.3,alpha=1.66,beta=0.8,compress=topk:0.1+ef",
                "slowmo:gamma=0.1,alpha=5,beta=0.3,compress=topk:0.01+ef",
                "slowmo:compress=int8",
                "slowmo:compress=int4",
            ),
            batch=128,
            rounds=1000,
            seeds=3,
            link="100Mbit/20ms",
        ),
    ),
    "federated-digits": (
        "federated baselines on the bundled digits: 60 clients of 20 samples with class mixes of "
        "Dirichlet(0.1)",
        CompareConfig(
            optimizers=("fedavg", "fedavgm", "fedprox", "scaffold", "fedadam"),
            workers=10,
            batch=5,
            federated=Federated(60, 0.1),
            seeds=3,
        ),
    ),
    "federated-fmnist": (
        "the paper's federated baselines on Fashion-MNIST: 400 clients, Dirichlet(0.1), 10 a "
        "round, 1000 rounds",
        _federated("fmnist-mlp2", 0.1, *_FEDERATED_FMNIST),
    ),
    "federated-cifar10": (
        "the same on CIFAR-10's CNN",
        _federated("cifar10-cnn", 0.1, *_FEDERATED_CIFAR),
    ),
    "lm-bytes": (
        "a byte-level language model on Python's own source, SGD and AdamW workers",
        CompareConfig(
            task="lm-bytes",
            optimizers=("local-sgd", "slowmo:gamma=0.3,beta=0.9", "diloco:gamma=0.003", "fedadam"),
            workers=4,
            rounds=300,
            seeds=2,
        ),
    ),
}
