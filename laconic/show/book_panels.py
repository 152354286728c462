"""What a report of everything shows of meta-training and of benchmarks, as numbers from their
records."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from laconic.show.learning_curve import history, smooth
from laconic.show.panels import COLOURS, DASHES, MARKERS, Curve, Panel, Record, Style, of_kind
from laconic.show.ranking import RULES
from laconic.show.summary import MISSING, count, duration, number
from laconic.show.sweep_report import meaning

WINDOW = 50  # outer steps that the meta-loss is averaged over
ABOUT = (
    "benchmark",
    "command",
    "commit",
    "dirty",
    "versions",
    "device",
    "host_cpus",
    "started",
    "provenance",
)


def meta_panels(records: Sequence[Record]) -> list[Panel]:
    """Meta-loss and score over outer steps, and the loss of whole runs on held-out seeds over
    rounds."""
    found = [_meta_loss(records), _score(records), _heldout(records)]
    return [panel for panel in found if panel is not None]


def sweep_panel(records: Sequence[Record]) -> Panel | None:
    """What a sweep of one hyper-parameter ranks its points by; None for any other sweep. Diverged
    points are left out.

    A record keeps no spread over seeds, so there is no band, and the legend says what a point is
    the mean of.
    """
    points, ranking = of_kind(records, "point"), of_kind(records, "ranking")[-1]
    names, value = list(points[0]["numbers"]), RULES[ranking["by"]]
    if len(names) != 1:
        return None
    points = sorted(points, key=lambda point: point["numbers"][names[0]])
    y = np.array([None if any(p["diverged"]) else value(p) for p in points], float)  # None is NaN
    seeds, bad = len(points[0]["seeds"]), int(np.isnan(y).sum())
    label = (
        f"{records[0]['config']['method']}, "
        f"{'one seed' if seeds == 1 else f'mean over {seeds} seeds'}"
    )
    label += f" ({bad} diverged or never there: not drawn)" if bad else ""
    curve = replace(
        _curve(label, 0, [p["numbers"][names[0]] for p in points], y),
        style=Style(COLOURS[0], (), "o"),
    )
    what = meaning(ranking).replace("trailing 10", "10")  # or it is longer than its axis
    return Panel("sweep", "Every point of the grid", names[0], what, (curve,), log_x=True)


def meta_facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The settings that matter, and what came out."""
    config, end = records[0]["config"], of_kind(records, "summary")[-1]
    _, norms = history(records)
    known = norms[np.isfinite(norms)]
    return [
        ("architecture", config["architecture"]),
        ("tasks", ", ".join(config["tasks"])),
        (
            "workers, local steps, batch",
            f"K = {config['workers']}, H = {config['local_steps']}, B = {config['batch']}",
        ),
        ("local learning rate", f"{config['gamma']:g}"),
        (
            "estimator",
            f"{config['estimator']}, {config['pairs']} pairs, truncation {config['truncation']} "
            "rounds",
        ),
        (
            "run length",
            f"{config['shortest']} to {config['longest']} rounds, ramp {count(config['ramp'])} "
            "steps",
        ),
        ("learning rate", f"{config['peak']:g} → {config['last']:g}"),
        ("outer steps", count(end["steps"])),
        (
            "best score",
            f"{number(end['best_score'])} at step {count(end['best_step'])} "
            "(mean loss on held-out seeds ÷ ln of the classes)",
        ),
        (
            "gradient norm at the end",
            number(float(np.median(known[-WINDOW:]))) if known.size else MISSING,
        ),
        (
            "speed",
            f"{number(end['rounds_per_second'])} rounds a second, {duration(end['seconds'])}",
        ),
    ]


def figures_of(record: Record) -> dict[str, str]:
    """A benchmark's numbers by name, as text; what it says about its origin is left out."""
    return dict(_flat({key: value for key, value in record.items() if key not in ABOUT}))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name} · {key}" if name else key)
    else:
        text = (
            f"{value:,.6g}"
            if isinstance(value, float)
            else count(value)
            if type(value) is int
            else str(value)
        )
        yield name.replace("_", " "), text


def _style(i: int) -> Style:
    return Style(
        COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], MARKERS[i // len(DASHES) % len(MARKERS)]
    )


def _curve(label: str, i: int, x: Any, y: Any, error: Any = None) -> Curve:
    x, y = np.asarray(x, float), np.asarray(y, float)
    return Curve(
        label,
        _style(i),
        x,
        y,
        np.zeros_like(y) if error is None else np.asarray(error),
        diverged=False,
    )


def _meta_loss(records: Sequence[Record]) -> Panel | None:
    losses, _ = history(records)
    if not losses.size:
        return None
    smoothed, steps = smooth(losses, WINDOW), np.arange(1, len(losses) + 1)
    spread = _spread(losses)
    curves = [
        _curve(task, i, steps, smoothed[:, i], spread[:, i])
        for i, task in enumerate(records[0]["config"]["tasks"])
    ]
    label = f"meta-loss (trailing {WINDOW}-step mean)"
    return Panel(
        "meta-loss", "Meta-loss of the runs under way", "outer steps", label, tuple(curves)
    )


def _spread(losses: np.ndarray) -> np.ndarray:
    """The standard deviation over the same steps that the trailing mean is over."""
    return np.sqrt(np.maximum(smooth(losses**2, WINDOW) - smooth(losses, WINDOW) ** 2, 0))


def _score(records: Sequence[Record]) -> Panel | None:
    curves = []
    for i, (which, label) in enumerate((("theta", "φ"), ("average", "running average of φ"))):
        rows = {r["step"]: r["score"] for r in of_kind(records, "judged") if r["which"] == which}
        if len(rows) > 1:
            scores = [np.nan if score is None else score for score in rows.values()]
            curves.append(_curve(label, i, list(rows), scores))
    if not curves:
        return None
    return Panel(
        "score",
        "Score on held-out seeds",
        "outer steps",
        "mean loss ÷ ln of the classes",
        tuple(curves),
    )


def _heldout(records: Sequence[Record]) -> Panel | None:
    looks = [r for r in of_kind(records, "judged") if r["which"] == "theta"]
    best = [r for r in of_kind(records, "judged") if r["best"]]
    shown = {f"step {count(r['step'])}": r for r in looks[:1]} | {
        f"best, step {count(r['step'])}": r for r in best[-1:]
    }
    if best and looks and best[-1] is looks[0]:
        del shown[f"step {count(looks[0]['step'])}"]
    tasks, curves = records[0]["config"]["tasks"], []
    for words, look in shown.items():
        for task, losses in zip(tasks, look["losses"], strict=True):
            label = words if len(tasks) == 1 else f"{task}, {words}"
            curves.append(_curve(label, len(curves), look["at"], losses))
    if not curves:
        return None
    labels = "communication rounds", "train loss (10-round mean)"
    return Panel("heldout", "Whole runs on held-out seeds", *labels, tuple(curves), log_x=True)
