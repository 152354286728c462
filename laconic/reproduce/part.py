"""The protocol of an experiment's parts, and the runner that carries their runs out.

A part is what can be carried out by itself: a comparison (`Panel`), a sweep beside the paper's
tuned values (`SweepPanel`), times (`TimingPanel`), class mixes (`MixPanel`). A new kind of part is
one class of this protocol; everything else loops over an experiment's parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from laconic.bench.overhead import OverheadConfig
from laconic.bench.timing import Tick
from laconic.errors import LaconicError
from laconic.reproduce.scale import compiled_for
from laconic.runs.configs import CompareConfig, SweepConfig
from laconic.runs.folder import Interrupted, Observer, check_records
from laconic.runs.meta_config import MetaConfig
from laconic.runs.resume import resume
from laconic.runs.settings import different, located, read_config
from laconic.show.table import Table
from laconic.store.archive import records_file
from laconic.store.records import RECORDS, plain, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laconic.reproduce.experiment import Experiment
    from laconic.reproduce.panel import Learned

Record = dict[str, Any]
Runs = Mapping[str, Sequence[Record]]  # records of a part's runs by their folder in the experiment
Config = CompareConfig | MetaConfig | SweepConfig | OverheadConfig


@dataclass(frozen=True)
class Part(ABC):
    """`name` is that of its folder and of `--panels`; `title` is what people read.

    FOLDER: where runs of this kind lie in the experiment's folder; "": at its top
    LAST:   the kind of such a run's last record
    SMALL:  what the smoke scale changes, in words
    """

    name: str
    title: str

    FOLDER: ClassVar[str] = ""
    LAST: ClassVar[str] = ""
    SMALL: ClassVar[str]

    @property
    def path(self) -> str:
        """The folder of its run, inside the experiment's."""
        return f"{self.FOLDER}/{self.name}" if self.FOLDER else self.name

    @abstractmethod
    def tasks(self) -> list[str]:
        """Specs of the tasks it trains on."""

    def optimizers(self) -> "dict[str, Learned]":
        """The learned optimizers it needs, by name."""
        return {}

    @abstractmethod
    def smoke(self) -> Self:
        """The same in numbers for a laptop."""

    @abstractmethod
    def run(self, runner: "Runner") -> Runs:
        """Carry out what is not done yet → the records of all its runs."""

    @abstractmethod
    def read(self, folder: Path) -> Runs:
        """The records of its runs in an experiment's folder; nothing is run."""

    def done(self, folder: Path, shown: Collection[str]) -> bool:
        """Whether it is done; `shown` are the panels in the rows of the last outcome."""
        return [record["kind"] for record in records_in(folder / self.path)][-1:] == [self.LAST]

    def with_methods(self, specs: Sequence[str]) -> Self:
        """With more methods, as `laconic compare` reads them, where methods are compared."""
        return self

    # --- of all parts of this kind in an experiment ---

    @classmethod
    @abstractmethod
    def needs(cls, experiment: "Experiment") -> list[str]:
        """What the full scale takes, in counts."""

    @classmethod
    @abstractmethod
    def rows(cls, experiment: "Experiment", runs: Mapping[str, Runs]) -> list[Record]:
        """Our numbers beside the paper's, from the runs by name of part."""

    @classmethod
    @abstractmethod
    def tables(cls, experiment: "Experiment", rows: Sequence[Record]) -> list[Table]:
        """The rows that are of this kind of part, as tables."""

    @classmethod
    @abstractmethod
    def draw(cls, outcome: "Outcome", note: str, columns: int) -> "Figure":
        """The figure, in at most so many columns, `note` below its title."""

    @classmethod
    def notes(cls, outcome: "Outcome") -> list[str]:
        """What a reader must know beside the numbers."""
        return []

    @classmethod
    def more_sweeps(
        cls, experiment: "Experiment", grids: Mapping[str, tuple[str, ...]]
    ) -> "Sequence[Part]":
        """Sweeps of methods of one's own, by their grids, where values are tuned."""
        return []


class Outcome(NamedTuple):
    """What an experiment came to: the records of its parts' runs, by name, and its own record."""

    experiment: "Experiment"
    runs: Mapping[str, Runs]
    record: Record

    def rows(self, metric: str) -> list[Record]:
        """The rows of one metric."""
        return [row for row in self.record["rows"] if row["metric"] == metric]


def plural(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}{'s' * (count != 1)}"


# --- carrying runs out ----------------------------------------------------------------------------


class Watching:
    """Gives an observer for each run of an experiment. This one ignores everything."""

    def compare(self, title: str) -> AbstractContextManager[Observer]:
        """A comparison or a sweep begins."""
        return nullcontext(Observer())

    def meta_train(self, title: str) -> AbstractContextManager[Observer]:
        """A meta-training begins."""
        return nullcontext(Observer())

    def timing(self, title: str, total: int) -> AbstractContextManager[Tick]:
        """So many timings begin; the name of each is passed to the observer."""
        return nullcontext(lambda name: None)


class Job(NamedTuple):
    """A kind of run: its last record, the file written after it, how it starts and resumes."""

    last: str
    file: str
    start: Callable[..., Any]
    resume: Callable[..., Any] = resume


@dataclass(frozen=True)
class Runner:
    """Carries out the runs of an experiment in its folder."""

    folder: Path
    scale: str
    watching: Watching
    stop: Callable[[], bool]

    def run(
        self,
        path: str,
        config: Config,
        job: Job,
        watch: AbstractContextManager[Any],
        note: str | None = None,
        besides: Collection[str] = (),
    ) -> list[Record]:
        """Start or resume the run in `path`, unless it is finished → its records."""
        folder = self.folder / path
        there = begun(folder, config, besides)
        if there and finished(folder, job.last, job.file):
            return read(folder / RECORDS)
        if self.stop():
            raise Interrupted(f"stopped before {folder.name}.", self.folder)
        tasks = config.tasks if isinstance(config, MetaConfig) else (config.task,)
        try:
            with compiled_for(self.scale, tasks), watch as observer:
                if note is not None:
                    observer.note(note)
                if there:
                    job.resume(folder, observer=observer, stop=self.stop)
                else:
                    job.start(located(config, folder), observer=observer, stop=self.stop)
        except Interrupted as stopped:
            raise Interrupted(f"{folder.name}: {stopped}", self.folder) from None
        return read(folder / RECORDS)


def records_in(folder: Path) -> list[Record]:
    """The checked records of a run's folder; none if there are none."""
    records = read(folder / RECORDS, gaps=True) if records_file(folder / RECORDS) else []
    check_records(folder / RECORDS, records)
    return records


def finished(folder: Path, kind: str, file: str) -> bool:
    """Whether a run has its last record, all that this one lists, and the file written after it."""
    records = records_in(folder)
    if not records or records[-1]["kind"] != kind or not (folder / file).is_file():
        return False
    for last, listed, each in (("summary", "rows", "method"), ("ranking", "order", "point")):
        if kind == last and listed in records[-1]:  # a line that was damaged may have been deleted
            return len(records[-1][listed]) == sum(record["kind"] == each for record in records)
    return True


def begun(folder: Path, config: Config, besides: Collection[str] = ()) -> bool:
    """Whether a run was begun in `folder`; other settings, but those of `besides`, are refused."""
    records = records_in(folder)
    if not records:
        return False
    if records[0]["kind"] != "run" or not isinstance(records[0].get("config"), dict):
        raise LaconicError(
            f"{folder} has lost the record of its settings; move it away to have it run anew."
        )
    names = different_settings(config, records[0]["config"], folder, {"out", *besides})
    if names:
        raise LaconicError(
            f"{folder} was begun with another {', '.join(names)}; move it away to have it run "
            "anew, or choose another --out."
        )
    return True


def different_settings(
    config: Config, recorded: Record, folder: Path, besides: Collection[str]
) -> list[str]:
    """The settings in which a config differs from a recorded one; a population's data decides H."""
    populated = not isinstance(config, OverheadConfig) and config.federated.active
    then = plain(read_config(type(config), recorded, str(folder)))
    free = {"local_steps", *besides} if populated else besides
    return different(bare(then), bare(plain(config)), free)


def bare(value: Any) -> Any:
    """A setting without the folder that optimizers lie in, which may be spelled in several ways."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items()}
    if isinstance(value, list):
        return [bare(item) for item in value]
    return value.rpartition("optimizers/")[2] if isinstance(value, str) else value
