"""Meta-training recipes by name."""

from dataclasses import replace

from laconic.federated.options import Federated
from laconic.runs.meta_config import MetaConfig

_FMNIST = MetaConfig()
_AGAIN = MetaConfig(steps=2000, ramp=2000, peak=1e-3)
_ON = MetaConfig(
    steps=3000, ramp=2400, peak=1.5e-3, judge_every=1500
)  # from a φ of a related setting
_TOP = replace(_ON, pairs=4, local_clip=2.0)
# Tensors with more inputs take smaller steps, and so do models with more matrices.
_ELSEWHERE = replace(_TOP, gamma=0.1, widest=784, deepest=6, judge_every=1000)
# a round of it takes twenty times as long as one of the MLP, hence few and short unrolls
_CNN = replace(
    _TOP,
    tasks=("cifar10-cnn:compute=bf16",),
    widest=784,
    deepest=6,
    steps=500,
    ramp=400,
    truncation=10,
    peak=1e-3,
    warmup=50,
    judge_every=250,
    judge_seeds=1,
)
_CNN_AGAIN = replace(_CNN, steps=250, ramp=0, warmup=25, peak=7e-4)
_ABLATION = MetaConfig(steps=4000, ramp=3200, judge_every=1000)
# As the paper has it: LOpt and LAgg see deltas alone. A thousand outer steps for each of the four.
_SHORT = MetaConfig(steps=1000, ramp=800, judge_every=500, judge_seeds=2)
_DELTAS_ALONE = replace(_SHORT, left_out=("parameter", "time"))
# A few outer steps from a published φ, at the full length of runs from the start.
_CARRIED = MetaConfig(steps=400, ramp=0, warmup=50, peak=1e-3, judge_every=200, judge_seeds=2)
# Every run 1000 rounds long: a schedule of lengths overfits, says the paper.
_VALID = replace(_CARRIED, objective="valid", shortest=1000, steps=600, judge_every=300)
# AdamW workers and many local steps: runs of 6,400 local steps, few and short unrolls.
_LARGE_H = replace(
    _CARRIED, local="adamw", gamma=1e-3, pairs=4, truncation=10, shortest=20, judge_every=100
)
_PAPER = MetaConfig(
    gamma=0.5,
    steps=5000,
    truncation=50,
    ramp=0,
    last=1e-3,
    clip=0.0,
    average=0.0,
    output_scale=1.0,
    reset_diverged=False,
)
_SMALL = MetaConfig(
    tasks=("digits-mlp",),
    batch=16,
    steps=1500,
    pairs=4,
    truncation=10,
    shortest=20,
    longest=100,
    ramp=1000,
)
_GENERAL = (
    "fmnist-mlp2@workers=8,local_steps=4,batch=64",
    "fmnist-cnn@workers=4,local_steps=4,batch=32",
    "cifar10-mlp2@workers=16,local_steps=2,batch=32",
    "cifar10-cnn@workers=4,local_steps=2,batch=32",
    "imagenet32-mlp2@workers=4,local_steps=8,batch=64",
    "lm-bytes@workers=4,local_steps=4,batch=8",
)
_MORE = (
    "fmnist-mlp3@workers=8,local_steps=4,batch=64",
    "digits-mlp@workers=8,local_steps=4,batch=16",
)
# The four widths of the paper's optimizer for ResNet-152, in its setting: K = 8, H = 8, runs of up
# to 2000 rounds.
_WIDTHS = replace(
    _ON,
    tasks=tuple(f"imagenet32-mlp3:width={width}" for width in (64, 128, 256, 512)),
    widest=784,
    deepest=6,
    local_steps=8,
    local_clip=5.0,
    local_decay=1e-4,
    longest=2000,
    peak=1e-3,
    pairs=4,
)

_FEDERATED = replace(
    _TOP,
    workers=10,
    batch=20,
    federated=Federated(400, 0.1),
    objective="valid",
    steps=2000,
    ramp=1600,
    judge_every=500,
    init="lopt-a-fmnist",
)
_FEDERATED_CNN = replace(
    _CNN,
    workers=10,
    batch=20,
    federated=_FEDERATED.federated,
    objective="valid",
    init="lopt-a-cifar10-mlp2",
)
_ALIKE = Federated(400, 100.0)


def _both(
    suffix: str, words: str, config: MetaConfig, first: str = "fmnist"
) -> dict[str, tuple[str, MetaConfig]]:
    """The same for LOpt-A and LAgg-A, each beginning from the one for Fashion-MNIST at H = 4, or
    for another task."""
    return {
        f"{architecture}-{suffix}": (
            f"{name} {words}, beginning from {architecture}-{first}",
            replace(config, architecture=architecture, init=f"{architecture}-{first}"),
        )
        for architecture, name in (("lopt-a", "LOpt-A"), ("lagg-a", "LAgg-A"))
    }


# Families of tiny tasks; each run draws its own K, H, examples and rate. A CPU core unrolls
# thousands of their rounds in a second. Only the first half of Tiny-ImageNet's classes is in them;
# the other half, digits and CIFAR-10 stay unseen. The text lies below the data folder.
_TEXT = "text/wikitext2_train.txt,context=16,heads=2"
_FAMILIES = (
    "fmnist-mlp2:pool=4,width=32@workers=8,local_steps=4,batch=16,gamma=0.4",
    "imagenet32-mlp2:pool=4,half=first,width=32,activation=tanh"
    "@workers=4,local_steps=8,batch=8,gamma=0.2",
    "fmnist-mlp3:pool=4,width=24,activation=gelu@workers=4,local_steps=8,batch=8,gamma=0.2",
    "fmnist-cnn:pool=4,width=4@workers=4,local_steps=4,batch=8,gamma=0.4",
    "fmnist-mlp3:pool=4,width=24,activation=silu"
    "@workers=8,local_steps=4,batch=8,local=adamw,gamma=0.004",
    "fmnist-mlp2:pool=4,width=32@workers=4,local_steps=16,batch=8,local=adamw,gamma=0.003",
    f"lm-bytes:file={_TEXT},hidden=16,layers=1"
    "@workers=4,local_steps=4,batch=2,local=adamw,gamma=0.006",
)
_HELD_OUT_FAMILIES = (
    "fmnist-mlp3:pool=4,width=48@workers=5,local_steps=3,batch=16,gamma=0.4",
    "fmnist-mlp2:pool=4,width=64,activation=tanh@workers=8,local_steps=4,batch=16,gamma=0.3",
    "imagenet32-mlp3:pool=4,half=first,width=32,activation=silu"
    "@workers=4,local_steps=8,batch=8,local=adamw,gamma=0.003",
    "fmnist-cnn:pool=4,width=8@workers=6,local_steps=4,batch=8,gamma=0.3",
    f"lm-bytes:file={_TEXT},hidden=24,layers=2"
    "@workers=4,local_steps=8,batch=2,local=adamw,gamma=0.004",
)
_RELATIVE = MetaConfig(
    architecture="lopt-r",
    tasks=_FAMILIES,
    judge_tasks=_HELD_OUT_FAMILIES,
    spread=3.0,
    nominal_rate=0.7,
    hidden=8,
    left_out=("time",),
    estimator="nres",
    sigma=0.03,
    steps=400,
    pairs=16,
    truncation=20,
    shortest=40,
    longest=300,
    ramp=0,
    peak=1e-2,
    last=5e-4,
    warmup=20,
    weight_decay=1e-2,
    average=0.98,
    judge_every=100,
    judge_seeds=4,
    checkpoint_every=50,
)

# For a GPU: half with AdamW workers, K up to 16, H up to 32, Muon, compressed messages.
_WIDE_FAMILIES = (
    "fmnist-mlp2:pool=4,width=32@workers=8,local_steps=4,batch=16,gamma=0.25",
    "imagenet32-mlp2:pool=4,half=first,width=32,activation=tanh"
    "@workers=4,local_steps=8,batch=8,gamma=0.15",
    "fmnist-mlp3:pool=4,width=24,activation=gelu@workers=16,local_steps=3,batch=8,gamma=0.2",
    "fmnist-cnn:pool=4,width=8@workers=4,local_steps=4,batch=8,gamma=0.2",
    "imagenet32-cnn:pool=4,half=first,width=8@workers=16,local_steps=2,batch=8,gamma=0.2",
    "fmnist-mlp2:pool=4,width=40,activation=silu"
    "@workers=8,local_steps=4,batch=8,gamma=0.2,compress=topk:0.1+ef",
    "fmnist-mlp3:pool=4,width=24,activation=silu"
    "@workers=8,local_steps=4,batch=8,local=adamw,gamma=0.005",
    "fmnist-mlp2:pool=4,width=32@workers=4,local_steps=32,batch=8,local=adamw,gamma=0.004",
    "imagenet32-mlp2:pool=4,half=first,width=32"
    "@workers=16,local_steps=2,batch=8,local=adamw,gamma=0.006",
    "imagenet32-cnn:pool=4,half=first,width=8"
    "@workers=4,local_steps=8,batch=8,local=adamw,gamma=0.005",
    "lm-bytes:file=text/wikitext2_train.txt,context=16,heads=2,hidden=16,layers=1"
    "@workers=4,local_steps=8,batch=4,local=adamw,gamma=0.008",
    "lm-bytes:file=text/wikitext2_train.txt,context=24,heads=2,hidden=24,layers=2"
    "@workers=4,local_steps=16,batch=2,local=adamw,gamma=0.006",
    "fmnist-mlp2:pool=4,width=24,activation=tanh"
    "@workers=4,local_steps=8,batch=8,local=muon,gamma=0.02",
)
_WIDE_HELD_OUT = (
    "fmnist-mlp3:pool=4,width=48@workers=5,local_steps=3,batch=16,gamma=0.2",
    "fmnist-mlp2:pool=4,width=64,activation=tanh@workers=8,local_steps=4,batch=16,gamma=0.3",
    "fmnist-cnn:pool=4,width=12@workers=6,local_steps=4,batch=8,gamma=0.2",
    "imagenet32-mlp3:pool=4,half=first,width=32,activation=silu"
    "@workers=4,local_steps=8,batch=8,local=adamw,gamma=0.004",
    "imagenet32-mlp3:pool=4,half=first,width=24@workers=16,local_steps=1,batch=8,local=adamw,"
    "gamma=0.006",
    "lm-bytes:file=text/wikitext2_train.txt,context=32,heads=2,hidden=32,layers=2"
    "@workers=4,local_steps=8,batch=4,local=adamw,gamma=0.006",
)
_WIDE = replace(
    _RELATIVE,
    tasks=_WIDE_FAMILIES,
    judge_tasks=_WIDE_HELD_OUT,
    spread=2.5,
    steps=500,
    pairs=64,
    longest=400,
    outlying=3.0,
    judge_seeds=8,
)
# What the head decides is perturbed, not its weights; compressed messages need whole tensors.
_SHIFTS = replace(
    _WIDE,
    tasks=tuple(task for task in _WIDE_FAMILIES if "compress" not in task),
    estimator="shifts",
    sigma=1.0,
    peak=5e-3,
)

META_RECIPES: dict[str, tuple[str, MetaConfig]] = {
    "lopt-a-fmnist": (
        "LOpt-A for Fashion-MNIST's 2-layer MLP, K = 8, H = 4: minutes on one large GPU",
        _FMNIST,
    ),
    "lagg-a-fmnist": ("LAgg-A for the same", replace(_FMNIST, architecture="lagg-a")),
    "lopt-a-fmnist-again": ("a second, gentler cycle from a φ given by --init", _AGAIN),
    "lagg-a-fmnist-again": ("the same for LAgg-A", replace(_AGAIN, architecture="lagg-a")),
    **_both("fmnist-h8", "at H = 8", replace(_ON, local_steps=8)),
    **_both("fmnist-h16", "at H = 16", replace(_ON, local_steps=16, pairs=4)),
    **_both(
        "fmnist-tenth", "for messages of the largest tenth", replace(_TOP, compress="topk:0.1+ef")
    ),
    **_both(
        "fmnist-hundredth",
        "for messages of the largest hundredth",
        replace(_TOP, compress="topk:0.01+ef"),
    ),
    **_both(
        "cifar10-mlp2", "for CIFAR-10's 2-layer MLP", replace(_ELSEWHERE, tasks=("cifar10-mlp2",))
    ),
    **_both(
        "imagenet32-mlp3",
        "for the 3-layer MLP of ImageNet at 32×32",
        replace(_ELSEWHERE, tasks=("imagenet32-mlp3",)),
    ),
    **_both("cifar10-cnn", "for CIFAR-10's CNN", _CNN, first="cifar10-mlp2"),
    "lopt-a-cifar10-cnn-again": ("a second, gentler cycle from a φ given by --init", _CNN_AGAIN),
    "lagg-a-cifar10-cnn-again": ("the same for LAgg-A", replace(_CNN_AGAIN, architecture="lagg-a")),
    **_both("fmnist-k16", "at K = 16", replace(_CARRIED, workers=16, pairs=4)),
    **_both("fmnist-k32", "at K = 32", replace(_CARRIED, workers=32, pairs=4, steps=300)),
    **_both("fmnist-valid", "for validation loss, every run 1000 rounds long", _VALID),
    **_both(
        "imagenet32-mlp3-valid",
        "for validation loss, every run 1000 rounds long",
        replace(_VALID, tasks=("imagenet32-mlp3",), gamma=0.1, widest=784, deepest=6, pairs=4),
        first="imagenet32-mlp3",
    ),
    **{
        name: entry
        for H, steps, longest in ((32, 300, 200), (64, 200, 100), (128, 150, 50))
        for name, entry in _both(
            f"fmnist-adamw-h{H}",
            f"for AdamW workers at H = {H}",
            replace(_LARGE_H, local_steps=H, steps=steps, longest=longest),
            first="fmnist-h16",
        ).items()
    },
    "lagg-a-fmnist-cifar10-mlp2": (
        "LAgg-A for the 2-layer MLP on Fashion-MNIST and CIFAR-10, beginning from lagg-a-fmnist",
        replace(
            _CARRIED,
            architecture="lagg-a",
            tasks=("fmnist-mlp2", "cifar10-mlp2"),
            gamma=0.1,
            pairs=4,
            init="lagg-a-fmnist",
        ),
    ),
    **{
        f"{architecture}-fmnist-{suffix}": (
            f"{name}{words}, from random weights in 1,000 outer steps: the paper's ablation",
            replace(config, architecture=architecture),
        )
        for architecture, name, suffix, words, config in (
            ("lopt", "LOpt", "deltas", " that sees the mean delta alone", _DELTAS_ALONE),
            ("lagg", "LAgg", "deltas", " that sees every delta and no more", _DELTAS_ALONE),
            ("lopt-a", "LOpt-A", "short", "", _SHORT),
            ("lagg-a", "LAgg-A", "short", "", _SHORT),
        )
    },
    "lopt-fmnist": (
        "the ablation without Ada features, of the mean delta, parameter and time",
        replace(_ABLATION, architecture="lopt"),
    ),
    "lagg-fmnist": (
        "the ablation without Ada features, of every delta, parameter and time",
        replace(_ABLATION, architecture="lagg"),
    ),
    "lopt-a-paper": ("LOpt-A by the paper's own settings", _PAPER),
    "lagg-a-paper": ("LAgg-A by the paper's own settings", replace(_PAPER, architecture="lagg-a")),
    "lopt-a-valid": (
        "LOpt-A for the validation loss, every run 1000 rounds long",
        replace(_FMNIST, objective="valid", shortest=1000, ramp=0),
    ),
    "lopt-a-general": (
        "LOpt-A on six tasks at once, MLPs, CNNs and a language model, beginning from "
        "lopt-a-fmnist",
        replace(
            _FMNIST,
            tasks=_GENERAL,
            gamma=0.1,
            widest=784,
            deepest=6,
            steps=1000,
            ramp=800,
            peak=1e-3,
            pairs=4,
            judge_every=100,
            init="lopt-a-fmnist",
        ),
    ),
    "lopt-a-general-again": (
        "a second, gentler cycle of long runs from lopt-a-general, with a deeper MLP and the "
        "digits among its tasks",
        replace(
            _FMNIST,
            tasks=(*_GENERAL, *_MORE),
            gamma=0.1,
            widest=784,
            deepest=6,
            steps=700,
            longest=1200,
            ramp=0,
            warmup=50,
            peak=7e-4,
            pairs=4,
            judge_every=700,
            judge_seeds=1,
            init="lopt-a-general",
        ),
    ),
    **{
        f"{architecture}-imagenet32-widths": (
            f"{name} for 2000 rounds at H = 8 on ImageNet's 3-layer MLP at four widths, clipped "
            "and decayed local "
            f"steps, beginning from {architecture}-fmnist",
            replace(_WIDTHS, architecture=architecture, init=f"{architecture}-fmnist"),
        )
        for architecture, name in (("lopt-a", "LOpt-A"), ("lagg-a", "LAgg-A"))
    },
    "fedlopt-fmnist": (
        "FedLOpt for Fashion-MNIST's 2-layer MLP: 400 clients with class mixes of Dirichlet(0.1), "
        "10 a round, "
        "beginning from lopt-a-fmnist",
        _FEDERATED,
    ),
    "fedlopt-fmnist-homogeneous": (
        "the same with Dirichlet(100): clients that hardly differ",
        replace(_FEDERATED, federated=_ALIKE, gamma=0.1),
    ),
    "fedlagg-fmnist": (
        "FedLAgg for the first, at a fixed K = 10, from random weights",
        replace(_FEDERATED, architecture="lagg-a", init=None, peak=3e-3),
    ),
    "fedlopt-cifar10-cnn": (
        "FedLOpt for CIFAR-10's CNN: 400 clients with class mixes of Dirichlet(0.1), 10 a round, "
        "beginning from "
        "lopt-a-cifar10-mlp2",
        _FEDERATED_CNN,
    ),
    "fedlopt-cifar10-cnn-homogeneous": (
        "the same with Dirichlet(100)",
        replace(_FEDERATED_CNN, federated=_ALIKE),
    ),
    "lopt-a-digits": (
        "LOpt-A for the bundled digits: no download, a few minutes on a laptop",
        _SMALL,
    ),
    "lagg-a-digits": ("LAgg-A for the same", replace(_SMALL, architecture="lagg-a")),
    "lopt-r-again": (
        "a second, gentler cycle from a φ given by --init, on the same families with another seed",
        replace(_RELATIVE, steps=380, peak=5e-3, warmup=10, judge_every=190, judge_seeds=6, seed=1),
    ),
    "lopt-r-wide": (
        "lopt-r on thirteen families, half of them with AdamW workers: minutes on a large GPU",
        _WIDE,
    ),
    "lopt-r-shifts": (
        "lopt-r on twelve of them, by perturbing what its head decides: minutes on a large GPU",
        _SHIFTS,
    ),
    "lopt-r": (
        "lopt-r on families of small tasks that each run draws its setting from, judged on others",
        _RELATIVE,
    ),
}
