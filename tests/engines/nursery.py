"""Worker processes for tests: `python -m tests.engines.nursery` imports everything once, then forks
one a request.

A request is a line of JSON on stdin, a dictionary of `Spec`'s fields; the answer is the new
process's id. Each worker writes one JSON line a round to its log, and at the end its weights.
"""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.fleet import nurse
from laconic.engines.elastic import ElasticEngine, Timeouts
from laconic.engines.loop import Loop
from laconic.engines.wire import Seal
from laconic.method import Setting
from laconic.tasks.catalog import make_task
from tests.engines.methods import GAMMA, TASK, B, H, K, astray, line_of, method_of
from tests.engines.poison import poisoned


@dataclasses.dataclass
class Spec:
    """One worker process.

    methods: runs to make one after the other, each (name, outer optimizer, its options, compressor)
    deaths: {"round:point": signal}, what to do to itself there · gates: rounds before which to wait
    for a file poison: {round: kind} · diverge: rounds whose result this worker gets wrong · born:
    counts its restarts · least: how many workers a round needs · exchange: how messages travel
    """

    worker: int
    lighthouse: str
    folder: str
    rounds: int
    methods: list[tuple[str, str, dict[str, Any], str]]
    token: str = "secret"
    deaths: dict[str, int] = dataclasses.field(default_factory=dict)
    gates: list[int] = dataclasses.field(default_factory=list)
    poison: dict[str, str] = dataclasses.field(default_factory=dict)
    diverge: list[int] = dataclasses.field(default_factory=list)
    timeouts: dict[str, float] = dataclasses.field(default_factory=dict)
    local: tuple[str, float] = ("sgd", GAMMA)
    checkpoint_every: int = 0
    born: int = 0
    task: str = TASK
    least: int = 1
    exchange: str = "auto"


def work(spec: Spec) -> None:
    folder, task = Path(spec.folder), make_task(spec.task)

    def at(point: str, round: int) -> None:
        mark = folder / f"ready-{spec.worker}-{spec.born}"
        mark.touch()
        gate = folder / f"gate-{round}"
        while point == "before quorum" and round in spec.gates and not gate.exists():
            time.sleep(0.005)
        death = spec.deaths.pop(f"{round}:{point}", None)
        if death is not None:
            os.kill(os.getpid(), death)
            mark.touch()  # it was only stopped, and goes on

    for name, outer, options, compress in spec.methods:
        method = method_of(name, outer, options, compress, spec.local)
        seal = Seal.of(spec.token, name)
        waits = Timeouts(**spec.timeouts)
        engine: Any = ElasticEngine(
            spec.worker, K, spec.lighthouse, seal, timeouts=waits, least=spec.least
        )
        engine.gather = poisoned(
            engine.gather, spec.worker, {int(r): kind for r, kind in spec.poison.items()}, seal
        )
        setting = Setting(K, H, B, spec.rounds, (0,))
        keep: dict[str, Any] = (
            {"folder": folder / name, "checkpoint_every": spec.checkpoint_every}
            if spec.checkpoint_every
            else {}
        )
        keep |= {"exchange": spec.exchange}
        run, last = Loop(task, method, setting, engine, seal, at=at, **keep), None
        run.programs.outer = astray(run.programs, spec.diverge)
        with open(folder / f"{name}-{spec.worker}-{spec.born}.jsonl", "w", encoding="utf-8") as log:
            for report in run.rounds():
                last = report
                log.write(json.dumps(line_of(report, spec.worker)) + "\n")
                log.flush()
        assert last is not None
        leaves = [np.asarray(x) for x in jax.tree.leaves(last.shared)]
        np.savez(folder / f"{name}-{spec.worker}-{spec.born}.npz", *leaves)
    (folder / f"done-{spec.worker}-{spec.born}").touch()


def main() -> None:
    """Fork a worker for each line of stdin; leave when it closes."""
    errors = lambda spec: f"{spec.folder}/stderr-{spec.worker}-{spec.born}"
    nurse(lambda line: Spec(**json.loads(line)), errors, work)


if __name__ == "__main__":
    main()
