"""The learning curve of meta-training, drawn from its records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def history(records: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Meta-loss and gradient norm of every outer step, [steps, tasks]; what was written again counts last."""
    progress = [r for r in records if r["kind"] == "progress"]
    steps = max((r["end"] for r in progress), default=0)
    tasks = len(progress[0]["loss"][0]) if progress else 1
    loss, norm = np.full((steps, tasks), np.nan), np.full((steps, tasks), np.nan)
    for r in progress:
        loss[r["begin"] : r["end"]] = np.asarray(r["loss"], float)
        norm[r["begin"] : r["end"]] = np.asarray(r["norm"], float)
    return loss, norm


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean over at most `window` steps."""
    sums = np.cumsum(np.nan_to_num(values), axis=0)
    sums[window:] -= sums[:-window].copy() if window < len(sums) else 0
    return sums / np.minimum(np.arange(1, len(values) + 1), window)[:, None]


def learning_curve(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Meta-loss (each task, and φ judged on held-out seeds) above the gradient norm, as a PNG."""
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
    judged = [r for r in records if r["kind"] == "judged"]
    if judged:
        upper.plot(
            [r["step"] for r in judged],
            [np.mean(r["final_losses"]) for r in judged],
            "k.--",
            lw=0.8,
            label="end of a whole run, held-out seeds",
        )
    upper.set(ylabel="meta-loss", yscale="log", title=f"meta-training {config['architecture']}")
    lower.set(xlabel="outer step", ylabel="gradient norm", yscale="log")
    upper.legend(fontsize=8)
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
