"""The paper's figures: workers, ablation, validation, generalisation, compression; and, beyond it,
large H."""

from dataclasses import replace

from laconic.reproduce import paper
from laconic.reproduce.experiment import Across, Experiment, Learned, Panel, Use
from laconic.reproduce.settings import FULL, both, comparison, learned, top_k, trained

# --- the number of workers ------------------------------------------------------------------------


def _workers(tuned: paper.Tuned, task: str, words: str) -> Panel:
    K = tuned.workers
    reused = () if K == 8 else (Use("LOpt-A (trained at K = 8)", learned("lopt-a")),)
    config = comparison(tuned, paper.SMALL_BATCH_SPEC, task=task)
    return Panel(f"{task}-k{K}", f"{words}, K = {K}", config, (*both(K=K), *reused))


FIG_WORKERS = Experiment(
    "fig-workers",
    "The effect of the number of workers (K)",
    "train loss at K = 8, 16 and 32; LAgg-A meta-trained for each K, LOpt-A also carried over from "
    "K = 8",
    tuple(
        _workers(tuned, task, words)
        for task, words in (("fmnist-cnn", "CNN"), ("fmnist-mlp2", "MLP"))
        for tuned in (paper.FMNIST, paper.FMNIST_K16, paper.FMNIST_K32)
    ),
    says=(
        "LAgg-A outperforms all optimizers for K = 8, 16 and 32; LOpt-A does not have to be "
        "retrained.",
    ),
    leaves_out=(
        "The paper lists no tuned baselines for Fashion-MNIST's CNN: those of the MLP at the same "
        "K are used. "
        "As in its text, the learned optimizers are meta-trained on the MLP and used on both.",
    ),
)

# --- Ada features ---------------------------------------------------------------------------------

FIG_ABLATION = Experiment(
    "fig-ablation",
    "The effect of Ada features",
    "LOpt and LAgg without accumulators against LOpt-A and LAgg-A with them",
    (
        Panel(
            "fmnist-mlp2",
            "Fashion-MNIST, 2-layer MLP",
            comparison(paper.FMNIST),
            (Use("LOpt", learned("lopt")), Use("LAgg", learned("lagg")), *both()),
        ),
    ),
    says=(
        "Ada features give a large improvement in convergence and stability; LOpt and LAgg still "
        "converge faster than "
        "local SGD early on, and LAgg becomes unstable from round 800.",
    ),
)

# --- validation loss ------------------------------------------------------------------------------


def _for_validation(task: str) -> tuple[Use, ...]:
    """Every run 1000 rounds long: a schedule of lengths overfits, says the paper."""
    return tuple(
        Use(
            label,
            Learned(
                f"{architecture}-{task}-valid",
                trained(architecture, task, objective="valid", shortest=1000, longest=1000, ramp=0),
            ),
        )
        for label, architecture in (("LOpt-A", "lopt-a"), ("LAgg-A", "lagg-a"))
    )


_HELD_OUT = {
    "metrics": ("test_loss", "test_accuracy", "final_train"),
    "shown": ("test-loss", "test-accuracy"),
}
FIG_VALIDATION = Experiment(
    "fig-validation",
    "Meta-training for the validation loss",
    "test loss of optimizers meta-trained, and of baselines tuned, on the validation loss",
    (
        Panel(
            "imagenet32-mlp3",
            "ImageNet at 32×32, 3-layer MLP",
            comparison(paper.IMAGENET),
            _for_validation("imagenet32-mlp3"),
            **_HELD_OUT,
        ),
        Panel(
            "fmnist-mlp2",
            "Fashion-MNIST, 2-layer MLP",
            comparison(paper.FMNIST_VALID),
            _for_validation("fmnist-mlp2"),
            **_HELD_OUT,
        ),
    ),
    says=(
        "On ImageNet both learned optimizers converge significantly faster and end at a lower test "
        "loss; on "
        "Fashion-MNIST they reach around round 200 a test loss that baselines reach only after "
        "round 600.",
    ),
    leaves_out=(
        "The paper lists baselines tuned for validation loss for Fashion-MNIST only: on ImageNet "
        "those tuned for train "
        "loss are used.",
    ),
)

# --- generalisation -------------------------------------------------------------------------------

_CARRIED = (
    Use("LOpt-A-f", learned("lopt-a")),
    Use("LAgg-A-f", learned("lagg-a")),
    Use("LAgg-A-cf", learned("lagg-a", "fmnist-mlp2", "cifar10-mlp2")),
)
_TARGETS = {
    "fmnist-mlp2": "Fashion-MNIST, 2-layer MLP (in distribution)",
    "fmnist-mlp3": "Fashion-MNIST, 3-layer MLP",
    "fmnist-cnn": "Fashion-MNIST, CNN",
    "cifar10-mlp2": "CIFAR-10, 2-layer MLP",
    "cifar10-cnn": "CIFAR-10, CNN",
    "imagenet32-cnn": "ImageNet at 32×32, CNN",
    "imagenet32-mlp2": "ImageNet at 32×32, 2-layer MLP",
}
FIG_GENERALISE = Experiment(
    "fig-generalise",
    "Meta-generalization to new architectures and data sets",
    "optimizers meta-trained and baselines tuned on Fashion-MNIST's 2-layer MLP (-f; -cf: "
    "CIFAR-10's too), elsewhere",
    tuple(
        Panel(task, words, comparison(paper.FMNIST, task=task), _CARRIED)
        for task, words in _TARGETS.items()
    ),
    says=(
        "LAgg-A-f generalises to other architectures on the same data and struggles with the same "
        "MLP on CIFAR-10 and "
        "ImageNet, which a second task in meta-training (LAgg-A-cf) mends; both do well on CNNs of "
        "new data.",
    ),
    leaves_out=(
        "Optimizers meta-trained on ImageNet and used on ResNet50, ViT and a decoder are in "
        "`fig-large`, and on "
        "ResNet-152 in `fig-resnet152`.",
    ),
)

FIG_H_TRANSFER = Experiment(
    "fig-h-transfer",
    "From H = 16 to H = 4",
    "learned optimizers meta-trained at H = 16, used at H = 4",
    (
        Panel(
            "h4",
            "H = 4",
            comparison(paper.FMNIST),
            (
                *both(),
                Use("LOpt-A (trained at H = 16)", learned("lopt-a", H=16)),
                Use("LAgg-A (trained at H = 16)", learned("lagg-a", H=16)),
            ),
        ),
    ),
    says=("LAgg-A trained at H = 16 improves upon a strong SlowMo baseline at H = 4.",),
)

# --- compressed messages --------------------------------------------------------------------------


def _top_k(share: str) -> Panel:
    gamma, alpha, beta = paper.TOPK_SLOWMO[share]
    hand = (
        f"local-sgd:gamma={paper.TOPK_LOCAL_SGD[share]},label=Local SGD",
        f"slowmo:gamma={gamma},alpha={alpha},beta={beta},label=SlowMo",
    )
    config = replace(FULL, task="fmnist-mlp2", optimizers=hand, compress=top_k(share))
    return Panel(
        f"top{share}",
        f"Top-{share}",
        config,
        both(share=share),
        metrics=("final_train", "sent_megabytes"),
    )


FIG_COMPRESS = Experiment(
    "fig-compress",
    "Learned optimizers with compressed messages",
    "top-k of 1, 0.1 and 0.01 with error feedback, in meta-training and in use; loss against bits "
    "sent",
    tuple(_top_k(share) for share in ("1", "0.1", "0.01")),
    says=(
        "For each share kept the learned optimizers reach a lower train loss than the baselines; "
        "LAgg-A at 0.01 "
        "reaches a lower one than SlowMo at 1; both are robust down to 0.01.",
    ),
    across=(
        Across("Train loss against bits", "bits"),
        Across("LOpt-A", "train", ("LOpt-A",)),
        Across("LAgg-A", "train", ("LAgg-A",)),
    ),
)

# --- beyond the paper -----------------------------------------------------------------------------


def _large(H: int) -> Panel:
    hand = (
        "local-sgd:gamma=0.1,label=Local SGD",
        "optax:name=sgd,lr=1,local=adamw,gamma=0.001,label=Local AdamW",
        "diloco:gamma=0.001,label=DiLoCo",
    )
    uses = tuple(
        Use(
            label,
            Learned(
                f"{architecture}-adamw-h{H}", trained(architecture, H=H, local="adamw", gamma=0.001)
            ),
        )
        for label, architecture in (("LOpt-A", "lopt-a"), ("LAgg-A", "lagg-a"))
    )
    return Panel(
        f"h{H}", f"H = {H}", replace(FULL, task="fmnist-mlp2", optimizers=hand, local_steps=H), uses
    )


FIG_LARGE_H = Experiment(
    "fig-large-h",
    "Many local steps of AdamW (beyond the paper)",
    "AdamW workers at H = 32, 64 and 128: a learned outer step against DiLoCo's",
    tuple(_large(H) for H in (32, 64, 128)),
    says=(
        "Learned optimizers could easily be combined with AdamW on the client side to enable "
        "training with very large "
        "H at increased efficiency compared to DiLoCo: said, not shown.",
    ),
    leaves_out=(
        "The paper has no numbers here. DiLoCo is at its authors' outer values and AdamW's rate is "
        "0.001.",
    ),
)

FIGURES = (
    FIG_WORKERS,
    FIG_ABLATION,
    FIG_VALIDATION,
    FIG_GENERALISE,
    FIG_H_TRANSFER,
    FIG_COMPRESS,
    FIG_LARGE_H,
)
