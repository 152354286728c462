"""A worker process of the jax.distributed engine for tests: `python -m tests.engines.mesh_process
JSON`."""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from laconic.engines.jax_distributed import JaxDistributedEngine, join
from laconic.engines.loop import Loop
from laconic.engines.wire import Seal
from laconic.method import Setting
from laconic.tasks.catalog import make_task
from tests.engines.methods import TASK, B, H, K, astray, line_of, method_of


def main() -> None:
    spec = json.loads(sys.argv[1])
    worker, folder = spec["worker"], Path(spec["folder"])
    join(spec["coordinator"], K, worker)
    task = make_task(TASK)
    for name, outer, options, compress in spec["methods"]:
        method = method_of(name, outer, options, compress)
        setting, seal = Setting(K, H, B, spec["rounds"], (0,)), Seal.of("secret", name)
        run = Loop(task, method, setting, JaxDistributedEngine(), seal)
        run.programs.outer = astray(run.programs, spec["diverge"] if worker == 2 else [])
        reports = list(run.rounds())
        lines = [json.dumps(line_of(report, worker)) for report in reports]
        (folder / f"{name}-{worker}-0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        np.savez(
            folder / f"{name}-{worker}-0.npz",
            *[np.asarray(x) for x in jax.tree.leaves(reports[-1].shared)],
        )


if __name__ == "__main__":
    main()
