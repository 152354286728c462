"""`laconic bench`: how fast the server's step, a round and meta-training are on this machine."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from laconic.bench import growth, meta_train, overhead, round, server_step, timing
from laconic.cli.terminal import err, out, say, say_examples
from laconic.errors import unknown
from laconic.show.table import Table
from laconic.store.atomic import check_place


@dataclass(frozen=True)
class Output:
    """Where the record goes, and what it is compared with."""

    out: Path = Path("runs/bench")
    """The folder for NAME.json and NAME.png; those of an earlier run are replaced."""
    compare: Path | None = None
    """An earlier NAME.json: say what got slower since; then exit with status 1."""


ABOUT = ("benchmark", "commit", "started", "host_cpus", "dirty")  # not measured


class Benchmark(NamedTuple):
    """What is measured, with which options, and a line about it."""

    config: type
    measure: Callable[..., dict[str, Any]]
    summary: str
    draw: Callable[[dict[str, Any]], Any] | None = None  # in place of bars


BENCHMARKS: dict[str, Benchmark] = {
    "server-step": Benchmark(
        server_step.ServerStepConfig,
        server_step.measure,
        "one LOpt-A or LAgg-A step on real models' tensors, against AdamW and against memory "
        "traffic alone",
    ),
    "overhead": Benchmark(
        overhead.OverheadConfig,
        overhead.measure,
        "what the server's step adds to H local steps of a task: the paper's table of times",
    ),
    "meta-train": Benchmark(
        meta_train.MetaTrainConfig,
        meta_train.measure,
        "communication rounds a second in meta-training",
    ),
    "round": Benchmark(
        round.RoundConfig,
        round.measure,
        "a simulated round against bare JAX, a LOpt-A step against the textbook's",
    ),
    "growth": Benchmark(
        growth.GrowthConfig,
        growth.measure,
        "how time and memory grow with parameters, workers, local steps, seeds and tasks",
        growth.picture,
    ),
}
EXAMPLES = {
    "laconic bench server-step": "0.1 M and 10 M parameters, a minute on two cores",
    "laconic bench server-step --sizes vit-b gpt2-medium --tune": "on a GPU: tune, then measure",
    "laconic bench server-step --sizes vit-b --precisions tf32 bf16": "… and at other precisions",
    "laconic bench overhead --task fmnist-mlp2 --batch 128": "a learned step's share of a round",
    "laconic bench round --compare runs/bench/round.json": "what got slower since the last run",
}


def run_bench(argv: Sequence[str]) -> int:
    """`laconic bench NAME [flags]`; without a name, what there is."""
    if not argv or argv[0] in ("-h", "--help"):
        _usage()
        return 0
    if argv[0] not in BENCHMARKS:
        raise unknown("benchmark", argv[0], BENCHMARKS)
    name, chosen = argv[0], BENCHMARKS[argv[0]]
    options = _options(chosen.config, argv[1:], f"laconic bench {name}", chosen.summary)
    check_place(options.output.out / f"{name}.json")
    earlier = None if options.output.compare is None else timing.load_record(options.output.compare)
    with _spinner() as shown:
        line = shown.add_task(f"{name}: compiling …", total=None, count=0)
        done: list[str] = []

        def tick(what: str) -> None:
            done.append(what)
            shown.update(line, description=f"{name}: {what}", count=len(done))

        found = chosen.measure(options.config, tick)
    made = timing.make_record(name, dataclasses.asdict(options.config), found)
    _show(made)
    for path in timing.save(options.output.out, made, chosen.draw):
        say(f"{path.suffix[1:] + ':':<6} {path.resolve()}")
    return 0 if earlier is None else _compare(made, earlier)


def _options(config: type, argv: Sequence[str], prog: str, summary: str) -> Any:
    fields: list[Any] = [
        ("config", tyro.conf.OmitArgPrefixes[config], field(default_factory=config)),
        ("output", tyro.conf.OmitArgPrefixes[Output], field(default_factory=Output)),
    ]
    both = dataclasses.make_dataclass("Bench", fields, frozen=True)
    description = f"Measure {summary}. A table, a JSON record and a picture."
    return tyro.cli(both, args=list(argv), prog=prog, description=description)


def _usage() -> None:
    flags = "`laconic bench NAME --help` lists the flags"
    say(f"laconic bench NAME [flags]: measure how fast this machine is; {flags}.\n")
    for name, found in BENCHMARKS.items():
        out.print(f"  [bold cyan]{name:<12}[/] {found.summary}", highlight=False, soft_wrap=True)
    say_examples("For example:", EXAMPLES)


def _spinner() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[count]} timed"),
    )
    return Progress(*columns, TimeElapsedColumn(), console=err, transient=True)


def _show(made: dict[str, Any]) -> None:
    """One row a figure, one column a number; then what was measured once."""
    figures = made["figures"]
    names = dict.fromkeys(key for figure in figures.values() for key in figure)
    columns = [key for key in names if key != "seconds"]
    rows = [
        [name, _milliseconds(f["seconds"]), *(_number(f.get(key)) for key in columns)]
        for name, f in figures.items()
    ]
    headers = ["", "ms", *(key.replace("_", " ") for key in columns)]
    title = f"{made['benchmark']} on {made['device']['kind']}"
    out.print(Table(title, headers, rows))
    for key, value in made.items():
        if isinstance(value, int | float | str) and key not in ABOUT:
            say(f"{key.replace('_', ' ') + ':':<42} {_number(value)}")
    if "tuning" in made and made["config"].get("tune"):
        say("tuned: " + " ".join(f"{key}={value}" for key, value in made["tuning"].items()))


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _number(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _compare(made: dict[str, Any], earlier: dict[str, Any]) -> int:
    found = timing.compare(made, earlier)
    rows = [
        [n, _milliseconds(a), _milliseconds(b), f"{b / a:.2f}×", verdict]
        for n, a, b, verdict in found
    ]
    title = f"against {earlier.get('commit') or 'the record'}"
    headers = ["", "ms before", "ms now", "ratio", ""]
    out.print(Table(title, headers, rows))
    for what, before, now in timing.different(made, earlier):
        say(f"note: {what} was {before} and is {now}.")
    slower = [name for name, _, _, verdict in found if verdict == "slower"]
    if slower:
        say(f"slower: {', '.join(slower)}")
        return 1
    say(f"nothing got more than {timing.TOLERANCE:.0%} slower.")
    return 0
