"""Meta-training for people, made only from its records.

- `history`, `smooth`: meta-loss and gradient norm of every outer step.
- `write_learning_curve`: learning-curve.png. `panels`, `facts`, `blocks`: what a page shows.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from laconic.show import figures
from laconic.show import page as html
from laconic.show.comparison import sizes_of
from laconic.show.curves import Curve, Panel, Record, of_kind, plain_curve, style
from laconic.show.table import MISSING, count, duration, number
from laconic.store import atomic

LOSS_SHARE = "mean loss ÷ ln of the classes"
WINDOW = 50  # outer steps that the meta-loss is averaged over
FEW = 4  # tasks with curves of their own; those of more would cover each other
NOTE = (
    "One run of meta-training. The band of the meta-loss is ± the standard deviation over the "
    "steps it is the mean of, or over tasks, where these are too many for curves of their own; of "
    "held-out seeds only the mean is on record."
)


def history(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Meta-loss and gradient norm of every outer step, [steps, tasks]; the last written counts."""
    progress = of_kind(records, "progress")
    steps = max((r["end"] for r in progress), default=0)
    tasks = len(progress[0]["loss"][0]) if progress else 1
    loss = np.full((steps, tasks), np.nan)
    norm = np.full((steps, tasks), np.nan)
    for r in progress:
        loss[r["begin"] : r["end"]] = np.asarray(r["loss"], float)
        norm[r["begin"] : r["end"]] = np.asarray(r["norm"], float)
    return loss, norm


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean over the known ones of at most `window` steps; NaN where none is known."""
    known = ~np.isnan(values)
    totals = np.cumsum(np.where(known, values, 0), axis=0)
    counts = np.cumsum(known, axis=0)
    for sums in (totals, counts):
        sums[window:] -= sums[:-window].copy()
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def write_learning_curve(records: Sequence[Record], path: Path) -> None:
    """All panels as a PNG, each with its own legend."""
    keys = [tuple((c.style, c.label) for c in panel.curves) for panel in panels(records)]
    shown = [replace(p, key=key) for p, key in zip(panels(records), keys, strict=True)]
    title = f"meta-training {records[0]['config']['architecture']}"
    atomic.write_bytes(path, figures.png_bytes(figures.grid_figure(shown, title=title, columns=2)))


# --- a page ---------------------------------------------------------------------------------------


def blocks(records: Sequence[Record]) -> list[html.Block]:
    """What a page shows of a meta-training."""
    return [html.Facts(facts(records)), html.Text(NOTE, "muted"), html.Panels(panels(records))]


def facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The settings that matter, and what came out."""
    config = records[0]["config"]
    end = of_kind(records, "summary")[-1]
    _, norms = history(records)
    known = norms[np.isfinite(norms)]
    norm = number(float(np.median(known[-WINDOW:]))) if known.size else MISSING
    truncation = f"{config['pairs']} pairs, truncation {config['truncation']} rounds"
    lengths = f"{config['shortest']} to {config['longest']} rounds"
    best = f"{number(end['best_score'])} at step {count(end['best_step'])}"
    speed = f"{number(end['rounds_per_second'])} rounds a second"
    return [
        ("architecture", config["architecture"]),
        ("tasks", ", ".join(config["tasks"])),
        ("workers, local steps, batch", sizes_of(config)),
        ("local learning rate", f"{config['gamma']:g}"),
        ("estimator", f"{config['estimator']}, {truncation}"),
        ("run length", f"{lengths}, ramp {count(config['ramp'])} steps"),
        ("learning rate", f"{config['peak']:g} → {config['last']:g}"),
        ("outer steps", count(end["steps"])),
        ("best score", f"{best} ({score_words(config)})"),
        ("gradient norm at the end", norm),
        ("speed", f"{speed}, {duration(end['seconds'])}"),
    ]


def score_words(config: Record) -> str:
    """What a score is; records older than drawn settings have no spread."""
    if _drawn(config):
        return "mean log loss on held-out seeds − the same of the nominal step"
    return "mean loss on held-out seeds ÷ ln of the classes"


def _drawn(config: Record) -> bool:
    tasks = [*config["tasks"], *config.get("judge_tasks", ())]
    return bool(config.get("spread")) or any("spread=" in task for task in tasks)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Meta-loss, gradient norm and score over outer steps; whole runs on held-out seeds."""
    losses, norms = history(records)
    mean = smooth(losses, WINDOW)
    spread = np.sqrt(np.maximum(smooth(losses**2, WINDOW) - mean**2, 0))
    steps = "outer steps"
    under_way = "Meta-loss of the runs under way", steps, f"meta-loss (trailing {WINDOW}-step mean)"
    norm = "Gradient norm", steps, f"gradient norm ({WINDOW}-step mean)"
    drawn = _drawn(records[0]["config"])
    in_score, of_runs = ("log loss − nominal", "meta-loss") if drawn else (LOSS_SHARE, "train loss")
    score = "Score on held-out seeds", steps, in_score
    whole = "Whole runs on held-out seeds", "communication rounds", f"{of_runs} (10-round mean)"
    found = [
        Panel("meta-loss", *under_way, _of_tasks(records, mean, spread)),
        Panel("norm", *norm, _of_tasks(records, smooth(norms, WINDOW)), ceiling=False),
        Panel("score", *score, _scores(records)),
        Panel("heldout", *whole, _heldout(records), log_x=True),
    ]
    return [panel for panel in found if panel.curves]


def _of_tasks(
    records: Sequence[Record], values: np.ndarray, spread: np.ndarray | None = None
) -> tuple[Curve, ...]:
    """A curve for each task, from its column of `values`; of many tasks their mean, with the
    standard deviation over tasks as its band."""
    if not values.size:
        return ()
    steps = np.arange(1, len(values) + 1)
    tasks = records[0]["config"]["tasks"]
    if len(tasks) > FEW:
        mean, error = np.nanmean(values, axis=1), np.nanstd(values, axis=1)
        return (plain_curve(f"mean of {len(tasks)} tasks", style(0), steps, mean, error),)
    errors = np.zeros_like(values) if spread is None else spread
    columns = zip(tasks, values.T, errors.T, strict=True)
    return tuple(plain_curve(t, style(i), steps, y, e) for i, (t, y, e) in enumerate(columns))


def _scores(records: Sequence[Record]) -> tuple[Curve, ...]:
    curves = []
    for i, (which, label) in enumerate((("theta", "φ"), ("average", "running average of φ"))):
        rows = {r["step"]: r["score"] for r in of_kind(records, "judged") if r["which"] == which}
        if len(rows) > 1:
            curves.append(plain_curve(label, style(i), list(rows), list(rows.values())))
    return tuple(curves)


def _heldout(records: Sequence[Record]) -> tuple[Curve, ...]:
    """The first evaluation and the best one; one curve if they are the same."""
    judged = of_kind(records, "judged")
    first = [r for r in judged if r["which"] == "theta"][:1]
    best = [r for r in judged if r["best"]][-1:]
    shown = [(f"step {count(r['step'])}", r) for r in first if r not in best]
    shown += [(f"best, step {count(r['step'])}", r) for r in best]
    config = records[0]["config"]
    tasks = config.get("judge_tasks") or config["tasks"]
    curves: list[Curve] = []
    for words, row in shown:
        for task, losses in zip(tasks, row["losses"], strict=True):
            label = words if len(tasks) == 1 else f"{task}, {words}"
            curves.append(plain_curve(label, style(len(curves)), row["at"], losses))
    return tuple(curves)
