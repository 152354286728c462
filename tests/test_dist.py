"""The wheel, installed in an empty environment, compares optimizers from another folder; what
pyproject.toml, the Makefile and the workflows say of each other is true."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from laconic.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'laconic[dev]'")
    return yaml.safe_load((WORKFLOWS / name).read_text())


def steps(name: str) -> list[dict]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def test_the_workflows_call_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("tests.yml", "publish.yml"):
        ran = "\n".join(step.get("run", "") for step in steps(name))
        called = set(re.findall(r"\bmake ([a-z-]+)", ran))
        assert called
        assert called <= targets
    assert {"test", "lint", "types"} <= set(
        re.findall(r"\bmake ([a-z-]+)", str(workflow("tests.yml")["jobs"]["test"]["steps"]))
    )
    assert len(list(WORKFLOWS.iterdir())) == 2


def test_the_supported_versions_of_python_are_those_tested():
    named = [
        classifier.rsplit(" ", 1)[1]
        for classifier in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", classifier)
    ]
    assert workflow("tests.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_only_the_job_that_publishes_may_ask_for_a_token():
    jobs = workflow("publish.yml")["jobs"]
    writes = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert writes == ["pypi"]
    assert all("run" not in step for step in jobs["pypi"]["steps"])  # nothing of ours runs there
    (check,) = [step["run"] for step in jobs["build"]["steps"] if "GITHUB_REF_NAME" in str(step)]
    file = f"dist/laconic-{__version__}.tar.gz"
    done = subprocess.run(
        ["bash", "-c", check.replace("test -f", "echo")],
        env={"GITHUB_REF_NAME": f"v{__version__}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == file


def test_the_extra_all_has_every_extra_of_users_and_nothing_is_named_twice():
    extras = PROJECT["optional-dependencies"]
    inside = re.findall(r"laconic\[([a-z,]+)\]", " ".join(extras["all"]))
    assert sorted(",".join(inside).split(",")) == sorted(set(extras) - {"all", "dev", "docs"})
    others = [line for name, lines in extras.items() if name != "all" for line in lines]
    named = [re.split(r"[>=\[]", line)[0] for line in PROJECT["dependencies"] + others]
    assert {name for name in named if named.count(name) > 1} <= {
        "torch"
    }  # torchft needs a newer one


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
