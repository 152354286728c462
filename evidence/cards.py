"""The cards of published optimizers against the records that they name."""

import math
import re
from collections.abc import Callable
from pathlib import Path

from evidence import chains, measures
from evidence.records import Record, cards, config, curves, last, methods

REFERENCES = {
    **{"local-sgd:gamma=0.3": "tuned local SGD", "Local SGD": "tuned local SGD"},
    **{"local-sgd:gamma=0.1": "local SGD", "local-sgd": "local SGD"},
}
LABELS = {"lopt-a": "LOpt-A", "lagg-a": "LAgg-A", "lopt": "LOpt", "lagg": "LAgg"}


def check() -> tuple[list[str], tuple[int, int]]:
    """Mismatches, and how many of the cards' results were checked."""
    wrong: list[str] = []
    known = told = 0
    for name, card in cards().items():
        for result in card["results"]:
            told += 1
            folder = Path(result["record"]).parent.as_posix()
            value = _value(folder, label_of(name, card, folder), result["metric"])
            if value is None:
                continue
            known += 1
            if not _same(result["value"], value):
                said = f"says {result['value']}, the records give {value:.6g}"
                wrong.append(f"the card of {name}: {folder}: {result['metric']}: {said}")
        for what, number, value in (*_said(name, card), *_by_goal(name, card), *_chain(name, card)):
            told += 1
            known += 1
            if number != value:
                wrong.append(f"the card of {name}: {what} is {value} by the records, not {number}")
    return wrong, (known, told)


def label_of(name: str, card: Record, folder: str) -> str:
    """What a comparison calls a published optimizer."""
    if "reproduce" not in folder:
        return name
    if name == "lopt-a-general":
        return "LOpt-A (general)"
    label = "FedLOpt" if name.startswith("fedlopt") else LABELS[card["architecture"]]
    trained_elsewhere = "fig-h-transfer" in folder and name.endswith("-h16")
    return f"{label} (trained at H = 16)" if trained_elsewhere else label


def _value(folder: str, label: str, metric: str) -> float | None:
    """The number that a card's metric stands for; None where it is not known here."""
    if metric.startswith("rounds to train loss"):
        return measures.rounds(folder, label)
    if metric.startswith("speedup over"):
        return measures.times(folder, label)
    if metric == "final train loss":
        return measures.final(curves(folder, label))[0]
    if metric == "seeds that diverged":
        return float(sum(methods(folder)[label]["diverged"]))
    best = re.fullmatch(r"(?:best|lowest) test (accuracy|loss) over rounds", metric)
    if best and best[1] in methods(folder)[label]["heldout"]:
        return measures.best(folder, label, best[1])[0]
    return None


def _same(kept: float | None, value: float) -> bool:
    """A card keeps four digits."""
    if kept is None or math.isnan(value):
        return kept is None and math.isnan(value)
    return abs(kept - value) <= 0.51 * 10.0 ** (math.floor(math.log10(abs(value) or 1)) - 3)


Said = tuple[str, str, str]  # what, as the card has it, as the records have it


def _folder_of(card: Record) -> str:
    return Path(card["results"][0]["record"]).parent.as_posix() if card["results"] else ""


def _said(name: str, card: Record) -> list[Said]:
    """Where a card says that test accuracy peaks on its own task, and where it does."""
    words = " ".join(card["limits"])
    folder = _folder_of(card)
    peak: Callable[[], int] = lambda: measures.best(
        folder, label_of(name, card, folder), "accuracy"
    )[1]
    found = re.findall(r"peaks at round (\d+) on its own task", words)
    return [("the peak of test accuracy", number, str(peak())) for number in found]


def _by_goal(name: str, card: Record) -> list[Said]:
    """When to stop for the best test loss, what it is there, and the reference's."""
    pattern = r"best test loss stop at round (\d+) on [\w-]+, where it is ([\d.]+)"
    words = " ".join(card["limits"])
    if name.endswith("-valid"):
        return _for_test_loss(name, words)
    found = re.search(rf"{pattern}(?:; [^;]*?'s best is ([\d.]+))?\.", words)
    if found is None:
        return []
    folder = _folder_of(card)
    value, at = measures.best(folder, label_of(name, card, folder), "loss")
    said = [("the round of the best test loss", found[1], str(at))]
    said += [("the best test loss", found[2], f"{value:.3g}")]
    if found[3]:
        best = measures.best(folder, str(measures.reference(folder)), "loss")[0]
        said += [("the reference's best test loss", found[3], f"{best:.3g}")]
    return said


def _for_test_loss(name: str, words: str) -> list[Said]:
    """What one that was made for test loss reaches with the options that its card names, and the
    tuned local SGD beside it."""
    pattern = r"use it with ([\w.=,]+): ([\d.]+) in round (\d+), where local SGD tuned in the same "
    found = re.search(rf"{pattern}way is at its best, ([\d.]+), in round (\d+);", words)
    if found is None:
        return [("its recommendation", "missing", "there")]
    label = "LOpt-A (tuned)" if name.startswith("lopt") else "LAgg-A (tuned)"
    best = last(f"sweeps/fmnist-{name.replace('-fmnist', '')}", "ranking")
    ours, there = measures.best("fmnist-valid", label, "loss")
    theirs, then = measures.best("fmnist-valid", "Local SGD", "loss")
    return [
        ("the best of its sweep", f"gamma=0.3,{found[1]}", best["best"].rpartition(":")[2]),
        ("its best test loss", found[2], f"{ours:.3f}"),
        ("the round of it", found[3], str(there)),
        ("local SGD's best test loss", found[4], f"{theirs:.3f}"),
        ("the round of that", found[5], str(then)),
    ]


def _chain(name: str, card: Record) -> list[Said]:
    """Outer steps of the whole chain, and of its last link."""
    steps = chains.steps(name)
    said = [("the number of outer steps", str(card["outer_steps"]), str(sum(steps)))]
    words = r"a chain of (\d+) meta-trainings, of which the last gave ([\d,]+) steps"
    found = re.search(words, " ".join(card["limits"]))
    if found or len(steps) > 1:
        told = found.groups() if found else ("none", "none")
        said += [("the chain's length", told[0], str(len(steps)))]
        said += [("the last link's steps", told[1], f"{steps[-1]:,}")]
    return said


def seeds_of(folder: str) -> range:
    """The seeds of a comparison."""
    first = config(folder).get("first_seed", 0)
    return range(first, first + config(folder)["seeds"])
