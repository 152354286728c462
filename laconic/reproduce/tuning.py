"""Baselines that are tuned before they are compared: from a sweep's records to a method, a row and
a line."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from laconic.reproduce.experiment import Experiment, Panel, Tuning
from laconic.show.curves import of_kind
from laconic.show.sweep import RULES, ranked
from laconic.show.table import number

Record = dict[str, Any]
METRIC = "tuned"
TITLE = "Baselines, tuned here first"
HEADERS = ["panel", "method", "points", "diverged", "rounds", "best", "its loss"]


def sweep_name(panel: Panel, tuning: Tuning) -> str:
    """The folder of a sweep below `sweeps/`."""
    return f"{panel.name}-{tuning.config.method}"


def with_tuned(panel: Panel, sweeps: Mapping[str, Sequence[Record]]) -> Panel:
    """The panel with the best point of each of its sweeps as a method, before all others."""
    best = [
        f"{_best(panel, tuning, sweeps)['label']},label={tuning.label}" for tuning in panel.tuned
    ]
    return replace(
        panel, config=replace(panel.config, optimizers=(*best, *panel.config.optimizers))
    )


def tuned_rows(experiment: Experiment, sweeps: Mapping[str, Sequence[Record]]) -> list[Record]:
    """A row for each baseline that was tuned: where it was looked for and what was found."""
    rows = []
    for panel in experiment.panels:
        for tuning in panel.tuned:
            points = of_kind(sweeps[sweep_name(panel, tuning)], "point")
            best, config = _best(panel, tuning, sweeps), tuning.config
            rows.append(
                {
                    "panel": panel.name,
                    "label": tuning.label,
                    "metric": METRIC,
                    "grid": list(config.grid),
                    "points": len(points),
                    "diverged": sum(any(point["diverged"]) for point in points),
                    "rounds": config.rounds,
                    "seeds": config.seeds,
                    "ours": best["numbers"],
                    "loss": RULES[config.rank_by](best),
                }
            )
    return rows


def tuned_lines(experiment: Experiment, rows: Sequence[Record]) -> list[list[str]]:
    """The rows as cells under `HEADERS`."""
    titles = {panel.name: panel.title for panel in experiment.panels}
    return [
        [
            titles[row["panel"]],
            row["label"],
            *(str(row[field]) for field in ("points", "diverged", "rounds")),
            " / ".join(f"{value:.4g}" for value in row["ours"].values()),
            number(row["loss"]),
        ]
        for row in rows
    ]


def tuned_notes(rows: Sequence[Record]) -> list[str]:
    """Over which grids each baseline was tuned, in the words of `laconic sweep`."""
    said = [
        f"{row['label']} is tuned over {' '.join(row['grid'])}: {row['points']} points, "
        f"{row['rounds']} rounds, "
        f"{row['seeds']} seed{'s' * (row['seeds'] != 1)}; best values are in the order "
        f"{' / '.join(row['ours'])}."
        for row in rows
        if row["metric"] == METRIC
    ]
    return list(dict.fromkeys(said))


def _best(panel: Panel, tuning: Tuning, sweeps: Mapping[str, Sequence[Record]]) -> Record:
    return ranked(of_kind(sweeps[sweep_name(panel, tuning)], "point"), tuning.config.rank_by)[0]
