"""The paper's figures: workers, ablation, validation, generalisation, compression, large tasks;
and, beyond it, large H, the suite of a general optimizer and ways to send less."""

from dataclasses import replace

from laconic.reproduce import paper
from laconic.reproduce.experiment import Across, Experiment
from laconic.reproduce.general import FIG_GENERAL
from laconic.reproduce.modern import TABLE_MODERN
from laconic.reproduce.panel import Learned, Panel, Tuning, Use
from laconic.reproduce.paper import FULL, both, by_recipe, comparison, learned, top_k, trained
from laconic.runs.configs import CompareConfig, SweepConfig

ARCHITECTURES = {"LOpt-A": "lopt-a", "LAgg-A": "lagg-a"}

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
        "K are used. As in its text, the learned optimizers are meta-trained on the MLP and used "
        "on both.",
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
        "converge faster than local SGD early on, and LAgg becomes unstable from round 800.",
    ),
)

# --- validation loss ------------------------------------------------------------------------------


def _for_validation(task: str) -> tuple[Use, ...]:
    """Every run 1000 rounds long: a schedule of lengths overfits, says the paper."""
    own = {"objective": "valid", "shortest": 1000, "longest": 1000, "ramp": 0}
    return tuple(
        Use(label, Learned(f"{name}-{task}-valid", trained(name, task, **own)))
        for label, name in ARCHITECTURES.items()
    )


def _held_out(task: str, title: str, tuned: paper.Tuned) -> Panel:
    return Panel(
        task,
        title,
        comparison(tuned),
        _for_validation(task),
        metrics=("test_loss", "test_accuracy", "final_train"),
        shown=("test-loss", "test-accuracy"),
    )


FIG_VALIDATION = Experiment(
    "fig-validation",
    "Meta-training for the validation loss",
    "test loss of optimizers meta-trained, and of baselines tuned, on the validation loss",
    (
        _held_out("imagenet32-mlp3", "ImageNet at 32×32, 3-layer MLP", paper.IMAGENET),
        _held_out("fmnist-mlp2", "Fashion-MNIST, 2-layer MLP", paper.FMNIST_VALID),
    ),
    says=(
        "On ImageNet both learned optimizers converge significantly faster and end at a lower test "
        "loss; on Fashion-MNIST they reach around round 200 a test loss that baselines reach only "
        "after round 600.",
    ),
    leaves_out=(
        "The paper lists baselines tuned for validation loss for Fashion-MNIST only: on ImageNet "
        "those tuned for train loss are used.",
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
        "MLP on CIFAR-10 and ImageNet, which a second task in meta-training (LAgg-A-cf) mends; "
        "both do well on CNNs of new data.",
    ),
    leaves_out=(
        "Optimizers meta-trained on ImageNet and used on ResNet50, ViT and a decoder are in "
        "`fig-large`, and on ResNet-152 in `fig-resnet152`.",
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
        "LAgg-A at 0.01 reaches a lower one than SlowMo at 1; both are robust down to 0.01.",
    ),
    across=(
        Across("Train loss against bits", "bits"),
        Across("LOpt-A", "train", ("LOpt-A",)),
        Across("LAgg-A", "train", ("LAgg-A",)),
    ),
)

# --- beyond the paper -----------------------------------------------------------------------------


def _many_steps(H: int) -> Panel:
    hand = (
        "local-sgd:gamma=0.1,label=Local SGD",
        "optax:name=sgd,lr=1,local=adamw,gamma=0.001,label=Local AdamW",
        "diloco:gamma=0.001,label=DiLoCo",
    )
    uses = tuple(
        Use(label, Learned(f"{name}-adamw-h{H}", trained(name, H=H, local="adamw", gamma=0.001)))
        for label, name in ARCHITECTURES.items()
    )
    config = replace(FULL, task="fmnist-mlp2", optimizers=hand, local_steps=H)
    return Panel(f"h{H}", f"H = {H}", config, uses)


FIG_LARGE_H = Experiment(
    "fig-large-h",
    "Many local steps of AdamW (beyond the paper)",
    "AdamW workers at H = 32, 64 and 128: a learned outer step against DiLoCo's",
    tuple(_many_steps(H) for H in (32, 64, 128)),
    says=(
        "Learned optimizers could easily be combined with AdamW on the client side to enable "
        "training with very large H at increased efficiency compared to DiLoCo: said, not shown.",
    ),
    leaves_out=(
        "The paper has no numbers here. DiLoCo is at its authors' outer values and AdamW's rate is "
        "0.001.",
    ),
)

# --- large tasks ----------------------------------------------------------------------------------

# eight workers' activations in half the bytes; Adam's batch of 512 in quarters
MEMORY = "compute=bf16,at_once=128"
LARGE: CompareConfig = replace(FULL, seeds=3, seeds_at_once=3)
META_TASK = "imagenet32-mlp3"
# The paper's ResNet-50, 7×7 stem and all, and as many patches and tokens as its transformers work
# on: 16.
RESNET50 = f"imagenet32-resnet50:stem=large,{MEMORY}"
VIT = "imagenet32-deit-tiny:patch=8,compute=bf16"
LM = "lm-decoder:file=text/wikitext2_train.txt,context=16,compute=bf16"
_INSTEAD = (
    "Tiny-ImageNet at 32×32 (200 classes) stands in for ImageNet, unless a folder imagenet32 is "
    "there"
)

# For each task 4 + 6 + 4 runs of one seed, and short: whole ones take minutes of a large GPU.
TUNED_FOR, RESNET50_FOR = 300, 150
GRIDS = {
    "Local SGD": ("local-sgd", ("gamma=1,0.5,0.3,0.1",)),
    "SlowMo": ("slowmo", ("gamma=0.3,0.1", "alpha=1", "beta=0.95,0.85,0.7")),
    "Adam": ("adam", ("alpha=0.01,0.005,0.001,0.0005",)),
}


def _large_task(
    task: str,
    name: str,
    title: str,
    column: str,
    heldout: str,
    rounds: int = TUNED_FOR,
    points_at_once: int = 1,
) -> Panel:
    sought = SweepConfig(task=task, rounds=rounds, points_at_once=points_at_once)
    tuned = tuple(
        Tuning(label, replace(sought, method=method, grid=grid))
        for label, (method, grid) in GRIDS.items()
    )
    by_name = (paper.SMALL_BATCH_SPEC, "lopt-a-general:label=LOpt-A (general)")
    return Panel(
        name,
        title,
        replace(LARGE, task=task, optimizers=by_name),
        both(META_TASK),
        paper.speedups(column),
        metrics=("speedup", "final_train", f"test_{heldout}", "diverged"),
        shown=("train", f"test-{heldout}"),
        tuned=tuned,
    )


FIG_LARGE = Experiment(
    "fig-large",
    "Meta-generalization to ResNet-50, a vision transformer and a decoder",
    "optimizers meta-trained on a small MLP, and the general one, on models of 5 to 24 million "
    "parameters",
    (
        _large_task(
            *(RESNET50, "resnet50", "ResNet-50", "ImageNet ResNet50", "accuracy"), RESNET50_FOR, 6
        ),
        _large_task(VIT, "vit", "ViT of DeiT-tiny's size", "ImageNet ViT", "accuracy"),
        _large_task(LM, "lm", "Decoder, 12 layers", "LM1B Transformer", "loss"),
    ),
    says=(
        "LOpt-A reaches local SGD's minimum 2.56× sooner on ResNet-50, 2.31× on the ViT and 6.76× "
        "on the language model, LAgg-A 2.48×, 1.88× and 6.02×; LAgg-A becomes unstable late on "
        "ResNet-50.",
        "3.2 epochs of ImageNet at 64×64 and of LM1B, 10 seeds, optimizers meta-trained on "
        "ImageNet's 3-layer MLP and baselines tuned on it.",
    ),
    leaves_out=(
        f"{_INSTEAD}, and the text of Wikitext-2 for LM1B: they are small, and seen many times "
        "over. Three seeds.",
        f"LOpt-A and LAgg-A are meta-trained on the 3-layer MLP of the same images ({META_TASK}). "
        "LOpt-A (general) is the published lopt-a-general, which was meta-trained on MLPs, CNNs "
        "and a small decoder. By their `deepest` of 6 all three take 6/54 of a step on ResNet-50, "
        "with its 54 matrices, and 6/51 on the others. The 6 was chosen by looking at the first "
        "300 rounds of LOpt-A on this ViT and this decoder; nothing else of them is tuned.",
        f"Baselines are tuned on each task itself, by small grids of runs of {TUNED_FOR} rounds "
        f"({RESNET50_FOR} on ResNet-50) and one seed, and so are stronger than carried over from "
        "an MLP. SGD of K·H steps, which is no rival, is at the paper's 0.05 for the MLP.",
        "At half the paper's side of images the ViT has patches of 8, so that it sees 16 of them, "
        "as it would at 64×64 with patches of 16. ResNet-50 is as it is, so that its stages see "
        "8×8 to 1×1 positions instead of 16×16 to 2×2. The language model has 16 tokens of "
        "context, as in the authors' code, of a vocabulary of 4096 instead of 32,000, and learned "
        "positions.",
        "All three compute in bfloat16 with float32 weights; ResNet-50 takes Adam's gradient 128 "
        "images at a time.",
    ),
    across=(Across("Speedup over local SGD", "bars"),),
)

WORKERS = ("clip=5", "decay=0.0001")  # of SlowMo's local steps; learned optimizers have their own
_RESNET152 = f"imagenet32-resnet152:{MEMORY}"
_SLOWMO152 = SweepConfig(
    task=_RESNET152,
    method="slowmo",
    grid=(*GRIDS["SlowMo"][1], *WORKERS),
    local_steps=8,
    rounds=200,
    points_at_once=1,
)
_LONG = replace(LARGE, local_steps=8, rounds=2000, seeds=1, seeds_at_once=1)
FIG_RESNET152 = Experiment(
    "fig-resnet152",
    "Training ResNet-152",
    "optimizers meta-trained on 3-layer MLPs of four widths, and tuned SlowMo, for 2000 rounds of "
    "H = 8",
    (
        Panel(
            "resnet152",
            "ResNet-152",
            replace(_LONG, task=_RESNET152, optimizers=()),
            (
                Use("LOpt-A", by_recipe("lopt-a-imagenet32-widths")),
                Use("LAgg-A", by_recipe("lagg-a-imagenet32-widths")),
            ),
            metrics=("test_accuracy", "test_loss", "final_train", "diverged"),
            shown=("test-loss", "train", "test-accuracy"),
            tuned=(Tuning("SlowMo", _SLOWMO152),),
        ),
    ),
    says=(
        "LAgg-A outperforms SlowMo and reaches 40 % top-1 accuracy after 2000 communication steps "
        "(about 14 epochs of ImageNet at 64×64): so its text, while the caption of its figure has "
        "LOpt-A. Local gradients are clipped to a norm of 5 and weights decayed by 0.0001.",
    ),
    leaves_out=(
        f"{_INSTEAD}; it is small, and 2000 rounds go over it hundreds of times. Both learned "
        "optimizers are run.",
        "One seed, as runs of this model are long, and SlowMo is tuned by runs of 200 rounds. "
        "ResNet-152 computes in bfloat16 with float32 weights.",
    ),
)

FIGURES = (
    *(FIG_WORKERS, FIG_ABLATION, FIG_VALIDATION, FIG_GENERALISE, FIG_H_TRANSFER, FIG_COMPRESS),
    *(FIG_LARGE_H, FIG_LARGE, FIG_RESNET152, FIG_GENERAL, TABLE_MODERN),
)
