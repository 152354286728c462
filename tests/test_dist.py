"""The wheel, installed in an empty environment, compares optimizers from another folder."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_runs_on_its_own(tmp_path):
    def run(*command, cwd=tmp_path):
        environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PYTHON", "JAX_", "XLA_", "LACONIC_"))
        }
        environment["PYTHONNOUSERSITE"] = "1"
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        cwd=ROOT,
    )
    (wheel,) = (tmp_path / "dist").glob("laconic-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    laconic = str(tmp_path / "env" / "bin" / "laconic")
    out = run(laconic, "compare", "--rounds", "20", "--seeds", "2", cwd=elsewhere)
    assert "report:" in out
    assert list(elsewhere.glob("runs/*/report.html"))
    where = run(str(python), "-c", "import laconic; print(laconic.__file__)", cwd=elsewhere)
    assert str(ROOT) not in where
