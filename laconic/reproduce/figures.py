"""The paper's figures: workers, ablation, validation, generalisation, compression, large tasks;
and, beyond it, large H, the suite of a general optimizer and ways to send less."""

from dataclasses import replace

from laconic.reproduce import paper
from laconic.reproduce.experiment import Across, Experiment
from laconic.reproduce.general import FIG_GENERAL
from laconic.reproduce.modern import TABLE_MODERN
from laconic.reproduce.panel import Panel, Tuning, Use
from laconic.reproduce.paper import FULL, both, by_recipe, comparison, learned, top_k
from laconic.runs.configs import CompareConfig, SweepConfig

ARCHITECTURES = {"LOpt-A": "lopt-a", "LAgg-A": "lagg-a"}
HELD_OUT = (
    *("best_test_loss", "best_test_loss_round", "test_loss"),
    *("best_test_accuracy", "best_test_accuracy_round", "test_accuracy"),
)

# --- the number of workers ------------------------------------------------------------------------


def _workers(tuned: paper.Tuned, task: str, words: str) -> Panel:
    K = tuned.workers
    reused = () if K == 8 else (Use("LOpt-A (trained at K = 8)", learned("lopt-a")),)
    config = comparison(tuned, paper.SMALL_BATCH_SPEC, task=task, base=paper.FRESH)
    return Panel(f"{task}-k{K}", f"{words}, K = {K}", config, (*both(K=K), *reused))


FIG_WORKERS = Experiment(
    "fig-workers",
    "The effect of the number of workers (K)",
    "train loss at K = 8, 16 and 32; LAgg-A meta-trained for each K, LOpt-A also carried over from "
    "K = 8",
    tuple(
        _workers(tuned, task, words)
        for task, words in (("fmnist-mlp2", "MLP"), ("fmnist-cnn", "CNN"))
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
        "Those for K = 16 and 32 begin from the ones for K = 8 and take 400 and 300 more outer "
        "steps: the paper trains each from random weights. LAgg-A's row for a worker goes to two "
        "or four of them at first, divided by their number.",
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
    leaves_out=(
        "These LOpt and LAgg see the parameter and time too, as in the authors' code; in the "
        "paper's text they see deltas alone, which is `fig-ablation-deltas`.",
    ),
)


def _short(label: str, recipe: str) -> Use:
    return Use(label, by_recipe(recipe))


FIG_ABLATION_DELTAS = Experiment(
    "fig-ablation-deltas",
    "The effect of Ada features, as the paper's text has it",
    "LOpt and LAgg that see deltas alone, and LOpt-A and LAgg-A, each after 1,000 outer steps",
    (
        Panel(
            "fmnist-mlp2",
            "Fashion-MNIST, 2-layer MLP",
            comparison(paper.FMNIST, base=paper.FRESH),
            (
                _short("LOpt (Δ alone)", "lopt-fmnist-deltas"),
                _short("LAgg (Δ alone)", "lagg-fmnist-deltas"),
                _short("LOpt-A", "lopt-a-fmnist-short"),
                _short("LAgg-A", "lagg-a-fmnist-short"),
            ),
        ),
    ),
    says=FIG_ABLATION.says,
    leaves_out=(
        "All four are meta-trained alike from random weights: as many outer steps, the same "
        "clipping of the meta-gradient and no clipping of the workers' gradients. The paper's take "
        "5,000 outer steps.",
    ),
)

# --- validation loss ------------------------------------------------------------------------------


def _for_validation(task: str) -> tuple[Use, ...]:
    """Meta-trained for validation loss, and the ones for train loss beside them."""
    short = paper.SHORT.get(task, task)
    return (
        *(Use(label, by_recipe(f"{x}-{short}-valid")) for label, x in ARCHITECTURES.items()),
        *(Use(f"{label} (for train loss)", learned(x, task)) for label, x in ARCHITECTURES.items()),
    )


def _held_out(task: str, title: str, tuned: paper.Tuned) -> Panel:
    return Panel(
        task,
        title,
        comparison(tuned, base=paper.FRESH),
        _for_validation(task),
        metrics=HELD_OUT,
        shown=("test-loss", "test-accuracy"),
    )


FIG_VALIDATION = Experiment(
    "fig-validation",
    "Meta-training for the validation loss",
    "test loss of optimizers meta-trained, and of baselines tuned, on the validation loss",
    (
        _held_out("fmnist-mlp2", "Fashion-MNIST, 2-layer MLP", paper.FMNIST_VALID),
        _held_out("imagenet32-mlp3", "ImageNet at 32×32, 3-layer MLP", paper.IMAGENET),
    ),
    says=(
        "On ImageNet both learned optimizers converge significantly faster and end at a lower test "
        "loss; on Fashion-MNIST they reach around round 200 a test loss that baselines reach only "
        "after round 600.",
    ),
    leaves_out=(
        "The paper lists baselines tuned for validation loss for Fashion-MNIST only: on ImageNet "
        "those tuned for train loss are used.",
        "The learned optimizers begin from those for train loss and take 600 more outer steps: the "
        "paper trains them from random weights.",
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
        Panel(task, words, comparison(paper.FMNIST, task=task, base=paper.FRESH), _CARRIED)
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
        "LAgg-A-cf begins from LAgg-A-f and takes 400 outer steps.",
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


# Runs of 6,400 local steps, whatever H is.
LOCAL_STEPS = 6400
_ADAMW = "gamma=0.01,0.003,0.001,0.0003"
_NESTEROV = (_ADAMW, "lr=1,0.7,0.4", "momentum=0.9,0.8,0.6,0.3")


def _many_steps(H: int) -> Panel:
    config = replace(
        paper.FRESH,
        task="fmnist-mlp2",
        optimizers=(
            "diloco:gamma=0.001,label=DiLoCo",
            "lopt-r:local=adamw,gamma=0.001,label=lopt-r",
        ),
        local_steps=H,
        rounds=LOCAL_STEPS // H,
        evaluate_every=5,
    )
    sought = SweepConfig(task=config.task, local_steps=H, rounds=config.rounds)
    tuned = (
        Tuning("Nesterov", replace(sought, method="diloco", grid=_NESTEROV)),
        Tuning("Averaging", replace(sought, method="diloco:momentum=0,lr=1", grid=(_ADAMW,))),
    )
    uses = tuple(
        Use(label, by_recipe(f"{name}-fmnist-adamw-h{H}")) for label, name in ARCHITECTURES.items()
    )
    return Panel(f"h{H}", f"H = {H}", config, uses, metrics=("final_train", *HELD_OUT), tuned=tuned)


FIG_LARGE_H = Experiment(
    "fig-large-h",
    "Many local steps of AdamW (beyond the paper)",
    "AdamW workers at H = 32, 64 and 128: a learned outer step against tuned Nesterov momentum and "
    "averaging",
    tuple(_many_steps(H) for H in (32, 64, 128)),
    says=(
        "Learned optimizers could easily be combined with AdamW on the client side to enable "
        "training with very large H at increased efficiency compared to DiLoCo: said, not shown.",
    ),
    leaves_out=(
        "The paper has no numbers here. Runs are 6,400 local steps long at every H. LOpt-A and "
        "LAgg-A begin from those for SGD workers at H = 16 and take 300, 200 and 150 more outer "
        "steps; `lopt-r` was never trained for any of it. Nesterov and averaging are tuned on one "
        "seed; DiLoCo is at its authors' outer values.",
    ),
)

CLIPS = "clip=1,2,5,1000000"  # the last bounds nothing: a sweep cannot turn clipping off
_CLIPPED = {
    "Local SGD": ("local-sgd", ("gamma=1,0.5,0.3,0.1", CLIPS)),
    "SlowMo": (
        "slowmo",
        ("gamma=0.3,0.1", "alpha=1/gamma,0.5/gamma,0.1/gamma", "beta=0.95,0.9,0.8", CLIPS),
    ),
    "FedAdam": ("fedadam", ("gamma=0.3,0.1", "eta=0.1,0.03,0.01", CLIPS)),
    "DiLoCo": ("diloco", ("gamma=0.003,0.001", "lr=1,0.7", "momentum=0.9,0.8", CLIPS)),
}


def _clipped(tuned: paper.Tuned) -> Panel:
    """Baselines whose workers may clip as the learned optimizers' do, tuned with it."""
    H = tuned.local_steps
    sought = SweepConfig(task=tuned.task, local_steps=H)
    gamma, alpha, beta = tuned.slowmo
    fixed = (
        f"local-sgd:gamma={tuned.local_sgd},label=Local SGD (the paper's)",
        f"slowmo:gamma={gamma},alpha={alpha},beta={beta},label=SlowMo (the paper's)",
        "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8,label=SlowMo (of 487 points at H = 4)",
        *(
            f"slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8,clip={clip},"
            f"label=SlowMo (the same with clip = {clip})"
            for clip in (1, 2, 5)
        ),
    )
    config = replace(
        paper.FRESH,
        task=tuned.task,
        optimizers=fixed,
        local_steps=H,
        target_loss=paper.ROUNDS_TARGET,
    )
    return Panel(
        f"h{H}",
        f"H = {H}",
        config,
        both(H=H),
        metrics=("rounds", "speedup", "final_train", *HELD_OUT),
        tuned=tuple(
            Tuning(label, replace(sought, method=method, grid=grid))
            for label, (method, grid) in _CLIPPED.items()
        ),
    )


FIG_CLIPPED = Experiment(
    "fig-clipped",
    "Baselines with clipped workers (a control)",
    "local SGD, SlowMo, FedAdam and DiLoCo tuned with and without clipping at 1, 2 and 5, beside "
    "learned optimizers",
    tuple(_clipped(tuned) for tuned in (paper.FMNIST, paper.FMNIST_H16, paper.FMNIST_H8)),
    leaves_out=(
        "Not in the paper. Some published learned optimizers have workers that clip their "
        "gradients: this shows what clipping does for the others. Local SGD is the tuned one.",
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
_LONG = replace(LARGE, local_steps=8, rounds=2000, seeds=1, seeds_at_once=1, fresh_statistics=50)
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
        "ResNet-152 computes in bfloat16 with float32 weights. BatchNorm's statistics are "
        "estimated anew from 50 minibatches before each look at the test data.",
    ),
)

FIGURES = (
    *(FIG_WORKERS, FIG_ABLATION, FIG_ABLATION_DELTAS, FIG_VALIDATION, FIG_GENERALISE),
    *(FIG_H_TRANSFER, FIG_COMPRESS, FIG_CLIPPED, FIG_LARGE_H, FIG_LARGE, FIG_RESNET152),
    *(FIG_GENERAL, TABLE_MODERN),
)
