"""Curves and numbers out of records, for tests of what docs and cards say of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from laconic.store.records import read

ROOT = Path(__file__).parents[1]
SITE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLISHED = "\n".join(path.read_text() for path in SITE)
WORDS = " ".join(PUBLISHED.split())  # the same on one line: sentences may break anywhere


def method_of(folder: Path, label: str) -> dict[str, Any]:
    """The record of one method."""
    return next(
        r for r in read(folder / "records.jsonl") if r["kind"] == "method" and r["label"] == label
    )


def train_losses(folder: Path, label: str) -> np.ndarray:
    """[seeds, rounds]"""
    return np.asarray(method_of(folder, label)["train"], float)


def mean_curve(folder: Path, label: str) -> np.ndarray:
    """The mean over seeds of a method's train loss, 10-round trailing mean; entry i is after round
    i + 10."""
    return np.convolve(train_losses(folder, label).mean(axis=0), np.full(10, 0.1), "valid")


def rounds_to(folder: Path, label: str, target: float) -> int | None:
    """The round after which that curve is first at the target or below; None if it never is."""
    reached = np.flatnonzero(mean_curve(folder, label) <= target)
    return int(reached[0]) + 10 if len(reached) else None


def peak(method: dict[str, Any]) -> tuple[float, int]:
    """The best mean over seeds of a method's test accuracy, and the round it is in."""
    curve = np.mean(np.asarray(method["heldout"]["accuracy"], float), axis=0)
    return float(curve.max()), method["evaluated_at"][int(curve.argmax())]


def benchmark(name: str) -> dict[str, Any]:
    """The record of a benchmark, by its file's name."""
    return json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_text())


def numbers_of(spec: str) -> dict[str, float]:
    """The options of a method without its label."""
    options = dict(item.split("=") for item in spec.partition(":")[2].split(","))
    return {key: float(value) for key, value in options.items() if key != "label"}
