"""The class mixes of a population's clients: counted, in a table, and drawn as bars."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.data.partition import class_counts
from laconic.federated.population import RUNS, draw_rows, labels_of
from laconic.reproduce.experiment import Experiment, MixPanel
from laconic.show.figures import plot_style
from laconic.show.table import number
from laconic.tasks.catalog import make_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
SEED = 0  # whose partition is shown


def mix_rows(experiment: Experiment) -> list[Record]:
    """A row for each population: sizes, how many classes a client has, and the counts of those that
    are drawn."""
    return [_row(panel) for panel in experiment.mixes]


def _row(panel: MixPanel) -> Record:
    task = make_task(panel.task)
    labels = labels_of(task)
    counts = class_counts(
        labels, draw_rows(panel.federated, task, RUNS, SEED), task.classes or int(labels.max()) + 1
    )
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)), axis=1)
    return {
        "panel": panel.title,
        "label": panel.task,
        "metric": "mix",
        "clients": len(counts),
        "samples": sorted({int(n) for n in counts.sum(axis=1)}),
        "classes_held": float((counts > 0).sum(axis=1).mean()),
        "largest_share": float(shares.max(axis=1).mean()),
        "effective_classes": float(np.exp(entropy).mean()),
        "counts": counts[: panel.drawn].tolist(),
    }


HEADERS = [
    "population",
    "clients",
    "samples each",
    "classes a client has",
    "effective classes",
    "share of its largest",
]


def mix_lines(rows: Sequence[Record]) -> list[list[str]]:
    """The rows as cells under `HEADERS`; effective classes are e to the entropy of a client's mix."""
    return [
        [
            row["panel"],
            str(row["clients"]),
            " to ".join(str(n) for n in dict.fromkeys((row["samples"][0], row["samples"][-1]))),
            number(row["classes_held"]),
            number(row["effective_classes"]),
            f"{100 * row['largest_share']:.0f} %",
        ]
        for row in rows
    ]


def mixes_figure(title: str, rows: Sequence[Record], note: str = "", columns: int = 2) -> "Figure":
    """A bar for each client, divided into its classes."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    across = min(columns, len(rows))
    down = math.ceil(len(rows) / across)
    with plot_style():
        figure = Figure(
            figsize=(5.2 * across, 4.4 * down + 0.8), layout="constrained", facecolor="white"
        )
        plots = figure.subplots(down, across, squeeze=False).ravel()
        for plot, row in zip(plots, rows, strict=False):
            counts = np.array(row["counts"])
            starts = np.cumsum(counts, axis=1) - counts
            for c in range(counts.shape[1]):
                colour = colormaps["tab20"](c % 20)
                plot.barh(
                    np.arange(len(counts)),
                    counts[:, c],
                    0.9,
                    left=starts[:, c],
                    color=colour,
                    label=f"{c}",
                )
            plot.set_title(
                row["panel"], loc="left", fontsize=10, fontweight="bold", parse_math=False
            )
            plot.set_xlabel("samples")
            plot.set_ylabel("client")
            plot.invert_yaxis()
        for plot in plots[len(rows) :]:
            plot.set_axis_off()
        handles, labels = plots[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, title="class", loc="outside lower center", ncols=10, frameon=False
        )
        figure.suptitle(
            title + (f"\n{note}" if note else ""), fontsize=11, fontweight="bold", parse_math=False
        )
    return figure
