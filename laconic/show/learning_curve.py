"""The learning curve of meta-training, drawn from its records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def history(records: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Meta-loss and gradient norm of every outer step, [steps, tasks]; what was written again
    counts last."""
    progress = [r for r in records if r["kind"] == "progress"]
    steps = max((r["end"] for r in progress), default=0)
    tasks = len(progress[0]["loss"][0]) if progress else 1
    loss, norm = np.full((steps, tasks), np.nan), np.full((steps, tasks), np.nan)
    for r in progress:
        loss[r["begin"] : r["end"]] = np.asarray(r["loss"], float)
        norm[r["begin"] : r["end"]] = np.asarray(r["norm"], float)
    return loss, norm


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean over at most `window` steps, of those that are known; NaN where none is."""
    known = ~np.isnan(values)
    totals, counts = np.cumsum(np.where(known, values, 0), axis=0), np.cumsum(known, axis=0)
    for sums in (totals, counts):
        sums[window:] -= sums[:-window].copy()
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def learning_curve(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Meta-loss (each task, and φ judged on held-out seeds) above the gradient norm, as a PNG."""
    from matplotlib.figure import Figure  # slow to import, and most of laconic draws nothing

    loss, norm = history(records)
    config = records[0]["config"]
    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    steps = np.arange(1, len(loss) + 1)
    for i, task in enumerate(config["tasks"]):
        colour = f"C{i}"
        upper.plot(steps, loss[:, i], color=colour, alpha=0.2, lw=0.5)
        upper.plot(steps, smooth(loss, 50)[:, i], color=colour, label=task)
        lower.plot(steps, smooth(norm, 50)[:, i], color=colour)
    for which, style, label in (("theta", "k.--", "φ"), ("average", "k.:", "φ averaged")):
        rows = [r for r in records if r["kind"] == "judged" and r["which"] == which]
        final = {r["step"]: np.mean(r["final_losses"]) for r in rows}
        if final:
            label = f"{label}: end of a whole run, held-out seeds"
            upper.plot(list(final), list(final.values()), style, lw=0.8, label=label)
    upper.set(ylabel="meta-loss", yscale="log", title=f"meta-training {config['architecture']}")
    lower.set(xlabel="outer step", ylabel="gradient norm", yscale="log")
    upper.legend(fontsize=8)
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
