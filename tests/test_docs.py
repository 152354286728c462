"""The documentation's snippets run, its links and paths lead somewhere, and its site lists every
page."""

import ast
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import laconic
from laconic.meta.estimator import Horizon
from laconic.meta.pes import es, pes
from laconic.meta.train import ESTIMATORS
from laconic.outer import OUTER
from tests.meta.quadratic import CALM, unflatten
from tests.outer.trees import QUICK

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACES = ("laconic/", "tests/", "docs/", "results/", "examples/", "benchmarks/")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def snippets(path: Path) -> list[str]:
    return [text for language, text in FENCE.findall(path.read_text()) if language == "python"]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def links(path: Path) -> list[str]:
    """Targets of Markdown links and images that stay in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [target for target in found if not target.startswith(("http://", "https://", "mailto:"))]


def paths_in_backticks(text: str) -> list[str]:
    """What looks like a file or folder of ours; `*` and `…` stand for anything, so such patterns
    are left out."""
    words = re.findall(r"`([^`\n]+)`", text)
    return [word for word in words if word.startswith(PLACES) and not re.search(r"[\s*…<>]", word)]


def anchors(path: Path) -> set[str]:
    """The ids that a page's headings get."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }


def nav() -> list[str]:
    """The pages named in mkdocs.yml, read without a YAML parser: entries are `- Title: file.md`."""
    _, _, tail = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    return re.findall(r"^\s+- [^:\n]+: (\S+\.md)$", tail, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_python_snippet_parses(path):
    for text in snippets(path):
        ast.parse(text, name_of(path))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_internal_link_leads_somewhere(path):
    for target in links(path):
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{name_of(path)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(path)} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_path_in_backticks_exists(path):
    missing = [word for word in paths_in_backticks(prose(path)) if not (ROOT / word).exists()]
    assert not missing


def test_the_checks_see_something():
    assert sum(len(snippets(path)) for path in PAGES) >= 10
    assert sum(len(links(path)) for path in PAGES) >= 15
    assert sum(len(paths_in_backticks(prose(path))) for path in PAGES) >= 40
    assert paths_in_backticks(
        "`laconic/x.py`, `results/…`, `results/*/a`, `other/x.py`, laconic/y.py"
    ) == ["laconic/x.py"]


def test_every_image_is_embedded_and_there_are_few():
    embedded = {
        (path.parent / target).resolve()
        for path in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", path.read_text())
    }
    assert embedded == set((ROOT / "docs" / "images").iterdir())
    assert len(embedded) <= 9


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_nav_lists_every_page_once():
    pages = sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    )
    assert sorted(nav()) == pages


def test_the_reference_covers_the_public_interface():
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    modules = list(
        itertools.chain(
            *(re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE) for path in pages)
        )
    )
    assert len(modules) == len(set(modules))
    for module in modules:
        importlib.import_module(module)
    overview = (ROOT / "docs" / "api" / "index.md").read_text()
    for name in laconic.__all__:
        assert f"`{name}`" in overview
    for module, name in re.findall(r"\]\[(laconic[\w.]*)\.(\w+)\]", overview):
        assert f"{module}.{name}" in modules or (
            module in modules and hasattr(sys.modules[module], name)
        ), name


# --- the pages whose snippets run -----------------------------------------------------------------


def run_snippet(text: str, monkeypatch) -> types.ModuleType:
    """The text as a module of its own; NamedTuples and dataclasses look their module up by name."""
    module = types.ModuleType("a_snippet_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(text, "snippet", "exec"), module.__dict__)
    return module


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """An empty working folder, and registries that forget what a test adds."""
    monkeypatch.chdir(tmp_path)
    for registry, name in ((OUTER, "sign-momentum"), (ESTIMATORS, "blended")):
        monkeypatch.setitem(registry, name, None)
        monkeypatch.delitem(registry, name)
    return tmp_path


EXTENDING = snippets(ROOT / "docs" / "extending.md")


def test_an_outer_optimizer_in_one_file_and_one_line(at_home, monkeypatch):
    """What it then appears in is in test_own_optimizer.py, for the same file."""
    new_file, use = EXTENDING[:2]
    assert new_file == (ROOT / "examples" / "own_optimizer.py").read_text()
    run_snippet(new_file, monkeypatch)
    used = run_snippet(use, monkeypatch)
    assert list(at_home.glob("runs/digits-mlp-*/report.html"))
    assert [row["label"] for row in used.records[-1]["rows"]] == ["local-sgd", "sign-momentum"]
    assert used.config.rounds == 2
    losses = {r["label"]: np.asarray(r["train"]) for r in used.records if r["kind"] == "method"}
    assert np.isfinite(losses["sign-momentum"]).all()


@pytest.mark.slow
def test_the_snippets_of_a_task_and_of_a_compressor_run(at_home, monkeypatch, capsys):
    task, compressor = EXTENDING[2:4]
    records = run_snippet(task, monkeypatch).records
    assert records[-1]["rows"][0]["test_loss"] is not None
    module = run_snippet(compressor, monkeypatch)
    parameters = 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
    assert f"{2.0 * parameters} bytes" in capsys.readouterr().out
    assert module.chunk.done == 2


def test_the_snippet_of_an_estimator_is_the_mean_of_two(at_home, monkeypatch):
    run_snippet(EXTENDING[4], monkeypatch)
    settings = {"pairs": 4, "truncation": 3, "sigma": 0.1, "horizon": Horizon(4, 10)}
    theta, key, later = unflatten(), jax.random.key(0), jax.random.key(1)
    blended = ESTIMATORS["blended"].make(CALM, **settings)

    def everything():
        state = blended.init(theta, key)
        halves = []
        for i, make in enumerate((pes, es)):
            half = make(CALM, **settings)
            part = half.init(theta, jax.random.fold_in(key, i))
            halves.append(half.estimate(theta, part, jax.random.fold_in(later, i))[0])
        return state, blended.estimate(theta, state, later), halves

    state, (found, _, metrics), halves = jax.jit(everything, compiler_options=QUICK)()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {4}
    for name in theta:
        np.testing.assert_allclose(found[name], (halves[0][name] + halves[1][name]) / 2, rtol=1e-6)
    assert metrics.loss.shape == metrics.reset.shape == (4,)
    assert len(EXTENDING) == 5


EDITS = [
    text for kind, text in FENCE.findall((ROOT / "docs" / "edits.md").read_text()) if kind == "diff"
]


@pytest.mark.parametrize("diff", EDITS, ids=range(1, 6))
def test_an_edit_of_the_docs_still_applies(diff):
    """With one line of context: neighbours may change."""
    done = subprocess.run(
        ["git", "apply", "--check", "-C1", "-"],
        input=diff,
        text=True,
        cwd=ROOT,
        capture_output=True,
    )
    assert not done.returncode, done.stderr


# What each edit adds, at work in a copy with that edit.
EDITED = [
    """
import jax.numpy as jnp
from laconic.architecture import Architecture
from laconic.outer.features import FORMULAS
assert Architecture("lopt-a").weights == 2498
assert float(FORMULAS["sign_m"](type("Fields", (), {"m": jnp.float32(-2.0)}), 0.0)) == -1.0
""",
    """
import jax.numpy as jnp
from laconic.methods import parse_method
from laconic.outer.sign_momentum import sign_momentum
parse_method("sign-diloco:rate=0.01", 4)
optimizer = sign_momentum(0.5).tx
params = {"w": jnp.ones(3)}
step, _ = optimizer.update({"w": jnp.array([2.0, -1.0, 0.0])}, optimizer.init(params), params)
assert step["w"].tolist() == [-0.5, 0.5, 0.0]
""",
    """
from laconic.tasks.catalog import make_task
assert make_task("cancer-mlp").classes == 2
""",
    """
from laconic.cli import main
from pathlib import Path
try:
    main(["reproduce", "table-weights", "--scale", "full", "--out", "weights"])
except SystemExit as end:
    assert not end.code
assert Path("weights/figure.png").is_file()
""",
    """
from laconic.errors import LaconicError
from laconic.runs.folder import Observer, RunFolder
folder = RunFolder("run")
folder.header = {"provenance": {"commit": "another"}}
try:
    folder.note_changes(Observer())
except LaconicError as error:
    assert "was begun at commit another" in str(error)
else:
    raise AssertionError("it was not refused")
""",
]


@pytest.mark.parametrize(("diff", "check"), [*zip(EDITS, EDITED, strict=True)], ids=range(1, 6))
def test_what_an_edit_of_the_docs_adds_works(diff, check, tmp_path):
    shutil.copytree(ROOT / "laconic", tmp_path / "laconic")
    apply = ["git", "apply", "-C1", "-"]
    subprocess.run(apply, input=diff, text=True, cwd=tmp_path, check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page",
    [
        "index.md",
        "getting-started.md",
        "meta-training.md",
        "federated.md",
        "distributed.md",
        "server-step.md",
    ],
)
def test_the_other_pages_snippets_run(page, at_home, monkeypatch, capsys):
    found = snippets(ROOT / "docs" / page)
    assert found
    for text in found:
        if (
            "laconic.compare(" not in text
        ):  # the task of one's own is examples/own_task_plain.py, which is run as such
            run_snippet(text, monkeypatch)


def test_the_task_of_the_first_steps_is_the_example_that_runs():
    (text,) = [
        text for text in snippets(ROOT / "docs" / "getting-started.md") if "plain_task" in text
    ]
    example = (ROOT / "examples" / "own_task_plain.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            assert (ast.get_source_segment(text, node) or "?") in example
