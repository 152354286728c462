"""The step on sharded parameters is that on whole ones, in four gloo processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'laconic[torch]'")

from laconic import zoo
from tests.torch.sharded import OPTIONS, PLACED, PROCESSES
from tests.zoo.made import LOPT_R, a_card, weights

NAMES = ("lopt-a-general", "lagg-a-fmnist", "lopt-fmnist", "lagg-fmnist", "lopt-r")


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Every process's errors by check."""
    folder = tmp_path_factory.mktemp("sharded")
    made = folder / "lopt-r.safetensors"
    zoo.publish(made, LOPT_R, weights(LOPT_R), a_card(LOPT_R))
    files = [f"{name}={made if name == 'lopt-r' else name}" for name in NAMES]
    command = [sys.executable, "-m", "tests.torch.sharded"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder), *files],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(PROCESSES)
    ]
    said = [process.communicate(timeout=900) for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * PROCESSES, "\n".join(errors[-2000:] for _, errors in said)
    return [json.loads(out) for out, _ in said]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sharded_steps_are_those_of_whole_tensors(errors, name):
    checks = [f"{where}, {how}" for where in PLACED for how in OPTIONS] + ["states"]
    assert len(errors) == PROCESSES
    for found in errors:
        worst = {check: found[f"{name}: {check}"] for check in checks}
        assert max(worst.values()) < 1e-5, worst
        assert max(worst.values()) > 0  # another order of sums leaves its trace
