"""Sentences of the pages, and what their numbers are by the records.

A claim is a sentence with {} for its numbers, as it stands on the page, and a function that gives
them. Numbers that are no measurement (a recipe's settings, a paper's year) have no claim.
"""

import re
from collections.abc import Callable, Sequence

from evidence import goals, measures, sentences, tables
from evidence.measures import best, rounds, times
from evidence.numbers import UNITS
from evidence.pages import Page
from evidence.records import (
    benchmark,
    config,
    curves,
    heldout,
    last,
    methods,
    read,
)
from evidence.sources import REPRODUCED, SLOWMO

Claim = tuple[str, Callable[[], Sequence[float]]]

FM, FRESH = "fmnist-learned", "fmnist-fresh"
LOPT, LAGG = "lopt-a-fmnist", "lagg-a-fmnist"
SGD = "local-sgd:gamma=0.3"
FIRST, STEPS, LARGE = (REPRODUCED[x] for x in ("table-speedup", "table-rounds", "fig-large"))
ABLATION, COMPRESS = REPRODUCED["fig-ablation"], REPRODUCED["fig-compress"]
TRANSFER, FEDERATED = REPRODUCED["fig-h-transfer"], REPRODUCED["fig-federated"]
BOTH = ("LOpt-A", "LAgg-A")
GENERAL = "LOpt-A (general)"


def accuracy(folder: str, label: str) -> float:
    """Test accuracy after the last round in %."""
    return 100 * measures.end(folder, label, "accuracy")


def average(label: str) -> float:
    """The mean speedup over the first table's three columns."""
    return tables.ours(FIRST, "average", label, "speedup")


def paper_average(label: str) -> float:
    """The paper's mean over the same columns."""
    return tables.paper(FIRST, "average", label, "speedup")[0]


def large(model: str, label: str) -> float:
    """A speedup on a large model."""
    return times(f"{LARGE}/panels/{model}", label)


def steps(H: int, label: str) -> float:
    """Rounds to 0.2 at so many local steps."""
    return rounds(f"{STEPS}/panels/h{H}", label, 0.2)


def paper_steps(H: int, label: str) -> float:
    """The paper's rounds to 0.2."""
    return tables.paper(STEPS, f"h{H}", label, "rounds")[0]


def end_loss(folder: str, label: str) -> float:
    """The final train loss."""
    return measures.final(curves(folder, label))[0]


def adds(panel: str, label: str = "lopt-a", H: int = 8) -> float:
    """What a learned step adds to a round, in %."""
    folder = f"{REPRODUCED['table-overhead']}/timings/{panel}"
    return 100 * (last(folder, "timing")["figures"][f"H={H} {label}"]["overhead"] - 1)


def part(panel: str, name: str) -> float:
    """Milliseconds of a part of a round."""
    folder = f"{REPRODUCED['table-overhead']}/timings/{panel}"
    return 1e3 * last(folder, "timing")["parts_seconds"][name]


def peak(folder: str, label: str) -> tuple[float, float]:
    """The best test accuracy in % and its round."""
    value, at = best(folder, label, "accuracy")
    return 100 * value, at


def setting(folder: str, *names: str) -> list[float]:
    """Numbers of a run's settings."""
    return [float(config(folder)[name]) for name in names]


KHB = ("workers", "local_steps", "batch")
RESNET, VIT = "resnet50-224", "vit-b-128"


def _readme() -> list[Claim]:
    say = lambda *labels: [average(label) for label in labels]
    return [
        ("2-layer MLP ({} parameters)", lambda: [read(FRESH)[0]["task"]["parameters"]]),
        (
            "K = {} workers, H = {} local steps of {} examples, {} seeds",
            lambda: setting(FRESH, *KHB, "seeds"),
        ),
        ("to local SGD's lowest train loss ({})", lambda: [measures.lowest(curves(FRESH, SGD))]),
        (
            "the best test loss is {} and {}, in round {}, where local SGD's is {}, and at the end "
            "{} and {}",
            lambda: [
                *(best(FRESH, x, "loss")[0] for x in (LOPT, LAGG)),
                best(FRESH, LOPT, "loss")[1],
                best(FRESH, SGD, "loss")[0],
                *(measures.end(FRESH, x, "loss") for x in (LOPT, LAGG)),
            ],
        ),
        ("the speedups are {}× (LOpt-A) and {}× (LAgg-A) on average", lambda: say(*BOTH)),
        (
            "which is not among them, {}× and {}×",
            lambda: [times(f"{FIRST}/panels/cifar10-cnn", label) for label in BOTH],
        ),
        (
            "tuned local SGD's minimum {} times as soon on a ViT of DeiT-tiny's size (tuned Adam "
            "{}), and LOpt-A of a small MLP {} times as soon on a decoder of 12 layers (Adam {})",
            lambda: (
                [large("vit", x) for x in (GENERAL, "Adam")]
                + [large("lm", x) for x in ("LOpt-A", "Adam")]
            ),
        ),
        (
            "where the paper has {}. On ResNet-50 only `lopt-a-general` reaches it, {} times as "
            "soon (Adam {})",
            lambda: (
                [tables.paper(LARGE, "lm", "LOpt-A", "speedup")[0]]
                + [large("resnet50", x) for x in (GENERAL, "Adam")]
            ),
        ),
        (
            "LOpt-A adds {} % to a round of {} local steps of ResNet-50 and {} % to one",
            lambda: [adds(RESNET), 8, adds(VIT)],
        ),
    ]


def _home() -> list[Claim]:
    return [
        (
            "K = {} workers, H = {} local steps a round, {} seeds",
            lambda: setting(FRESH, "workers", "local_steps", "seeds"),
        ),
        (
            "end at {} % and {} % test accuracy where local SGD has {} %",
            lambda: [accuracy(FRESH, x) for x in (LOPT, LAGG, SGD)],
        ),
    ]


def _results() -> list[Claim]:
    vit = "vit"
    paper = lambda model, label: tables.paper(LARGE, model, label, "speedup")[0]
    return [
        (
            "never reach local SGD's lowest loss (paper: {}× and {}×)",
            lambda: [paper("resnet50", x) for x in BOTH],
        ),
        (
            "{}× and {}× as fast (paper: {}× and {}×), on the ViT LOpt-A {}× (paper: {}×)",
            lambda: (
                [large("lm", x) for x in BOTH]
                + [paper("lm", x) for x in BOTH]
                + [large(vit, "LOpt-A"), paper(vit, "LOpt-A")]
            ),
        ),
        (
            "sooner on Fashion-MNIST | {}×; SlowMo {}× | {} |",
            lambda: [times(FM, LOPT), times(FM, SLOWMO), *setting(FM, "seeds")],
        ),
        (
            "tuned SlowMo's rounds | {}; SlowMo {} | {} |",
            lambda: [rounds(FM, LOPT), rounds(FM, SLOWMO), *setting(FM, "seeds")],
        ),
        (
            "faster than in the paper | {}× and {}×; paper {}× and {}× |",
            lambda: [average(x) for x in BOTH] + [paper_average(x) for x in BOTH],
        ),
        (
            "local steps a round | {} rounds at H = {}; SlowMo {} |",
            lambda: [steps(16, "LAgg-A"), 16, steps(16, "SlowMo")],
        ),
        (
            "far behind | {}×; with them {}× |",
            lambda: [times(f"{ABLATION}/panels/fmnist-mlp2", x) for x in ("LOpt", "LOpt-A")],
        ),
        (
            "SlowMo that sends all | {}; SlowMo {} |",
            lambda: [
                end_loss(f"{COMPRESS}/panels/top0.01", "LAgg-A"),
                end_loss(f"{COMPRESS}/panels/top1", "SlowMo"),
            ],
        ),
        (
            "a tenth more rounds | {}, {}, {} | {} |",
            lambda: (
                [rounds(f"missing-workers/{n}", LOPT, 0.2) for n in range(3)]
                + setting("missing-workers/0", "seeds")
            ),
        ),
        (
            "level with tuned SlowMo | {}×; SlowMo {}× | {} |",
            lambda: (
                [large(vit, x) for x in (GENERAL, "SlowMo")]
                + setting(f"{LARGE}/panels/vit", "seeds")
            ),
        ),
        (
            "ResNet-50 and ViT-B | {} % and {} %; paper {} % and {} % |",
            lambda: [adds(RESNET), adds(VIT), *_paper_adds()],
        ),
        (
            "without two states | {} kills, {} stops, {} s longest pause |",
            lambda: [benchmark("churn-cpu")[x] for x in ("kills", "stops", "longest_gap_s")],
        ),
        ("meta-training seeds | {}×, {}×, {}× |", _seeds_of_meta_training),
    ]


def _paper_adds() -> list[float]:
    rows = last(REPRODUCED["table-overhead"], "experiment")["rows"]
    found = {(r["panel"], r["label"], r["H"]): r["paper_overhead"] for r in rows}
    return [100 * (found[panel, "LOpt-A", 8] - 1) for panel in (RESNET, VIT)]


def _seeds_of_meta_training() -> list[float]:
    found = [times("fmnist-seeds", f"lopt-a-fmnist-seed{seed}") for seed in range(3)]
    return sorted(found, reverse=True)  # the pages have the best first


def _fashion_mnist() -> list[Claim]:
    lopt, lagg = (lambda: peak(FM, LOPT)), (lambda: peak(FM, LAGG))
    slowmos = [label for label in methods(FM) if label.startswith("slowmo")]
    usual = "slowmo:gamma=0.1,alpha=1,beta=0.95"
    by_end = lambda place: end_loss(place, usual)
    return [
        ("ends at {}\ntimes sooner", lambda: [times(FM, LOPT)]),
        (
            "a train loss of 0.2 in {} rounds, where the best of 487 SlowMo settings needs {}",
            lambda: [rounds(FM, LOPT), rounds(FM, SLOWMO)],
        ),
        (
            "K = {}, H = {}, B = {}, {} rounds, one H200. The ten seeds ({}-109)",
            lambda: setting(FM, *KHB, "rounds", "first_seed"),
        ),
        (
            "LOpt-A's at {} % in round {}, LAgg-A's at {} % in round {}",
            lambda: [*lopt(), *lagg()],
        ),
        (
            "SlowMo's three settings peak at {} %, {} % and {} %",
            lambda: [peak(FM, label)[0] for label in slowmos],
        ),
        ("give {}×, {}× and {}×, within", _seeds_of_meta_training),
        (
            "a minimum of {}; the paper",
            lambda: [measures.lowest(curves("fmnist-baselines", SGD))],
        ),
        (
            "SlowMo needs {} rounds to 0.2 instead of {} and ends at {} instead of {}",
            lambda: [
                x
                for measure in (lambda place: rounds(place, usual, 0.2), by_end)
                for x in map(measure, ("fmnist-undivided", "fmnist-baselines"))
            ],
        ),
        (
            "changes\n  little: {} instead of {}",
            lambda: [
                measures.lowest(curves(x, SGD)) for x in ("fmnist-undivided", "fmnist-baselines")
            ],
        ),
    ]


def _speedup() -> list[Claim]:
    at = lambda panel, label: peak(f"{FIRST}/panels/{panel}", label)
    same = [f"{FIRST}/panels/fmnist-mlp2", f"{STEPS}/panels/h4", f"{ABLATION}/panels/fmnist-mlp2"]
    same += [f"{TRANSFER}/panels/h4", f"{COMPRESS}/panels/top1"]
    lopts = lambda: [times(folder, "LOpt-A") for folder in same]
    laggs = lambda: [rounds(folder, "LAgg-A", 0.2) for folder in same]
    imagenet = [("imagenet32-mlp3", x) for x in (*BOTH, "Local SGD")]
    short = read("sweeps/cifar10-cnn-k8-h4-slowmo-short")
    theirs = {"gamma": 0.5, "alpha": 2.0, "beta": 0.9}
    (slowmo,) = [r for r in short if r["kind"] == "point" and r["numbers"] == theirs]
    sgd = [
        r
        for r in read("sweeps/cifar10-cnn-k8-h4-sgd-short")
        if r["kind"] == "point" and r["numbers"] == {"alpha": 1.0}
    ]
    return [
        (
            "{}× (LOpt-A) and {}× (LAgg-A) sooner on\naverage, where the paper has {}× and {}×",
            lambda: [average(x) for x in BOTH] + [paper_average(x) for x in BOTH],
        ),
        (
            "on average {}× and {}× instead of {}× and {}×, where\nSlowMo's is {}× instead of {}×",
            lambda: (
                [average(x) for x in BOTH]
                + [paper_average(x) for x in BOTH]
                + [average("SlowMo"), paper_average("SlowMo")]
            ),
        ),
        ("LOpt-A's are {}× to\n{}×", lambda: [min(lopts()), max(lopts())]),
        (
            "while it needs {} rounds to 0.2 in each and LAgg-A {} to {}",
            lambda: [rounds(same[0], "LOpt-A", 0.2), min(laggs()), max(laggs())],
        ),
        (
            "LOpt-A's is {} % in round {},\nLAgg-A's {} % there, SlowMo's {} % in round {}, "
            "and local SGD is at {} % in round {}",
            lambda: [
                *at("cifar10-mlp2", "LOpt-A"),
                at("cifar10-mlp2", "LAgg-A")[0],
                *at("cifar10-mlp2", "SlowMo"),
                *at("cifar10-mlp2", "Local SGD"),
            ],
        ),
        (
            "LOpt-A's is {} % in round {} and\nLAgg-A's {} % in round {}, SlowMo's {} % in round "
            "{} and local SGD's {} % in round {}",
            lambda: [x for name in (*BOTH, "SlowMo", "Local SGD") for x in at("cifar10-cnn", name)],
        ),
        (
            "too little for an MLP: {} % in round {}\nand {} % in round {}, local SGD's {} % in "
            "round {}",
            lambda: [x for place in imagenet for x in at(*place)],
        ),
        (
            "of guessing (lowest {}, {} after 300 rounds, {} % of",
            lambda: [slowmo["minimum"], slowmo["final"], 100 * slowmo["valid"]["accuracy"]],
        ),
        (
            "after 300 rounds (lowest {}, {} at the end)",
            lambda: [sgd[0]["minimum"], sgd[0]["final"]],
        ),
        (
            "K = {}, H = {}, B = {}, {} rounds, {} seeds, one H200",
            lambda: setting(f"{FIRST}/panels/fmnist-mlp2", *KHB, "rounds", "seeds"),
        ),
    ]


def _local_steps() -> list[Claim]:
    lagg = lambda: [steps(H, "LAgg-A") for H in (4, 8, 16)]
    theirs = lambda label: [paper_steps(H, label) for H in (4, 8, 16)]
    slowmo = lambda: [steps(H, "SlowMo") for H in (4, 8, 16)]
    gap = lambda label, H: steps(H, label) - paper_steps(H, label)
    place = f"{TRANSFER}/panels/h4"
    worst = lambda: [float(curves(f"{STEPS}/panels/h4", "LOpt-A")[:, 300:].max())]
    return [
        (
            "LAgg-A needs {}, {} and {} rounds to a train loss of 0.2 at\nH = 4, 8 and 16, "
            "SlowMo {}, {} and {}",
            lambda: [*lagg(), *slowmo()],
        ),
        (
            "LAgg-A needs {}, {} and {} rounds where the paper's needs {}, {} and {}; LOpt-A {}, "
            "{} and {} where the paper's needs {}, {}\n  and {}",
            lambda: [
                *lagg(),
                *theirs("LAgg-A"),
                *(steps(H, "LOpt-A") for H in (4, 8, 16)),
                *theirs("LOpt-A"),
            ],
        ),
        (
            "by {}, {} and {} rounds, and local SGD at H = 8 by {}",
            lambda: [*(gap("SlowMo", H) for H in (4, 8, 16)), gap("Local SGD", 8)],
        ),
        ("worst single round is {} (LOpt-A at H = 4)", worst),
        (
            "they need {} and {} rounds to 0.2,\nSlowMo {}",
            lambda: (
                [rounds(place, f"{x} (trained at H = 16)", 0.2) for x in BOTH[::-1]]
                + [rounds(place, "SlowMo", 0.2)]
            ),
        ),
        (
            "SlowMo closes in ({} against {} and {})",
            lambda: (
                [end_loss(place, "SlowMo")]
                + [end_loss(place, f"{x} (trained at H = 16)") for x in BOTH[::-1]]
            ),
        ),
    ]


def _ablation() -> list[Claim]:
    place = f"{ABLATION}/panels/fmnist-mlp2"
    low = lambda label: measures.lowest(curves(place, label))
    at = lambda label: float(measures.mean_curve(curves(place, label)).argmin() + 10)
    four = ("LOpt", "LAgg", *BOTH)
    return [
        (
            "LOpt and LAgg are {} and {} times as fast as local SGD, with them LOpt-A and LAgg-A "
            "{}\nand {} times",
            lambda: [times(place, label) for label in four],
        ),
        (
            "is lowest, {}, in round {} and then rises to {}, above local SGD's; LAgg's is lowest, "
            "{}, in round {} and ends\nat {}",
            lambda: [x for name in four[:2] for x in (low(name), at(name), end_loss(place, name))],
        ),
    ]


def _compression() -> list[Claim]:
    place = lambda share: f"{COMPRESS}/panels/top{share}"
    lagg = lambda share: rounds(place(share), "LAgg-A", 0.2)
    spike = lambda share: float(curves(place(share), "LOpt-A")[:, 300:].max())
    return [
        (
            "a train loss of {} against {}, for {} MB a worker instead of {}",
            lambda: [
                end_loss(place("0.01"), "LAgg-A"),
                end_loss(place("1"), "SlowMo"),
                measures.megabytes(place("0.01"), "LAgg-A"),
                measures.megabytes(place("1"), "SlowMo"),
            ],
        ),
        (
            "LAgg-A at 10 % needs {} rounds more to 0.2",
            lambda: [lagg("0.1") - lagg("1")],
        ),
        ("at 1 % it needs {} more", lambda: [lagg("0.01") - lagg("1")]),
        ("in nine of ten runs ({} at worst)", lambda: [spike("0.1")]),
        ("spike ({} at worst)", lambda: [spike("0.01")]),
        (
            "the shortest time, {} s to a loss of {}, where local SGD takes {} min",
            lambda: [
                measures.seconds("fmnist-compress", "slowmo:compress=int4"),
                measures.target("fmnist-compress"),
                measures.seconds("fmnist-compress", "local-sgd") / 60,
            ],
        ),
    ]


def _large_models() -> list[Claim]:
    resnet = f"{LARGE}/panels/resnet50"
    paper = lambda model, label: tables.paper(LARGE, model, label, "speedup")[0]
    ends = lambda label: [float(x) for x in heldout(resnet, label, "loss")[:, -1]]
    to = lambda model, label, loss: rounds(f"{LARGE}/panels/{model}", label, loss)
    vit = lambda label: to("vit", "Local SGD", 1.0) / to("vit", label, 1.0)
    return [
        (
            "`lopt-a-general` is {} times as fast on the ViT; LOpt-A is {} times as\nfast on the "
            "decoder, **far from the paper's {}**",
            lambda: [large("vit", GENERAL), large("lm", "LOpt-A"), paper("lm", "LOpt-A")],
        ),
        (
            "local SGD's minimum {} times as soon, level with tuned SlowMo ({}), ahead of tuned "
            "Adam ({})\n  and of the paper's {} for LOpt-A",
            lambda: (
                [large("vit", x) for x in (GENERAL, "SlowMo", "Adam")] + [paper("vit", "LOpt-A")]
            ),
        ),
        (
            "LAgg-A comes to {} ({} in the paper). LOpt-A itself\n  is only {} times as fast",
            lambda: [large("vit", "LAgg-A"), paper("vit", "LAgg-A"), large("vit", "LOpt-A")],
        ),
        (
            "LOpt-A and LAgg-A are {} and {} times as fast as local SGD, ahead of SlowMo, behind "
            "tuned Adam, and far from the\n  paper's {} and {}",
            lambda: [large("lm", x) for x in BOTH] + [paper("lm", x) for x in BOTH],
        ),
        (
            "minimum ({} and {} at the end; local SGD is down to {} at round {})",
            lambda: (
                [end_loss(resnet, x) for x in BOTH]
                + [measures.target(resnet), rounds(resnet, "Local SGD")]
            ),
        ),
        (
            "the general one does, {} times as fast, which three seeds do not tell from tuned Adam "
            "({}; SlowMo {}), and which is less than half\n  of the paper's {}",
            lambda: (
                [large("resnet50", x) for x in (GENERAL, "Adam", "SlowMo")]
                + [paper("resnet50", "LOpt-A")]
            ),
        ),
        (
            "are {}, {} and {} times as fast as local SGD down to a loss of 1.0",
            lambda: [vit(x) for x in (*BOTH, GENERAL)],
        ),
        (
            "after the last round are {}, {} and {} (LOpt-A),\n{}, {} and {} (LAgg-A), and {}, {} "
            "and {} (LOpt-A (general))",
            lambda: [x for label in (*BOTH, GENERAL) for x in ends(label)],
        ),
    ]


def _overhead() -> list[Claim]:
    parts = ("local step", "lopt-a", "lagg-a", "local-sgd")
    both = lambda name: [part(RESNET, name), part(VIT, name)]
    return [
        (
            "LOpt-A adds {} % to a round of ResNet-50 and {} % to one of\nViT-B, where the paper's "
            "table has {} % and {} %",
            lambda: [adds(RESNET), adds(VIT), *_paper_adds()],
        ),
        (
            "A local step takes {} ms for ResNet-50 and {} ms for ViT-B, a server's step {} and {} "
            "ms by LOpt-A, {} and {} ms\nby LAgg-A, and {} and {} ms by averaging",
            lambda: [x for name in parts for x in both(name)],
        ),
        (
            "LOpt-A adds {} % and {} %, where the paper's table has {} % and {} %",
            lambda: [adds(RESNET), adds(VIT), *_paper_adds()],
        ),
    ]


def _small_tasks() -> list[Claim]:
    tuned = "digits-tuned"
    return [
        (
            "in {} rounds of {};\ntuned SlowMo needs {}",
            lambda: [
                rounds(tuned, "lopt-a-digits"),
                *setting(tuned, "rounds"),
                rounds(tuned, SLOWMO),
            ],
        ),
        ("needs {} and ends lowest", lambda: [rounds(tuned, "lopt-a-general")]),
        (
            "K = {}, H = {}, B = {}, {} rounds, {} seeds ({}-109)",
            lambda: setting(tuned, *KHB, "rounds", "seeds", "first_seed"),
        ),
        (
            "K = {}, H = {}, B = {}, {} rounds, {} seeds; `results/lm-bytes`",
            lambda: setting("lm-bytes", *KHB, "rounds", "seeds"),
        ),
    ]


def _speed() -> list[Claim]:
    churn = lambda *names: [benchmark("churn-cpu")[name] for name in names]
    return [
        (
            "{} rounds in {} minutes; {} kills, {} stops, and workers caught up from a peer {} "
            "times; on average\n{} of the four",
            lambda: churn("rounds", "minutes", "kills", "stops", "healed", "mean_workers"),
        ),
        ("without a commit was {} s", lambda: churn("longest_gap_s")),
        (
            "final training loss was {}, that of an undisturbed run of as many rounds {} ({} %)",
            lambda: [
                *(churn("loss")[0][x] for x in ("churned", "undisturbed")),
                100 * churn("loss_apart")[0],
            ],
        ),
        (
            "which meta-training does not use: {} and\n{} rounds/s",
            lambda: [
                benchmark("meta-train-h200-second")["figures"][x]["rounds_per_second"]
                for x in ("lopt-a", "lagg-a")
            ],
        ),
    ]


def _meta_training() -> list[Claim]:
    took = lambda *names: [last(f"meta/{name}", "progress")["seconds"] for name in names]
    scores = ("lopt-a-fmnist", "lopt-a-fmnist-again", "lagg-a-fmnist", "lagg-a-fmnist-again")
    score = lambda: [last(f"meta/{name}", "summary")["best_score"] for name in scores]
    return [
        ("LOpt-A's score from {} to {} and\nLAgg-A's from {} to {}", score),
        ("best one's speedup ({}×, {}×, {}×)", _seeds_of_meta_training),
        (
            "LAgg-A's two first cycles took {} s and {} s",
            lambda: took("lagg-a-fmnist", "lagg-a-fmnist-again"),
        ),
        (
            "{} s and {} s on CIFAR-10's MLP, {} s and {} s on Tiny-ImageNet's",
            lambda: took(
                *(f"{x}-{y}" for y in ("cifar10-mlp2", "imagenet32-mlp3") for x in _KINDS)
            ),
        ),
        (
            "{} s and {} s on CIFAR-10's CNN",
            lambda: took(*(f"{x}-cifar10-cnn" for x in _KINDS)),
        ),
    ]


_KINDS = ("lopt-a", "lagg-a")


def claims() -> dict[str, list[Claim]]:
    """The claims of every page by its name."""
    of = {
        "README.md": _readme,
        "docs/index.md": _home,
        "docs/results.md": _results,
        "docs/results/fashion-mnist.md": _fashion_mnist,
        "docs/results/speedup.md": _speedup,
        "docs/results/local-steps.md": _local_steps,
        "docs/results/ablation.md": _ablation,
        "docs/results/compression.md": _compression,
        "docs/results/large-models.md": _large_models,
        "docs/results/overhead.md": _overhead,
        "docs/results/small-tasks.md": _small_tasks,
        "docs/results/speed.md": _speed,
        "docs/results/meta-training.md": _meta_training,
    }
    found = {name: make() for name, make in of.items()}
    for module in (sentences, goals):
        for name, more in module.claims().items():
            found[name] = [*found.get(name, []), *more]
    return found


# --- sentences that stand on every appendix page --------------------------------------------------


def appendix(page: Page) -> list[tuple[int, str, list[float]]]:
    """The settings below each heading of an appendix page, and the counts below each grid: where
    they stand, the sentence, and its numbers by the records."""
    found: list[tuple[int, str, list[float]]] = []
    at, heading = 0, ""
    for line in page.raw.splitlines(keepends=True):
        if line.startswith("## "):
            heading = line[3:].strip()
        folder = heading if tables.known_folder(heading) else f"sweeps/{heading}"
        if heading and tables.known_folder(folder):
            if line.startswith("K = "):
                found.append((at, line, _settings(folder, "seeds" in line)))
            elif " diverged; " in line:
                found.append((at, line, _counts(folder, line)))
            elif line.startswith("| method | rounds to"):
                found.append((at, line, [measures.target(folder)]))
        at += len(line)
    return found


def _settings(folder: str, several: bool) -> list[float]:
    first = config(folder).get("first_seed", 0)
    seeds = [first, first + config(folder)["seeds"] - 1] if several else [first]
    return [*setting(folder, *KHB, "rounds"), *map(float, seeds)]


def _counts(folder: str, line: str) -> list[float]:
    points = [r for r in read(folder) if r["kind"] == "point"]
    bad = sum(any(point["diverged"]) for point in points)
    found = [float(len(points)), float(bad), float(len(points[0]["seeds"]))]
    if "10-round" in line:
        found.append(float(measures.WINDOW))
    took = re.search(r"; [\d.]+ (\w+)\. ", line)
    return [*found, last(folder, "ranking")["seconds"] / UNITS[took[1]]] if took else found
