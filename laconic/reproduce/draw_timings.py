"""Drawing times of a round: bars of forward and backward and of the optimizer, and the overhead
over H."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from laconic.reproduce.experiment import Experiment, TimingPanel
from laconic.reproduce.timings import LABELS
from laconic.show.curves import COLOURS, GRID, INK
from laconic.show.figures import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

Record = dict[str, Any]
COLOUR = dict(zip(LABELS.values(), (INK, *COLOURS), strict=False))
PASSES = "#c9ced6"


def timings_figure(
    experiment: Experiment, rows: Sequence[Record], note: str = "", columns: int = 4
) -> "Figure":
    """For each model its rounds as bars and, below or after them, their overhead over local SGD's."""
    from matplotlib.figure import Figure

    across = min(columns, len(experiment.timings))
    down = 2 * -(-len(experiment.timings) // across)
    with plot_style():
        figure = Figure(
            figsize=(max(4.2 * across, 4.6), 2.9 * down + 0.9),
            layout="constrained",
            facecolor="white",
        )
        plots = figure.subplots(down, across, squeeze=False)
        for i, panel in enumerate(experiment.timings):
            own = [row for row in rows if row["panel"] == panel.name]
            top, column = 2 * (i // across), i % across
            _bars(plots[top][column], panel, own)
            _overheads(plots[top + 1][column], panel, own)
        for i in range(len(experiment.timings), down // 2 * across):
            for place in (
                plots[2 * (i // across)][i % across],
                plots[2 * (i // across) + 1][i % across],
            ):
                place.set_axis_off()
        text = experiment.title + (f"\n{note}" if note else "")
        figure.suptitle(
            text, fontsize=11 if columns > 1 else 8.5, fontweight="bold", parse_math=False
        )
        _legend(figure, 2 if across == 1 else 3)
    return figure


def _bars(plot: "Plot", panel: TimingPanel, rows: Sequence[Record]) -> None:
    """Seconds of a round, forward and backward below, the optimizer's share on top."""
    steps, labels, width = panel.config.local_steps, list(LABELS.values()), 0.26
    for row in rows:
        at = steps.index(row["H"]) + (labels.index(row["label"]) - 1) * width
        plot.bar(at, row["forward_backward"], 0.9 * width, color=PASSES)
        # a part that takes no time may come out a hair below 0
        plot.bar(
            at,
            max(row["optimizer"], 0.0),
            0.9 * width,
            bottom=row["forward_backward"],
            color=COLOUR[row["label"]],
        )
    plot.set_xticks(range(len(steps)), [f"H = {H}" for H in steps])
    plot.set_ylabel("seconds of a round")
    _finish(plot, panel.title)


def _overheads(plot: "Plot", panel: TimingPanel, rows: Sequence[Record]) -> None:
    """Seconds over those of local SGD, the paper's as diamonds."""
    for label in list(LABELS.values())[1:]:
        own = [row for row in rows if row["label"] == label]
        steps = [row["H"] for row in own]
        plot.plot(
            steps, [row["overhead"] for row in own], color=COLOUR[label], marker="o", markersize=3.5
        )
        known = [row for row in own if row["paper_overhead"] is not None]
        look = {"linestyle": "none", "marker": "D", "markersize": 5, "markerfacecolor": "white"}
        plot.plot(
            [r["H"] for r in known],
            [r["paper_overhead"] for r in known],
            color=COLOUR[label],
            **look,
        )
    plot.axhline(1.0, color=INK, linewidth=0.9)
    plot.set_xscale("log", base=2)
    plot.set_xticks(list(panel.config.local_steps), [f"{H}" for H in panel.config.local_steps])
    plot.minorticks_off()
    plot.set_xlabel("H, local steps")
    plot.set_ylabel("round ÷ local SGD's")
    _finish(plot, "")


def _finish(plot: "Plot", title: str) -> None:
    plot.set_title(title, loc="left", fontsize=10, fontweight="bold", parse_math=False)
    plot.grid(color=GRID, linewidth=0.7, axis="y")
    plot.set_axisbelow(True)


def _legend(figure: "Figure", columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=PASSES, label="forward and backward")]
    handles += [
        Patch(color=COLOUR[label], label=f"optimizer of {label}") for label in LABELS.values()
    ]
    diamond: dict[str, Any] = {"linestyle": "none", "marker": "D", "markerfacecolor": "white"}
    handles.append(Line2D([], [], color=INK, label="the paper's overhead", **diamond))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
