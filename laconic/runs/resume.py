"""Take up any run where it stopped."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from laconic.errors import LaconicError
from laconic.runs.folder import Observer, kind_of, read_header
from laconic.tasks.base import Task

# Who takes up which kind of run; each is imported when it is needed.
HOMES = {
    "compare": ("laconic.runs.compare", "resume_compare"),
    "sweep": ("laconic.runs.sweep", "resume_sweep"),
    "train": ("laconic.runs.train", "resume_train"),
    "meta-train": ("laconic.runs.meta_train", "resume_meta_train"),
    "experiment": ("laconic.reproduce.run", "resume_experiment"),
}
# What only some kinds of runs can be given.
SOME = {
    "task": ("compare", "sweep", "train", "meta-train"),
    "optimizers": ("compare",),
    "on_nan": ("compare",),
    "minutes": ("meta-train",),
    "observer": ("compare", "sweep", "train", "meta-train"),
}


def resume(
    folder: str | Path,
    task: Task | Sequence[Task] | None = None,
    *,
    optimizers: Sequence[Any] | None = None,
    on_nan: Literal["stop", "continue"] | None = None,
    minutes: float | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, Any]:
    """Take up the run in a folder where it stopped, with the settings it was begun with.

    Args:
        folder: of a comparison, a sweep, a training, a meta-training or an experiment.
        task: the task of a run that was begun with one from Python; for a meta-training, all of
            those.
        optimizers: all optimizers of a comparison that was begun with ready objects.
        on_nan: what a comparison does from now on when a loss is NaN; by default as before.
        minutes: stop a meta-training cleanly after about this long.
        observer: is told of progress.
        stop: is asked now and then; when it says True, the run saves and raises `Interrupted`.

    Returns:
        What the function that began the run returns: its folder and its records.

    Example::

        try:
            laconic.train(laconic.TrainConfig(rounds=20), stop=lambda: True)
        except laconic.Interrupted as interrupted:
            folder, records = laconic.resume(interrupted.folder)
    """
    folder = Path(folder)
    kind = str(kind_of(read_header(folder)))
    if kind not in HOMES:
        raise LaconicError(f"{folder} holds a {kind}, which is resumed by what began it.")
    options = {"task": task, "optimizers": optimizers, "on_nan": on_nan, "minutes": minutes}
    options["observer"] = observer
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if kind not in SOME[name]:
            raise LaconicError(f"{folder} is a {kind} run, which takes no {name}; leave it out.")
    module, function = HOMES[kind]
    return getattr(importlib.import_module(module), function)(folder, **given, stop=stop)
