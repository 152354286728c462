"""How time and memory grow: with parameters, workers, local steps, seeds and tasks.

Each axis has points, of which each is timed by itself, and the exponent of the power law fitted to
them: 1 is in proportion. Fixed costs bend a curve at its start, so the exponent is that of its
upper half.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from laconic.bench.server_step import adamw_step, learned_step, relative_step
from laconic.bench.timing import Step, Tick, medians
from laconic.errors import (
    LaconicError,
    require_counts,
    require_parameters,
    require_positive,
    require_some,
    unknown,
)
from laconic.local import LocalOptimizer
from laconic.meta.problem import Inner
from laconic.meta.train import MetaTrainer, Outer
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.outer.kernels import Tuning
from laconic.outer.learned import LearnedOptimizer
from laconic.runs.estimate import Program
from laconic.runs.simulate import Simulation
from laconic.show.figures import plot_style
from laconic.tasks.catalog import make_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("local-sgd", "lopt-r", "lopt-a-general")  # of a simulated round
ROUNDS = 10  # in a timed call of a simulation
MOST_POINTS = 10_000  # workers, local steps, seeds or tasks


@dataclass(frozen=True)
class GrowthConfig:
    """Time and memory of a server step, a simulated round and an outer step, as they grow."""

    axes: tuple[str, ...] = ("parameters", "workers", "local-steps", "seeds", "tasks")
    """What grows."""
    parameters: tuple[float, ...] = (1e5, 1e6, 1e7, 1e8)
    """Of the server step's model."""
    workers: tuple[int, ...] = (1, 4, 16, 64)
    """K of a simulated round."""
    local_steps: tuple[int, ...] = (1, 4, 16, 64)
    """H of a simulated round."""
    seeds: tuple[int, ...] = (1, 2, 4, 8)
    """Of a simulation, side by side."""
    tasks: tuple[int, ...] = (1, 2, 4)
    """Of a meta-training, side by side."""
    task: str = "digits-mlp"
    """What the simulated rounds train."""
    repeats: int = 3
    """Timings of each point; the median counts."""

    def check(self) -> None:
        """Refuse empty measurements."""
        require_some(axes=self.axes)
        for axis in self.axes:
            if axis not in AXES:
                raise unknown("axis", axis, AXES)
            points = AXES[axis].points(self)
            require_some(**{axis: points})
            if axis == "parameters":
                require_parameters(min(points))
                require_parameters(max(points))
                continue
            require_positive(**{axis: min(points)})
            if max(points) > MOST_POINTS:
                raise LaconicError(f"{axis} can be at most {MOST_POINTS:,}, got {max(points):,}.")
        require_positive(repeats=self.repeats)
        require_counts(repeats=self.repeats)
        make_task(self.task)


class Point(NamedTuple):
    """What one took: seconds of a step or a round, and the bytes that running it needs beside its
    inputs; seconds of compiling where they were measured."""

    seconds: float
    bytes: int
    compiling: float | None = None


def measure(config: GrowthConfig, tick: Tick = lambda name: None) -> dict[str, Any]:
    """Figures by axis, point and line; the last point of a line has its exponents."""
    config.check()
    figures: dict[str, dict[str, Any]] = {}
    for axis in config.axes:
        points = AXES[axis].points(config)
        for line in AXES[axis].lines:
            found: list[Point] = []
            for x in points:
                found.append(AXES[axis].measure(config, line, x))
                tick(f"{axis} {x:g} {line}")
            for x, point in zip(points, found, strict=True):
                figures[f"{axis} {x:g} {line}"] = {
                    "axis": axis,
                    "line": line,
                    "at": x,
                    **point._asdict(),
                }
            figures[f"{axis} {points[-1]:g} {line}"] |= {
                "time_exponent": exponent(points, [point.seconds for point in found]),
                "memory_exponent": exponent(points, [point.bytes for point in found]),
            }
    return {"figures": figures}


def exponent(at: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of log value over log x, by least squares over the upper half of the points."""
    half = max(2, math.ceil(len(at) / 2))
    x, y = np.asarray(at[-half:], float), np.asarray(values[-half:], float)
    if len(set(x)) < 2 or not (y > 0).all():
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# --- what is timed --------------------------------------------------------------------------------


def _server_step(config: GrowthConfig, line: str, parameters: float) -> Point:
    """One square matrix; its memory is parameters, update, accumulators and temporaries."""
    side = max(1, round(parameters**0.5))
    makers: dict[str, Callable[[], Step]] = {
        "AdamW": lambda: adamw_step([(side, side)], 1),
        "lopt-r": lambda: relative_step("lopt-r", [(side, side)], "float32", 1),
        "LOpt-A": lambda: learned_step("lopt-a", [(side, side)], 1, "auto", "float32", Tuning(), 1),
    }
    began = time.perf_counter()
    step = makers[line]()
    compiling = time.perf_counter() - began
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((step.state, step.rest)))
    seconds = medians({line: step}, config.repeats)[line]
    return Point(seconds, held + (step.temporary_bytes or 0), compiling)


def _round(config: GrowthConfig, line: str, K: int, H: int, seeds: int) -> Point:
    """A simulated round of all seeds."""
    setting = Setting(K, H, 16, ROUNDS, tuple(range(seeds)), ROUNDS)
    simulation = Simulation(make_task(config.task), parse_method(line, K), setting)
    state = simulation.start()
    seen: list[Program] = []
    took = []
    for _ in range(config.repeats + 1):  # the first compiles
        began = time.perf_counter()
        ready = None if seen else lambda program, trial: seen.append(program)
        for _ in simulation.run(state, ready=ready):
            pass
        took.append((time.perf_counter() - began) / ROUNDS)
    return Point(statistics.median(took[1:]), seen[0].fresh, seen[0].compiling)


def _outer_step(config: GrowthConfig, line: str, tasks: int) -> Point:
    """An outer step over so many copies of the task, each compiled by itself."""
    inner = Inner(config.task, 4, 4, 16, LocalOptimizer("sgd", 0.1))
    outer = Outer(pairs=2, truncation=5)
    learned = LearnedOptimizer("lopt-a", output_scale=0.01)
    trainer = MetaTrainer([make_task(config.task)] * tasks, learned, [inner] * tasks, outer)
    state = trainer.start(0)
    took = []
    for _ in range(config.repeats + 1):
        began = time.perf_counter()
        state, progress = trainer.advance(state)
        jax.block_until_ready(progress)
        took.append(time.perf_counter() - began)
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state) if hasattr(x, "dtype"))
    return Point(statistics.median(took[1:]), held, took[0])


# --- the axes -------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """Something that grows: its points, the lines of its figure, and how a point is measured."""

    points: Callable[[GrowthConfig], Sequence[float]]
    lines: tuple[str, ...]
    measure: Callable[[GrowthConfig, str, Any], Point]
    title: str


AXES: dict[str, Axis] = {
    "parameters": Axis(
        lambda config: config.parameters,
        ("AdamW", "lopt-r", "LOpt-A"),
        _server_step,
        "a server step over the model's parameters",
    ),
    "workers": Axis(
        lambda config: config.workers,
        METHODS,
        lambda config, line, K: _round(config, line, K, 4, 1),
        "a simulated round over K, H = 4",
    ),
    "local-steps": Axis(
        lambda config: config.local_steps,
        METHODS,
        lambda config, line, H: _round(config, line, 4, H, 1),
        "a simulated round over H, K = 4",
    ),
    "seeds": Axis(
        lambda config: config.seeds,
        METHODS,
        lambda config, line, seeds: _round(config, line, 4, 4, seeds),
        "a simulated round over seeds, K = H = 4",
    ),
    "tasks": Axis(
        lambda config: config.tasks,
        ("LOpt-A",),
        _outer_step,
        "an outer step of meta-training over tasks",
    ),
}


def picture(record: dict[str, Any]) -> "Figure":
    """A pair of panels for each axis, time above memory, both axes logarithmic."""
    from matplotlib.figure import Figure

    figures = list(record["figures"].values())
    axes = list(dict.fromkeys(figure["axis"] for figure in figures))
    with plot_style():
        figure = Figure(figsize=(3.4 * len(axes), 5.2), layout="constrained")
        grid = figure.subplots(2, len(axes), squeeze=False, sharex="col")
        for column, axis in enumerate(axes):
            for line in dict.fromkeys(f["line"] for f in figures if f["axis"] == axis):
                of_line = [f for f in figures if (f["axis"], f["line"]) == (axis, line)]
                at = [f["at"] for f in of_line]
                for row, (key, unit) in enumerate((("seconds", 1e3), ("bytes", 1e-6))):
                    slope = of_line[-1][("time", "memory")[row] + "_exponent"]
                    label = line if slope is None else f"{line}, exponent {slope:.2f}"
                    values = [f[key] * unit for f in of_line]
                    grid[row][column].loglog(at, values, marker="o", label=label)
            grid[0][column].set_title(AXES[axis].title, fontsize=8)
            grid[0][column].set_ylabel("milliseconds")
            grid[1][column].set_ylabel("MB")
            grid[1][column].set_xlabel(axis)
            for row in (0, 1):
                grid[row][column].legend(fontsize=7)
        figure.suptitle(f"growth on {record['device']['kind']}", fontsize=10)
    return figure
