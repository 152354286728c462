"""What the docs tell of the curves behind the paper's experiments is what the records say."""

from pathlib import Path

import numpy as np
import pytest

from laconic.store.runlog import read

ROOT = Path(__file__).parents[1]
WORDS = " ".join((ROOT / "docs" / "results.md").read_text().split())  # lines end anywhere
LEARNED = ("LOpt-A", "LAgg-A")


def _method(panel: str, label: str) -> dict:
    records = read(ROOT / "results" / "reproduce" / panel / "records.jsonl")
    return next(r for r in records if r["kind"] == "method" and r["label"] == label)


def _losses(panel: str, label: str) -> np.ndarray:
    """[seeds, rounds]"""
    return np.asarray(_method(panel, label)["train"], float)


def _mean_curve(panel: str, label: str) -> np.ndarray:
    """The mean over seeds, 10-round trailing mean; entry i is after round i + 10."""
    return np.convolve(_losses(panel, label).mean(axis=0), np.full(10, 0.1), "valid")


def _rounds(panel: str, label: str, target: float) -> int:
    return int(np.flatnonzero(_mean_curve(panel, label) <= target)[0]) + 10


def test_how_the_optimizers_of_16_local_steps_do_at_4():
    panel = "fig-h-transfer-full/panels/h4"
    lopt, lagg = (_rounds(panel, f"{label} (trained at H = 16)", 0.2) for label in LEARNED)
    assert f"they need {lagg} and {lopt} rounds to 0.2, SlowMo {_rounds(panel, 'SlowMo', 0.2)}" in WORDS


@pytest.mark.parametrize("label", ["LOpt", "LAgg"])
def test_when_those_without_accumulators_are_lowest(label):
    curve = _mean_curve("fig-ablation-full/panels/fmnist-mlp2", label)
    assert f"lowest, {curve.min():.3f}, in round {curve.argmin() + 10} and" in WORDS
    assert f"to {curve[-1]:.3f}" in WORDS or f"at {curve[-1]:.3f}" in WORDS


def test_the_worst_round_at_any_number_of_local_steps():
    worst = {
        (H, label): _losses(f"table-rounds-full/panels/h{H}", label)[:, 300:].max()
        for H in (4, 8, 16)
        for label in LEARNED
    }
    H, label = max(worst, key=lambda key: worst[key])
    assert f"worst single round is {worst[H, label]:.2f} ({label} at H = {H})" in WORDS
