"""What the cells of each kind of table should hold, computed from the records.

A maker takes a row and gives, by the place of a column, the numbers that its cell should hold;
columns that it leaves out are not checked.
"""

import math
import re
from collections.abc import Callable, Sequence

from evidence import measures
from evidence.numbers import UNITS
from evidence.pages import Row
from evidence.records import RESULTS, Record, config, curves, last, methods, read

Cells = dict[int, list[float]]
Maker = Callable[[Row], Cells]

NAN = math.nan

# --- comparisons ----------------------------------------------------------------------------------


def measured(folder: str, label: str, header: str, cell: str = "") -> list[float] | None:
    """The numbers of one method's cell under a header of a comparison."""
    method = methods(folder)[label]
    losses = curves(folder, label)
    several = len(losses) > 1
    if header.startswith("rounds to"):
        loss = _loss_in(header, folder)
        taken = measures.rounds_to(losses, loss)
        between = several and not math.isnan(taken) and "[" in cell
        return [taken, *(measures.rounds_interval(losses, loss) if between else ())]
    if header.startswith("speedup"):
        taken = measures.times(folder, label)
        reference = measures.reference(folder)
        if label == reference or math.isnan(taken) or not several or "[" not in cell:
            return [taken]
        return [taken, *measures.speedup_interval(curves(folder, str(reference)), losses)]
    if header.startswith("time to"):
        unit = cell.split()[-1]
        return [measures.seconds(folder, label) / UNITS.get(unit, 1.0)]
    if header == "final train loss":
        mean, error = measures.final(losses)
        alone = math.isnan(mean) or error == 0 or (cell and "±" not in cell)
        return [mean] if alone else [mean, error]
    if header.startswith("test accuracy, rounds"):
        first, until = map(int, re.findall(r"\d+", header))
        return [100 * x for x in measures.span(folder, label, first, until)]
    if header in ("test accuracy", "test loss"):
        metric = header.removeprefix("test ")
        if metric not in method["heldout"]:
            return None
        return [(100 if metric == "accuracy" else 1) * measures.end(folder, label, metric)]
    if header.startswith("best "):
        found = re.fullmatch(r"best (?:test )?(\w+)(.*)", header)
        assert found
        if found[1] not in method["heldout"]:
            return None
        value, at = measures.best(folder, label, found[1])
        value = 100 * value if found[1] == "accuracy" else value
        return [value, at] if "(" in header or "(" in cell else [value]
    if header in ROUNDS_OF_BEST:
        return [measures.best(folder, label, ROUNDS_OF_BEST[header])[1]]
    if header in ("MB sent", "MB received"):
        return [measures.megabytes(folder, label, header.removeprefix("MB "))]
    if header == "diverged seeds":
        return [float(sum(method["diverged"]))]
    return None


ROUNDS_OF_BEST = {"in round": "loss", "its round": "accuracy"}


def _loss_in(header: str, folder: str) -> float:
    """The loss that a header names: the comparison's own target, where it rounds to it."""
    named = float(header.split()[-1])
    own = measures.target(folder)
    return own if abs(own - named) <= 5e-3 * named else named


def compared(folder: str = "", labels: dict[str, str] | None = None) -> Maker:
    """Rows are methods of a comparison: of one folder, or of the one that the heading names."""

    def make(row: Row) -> Cells:
        place = folder or row.heading
        label = (labels or {}).get(row.cells[0], row.name.removesuffix(" *"))
        found: Cells = {}
        for j, header in enumerate(row.headers[1:], start=1):
            values = measured(place, label, header, row.cells[j])
            if values is not None:
                found[j] = values
        return found

    return make


# --- experiments of the paper ---------------------------------------------------------------------

EXPERIMENTS = {  # by heading on the appendix page
    "Baselines with clipped workers (a control)": "fig-clipped",
    "Meta-training for the validation loss": "fig-validation",
    "The effect of the number of workers (K)": "fig-workers",
    "The effect of Ada features": "fig-ablation",
    "Learned optimizers with compressed messages": "fig-compress",
    "Meta-generalization to ResNet-50, a vision transformer and a decoder": "fig-large",
    "Rounds to a train loss of 0.2 (Table 2)": "table-rounds",
    "Speedup over local SGD, in distribution (Table 1)": "table-speedup",
}
PLAYS = "lm-bytes:file=text/tinyshakespeare.txt,context=32,hidden=32,heads=2,layers=2"
PANELS = {
    "Fashion-MNIST, 2-layer MLP": "fmnist-mlp2",
    "CIFAR-10, 2-layer MLP": "cifar10-mlp2",
    "CIFAR-10, CNN": "cifar10-cnn",
    "ImageNet at 32×32, 3-layer MLP": "imagenet32-mlp3",
    "Top-1": "top1",
    "Top-0.1": "top0.1",
    "Top-0.01": "top0.01",
    "MLP, K = 8": "fmnist-mlp2-k8",
    "MLP, K = 16": "fmnist-mlp2-k16",
    "MLP, K = 32": "fmnist-mlp2-k32",
    "H = 4": "h4",
    "H = 8": "h8",
    "H = 16": "h16",
    "ResNet-50": "resnet50",
    "ViT of DeiT-tiny's size": "vit",
    "Decoder, 12 layers": "lm",
    "Fashion-MNIST, 2-layer MLP, α = 100 (homogeneous)": "fmnist-mlp2-alpha100",
    "Fashion-MNIST, 2-layer MLP, α = 0.1 (heterogeneous)": "fmnist-mlp2-alpha0.1",
    "CIFAR-10, CNN, α = 100 (homogeneous)": "cifar10-cnn-alpha100",
    "CIFAR-10, CNN, α = 0.1 (heterogeneous)": "cifar10-cnn-alpha0.1",
    "ResNet-50 at 224×224": "resnet50-224",
    "ViT-B at 128×128": "vit-b-128",
    "digits-mlp, K = 8, H = 4, SGD": "small-digits",
    "digits-mlp, K = 3, H = 32, AdamW": "small-digits-adamw",
    "imagenet32-mlp2:half=second,pool=4,width=32, K = 5, H = 3, SGD": "small-mlp3",
    "imagenet32-mlp2:half=second,pool=4,width=32, K = 16, H = 1, AdamW": "small-mlp3-adamw",
    "cifar10-mlp4:pool=4,width=32, K = 3, H = 3, SGD": "small-mlp5",
    "cifar10-mlp4:pool=4,width=32, K = 5, H = 3, AdamW": "small-mlp5-adamw",
    "cifar10-mlp2:pool=4,width=320, K = 3, H = 3, SGD": "small-wide",
    "cifar10-cnn:pool=4,width=8, K = 3, H = 3, SGD": "small-cnn",
    "cifar10-cnn-bn:pool=4,width=8, K = 5, H = 3, SGD": "small-cnn-bn",
    "imagenet32-cnn:half=second,pool=4,width=8, K = 16, H = 1, SGD": "small-tiny-cnn",
    f"{PLAYS}, K = 4, H = 8, AdamW": "small-decoder",
    f"{PLAYS}, K = 3, H = 32, AdamW": "small-decoder-h32",
}
METRICS = {"speedup": "speedup", "rounds to 0.200": "rounds"}
AVERAGED = ("fmnist-mlp2", "cifar10-mlp2", "imagenet32-mlp3")  # the columns of the first table


def paper(folder: str, panel: str, label: str, metric: str) -> list[float]:
    """The paper's number, and its error where it gives one, as the experiment's record has it."""
    for row in last(folder, "experiment")["rows"]:
        if (row["panel"], row["label"], row["metric"]) == (panel, label, metric):
            numbers = [row["paper"], row["paper_error"]]
            return [NAN] if numbers[0] is None else [x for x in numbers if x is not None]
    raise KeyError((folder, panel, label, metric))


def ours(folder: str, panel: str, label: str, header: str) -> float:
    """Our number without its error; of the average, the mean over the columns that have one."""
    if panel == "average":
        each = [ours(folder, name, label, header) for name in AVERAGED]
        known = [x for x in each if not math.isnan(x)]
        return sum(known) / len(known) if known else NAN
    values = measured(f"{folder}/panels/{panel}", label, header)
    assert values is not None
    return values[0]


def experiment(folder: str) -> Maker:
    """Rows are methods of panels, with the paper's numbers and the differences beside."""

    def make(row: Row) -> Cells:
        title, label = row.cells[:2]
        panel = "average" if title.startswith("average") else PANELS[title]
        found: Cells = {}
        for j, header in enumerate(row.headers[2:], start=2):
            if not row.cells[j]:
                continue
            if header == "the paper" or header == "difference":
                before = row.headers[j - 1] if header == "the paper" else row.headers[j - 2]
                theirs = paper(folder, panel, label, METRICS[before])
                if header == "difference":
                    theirs = [ours(folder, panel, label, before) - theirs[0]]
                found[j] = theirs
            elif panel == "average":
                found[j] = [ours(folder, panel, label, header)]
            else:
                place = f"{folder}/panels/{panel}"
                values = measured(place, label, header, row.cells[j])
                if values is not None:
                    found[j] = values
        return found

    return make


def tuned(folder: str) -> Maker:
    """Rows are the sweeps that tuned an experiment's baselines."""
    names = {"Local SGD": "local-sgd", "SlowMo": "slowmo", "Adam": "adam"}
    names |= {"FedAdam": "fedadam", "DiLoCo": "diloco"}

    def make(row: Row) -> Cells:
        place = f"{folder}/sweeps/{PANELS[row.cells[0]]}-{names[row.cells[1]]}"
        points = [r for r in read(place) if r["kind"] == "point"]
        best = points_in_order(place)[0]
        bad = sum(any(point["diverged"]) for point in points)
        counts = [[len(points)], [bad], [config(place)["rounds"]]]
        values = [*counts, [*best["numbers"].values()], [best["minimum"]]]
        return {j: [float(x) for x in one] for j, one in enumerate(values, start=2)}

    return make


def across(folder: str, metric: str, columns: dict[str, str]) -> Maker:
    """Rows are methods, columns panels: our number and, in brackets, the paper's."""

    def make(row: Row) -> Cells:
        found: Cells = {}
        for j, header in enumerate(row.headers[1:], start=1):
            panel = columns[header]
            values = [ours(folder, panel, row.cells[0], metric)]
            if "±" in row.cells[j]:
                place = f"{folder}/panels/{panel}"
                values = list(measures.final(curves(place, row.cells[0])))
            elif "(" in row.cells[j]:
                values += paper(folder, panel, row.cells[0], METRICS[metric])[:1]
            found[j] = values
        return found

    return make


def overhead(folder: str, whole: bool) -> Maker:
    """Times of rounds: the whole table, or the overheads at each H with the paper's in brackets."""
    names = {"Local SGD": "local-sgd", "LOpt-A": "lopt-a", "LAgg-A": "lagg-a"}

    def make(row: Row) -> Cells:
        panel = PANELS[row.cells[0]]
        figures = last(f"{folder}/timings/{panel}", "timing")["figures"]
        kept = {(r["panel"], r["label"], r["H"]): r for r in last(folder, "experiment")["rows"]}
        if not whole:
            label = row.cells[1]
            found: Cells = {}
            for j, header in enumerate(row.headers[2:], start=2):
                H = int(header.split()[-1])
                own = figures[f"H={H} {names[label]}"]["overhead"]
                found[j] = [own, kept[panel, label, H]["paper_overhead"]]
            return found
        H, label = int(row.cells[1]), row.cells[2]
        own, theirs = figures[f"H={H} {names[label]}"], kept[panel, label, H]
        paper_overhead = theirs["paper_overhead"]
        parts = ("forward_backward_seconds", "optimizer_seconds", "seconds")  # of a local step
        values = [H * own[name] for name in parts]
        values += [theirs["paper"], own["overhead"], paper_overhead]
        values += [own["overhead"] - paper_overhead]
        return {1: [float(H)]} | {j: [value] for j, value in enumerate(values, start=3)}

    return make


# --- sweeps and meta-trainings --------------------------------------------------------------------


def points_in_order(folder: str) -> list[Record]:
    """A sweep's points, the best first; diverged ones, and those without the number, last."""
    by = last(folder, "ranking")["by"]

    def place(point: Record) -> tuple[bool, bool, float, float, int]:
        value = point["valid"].get("loss") if by == "valid" else point[by]
        lowest = math.inf if point["minimum"] is None else point["minimum"]
        return any(point["diverged"]), value is None, value or 0.0, lowest, point["index"]

    return sorted((r for r in read(folder) if r["kind"] == "point"), key=place)


def ranking(row: Row) -> Cells:
    """Rows are the best points of the sweep that the heading names."""
    place = int(row.cells[0])
    point = points_in_order(f"sweeps/{row.heading}")[place - 1]
    valid = point["valid"]
    known = {
        "rank": float(place),
        "lowest train loss": point["minimum"],
        "final train loss": point["final"],
        "valid loss": valid.get("loss"),
        "valid accuracy": 100 * valid["accuracy"] if "accuracy" in valid else None,
        "diverged seeds": float(sum(point["diverged"])),
        **point["numbers"],
    }
    if any(header.startswith("rounds to") for header in row.headers):
        known |= {h: point["rounds_to_target"] for h in row.headers if h.startswith("rounds to")}
    values = [known.get(header, "?") for header in row.headers]
    return {j: [NAN if x is None else float(x)] for j, x in enumerate(values) if x != "?"}


def meta_training(row: Row) -> Cells:
    """Rows are meta-trainings by their folders."""
    place = f"meta/{row.cells[0]}"
    settings, end = config(place), read(place)[-1]
    clip = settings.get("local_clip")
    done = end["kind"] == "summary"
    found = [settings["steps"] if done else end["end"], settings["pairs"], clip or NAN]
    found += [end["seconds"], *([end["best_step"], end["best_score"]] if done else [NAN, NAN])]
    return {j: [float(value)] for j, value in enumerate(found, start=2)}


def explored(row: Row) -> Cells:
    """Rows are the short meta-trainings that chose the recipe."""
    place = f"meta/explore-{row.cells[0]}"
    settings, judged = config(place), last(place, "judged")
    at = dict(zip(judged["at"], judged["losses"][0], strict=True))
    found = [settings[name] for name in ("gamma", "truncation", "steps", "ramp", "peak")]
    found += [judged["score"], at[100], at[1000]]
    return {j: [float(value)] for j, value in enumerate(found, start=1)}


# --- tables of single pages -----------------------------------------------------------------------


def before_memorised(folder: str) -> Maker:
    """Rounds to a loss that is named in the row, a column a method."""
    models = {"ResNet-50": "resnet50", "ViT": "vit", "decoder": "lm"}

    def make(row: Row) -> Cells:
        place = f"{folder}/panels/{models[row.cells[0]]}"
        loss = float(row.cells[1])
        losses = {j: curves(place, row.headers[j]) for j in range(2, len(row.headers))}
        return {1: [loss]} | {j: [measures.rounds_to(x, loss)] for j, x in losses.items()}

    return make


def shares(folder: str) -> Maker:
    """Final losses of whole steps, which were replaced, and of shorter ones."""
    models = {"ResNet-50": "resnet50", "ViT": "vit", "decoder": "lm"}

    def make(row: Row) -> Cells:
        place = f"{folder}/panels/{models[row.cells[0]]}"
        whole = measures.final(curves(place, row.cells[1], "replaced.jsonl"))[0]
        return {2: [whole], 4: [measures.final(curves(place, row.cells[1]))[0]]}

    return make


def compressed(folder: str) -> Maker:
    """Rounds and megabytes to 0.2, and the best test accuracy, by the share that is kept."""

    def make(row: Row) -> Cells:
        place = f"{folder}/panels/top{row.cells[0]}"
        label = row.cells[1]
        taken = measures.rounds(place, label, 0.2)
        accuracy, at = measures.best(place, label, "accuracy")
        sent = measures.megabytes(place, label, "sent", taken)
        values = [taken, sent, 100 * accuracy, at]
        return {0: [float(row.cells[0])]} | {j: [float(x)] for j, x in enumerate(values, start=2)}

    return make


def _setting(folder: str) -> list[float]:
    return [float(config(folder)[name]) for name in ("workers", "local_steps", "batch")]


def general_trained(row: Row) -> Cells:
    """Rounds of the general optimizer to where tuned SlowMo is at round 500."""
    place = f"general-{row.cells[0]}"
    general = curves(place, "lopt-a-general")
    loss = lambda label: float(measures.mean_curve(curves(place, label))[490])
    tuned, usual = loss(row.cells[4]), loss("slowmo:gamma=0.1,alpha=1,beta=0.9")
    values = [tuned, *(measures.rounds_to(general, x) for x in (tuned, usual))]
    where = dict(enumerate(([x] for x in _setting(place)), start=1))
    return where | {j: [x] for j, x in enumerate(values, start=5)}


def general_unseen(row: Row) -> Cells:
    """The general optimizer against SlowMo's last loss on tasks that it never saw."""
    place = f"general-{row.cells[0].removesuffix(', unseen')}"
    general = curves(place, "lopt-a-general")
    slowmo = float(measures.mean_curve(curves(place, "slowmo:gamma=0.1,alpha=1,beta=0.9"))[-1])
    own = float(measures.mean_curve(general)[-1])
    values = [*_setting(place), slowmo, measures.rounds_to(general, slowmo), own]
    return {j: [value] for j, value in enumerate(values, start=1)}


def federated(folder: str) -> Maker:
    """The best tuned baseline, FedLOpt as published and tuned, over a span of rounds."""

    def make(row: Row) -> Cells:
        place = f"{folder}/panels/{PANELS[row.cells[0]]}"
        first, until = map(int, row.cells[1].split("–"))
        spans = {label: measures.span(place, label, first, until) for label in methods(place)}
        learned = ("FedLOpt", "FedLOpt (tuned)")
        best = max((x for x in spans if x not in learned), key=lambda label: spans[label][0])
        assert row.cells[2].startswith(f"{best},"), f"the best baseline is {best}"
        shown = [spans[label] for label in (best, *learned)]
        return {j: [100 * x for x in one] for j, one in enumerate(shown, start=2)}

    return make


def federated_variants(folder: str) -> Maker:
    """What else was tried with FedLOpt: the published one, or a method of the variants' records."""

    def make(row: Row) -> Cells:
        task, alpha, label = row.cells[:3]
        panel = f"{task}-alpha{alpha}"
        tried = sorted(RESULTS.glob(f"federated-variants/{panel}*"))
        places = [path.relative_to(RESULTS).as_posix() for path in tried]
        if label == "as published":
            places, label = [f"{folder}/panels/{panel}"], "FedLOpt"
        # 0.1 begins no other α's name
        place = next(x for x in places if label in methods(x) and x.split("/")[-1] != panel + "0")
        found: Cells = {1: [float(alpha)]}
        for j, header in enumerate(row.headers[3:], start=3):
            first, until = map(int, header.split("–"))
            found[j] = [100 * x for x in measures.span(place, label, first, until)]
        return found

    return make


def listed(values: Sequence[Sequence[float]]) -> Maker:
    """A table whose cells after the first are given row by row."""
    rows = iter(values)
    return lambda row: {j: [value] for j, value in enumerate(next(rows), start=1)}


def known_folder(name: str) -> bool:
    """Whether a heading names a folder of records."""
    return any((RESULTS / name).glob("records.jsonl*"))
