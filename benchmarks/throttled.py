"""Whether `laconic plan` is right: rounds of real processes over a slow link, and what it says.

    python benchmarks/throttled.py [--record FILE]

Each worker is a process in a network namespace of its own; a router in user space delays and slows
what goes between them (see `router`). A worker's uplink is divided evenly over its peers, as they
all get the same bytes. A round's local steps are a sleep of H times the step's time, so that they
are what the plan was told however busy this machine is. A round is the median over rounds of the
time from commit to commit. Needs root. The last line is one JSON object.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from benchmarks.fleet import ROOT, Spec, work
from benchmarks.router import Namespaces, Rule, between
from laconic.runs.configs import PlanConfig
from laconic.runs.plan import check, plan
from laconic.store.records import provenance, write_json

PORT, STEP = 29520, "50ms"
GIVE_UP = 300.0  # seconds for a setting
WITHIN = 0.15  # the error that is allowed


@dataclasses.dataclass(frozen=True)
class Case:
    """A setting: K workers with a link each, H, a compressor and the model's size."""

    workers: int
    link: str
    local_steps: int
    compress: str
    parameters: int

    @property
    def name(self) -> str:
        """In words."""
        size = f"{self.parameters / 1e6:g} M"
        return f"K={self.workers} {self.link} H={self.local_steps} {self.compress} {size}"


CASES = (
    Case(2, "5Mbit/10ms", 1, "dense", 200_000),
    Case(2, "5Mbit/10ms", 16, "dense", 200_000),
    Case(2, "5Mbit/10ms", 16, "int8", 200_000),
    Case(2, "10Mbit/50ms", 16, "dense", 200_000),
    Case(2, "10Mbit/50ms", 32, "topk:0.1+int8+ef", 200_000),
    Case(3, "5Mbit/20ms", 16, "dense", 100_000),
    Case(3, "5Mbit/20ms", 16, "int4+ef", 100_000),
    Case(4, "5Mbit/20ms", 8, "int8", 100_000),
)


def measured(case: Case, rounds: int, folder: Path) -> dict[str, float]:
    """Median seconds of a round of real processes, and of its parts at worker 0."""
    config = plan_of(case)
    link, step = check(config)
    K = case.workers
    rule = Rule(delay=link.latency_seconds, rate=link.bits_per_second / max(1, K - 1))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LACONIC_TOKEN": "benchmark"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled")}
    with Namespaces(K) as net:
        meet = f"{net.addresses[0]}:{PORT}"
        lighthouse = ["-m", "laconic.engines.lighthouse", "--bind", meet]
        started = [net.start(0, [sys.executable, *lighthouse], env=environment, cwd=ROOT)]
        task = f"synthetic:{case.parameters}"
        spec = Spec(0, K, meet, str(folder), rounds, task, 1, 8, compress=case.compress)
        spec = dataclasses.replace(spec, pace=case.local_steps * step)
        for k, address in enumerate(net.addresses):
            own = json.dumps(dataclasses.asdict(dataclasses.replace(spec, worker=k, bind=address)))
            words = [sys.executable, __file__, "--work", own]
            started.append(net.start(k, words, env=environment, cwd=ROOT))
        logs = [folder / f"worker-{k}.jsonl" for k in range(K)]
        try:
            await_rounds(started, logs, 1)
            net.rule(between(range(K), range(K), rule))
            await_rounds(started, logs, rounds)
        finally:
            for process in started:
                process.kill()
                process.wait()
    return judged([json.loads(line) for line in logs[0].read_text().splitlines()])


def await_rounds(started: list[subprocess.Popen[Any]], logs: list[Path], rounds: int) -> None:
    """Wait until all have written so many rounds."""
    give_up = time.monotonic() + GIVE_UP
    count = lambda log: len(log.read_text().splitlines()) if log.exists() else 0
    while min(map(count, logs)) < rounds:
        if time.monotonic() > give_up or any(process.poll() for process in started):
            raise SystemExit("error: the workers did not come to the end; see above.")
        time.sleep(0.05)


def judged(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of the rounds after the first three, which still begin on a fast link."""
    times = [row["committed_at"] for row in rows][3:]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    parts = {
        name: statistics.median(row["seconds"][name] for row in rows[4:])
        for name in rows[0]["seconds"]
    }
    return {"seconds": statistics.median(gaps), "rounds": len(gaps), **parts}


def plan_of(case: Case) -> PlanConfig:
    """What `laconic plan` is asked."""
    return PlanConfig(
        parameters=case.parameters,
        workers=case.workers,
        link=case.link,
        step_time=STEP,
        local_steps=(case.local_steps,),
        compress=(case.compress,),
        optimizers=("local-sgd",),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of some settings")
    parser.add_argument("--record", help="file for the figures")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(Spec(**json.loads(options.work)))
        return
    figures = {}
    chosen = CASES if options.cases is None else [CASES[i] for i in options.cases]
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(chosen):
            own = Path(folder) / str(i)
            own.mkdir()
            real = measured(case, options.rounds, own)
            row = plan(plan_of(case))["rows"][0]
            planned = row["rounds"][str(case.local_steps)]
            error = planned / real["seconds"] - 1
            figures[case.name] = {
                **dataclasses.asdict(case),
                **real,
                "planned_seconds": planned,
                "sent_bits": row["sent_bits"],
                "error": error,
            }
            words = f"{case.name}: {real['seconds']:.3f} s, planned {planned:.3f} s ({error:+.1%})"
            print(words, flush=True)
    worst = max(abs(figure["error"]) for figure in figures.values())
    found = {"benchmark": "throttled", "step_time": STEP, "rounds": options.rounds}
    found |= {"figures": figures, "largest_error": worst, "allowed_error": WITHIN, **provenance()}
    if options.record:
        write_json(options.record, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
