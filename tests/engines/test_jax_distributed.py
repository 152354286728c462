"""Four processes of one JAX mesh give the simulator's losses and weights, and one that goes astray
comes back."""

import json
import subprocess
import sys

import numpy as np
import pytest

from laconic.tasks.catalog import make_task
from tests.engines.cluster import ROOT, environment, free_port, saved_weights
from tests.engines.methods import METHODS, TASK, method_of
from tests.engines.oracle import assert_same_weights, simulate
from tests.engines.processes import PATIENCE

ROUNDS, ASTRAY = 10, 7


def run(folder, methods, diverge):
    base = {
        "coordinator": f"127.0.0.1:{free_port()}",
        "folder": str(folder),
        "rounds": ROUNDS,
        "methods": methods,
    }
    specs = [json.dumps(base | {"worker": worker, "diverge": diverge}) for worker in range(4)]
    command = [sys.executable, "-m", "tests.engines.mesh_process"]
    logs = [open(folder / f"stderr-{worker}", "w", encoding="utf-8") for worker in range(4)]  # noqa: SIM115
    made = [
        subprocess.Popen([*command, spec], cwd=ROOT, env=environment(), stdout=log, stderr=log)
        for spec, log in zip(specs, logs, strict=True)
    ]
    try:
        codes = [process.wait(PATIENCE) for process in made]
    finally:
        for process, log in zip(made, logs, strict=True):
            process.kill()
            process.wait()
            log.close()
    assert codes == [0] * 4, "\n".join(
        (folder / f"stderr-{w}").read_text()[-1500:] for w in range(4)
    )
    rows = lambda name, w: [
        json.loads(line) for line in (folder / f"{name}-{w}-0.jsonl").read_text().splitlines()
    ]
    return {(name, w): rows(name, w) for name, *_ in methods for w in range(4)}


@pytest.mark.slow
def test_a_mesh_of_four_processes_is_the_simulator(tmp_path):
    rows = run(tmp_path, METHODS, [])
    task = make_task(TASK)
    for name, outer, options, compress in METHODS:
        shared, losses_RK = simulate(
            task, method_of(name, outer, options, compress), np.ones((ROUNDS, 4))
        )
        for worker in range(4):
            losses = [[row["losses"][str(k)] for k in range(4)] for row in rows[name, worker]]
            np.testing.assert_allclose(
                losses, losses_RK, rtol=1e-5, err_msg=f"{name} at worker {worker}"
            )
            assert_same_weights(
                saved_weights(tmp_path / f"{name}-{worker}-0.npz"),
                shared,
                f"{name} at worker {worker}",
            )
            assert [r["digest"] for r in rows[name, worker]] == [r["digest"] for r in rows[name, 0]]


@pytest.mark.slow
def test_a_process_of_the_mesh_that_goes_astray_comes_back(tmp_path):
    rows = run(tmp_path, METHODS[:1], [ASTRAY])
    present_RK = np.ones((ROUNDS, 4))
    present_RK[ASTRAY + 1, 2] = 0
    shared, _ = simulate(make_task(TASK), method_of(*METHODS[0]), present_RK)
    for worker in range(4):
        assert_same_weights(
            saved_weights(tmp_path / f"local-sgd-{worker}-0.npz"), shared, f"worker {worker}"
        )
    healed = {
        worker: [r["round"] for r in rows["local-sgd", worker] if r["healed"]]
        for worker in range(4)
    }
    assert healed == {0: [], 1: [], 2: [ASTRAY + 2], 3: []}
