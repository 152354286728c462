"""With Flower's own processes: one client in three does something else wrong each round, and the
server is killed.

Three runs share one federation: a whole one, one whose ServerApp is killed in round 3 of 6, and its
resumption.
"""

import json
import os
import signal

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

from laconic.store import checkpoint
from tests.engines.processes import alive, wait_until
from tests.flower.app import waves
from tests.flower.federation import Federation
from tests.flower.grids import simulated

TOTAL, KILLED_IN = 6, 3
NODES = ["partition-id=0", "partition-id=1", "partition-id=2 bad=true"]


def round_of(path):
    return checkpoint.peek(path)["round"] if path.exists() else 0


def outcome(path):
    found = wait_until(
        lambda: path.exists() and json.loads(path.read_text()), f"the result {path.name}", 600
    )
    return {name: np.float32(x) for name, x in found["arrays"].items()}, found["metrics"]


@pytest.mark.slow
def test_bad_clients_and_a_killed_server_change_nothing(tmp_path):
    killed = tmp_path / "killed"
    with Federation(tmp_path, NODES) as federation:
        federation.run(checkpoint=str(tmp_path / "whole"), result=str(tmp_path / "whole.json"))
        arrays, metrics = outcome(tmp_path / "whole.json")

        federation.run(checkpoint=str(killed), result=str(tmp_path / "killed.json"), exits=False)
        wait_until(lambda: round_of(killed) == KILLED_IN - 1, "the round before")
        server = int((tmp_path / "killed.json.pid").read_text())
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not alive(server), "the server's death")
        assert round_of(killed) == KILLED_IN - 1
        federation.run(checkpoint=str(killed), result=str(tmp_path / "again.json"), exits=False)
        resumed, again = outcome(tmp_path / "again.json")
    assert not (tmp_path / "killed.json").exists()

    for name, x in simulated(f"lopt-a-general:gamma={waves.RATE}", 2, TOTAL).items():
        np.testing.assert_allclose(arrays[name], x, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(resumed[name], arrays[name])
    assert again == metrics
    faults = {"nan": "dropped-not-finite", "shape": "dropped-shape", "keys": "dropped-keys"}
    for r in range(1, TOTAL + 1):
        told = {"clients-counted": 2, "round": pytest.approx(r)}
        if waves.FAULTS[r] in faults:
            told |= {"clients-dropped": 1, "clients-failed": 0, faults[waves.FAULTS[r]]: 1}
        else:
            told |= {"clients-dropped": 0, "clients-failed": 1}
        assert metrics[str(r)] == told
