"""Curves out of a comparison's records, for tests of what docs and cards say of them."""

from pathlib import Path
from typing import Any

import numpy as np

from laconic.store.runlog import read


def method_of(folder: Path, label: str) -> dict[str, Any]:
    """The record of one method."""
    return next(r for r in read(folder / "records.jsonl") if r["kind"] == "method" and r["label"] == label)


def train_losses(folder: Path, label: str) -> np.ndarray:
    """[seeds, rounds]"""
    return np.asarray(method_of(folder, label)["train"], float)


def mean_curve(folder: Path, label: str) -> np.ndarray:
    """The mean over seeds of a method's train loss, 10-round trailing mean; entry i is after round i + 10."""
    return np.convolve(train_losses(folder, label).mean(axis=0), np.full(10, 0.1), "valid")
