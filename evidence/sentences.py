"""More sentences of the pages: those of the suite, federated learning, speed, meta-training, and
what the index of results says of them. `prose.py` joins them to its own."""

import functools
import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from evidence import contests, faults, measures, tables
from evidence.pages import Page
from evidence.records import (
    RESULTS,
    ROOT,
    benchmark,
    config,
    curves,
    heldout,
    last,
    methods,
    read,
)

Claim = tuple[str, Callable[[], Sequence[float]]]

FEDERATED = "reproduce/fig-federated-full"
LARGE = "reproduce/fig-large-full"
SETTINGS = (
    "fmnist-mlp2-alpha100",
    "fmnist-mlp2-alpha0.1",
    "cifar10-cnn-alpha100",
    "cifar10-cnn-alpha0.1",
)
EARLY, LATE = (181, 200), (951, 1000)
OURS, TUNED = "FedLOpt", "FedLOpt (tuned)"
NOISY = (
    "| Fashion-MNIST, MLP of 2 layers, SGD",
    "| Fashion-MNIST, MLP of 3 layers, AdamW",
    "| Tiny-ImageNet (half), MLP of 2 layers, AdamW",
)


# --- the suite ------------------------------------------------------------------------------------


def suite() -> list[Claim]:
    """docs/suite.md."""
    every = lambda score: contests.geometric_mean(
        [score(contests.place(title)) for title in contests.titles()]
    )
    return [
        (
            "of the train score: {} over the seven tasks with SGD workers, {} over the five with "
            "AdamW workers, {} over all twelve; of the test score {}",
            lambda: [
                contests.means("SGD")[0],
                contests.means("AdamW")[0],
                every(contests.train_score),
                every(contests.test_score),
            ],
        ),
        ("losses are means over {} seeds", lambda: [_setting("small-digits", "seeds")]),
        (
            "K = {}, H = {}, B = {}, {} rounds, the",
            lambda: [
                float(config("digits-lopt-r")[x])
                for x in ("workers", "local_steps", "batch", "rounds")
            ],
        ),
        ("on seeds {}–104 of", lambda: [float(config("digits-lopt-r-first")["first_seed"])]),
        (
            "{} outer steps, 37 minutes | −0.058 after {} steps",
            lambda: [
                float(config("meta/lopt-r-first")["steps"]),
                float(last("meta/lopt-r-first", "summary")["best_step"]),
            ],
        ),
        (
            "worst | {} (nominal Nesterov {}) |",
            lambda: [
                measures.final(curves("digits-lopt-r-first", _like("digits-lopt-r-first", "ours")))[
                    0
                ],
                measures.final(curves("digits-lopt-r-first", "nominal"))[0],
            ],
        ),
        (
            "stopped after {} of {} outer steps | −0.219",
            lambda: _stopped("lopt-r-second"),
        ),
        ("stopped after {} of {} outer steps | 0.016", lambda: _stopped("lopt-r-stopped")),
        *[(title + " | {}" * 5 + " |", partial(_noise, i)) for i, title in enumerate(NOISY)],
    ]


def _like(folder: str, begin: str) -> str:
    """The method whose label begins so, the one that ends lowest."""
    found = [label for label in methods(folder) if label.startswith(begin)]
    return min(found, key=lambda label: measures.final(curves(folder, label))[0])


def _stopped(name: str) -> list[float]:
    return [float(read(f"meta/{name}")[-1]["end"]), float(config(f"meta/{name}")["steps"])]


def _noise(i: int) -> list[float]:
    """Mean cosines of a family's gradients, and the variances that two of them mean."""
    rows = benchmark("gradient-noise-cpu")["rows"]
    family = list(dict.fromkeys(row["family"] for row in rows))[i]
    found = {row["estimator"]: row["cosine"] for row in rows if row["family"] == family}
    cosines = [found[name] for name in ("pes", "nres", "shifts")]
    return [*cosines, *(1 / cosine - 1 for cosine in cosines[1:])]


def _setting(panel: str, name: str) -> float:
    return float(config(f"{contests.SUITE}/panels/{panel}")[name])


# --- federated learning ---------------------------------------------------------------------------


@functools.cache
def margin(setting: str, label: str, window: tuple[int, int]) -> float:
    """Points of test accuracy by which a learned server is ahead of the best tuned baseline."""
    place = f"{FEDERATED}/panels/{setting}"
    means = {name: measures.span(place, name, *window)[0] for name in methods(place)}
    rivals = [value for name, value in means.items() if name not in (OURS, TUNED)]
    return 100 * (means[label] - max(rivals))


def margins(label: str, window: tuple[int, int]) -> list[float]:
    """In all four settings."""
    return [margin(setting, label, window) for setting in SETTINGS]


def _apart(window: tuple[int, int]) -> float:
    place = f"{FEDERATED}/panels/{SETTINGS[3]}"
    one, other = (measures.span(place, label, *window)[0] for label in (OURS, TUNED))
    return 100 * abs(one - other)


def federated() -> list[Claim]:
    """docs/results/federated.md."""
    mlp = f"{FEDERATED}/panels/{SETTINGS[0]}"
    sizes = lambda: config(mlp)
    test = lambda: heldout(mlp, OURS, "loss").mean(axis=0)
    return [
        (
            "{} clients, {} of them a round of one epoch each, B = {}",
            lambda: [sizes()["federated"]["clients"], sizes()["workers"], sizes()["batch"]],
        ),
        (
            "settings: by {} to {} points in rounds 181–200, and by {} to {} in\n  rounds 951–1000",
            lambda: [f(margins(TUNED, window)) for window in (EARLY, LATE) for f in (min, max)],
        ),
        (
            "in all four too, by {} to {} points. In rounds 951–1000 it is {} points ahead on",
            lambda: [
                min(margins(OURS, EARLY)),
                max(margins(OURS, EARLY)),
                margin(SETTINGS[3], OURS, LATE),
            ],
        ),
        ("and {} points behind FedAdam", lambda: [-margin(SETTINGS[2], OURS, LATE)]),
        (
            "it is {} points behind the best baseline there, with clients that do not {} points "
            "behind",
            lambda: [-margin(SETTINGS[1], OURS, LATE), -margin(SETTINGS[0], OURS, LATE)],
        ),
        (
            "its test loss is lowest, {}, in round {} and {} at the end",
            lambda: [*measures.best(mlp, OURS, "loss"), float(test()[-1])],
        ),
        ("α = 0.1 show: {} and {} points", lambda: [_apart(EARLY), _apart(LATE)]),
    ]


# --- the index of results -------------------------------------------------------------------------


def _general_rounds() -> list[float]:
    """Rounds of the general optimizer to tuned SlowMo's loss at round 500, least and most, on the
    five image tasks."""
    rows = [row for row in Page(ROOT / "docs/results/general.md").rows() if row.table == 0]
    found = [tables.general_trained(row)[6][0] for row in rows]
    return [min(found), max(found)]


def results() -> list[Claim]:
    """docs/results.md."""
    blows = lambda: sorted(faults.all_blows(), key=lambda blow: blow["gap_s"] - blow["limit"])
    networks = lambda: len(faults.campaign("network")["scenarios_run"])
    trainings = lambda: len(faults.campaign("blows")["trainings"])
    return [
        ("at round 500 sooner | {} to {} rounds |", _general_rounds),
        (
            "that it never saw | {}× in rounds | {} |",
            lambda: [contests.means("SGD")[0], _setting("small-digits", "seeds")],
        ),
        (
            "four tasks of five | {}× | {} |",
            lambda: [contests.means("AdamW")[0], _setting("small-digits", "seeds")],
        ),
        (
            "in four settings | by {} to {} points |",
            lambda: [
                min(margins(TUNED, EARLY) + margins(TUNED, LATE)),
                max(margins(TUNED, EARLY) + margins(TUNED, LATE)),
            ],
        ),
        (
            "ends behind | by {} and {} points |",
            lambda: [-margin(SETTINGS[1], OURS, LATE), -margin(SETTINGS[0], OURS, LATE)],
        ),
        (
            "nor do {} random blows to all of its processes, or {} bad networks | one gap of {} "
            "over its limit, {} s for {} s | {} |",
            lambda: [
                len(blows()),
                networks(),
                len(blows()),
                blows()[-1]["gap_s"],
                blows()[-1]["limit"],
                trainings(),
            ],
        ),
    ]


def readme() -> list[Claim]:
    """README.md."""
    return [
        (
            "and needs {} times fewer rounds than the best rival tuned on each",
            lambda: [contests.means("SGD")[0]],
        ),
    ]


# --- meta-training --------------------------------------------------------------------------------


def _took(name: str) -> float:
    return last(f"meta/{name}", "progress")["seconds"]


def meta_training() -> list[Claim]:
    """docs/results/meta-training.md."""
    fm = "fmnist-learned"
    worst = lambda label: float(curves(fm, label)[:, 300:].max())
    h16 = "fmnist-clip-h16"
    first = [f"{x}-fmnist-h{H}" for x in ("lopt-a", "lagg-a") for H in (8, 16)]
    kept = [f"{x}-fmnist-{k}" for x in ("lopt-a", "lagg-a") for k in ("tenth", "hundredth")]
    span = lambda names: [f(map(_took, names)) for f in (min, max)]
    seed1 = "lopt-a-fmnist-seed1"
    return [
        ("({} s on one H200), a second", lambda: [_took("lopt-a-fmnist")]),
        ("best.safetensors` ({} s), for LOpt-A", lambda: [_took("lopt-a-fmnist-again")]),
        (
            "a third of {} steps at half the perturbation ({} s)",
            lambda: [
                float(config("meta/lopt-a-fmnist-third")["steps"]),
                _took("lopt-a-fmnist-third"),
            ],
        ),
        (
            "(two at a time, {} s and {} s), makes",
            lambda: [_took(f"{x}-fmnist-clipped") for x in ("lopt-a", "lagg-a")],
        ),
        (
            "no round of LAgg-A's ten runs is over {}, and of LOpt-A's the worst, for a moment, is "
            "{}.",
            lambda: [round(worst("lagg-a-fmnist") + 0.005, 2), worst("lopt-a-fmnist")],
        ),
        (
            "H = 16 ends at {} instead of {} with one seed diverged",
            lambda: [
                measures.final(curves(h16, "lopt-a-h16+clip"))[0],
                float(np.nanmean(curves(h16, "lopt-a-fmnist-h16")[:, -10:].mean(axis=1))),
            ],
        ),
        (
            "accuracy of all ({} %)",
            lambda: [100 * measures.best("fmnist-seeds", seed1, "accuracy")[0]],
        ),
        ("four trainings at a time on one H200: {} to {} s each", lambda: span(first)),
        ("of the entries, four at a time: {} to {} s each", lambda: span(kept)),
    ]


# --- large models ---------------------------------------------------------------------------------


def _carried(model: str) -> float:
    """Where local SGD at the MLP's rate ends in its sweep."""
    points = [r for r in read(f"{LARGE}/sweeps/{model}-local-sgd") if r["kind"] == "point"]
    (point,) = [point for point in points if point["numbers"]["gamma"] == 0.3]
    return point["final"]


def large_models() -> list[Claim]:
    """docs/results/large-models.md."""
    three = ("resnet50", "vit", "lm")
    to = lambda label: [
        measures.rounds(f"{LARGE}/panels/{model}", label, _carried(model)) for model in three
    ]
    whole = lambda: curves(f"{LARGE}/panels/resnet50", "LOpt-A", "replaced.jsonl")
    return [
        (
            "on ResNet-50 (a loss of {}), and after 300 on the ViT ({}) and the decoder ({}), "
            "LOpt-A is after {}, {} and {} rounds, and LAgg-A after {}, {} and {}",
            lambda: [*map(_carried, three), *to("LOpt-A"), *to("LAgg-A")],
        ),
        (
            "the only one run there ({}, {} and {} by seed)",
            lambda: [float(x) for x in whole()[:, -10:].mean(axis=1)],
        ),
    ]


# --- Fashion-MNIST, speed -------------------------------------------------------------------------


def fashion_mnist() -> list[Claim]:
    """docs/results/fashion-mnist.md."""
    first, steps = "reproduce/table-speedup-full", "reproduce/table-rounds-full"
    speed = lambda label: tables.paper(first, "fmnist-mlp2", label, "speedup")[0]
    rounds = lambda label: tables.paper(steps, "h4", label, "rounds")[0]
    usual = "slowmo:gamma=0.1,alpha=1,beta=0.95"
    test = lambda folder: 100 * measures.end(folder, usual, "accuracy")
    half = lambda: np.sort(curves("fmnist-baselines", "local-sgd:gamma=0.5")[:, -10:].mean(axis=1))
    return [
        (
            "The paper reports {}× and {} rounds for LOpt-A, {}× and {} for LAgg-A, and {} rounds "
            "for SlowMo",
            lambda: [
                *(f(label) for label in ("LOpt-A", "LAgg-A") for f in (speed, rounds)),
                rounds("SlowMo"),
            ],
        ),
        (
            "its test accuracy is {} points higher",
            lambda: [test("fmnist-undivided") - test("fmnist-baselines")],
        ),
        (
            "eight\n  of ten seeds end between {} and {}, as low",
            lambda: [float(half()[0]), float(half()[7])],
        ),
        (
            "LOpt-A needs {} rounds in each",
            lambda: [measures.rounds(f"{steps}/panels/h4", "LOpt-A", 0.2)],
        ),
    ]


@functools.cache
def _cpu_runs() -> list[float]:
    text = (RESULTS / "benchmarks" / "round-cpu-runs.jsonl").read_text()
    return [json.loads(line)["server_step_speedup"] for line in text.splitlines()]


def _pieces() -> dict[str, dict[str, float]]:
    return benchmark("engine-scale-cpu")["runs"]["1000000"]


def speed() -> list[Claim]:
    """docs/results/speed.md."""
    both = lambda name: [_pieces()[K][name] for K in ("2", "4")]
    engine = lambda: benchmark("engine-round-cpu")["workers"]["2"]["median_ms"]["engine"]
    return [
        (
            "{} times the local steps of a hand-written loop; the engine adds {} ms to a round",
            lambda: [benchmark("round-cpu")["round_ratio"], engine()],
        ),
        (
            "server step speedups of {}, {}, {}, {} and {}, of which",
            lambda: _cpu_runs()[-5:],
        ),
        (
            "gave {}, {}, {} and {}. [What made",
            lambda: _cpu_runs()[:4],
        ),
        ("a round, in models | {} | {} |", lambda: both("sent_models")),
        (
            "a worker and round, ms | {} | {} |",
            lambda: [1e3 * x for x in both("cpu_seconds")],
        ),
        ("above idle, in models | {} | {} |", lambda: both("peak_models_above_idle")),
    ]


def general() -> list[Claim]:
    """docs/results/general.md."""
    done = lambda: last("meta/lopt-a-general", "progress")
    return [
        ("round 500 after {} to {} rounds", _general_rounds),
        (
            "stopped by its time budget after {} outer steps, {} s on one H200",
            lambda: [float(done()["end"]), done()["seconds"]],
        ),
        (
            "cycle of {} outer steps with longer runs",
            lambda: [float(last("meta/lopt-a-general-again", "progress")["end"])],
        ),
    ]


def claims() -> dict[str, list[Claim]]:
    """The claims of every page by its name."""
    return {
        "README.md": readme(),
        "docs/results.md": results(),
        "docs/suite.md": suite(),
        "docs/results/federated.md": federated(),
        "docs/results/meta-training.md": meta_training(),
        "docs/results/large-models.md": large_models(),
        "docs/results/fashion-mnist.md": fashion_mnist(),
        "docs/results/speed.md": speed(),
        "docs/results/general.md": general(),
    }
