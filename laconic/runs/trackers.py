"""Trackers: where the numbers of a run under way are written, for CSV, TensorBoard, trackio or W&B.

`track` makes them observers. A method, a training or a meta-training is a curve of its own there;
its steps are rounds, or outer steps. Which trackers watch is no setting of a run: one that is
resumed may have others, or none. A tracker that fails ends, with a note, and the run goes on.
"""

# The extra is not part of what developers need.
# pyright: reportMissingImports=false

import contextlib
import contextvars
import csv
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from laconic.errors import LaconicError, unknown
from laconic.runs.folder import Observer, spelled
from laconic.show.training import LOOK
from laconic.store import atomic

PROJECT = "laconic"  # of trackio and W&B
TRACK_CSV = "track.csv"
COLUMNS = ("curve", "step", "metric", "value")
Numbers = Mapping[str, float]


class Curve(NamedTuple):
    """What a backend begins to write: a curve of the run in `folder`, after its first `done`
    steps."""

    folder: Path
    label: str
    done: int
    config: Mapping[str, Any]


class Writer(Protocol):
    """Takes the numbers of one curve."""

    def write(self, step: int, numbers: Numbers) -> None:
        """The numbers after that step. Steps do not fall, unless processes do not wait for the one
        that looks at held-out data."""

    def close(self) -> None:
        """All is written."""


# --- the backends ---------------------------------------------------------------------------------


class Csv:
    """A file `track.csv` in the run's folder, a line for each number, with all its digits."""

    def __init__(self, curve: Curve):
        self.label = curve.label
        path = curve.folder / TRACK_CSV
        rows = _rows_of(path) if path.exists() else []
        kept = [row for row in rows if row[0] != self.label or int(row[1]) <= curve.done]
        if not rows or len(kept) < len(rows):
            atomic.write_text(path, _lines([COLUMNS, *kept]))
        self.file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115  (until `close`)

    def write(self, step: int, numbers: Numbers) -> None:
        """Lines, at once on disk."""
        rows = [(self.label, step, name, repr(float(x))) for name, x in numbers.items()]
        self.file.write(_lines(rows))
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _rows_of(path: Path) -> list[list[str]]:
    """The whole lines of an earlier file, without its heads: a killed run may leave half a line."""
    with open(path, newline="", encoding="utf-8") as file:
        whole = [line for line in file if line.endswith("\n")]
    return [row for row in csv.reader(whole) if len(row) == len(COLUMNS)][1:]


def _lines(rows: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class TensorBoard:
    """Event files in `tensorboard/CURVE` of the run's folder; a resumed run hides what it writes
    again."""

    def __init__(self, curve: Curve):
        from tensorboardX import SummaryWriter

        where = str(curve.folder / "tensorboard" / spelled(curve.label))
        self.writer = SummaryWriter(where, purge_step=curve.done + 1)

    def write(self, step: int, numbers: Numbers) -> None:
        """Scalars; TensorBoard keeps float32."""
        for name, x in numbers.items():
            self.writer.add_scalar(name, x, step)

    def close(self) -> None:
        """Flush and close the file."""
        self.writer.close()


class Trackio:
    """A run of the local trackio project `laconic`, grouped by run folder."""

    def __init__(self, curve: Curve):
        import trackio

        begin = partial(trackio.init, PROJECT, **_named(curve), embed=False)
        quiet = {"auto_log_gpu": False, "auto_log_cpu": False}
        with contextlib.redirect_stdout(sys.stderr):  # what a command prints is for its reader
            # in a context of its own, or `init` would end the run before
            self.run = contextvars.Context().run(partial(begin, **quiet))

    def write(self, step: int, numbers: Numbers) -> None:
        """One log entry."""
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Wait until all is in its database."""
        with contextlib.redirect_stdout(sys.stderr):
            self.run.finish()


class Wandb:
    """A run of the W&B project `laconic`, grouped by run folder; offline unless WANDB_MODE says
    otherwise."""

    def __init__(self, curve: Curve):
        import wandb

        quiet = {"console": "off", "silent": True, "x_disable_stats": True, "x_disable_meta": True}
        self.run = wandb.init(
            project=PROJECT,
            **_named(curve),
            dir=str(curve.folder),
            mode=None if "WANDB_MODE" in os.environ else "offline",
            reinit="create_new",
            settings=wandb.Settings(disable_git=True, save_code=False, **quiet),
        )

    def write(self, step: int, numbers: Numbers) -> None:
        """One row of its history."""
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Wait until all is in its file, or sent."""
        self.run.finish()


def _named(curve: Curve) -> dict[str, Any]:
    group = curve.folder.resolve().name
    name = f"{group} {curve.label}" + (f" from {curve.done}" if curve.done else "")
    return {"name": name, "group": group, "config": dict(curve.config)}


class Backend(NamedTuple):
    """How to begin a curve, and the module that it needs."""

    begin: Callable[[Curve], Writer]
    module: str | None


TRACKERS: dict[str, Backend] = {
    "csv": Backend(Csv, None),
    "tensorboard": Backend(TensorBoard, "tensorboardX"),
    "trackio": Backend(Trackio, "trackio"),
    "wandb": Backend(Wandb, "wandb"),
}

# --- as observers ---------------------------------------------------------------------------------


class Watchers(Observer):
    """Several observers as one."""

    def __init__(self, *observers: Observer):
        self.observers = list(observers)

    def opened(self, folder: Path, header: Mapping[str, Any]) -> None:
        """Tell all."""
        for each in self.observers:
            each.opened(folder, header)

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """Tell all."""
        for each in self.observers:
            each.begin(label, total, done, rounds_each)

    def progress(self, label: str, done: int, loss: float, norm: float | None = None) -> None:
        """Tell all; a norm only if there is one, as runs do."""
        norms = () if norm is None else (norm,)
        for each in self.observers:
            each.progress(label, done, loss, *norms)

    def numbers(self, label: str, done: int, values: Numbers) -> None:
        """Tell all."""
        for each in self.observers:
            each.numbers(label, done, values)

    def round(self, row: Mapping[str, Any]) -> None:
        """Tell all."""
        for each in self.observers:
            each.round(row)

    def judged(self, done: int, score: float, best: bool) -> None:
        """Tell all."""
        for each in self.observers:
            each.judged(done, score, best)

    def end(self, facts: Mapping[str, Any]) -> None:
        """Tell all."""
        for each in self.observers:
            each.end(facts)

    def note(self, text: str) -> None:
        """Tell all."""
        for each in self.observers:
            each.note(text)

    def closed(self) -> None:
        """Tell all."""
        for each in self.observers:
            each.closed()


class Tracking(Observer):
    """One tracker: a writer for each curve that has had numbers since the last one began."""

    def __init__(self, name: str, tell: Callable[[str], None]):
        self.name = name
        self.tell = tell
        self.run: tuple[Path, Mapping[str, Any]] | None = None
        self.done: dict[str, int] = {}
        self.writers: dict[str, Writer] = {}

    def opened(self, folder: Path, header: Mapping[str, Any]) -> None:
        """From now on there is somewhere to write to."""
        self.run = folder, header.get("config", {})

    def begin(self, label: str, total: int, done: int, rounds_each: int = 1) -> None:
        """The curves before it are complete."""
        self._close()
        self.done[label] = done

    def round(self, row: Mapping[str, Any]) -> None:
        """What all workers of a training agree on."""
        numbers = {
            "train_loss": _known(row["loss"]),
            "workers": len(row["quorum"]),
            "left_out": len(row["excluded"]),
            **heldout_numbers(row.get(LOOK) or {}),
        }
        self.numbers("training", row["round"], numbers)

    def numbers(self, label: str, done: int, values: Numbers) -> None:
        """Write them, unless that step was there before the run was taken up."""
        if self.run is None or done <= self.done.setdefault(label, done - 1):
            return
        with self._failing():
            if label not in self.writers:
                folder, config = self.run
                curve = Curve(folder, label, self.done[label], config)
                self.writers[label] = TRACKERS[self.name].begin(curve)
            self.writers[label].write(done, values)

    def closed(self) -> None:
        """The run is over, for now."""
        self._close()
        self.run = None
        self.done = {}

    def _close(self) -> None:
        writers = list(self.writers.values())
        self.writers = {}
        for writer in writers:
            with self._failing():
                writer.close()

    @contextlib.contextmanager
    def _failing(self) -> Any:
        try:
            yield
        except Exception as error:  # other people's code; training is worth more than its curve
            self.run = None
            said = " ".join(str(error).split()) or type(error).__name__
            self.tell(f"{self.name} no longer tracks this run, which goes on without it: {said}")


def heldout_numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics on held-out data by names that say which split; NaN where one was not finite."""
    named = {n if n.startswith("valid_") else f"test_{n}": x for n, x in metrics.items()}
    return numbers_of(named)


def numbers_of(values: Mapping[str, float | None]) -> dict[str, float]:
    """Numbers of a record or a message; NaN where one was not finite."""
    return {name: _known(x) for name, x in values.items()}


def _known(value: float | None) -> float:
    """A number of a record, where null stands for NaN and infinity."""
    return float("nan") if value is None else float(value)


def track(*watchers: str | Observer) -> Observer:
    """Trackers, and observers beside them, as one observer.

    Args:
        watchers: "csv", which writes `track.csv` into the run's folder, "tensorboard", "trackio" or
            "wandb" (extra `track`), or an observer.

    Returns:
        An observer for `compare`, `sweep`, `train`, `meta_train` and `resume`.

    Example::

        folder, records = laconic.train(laconic.TrainConfig(), observer=laconic.track("csv"))
        print((folder / "track.csv").read_text())
    """
    together = Watchers()
    for each in dict.fromkeys(watchers):
        if isinstance(each, str):
            _require(each)
            each = Tracking(each, together.note)
        together.observers.append(each)
    return together


def _require(name: str) -> None:
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    module = TRACKERS[name].module
    if module is not None and importlib.util.find_spec(module) is None:
        raise LaconicError(
            f"the tracker {name} needs {module}, which is not installed: pip install "
            "'laconic[track]'."
        )
