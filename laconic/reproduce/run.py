"""Carrying an experiment out: learned optimizers found or meta-trained, comparisons and sweeps run,
tables made.

The folder holds `records.jsonl` (a "run" record, an "experiment" record at the end),
`optimizers/NAME/`, `panels/NAME/`, `sweeps/NAME/` and `timings/NAME/`, each a run of its own that
is skipped once finished and taken up where it stopped, and the table and figure that are made of
their records.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from laconic.bench.timing import Tick
from laconic.bench.overhead import PARTS
from laconic.errors import LaconicError
from laconic.reproduce.amend import amend
from laconic.reproduce.compiling import compiled_for
from laconic.reproduce.experiment import (
    Experiment,
    Learned,
    Panel,
    TimingPanel,
    check_parts,
    narrowed,
    parts_of,
)
from laconic.reproduce.folder import begin, begun, conclude, done_parts, finished, read_header
from laconic.reproduce.mixes import mix_rows
from laconic.reproduce.outcome import hparam_rows, rows_of
from laconic.reproduce.page import write_outcome
from laconic.reproduce.recorded import find_sweep, matches
from laconic.reproduce.registry import experiment as by_name
from laconic.reproduce.scale import at_scale
from laconic.reproduce.timings import METRIC, begin_timing, run_timing, timing_rows
from laconic.reproduce.tuning import sweep_name, tuned_rows, with_tuned
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.folder import Interrupted, Observer
from laconic.runs.meta_train import meta_train, resume_meta_train
from laconic.runs.resume import resume
from laconic.runs.sweep import SweepConfig, resume_sweep, sweep
from laconic.store.records import RECORDS, read

BEST = "best.safetensors"
Record = dict[str, Any]


class Watching(Protocol):
    """Whoever watches an experiment: an observer for each of its runs, for as long as that takes."""

    def compare(self, title: str) -> AbstractContextManager[Observer]:
        """A comparison or a sweep begins."""
        ...

    def meta_train(self, title: str) -> AbstractContextManager[Observer]:
        """A meta-training begins."""
        ...

    def timing(self, title: str, total: int) -> AbstractContextManager[Tick]:
        """So many timings begin; whoever watches is told what each was of."""
        ...


class Nobody:
    """Watches nothing."""

    def compare(self, title: str) -> AbstractContextManager[Observer]:
        """Silence."""
        return nullcontext(Observer())

    def meta_train(self, title: str) -> AbstractContextManager[Observer]:
        """Silence."""
        return nullcontext(Observer())

    def timing(self, title: str, total: int) -> AbstractContextManager[Tick]:
        """Silence."""
        return nullcontext(lambda name: None)


def reproduce(
    name: str,
    scale: str = "smoke",
    out: Path | None = None,
    *,
    panels: Sequence[str] = (),
    watching: Watching | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, Record]:
    """Carry out the experiment of that name, or what is left of it → (its folder, the "experiment"
    record).

    `panels` names the parts to carry out now, all by default; the outcome is then of these and of
    those done before.
    """
    return carry_out(by_name(name), scale, out, panels=panels, watching=watching, stop=stop)


def resume_experiment(
    folder: Path, *, watching: Watching | None = None, stop: Callable[[], bool] = lambda: False
) -> tuple[Path, Record]:
    """Take up the experiment of a folder where it stopped."""
    header = read_header(folder)
    if header is None:
        raise LaconicError(
            f"{folder} holds no whole record in {RECORDS}, so there is nothing to resume; give an "
            "experiment's folder."
        )
    return reproduce(header["name"], header["scale"], folder, watching=watching, stop=stop)


def carry_out(
    experiment: Experiment,
    scale: str,
    out: Path | None = None,
    *,
    panels: Sequence[str] = (),
    watching: Watching | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, Record]:
    """`reproduce` for an experiment that has no name in the registry."""
    full, experiment = (
        {row.sweep: row.config for row in experiment.sweeps},
        at_scale(experiment, scale),
    )
    check_parts(experiment, panels)
    folder = out or Path("results") / "reproduce" / f"{experiment.name}-{scale}"
    if ":" in str(folder):
        raise LaconicError(
            f"{folder} has a colon, which would end the names of optimizers in it; choose another "
            "--out."
        )
    begin(experiment, scale, folder)
    whole = parts_of(experiment)
    experiment = narrowed(
        experiment, {*panels, *done_parts(experiment, folder)} if panels else set(whole)
    )
    place, asked = _Place(folder, scale, watching or Nobody(), stop), set(panels or whole)
    files = {learned.name: _obtain(learned, place) for learned in experiment.optimizers().values()}
    sought = _run_tunings(experiment, scale, place)
    compared = {
        p.name: _run_panel(with_tuned(p, sought), files, place, asked) for p in experiment.panels
    }
    timed = {timing.name: _run_timing(timing, place) for timing in experiment.timings}
    recorded = {name: find_sweep(config) for name, config in full.items()}
    sweeps = {row.sweep: row.config for row in experiment.sweeps}
    # what is on record was swept in the paper's setting, and stands in for that alone
    standing = {name: recorded[name] for name, config in sweeps.items() if config == full[name]}
    found = {
        name: standing.get(name) or _run_sweep(name, config, place)
        for name, config in sweeps.items()
    }
    rows = (
        rows_of(experiment, compared)
        + tuned_rows(experiment, sought)
        + hparam_rows(experiment, found, recorded)
    )
    rows += mix_rows(experiment) + timing_rows(experiment, timed)
    left = [name for name in whole if name not in parts_of(experiment)]
    record = conclude(folder, experiment, scale, files, rows, left)
    write_outcome(folder, experiment, record, compared, timed)
    return folder, record


# --- its runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where an experiment is carried out and at which scale, who watches, and whether to stop."""

    folder: Path
    scale: str
    watching: Watching
    stop: Callable[[], bool]

    def carry_on(self, what: str, tasks: Sequence[str], run: Callable[[], Any]) -> Any:
        """A run of the experiment, unless it is asked to stop; a stop within the run is one of the
        experiment."""
        if self.stop():
            raise Interrupted(f"stopped before {what}.", self.folder)
        try:
            with compiled_for(self.scale, tasks):
                return run()
        except Interrupted as stopped:
            raise Interrupted(f"{what}: {stopped}", self.folder) from None


def _obtain(learned: Learned, place: _Place) -> str:
    """What `laconic compare` calls the optimizer: its file in the folder, the zoo's name, or
    meta-trained now."""
    folder = place.folder / "optimizers" / learned.name
    there = begun(folder, learned.config)
    if not there and learned.zoo is not None and matches(learned.zoo, learned.config):
        return learned.zoo

    def run() -> None:
        with place.watching.meta_train(learned.name) as observer:
            if there:
                resume_meta_train(folder, observer=observer, stop=place.stop)
            else:
                meta_train(
                    replace(learned.config, out=folder),
                    observer=observer,
                    stop=place.stop,
                    name=learned.name,
                )

    if not there or not finished(folder, "summary", BEST):
        place.carry_on(learned.name, learned.config.tasks, run)
    return str(folder / BEST)


def with_learned(panel: Panel, files: dict[str, str]) -> CompareConfig:
    """The panel's comparison with its learned optimizers, each from its file or by its published
    name."""
    more = tuple(use.spec(files[use.learned.name]) for use in panel.learned)
    return replace(panel.config, optimizers=(*panel.config.optimizers, *more))


def _run_panel(
    panel: Panel, files: dict[str, str], place: _Place, asked: Collection[str]
) -> list[Record]:
    """The comparison's records; one that is done and not asked for is as it is, whatever methods it
    has by now."""
    folder, config = place.folder / "panels" / panel.name, with_learned(panel, files)
    there = begun(folder, config, besides=("optimizers",))
    if panel.name not in asked:
        return read(folder / RECORDS)
    changed = amend(folder, config) if there else None

    def run() -> list[Record]:
        with place.watching.compare(panel.title) as observer:
            if changed is not None:
                observer.note(changed)
            if there:
                return resume(folder, observer=observer, stop=place.stop)[1]
            return compare(replace(config, out=folder), observer=observer, stop=place.stop)[1]

    done = there and finished(folder, "summary", "report.html")
    return read(folder / RECORDS) if done else place.carry_on(panel.name, [config.task], run)


def _run_tunings(experiment: Experiment, scale: str, place: _Place) -> dict[str, Sequence[Record]]:
    """The sweeps that find baselines' values; at full scale one on record stands in for one that is
    not begun."""
    found = {}
    for panel in experiment.panels:
        for tuning in panel.tuned:
            name, config = sweep_name(panel, tuning), tuning.config
            there = scale == "smoke" or begun(place.folder / "sweeps" / name, config)
            found[name] = (None if there else find_sweep(config)) or _run_sweep(name, config, place)
    return found


def _run_timing(timing: TimingPanel, place: _Place) -> list[Record]:
    folder, config = place.folder / "timings" / timing.name, timing.config
    if not begun(folder, config):
        begin_timing(folder, config)

    def run() -> list[Record]:
        with place.watching.timing(timing.title, len(PARTS) * config.restarts) as tick:
            return run_timing(folder, config, tick, place.stop)

    done = finished(folder, METRIC, RECORDS)
    return read(folder / RECORDS) if done else place.carry_on(timing.name, [config.task], run)


def _run_sweep(name: str, config: SweepConfig, place: _Place) -> Sequence[Record]:
    folder = place.folder / "sweeps" / name
    there = begun(folder, config)

    def run() -> Sequence[Record]:
        with place.watching.compare(name) as observer:
            if there:
                return resume_sweep(folder, observer=observer, stop=place.stop)[1]
            return sweep(replace(config, out=folder), observer=observer, stop=place.stop)[1]

    done = there and finished(folder, "ranking", "ranking.png")
    return read(folder / RECORDS) if done else place.carry_on(name, [config.task], run)
