"""Which records each table of each page is made of, in the order in which tables stand there."""

from collections.abc import Sequence

from evidence import contests, faults, tables
from evidence.pages import Row
from evidence.records import benchmark
from evidence.tables import Cells, Maker

Made = list[Maker] | Maker  # of each table of a page in order, or of all

DONE = ("table-speedup", "table-rounds", "table-overhead", "fig-ablation", "fig-compress")
LATER = ("fig-validation", "fig-clipped", "fig-workers")
REPRODUCED = {
    name: f"reproduce/{name}-full"
    for name in (*DONE, "fig-federated", "fig-h-transfer", "fig-large", *LATER)
}
SUITE = "One optimizer, tuned nowhere, on tasks it never saw"
SLOWMO = "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8"
README = {
    "local SGD, γ = 0.3": "local-sgd:gamma=0.3",
    "synchronous Adam, batch 4096": "adam:alpha=0.005",
    "SlowMo, 0.3 / 1.67 / 0.8 (best of 487 settings)": SLOWMO,
    "LOpt-A (lopt-a-fmnist)": "lopt-a-fmnist",
    "LAgg-A (lagg-a-fmnist)": "lagg-a-fmnist",
    "local SGD": "local-sgd:gamma=0.3",
    "Adam": "adam:alpha=0.005",
    "SlowMo": SLOWMO,
    "LOpt-A": "lopt-a-fmnist",
    "LAgg-A": "lagg-a-fmnist",
}
SPEEDUPS = {
    "Fashion-MNIST, MLP": "fmnist-mlp2",
    "CIFAR-10, MLP": "cifar10-mlp2",
    "Tiny-ImageNet, MLP": "imagenet32-mlp3",
    "average of these three": "average",
    "CIFAR-10, CNN": "cifar10-cnn",
}
LARGE = {"ResNet-50": "resnet50", "ViT": "vit", "decoder": "lm"}
PLACES = {
    "table-speedup": ("fmnist-mlp2", "cifar10-mlp2", "imagenet32-mlp3", "cifar10-cnn"),
    "table-rounds": ("h4", "h8", "h16"),
    "fig-large": ("resnet50", "vit", "lm"),
}
STEPS = {"H = 4": "h4", "H = 8": "h8", "H = 16": "h16"}


def _speed_of_rounds() -> Sequence[Sequence[float]]:
    cpu, gpu = benchmark("round-cpu"), benchmark("round-h200")
    keys = ("simulator_steps_per_second", "bare_steps_per_second", "round_ratio")
    keys += ("server_step_seconds", "textbook_seconds")
    nan = float("nan")
    rows = [[cpu.get(key, nan), gpu.get(key, nan)] for key in keys]
    rows += [[cpu[key], nan] for key in ("adamw_seconds", "ratio_to_adamw")]
    rows += [[cpu["textbook_ratio_to_adamw"], nan]]
    last = ("server_step_speedup", "temporary_bytes_per_parameter")
    last += ("textbook_temporary_bytes_per_parameter",)
    return rows + [[cpu.get(key, nan), gpu.get(key, nan)] for key in last]


def _engine(row: Row) -> Cells:
    name = row.cells[0].split(",")[0].split(":")[0].split(" = ")[0]
    name = {"outer step": "outer", "gather": "gather"}.get(name, name)
    found: Cells = {}
    for j, workers in enumerate("24", start=1):
        figures = benchmark("engine-round-cpu")["workers"][workers]
        found[j] = [figures["median_ms"][name], figures["best_tenth_ms"][name]]
    return found


def _federated_speed() -> Sequence[Sequence[float]]:
    figures = benchmark("federated-h200")
    names = ("fedavg", "fedlopt")
    rows = [[figures[f"{x}_rounds_per_second"], figures[f"{x}_ratio"]] for x in names]
    bare = figures["fedavg_rounds_per_second"] / figures["fedavg_ratio"]
    return [*rows, [figures.get("bare_rounds_per_second", bare), 1.0]]


def _meta_speed() -> Sequence[Sequence[float]]:
    figures = benchmark("meta-train-h200")["figures"]
    keys = ("rounds_per_second", "outer_step_seconds")
    return [[figures[name][key] for key in keys] for name in ("lopt-a", "lagg-a")]


def _appendix(row: Row) -> Cells:
    """A grid or a comparison of the appendix, by its heading."""
    if row.headers[0] == "rank":
        return tables.ranking(row)
    return tables.compared()(row)


def _experiments(row: Row) -> Cells:
    name = tables.EXPERIMENTS.get(row.heading)
    if row.heading == SUITE:
        if "best rival" in row.headers:
            return contests.scores(row)
        found = contests.tuned if "points" in row.headers else tables.experiment(contests.SUITE)
        return found(row)
    if "model" in row.headers:
        return tables.overhead(REPRODUCED["table-overhead"], whole=True)(row)
    if "points" in row.headers:
        return tables.tuned(REPRODUCED[name or "fig-large"])(row)
    if name is None:
        name = "fig-federated" if "rounds 181" in row.headers[2] else "fig-h-transfer"
    return tables.experiment(REPRODUCED[name])(row)


def _beside(row: Row) -> Cells:
    """Our number with its interval and the paper's, of a panel named before the colon."""
    title, _, metric = row.cells[0].rpartition(": ")
    panel = tables.PANELS[title]
    name = next(x for x in ("table-speedup", "table-rounds", "fig-large") if panel in PLACES[x])
    header = "rounds to 0.200" if metric.startswith("rounds") else "speedup"
    place = f"{REPRODUCED[name]}/panels/{panel}"
    own = tables.measured(place, row.cells[1], header, row.cells[2])
    assert own is not None
    theirs = tables.paper(REPRODUCED[name], panel, row.cells[1], tables.METRICS[header])
    return {2: own, 3: theirs}


def sources() -> dict[str, Made]:
    """The makers of each page's tables; one maker alone is of all of them. The numbers
    of a table without one count as not covered."""
    learned = tables.compared("fmnist-fresh", README)
    return {
        "README.md": [learned],
        "docs/index.md": [learned],
        "docs/results/fashion-mnist.md": [
            tables.compared("fmnist-learned"),
            tables.compared("fmnist-fresh"),
        ],
        "docs/results/clipped.md": [
            tables.across(REPRODUCED["fig-clipped"], "rounds to 0.200", STEPS),
            tables.across(REPRODUCED["fig-clipped"], "final train loss", STEPS),
        ],
        "docs/results/validation.md": [
            tables.compared("fmnist-valid"),
            tables.compared(f"{REPRODUCED['fig-validation']}/panels/fmnist-mlp2"),
        ],
        "docs/results/workers.md": [tables.experiment(REPRODUCED["fig-workers"])],
        "docs/results/not-reproduced.md": [lambda row: {}, _beside],
        "docs/results/speedup.md": [
            tables.across(REPRODUCED["table-speedup"], "speedup", SPEEDUPS)
        ],
        "docs/results/local-steps.md": [
            tables.across(REPRODUCED["table-rounds"], "rounds to 0.200", STEPS),
            tables.experiment(REPRODUCED["fig-h-transfer"]),
        ],
        "docs/results/ablation.md": [tables.experiment(REPRODUCED["fig-ablation"])],
        "docs/results/compression.md": [
            tables.experiment(REPRODUCED["fig-compress"]),
            tables.compressed(REPRODUCED["fig-compress"]),
            tables.compared("fmnist-compress"),
        ],
        "docs/results/missing-workers.md": [
            tables.compared(f"missing-workers/{missing}") for missing in range(3)
        ],
        "docs/results/general.md": [
            tables.general_trained,
            tables.compared("general-lm-bytes"),
            tables.general_unseen,
        ],
        "docs/results/large-models.md": [
            tables.across(REPRODUCED["fig-large"], "speedup", LARGE),
            tables.before_memorised(REPRODUCED["fig-large"]),
            tables.shares(REPRODUCED["fig-large"]),
            tables.compared("vit-small-scale"),
        ],
        "docs/results/overhead.md": [tables.overhead(REPRODUCED["table-overhead"], whole=False)],
        "docs/results/federated.md": [
            tables.federated(REPRODUCED["fig-federated"]),
            tables.federated_variants(REPRODUCED["fig-federated"]),
        ],
        "docs/results/campaign.md": faults.tables(),
        "docs/suite.md": [
            contests.settings(),
            contests.row_of_the_page,
            tables.compared("digits-lopt-r"),
        ],
        "docs/results/meta-training.md": [tables.explored],
        "docs/results/small-tasks.md": [
            tables.compared(folder)
            for folder in ("digits-tuned", "digits-learned", "digits-rivals", "lm-bytes")
        ],
        "docs/results/speed.md": [
            tables.listed(_speed_of_rounds()),
            _engine,
            lambda row: {},  # bytes, CPU and memory of an exchange in pieces
            tables.listed(_federated_speed()),
            tables.listed(_meta_speed()),
        ],
        "docs/results/appendix-comparisons.md": _appendix,
        "docs/results/appendix-general.md": _appendix,
        "docs/results/appendix-grids.md": _appendix,
        "docs/results/appendix-federated.md": _appendix,
        "docs/results/appendix-experiments.md": _experiments,
        "docs/results/appendix-meta-training.md": tables.meta_training,
    }
