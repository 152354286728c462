"""The examples run; a task of one's own takes under 15 lines, and a learned optimizer three."""

import re
import runpy
import sys
from functools import partial
from pathlib import Path

import jax
import pytest

from laconic.zoo.file import WEIGHTS
from tests.outer.trees import QUICK

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "name", ["own_task_plain.py", pytest.param("own_task_equinox.py", marks=pytest.mark.slow)]
)
def test_own_task(name, tmp_path, monkeypatch, capsys):
    source = (EXAMPLES / name).read_text()
    task_lines = source.split("# task begins\n")[1].split("# task ends\n")[0].splitlines()
    assert len([line for line in task_lines if line.strip()]) < 15
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert list(tmp_path.glob("runs/*/report.html"))


@pytest.mark.parametrize(
    "given", [[], [str(WEIGHTS / "lagg-a-fmnist.safetensors")]], ids=["by-default", "by-path"]
)
def test_a_learned_optimizer_in_a_plain_optax_loop(given, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["optax_swap.py", *given])
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
    runpy.run_path(str(EXAMPLES / "optax_swap.py"), run_name="__main__")
    plain, learned = [
        float(found) for found in re.findall(r"loss ([0-9.]+) after", capsys.readouterr().out)
    ]
    assert learned < 0.8 * plain
    lines = (EXAMPLES / "optax_swap.py").read_text().splitlines()
    assert [line[-1] for line in lines if re.search(r"  # line \d$", line)] == ["1", "2", "3"]
    assert sum("laconic" in line for line in lines if not line.startswith('"""')) == 2
