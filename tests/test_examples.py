"""The examples run, and bringing a task of one's own takes under 15 lines."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", ["own_task_plain.py", "own_task_equinox.py"])
def test_own_task(name, tmp_path, monkeypatch, capsys):
    source = (EXAMPLES / name).read_text()
    task_lines = source.split("# task begins\n")[1].split("# task ends\n")[0].splitlines()
    assert len([line for line in task_lines if line.strip()]) < 15
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert list(tmp_path.glob("runs/*/report.html"))
