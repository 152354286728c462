"""Carrying an experiment out, part by part.

The folder holds `records.jsonl` (a "run" record, an "experiment" record at the end),
`optimizers/NAME/`, `panels/NAME/`, `sweeps/NAME/` and `timings/NAME/`, each a run of its own that
is skipped once finished and resumed where it stopped, and the table and figure made of their
records.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from laconic.errors import LaconicError
from laconic.reproduce import named_experiment
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.outcome import notes, rows_of, tables, write_outcome
from laconic.reproduce.part import Outcome, Record, Runner, Runs, Watching
from laconic.runs.folder import RunFolder, check_records, read_header
from laconic.store.archive import records_file
from laconic.store.records import RECORDS, plain, provenance, read


def reproduce(
    name: str,
    scale: str = "smoke",
    out: Path | None = None,
    *,
    panels: Sequence[str] = (),
    watching: Watching | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, Record]:
    """Carry out the experiment of that name, or what is left of it → (folder, "experiment" record).

    `panels` names the parts to carry out now, all by default; the outcome is then of these and of
    those done before.
    """
    found = named_experiment(name)
    return carry_out(found, scale, out, panels=panels, watching=watching, stop=stop)


def resume_experiment(
    folder: Path, *, watching: Watching | None = None, stop: Callable[[], bool] = lambda: False
) -> tuple[Path, Record]:
    """Take up the experiment of a folder where it stopped."""
    header = read_header(folder, "experiment")
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
    experiment = experiment.at_scale(scale)
    experiment.check(panels)
    folder = out or Path("results") / "reproduce" / f"{experiment.name}-{scale}"
    if ":" in str(folder):
        raise LaconicError(
            f"{folder} has a colon, which would end the names of optimizers in it; choose another "
            "--out."
        )
    with _opened(experiment, scale, folder) as run:
        whole = experiment.names()
        asked = set(panels or whole)
        experiment = experiment.narrowed(asked | _done(experiment, run))
        runner = Runner(folder, scale, watching or Watching(), stop)
        runs: dict[str, Runs] = {}
        for part in experiment.parts:
            if part.name not in runs:
                runs[part.name] = part.run(runner) if part.name in asked else part.read(folder)
        left = [name for name in whole if name not in experiment.names()]
        outcome = _concluded(run, experiment, scale, runs, left)
        write_outcome(folder, outcome)
    return folder, outcome.record


def _opened(experiment: Experiment, scale: str, path: Path) -> RunFolder:
    """The folder of the experiment, new or begun; one of anything else is refused."""
    if not records_file(path / RECORDS) or not read(path / RECORDS, gaps=True):
        words = ["laconic", "reproduce", experiment.name, "--scale", scale, "--out", str(path)]
        values = {"name": experiment.name, "scale": scale, "command": shlex.join(words)}
        folder = RunFolder.new(path, experiment.name)
        folder.append("run", run="experiment", **values, provenance=provenance())
        return folder
    header = read_header(path, "experiment")
    if (header["name"], header["scale"]) != (experiment.name, scale):
        raise LaconicError(
            f"{path} is of {header['name']} at scale {header['scale']}, not of {experiment.name} "
            f"at scale {scale}; choose another --out."
        )
    return RunFolder.open(path, "experiment")


def _done(experiment: Experiment, run: RunFolder) -> set[str]:
    """The parts that are done, by their own runs or by the rows of the last outcome."""
    check_records(run.file, run.records())
    outcomes = run.of_kind("experiment")[-1:]
    shown = {row["panel"] for outcome in outcomes for row in outcome.get("rows", [])}
    return {part.name for part in experiment.parts if part.done(run.path, shown)}


def _concluded(
    run: RunFolder, experiment: Experiment, scale: str, runs: Mapping[str, Runs], left: list[str]
) -> Outcome:
    """The outcome with its "experiment" record; the last one stays if it says the same."""
    record = {
        "name": experiment.name,
        "scale": scale,
        "title": experiment.title,
        "panels": {x.name: x.path for x in experiment.parts if (run.path / x.path).is_dir()},
        "optimizers": {x.name: x.file(run.path) for x in experiment.optimizers().values()},
        "rows": plain(rows_of(experiment, runs)),
        **({"left": left} if left else {}),
    }
    shown = tables(experiment, record["rows"])
    names = ("title", "headers", "rows", "left", "grouped")
    record["tables"] = [{name: getattr(x, name) for name in names} for x in shown]
    record["notes"] = notes(Outcome(experiment, runs, record))
    last = run.records()[-1]
    said = {key: value for key, value in last.items() if key in record or key == "left"}
    if last["kind"] != "experiment" or said != plain(record):
        run.append("experiment", **record, provenance=provenance())
    return Outcome(experiment, runs, run.records()[-1])
