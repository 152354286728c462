"""The documentation's snippets run, its links and paths lead somewhere, and its site lists every
page."""

import ast
import importlib
import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import laconic
from laconic.cli import main
from laconic.meta.estimator import Horizon
from laconic.meta.pes import es, pes
from laconic.meta.train import ESTIMATORS
from laconic.methods import parse_method
from laconic.outer import OUTER
from tests.meta.quadratic import CALM, unflatten
from tests.outer.trees import QUICK
from tests.pages import (
    BY_LINE,
    FENCE,
    HOW_TOS,
    LEFT_OUT,
    NOT_RUN,
    ONLY_PARSED,
    PAGES,
    ROOT,
    SMALLER,
    command_lines,
    entry,
    missing,
    name_of,
    python_blocks,
    run_python,
    small,
)

PLACES = ("laconic/", "tests/", "docs/", "results/", "examples/", "benchmarks/")


def snippets(path: Path) -> list[str]:
    return [block.text for block in python_blocks(path)]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def links(path: Path) -> list[str]:
    """Targets of Markdown links and images that stay in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [target for target in found if not target.startswith(("http://", "https://", "mailto:"))]


def paths_in_backticks(text: str) -> list[str]:
    """What looks like a file or folder of ours; `*` and `…` stand for anything, so such patterns
    are left out. So are learned optimizers with options: the files of runs are not kept."""
    words = re.findall(r"`([^`\n]+)`", text)
    other = re.compile(r"[\s*…<>]|\.safetensors:")
    return [word for word in words if word.startswith(PLACES) and not other.search(word)]


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
    assert len(embedded) <= 10


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


# --- the pages whose code runs --------------------------------------------------------------------


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """An empty folder, registries that forget what a page adds, and JAX as users have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "page", None)
    for registry, name in ((OUTER, "sign-momentum"), (ESTIMATORS, "blended")):
        monkeypatch.setitem(registry, name, None)
        monkeypatch.delitem(registry, name)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield tmp_path


def losses(printed: str) -> list[list[float]]:
    """The train losses of averaging, tuned averaging, Nesterov and the learned step, a row a
    comparison."""
    found = [float(word) for word in re.findall(r"train loss ([0-9.]+), test", printed)]
    return [found[i : i + 4] for i in range(0, len(found), 4)]


def check_own_loop(page, printed, home):
    rows = losses(printed)
    assert len(rows) == 4 - ("nnx" not in vars(page)) - ("torch" not in vars(page))
    assert all(learned < 0.75 * averaging for averaging, _, _, learned in rows)
    labels = [row["label"] for row in page.records[-1]["rows"]]
    assert labels[-1] == page.OPTIMIZER


def check_extending(page, printed, home):
    assert sorted(run.name[:5] for run in home.glob("runs/*")) == ["digit", "line-", "measu"]
    own = page.told[-1]["heldout"]
    assert set(own) == {"loss", "mean error", "share within 1"}
    assert f"training,10,test_mean error,{own['mean error']}" in printed
    assert page.records[-1]["rows"][0]["test_loss"] is not None  # the task's, the later one
    parameters = 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
    assert f"{2.0 * parameters} bytes" in printed
    assert page.chunk.done == 2
    assert ESTIMATORS["blended"].make is page.blended


def check_pytorch(page, printed, home):
    assert page.outer.param_groups[0]["layout"] == "as-is"
    assert all(p.isfinite().all() for p in page.model.parameters())


def check_flower(page, printed, home):
    assert str(page.strategy.checkpoint) == "server.safetensors"


CHECKS = {
    "own-loop": check_own_loop,
    "extending": check_extending,
    "pytorch": check_pytorch,
    "flower": check_flower,
}
SLOW = ("own-loop", "extending")
WITH_PYTHON = [
    pytest.param(path, id=name_of(path), marks=[pytest.mark.slow] if path.stem in SLOW else [])
    for path in HOW_TOS
    if python_blocks(path)
]


@pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning")  # as Flower is imported
@pytest.mark.parametrize("path", WITH_PYTHON)
def test_the_python_of_a_page_runs(path, at_home, capsys):
    """In order, in one namespace, in an empty folder. Where an extra is missing, the rest runs and
    the test is skipped with that reason."""
    absent = missing(tuple({extra for block in python_blocks(path) for extra in block.extras}))
    *_, (_, page) = list(run_python(path)) or [(None, None)]
    if page is not None and path.stem in CHECKS:
        CHECKS[path.stem](page, capsys.readouterr().out, at_home)
    if absent:
        pytest.skip(f"without {', '.join(absent)}, which is not installed: pip install '.[all]'")


class Parsed(Exception):
    """Everything is read and nothing is begun; holds the arguments."""


def stop_there(*args, **kwargs):
    raise Parsed(args)


STOPS = (  # where the commands begin to work
    *((f"laconic.cli.compare.{name}", stop_there) for name in ("compare", "sweep")),
    *((f"laconic.cli.compare.resume_{name}", stop_there) for name in ("compare", "sweep")),
    *((f"laconic.cli.train.{name}", stop_there) for name in ("train", "resume_train")),
    ("laconic.cli.meta_train.meta_train", stop_there),
    ("laconic.cli.meta_train.resume_meta_train", stop_there),
    ("laconic.cli.plan.plan", stop_there),
    ("laconic.cli.report.report_folder", stop_there),
    ("laconic.cli.reproduce.reproduce", stop_there),
    ("laconic.cli.launch.engine_entry", stop_there),
    ("laconic.runs.trackers._require", lambda name: None),  # whatever is installed
    ("laconic.cli.train.read_train_config", stop_there),
    ("laconic.cli.worker.need_token", lambda *_: "token"),
    ("laconic.cli.worker.rank_from", lambda *_: None),
    ("laconic.cli.worker.seat_of", stop_there),
)
LINES = [
    (path, line)
    for path in HOW_TOS
    for line in command_lines(path)
    if not entry(LEFT_OUT, line.text) and line.words[:2] != ["laconic", "zoo"]
]


@pytest.mark.parametrize("path", dict.fromkeys(path for path, _ in LINES), ids=name_of)
def test_the_command_lines_of_a_page_are_read_by_the_real_parser(path, at_home, monkeypatch):
    """As written, and with the flags that make them small; the methods they name are real."""
    for place, stand_in in STOPS:
        monkeypatch.setattr(place, stand_in, raising=False)
    runpy.run_path(str(ROOT / "examples" / "own_optimizer.py"))  # registers its own
    for line in (line for where, line in LINES if where == path):
        for words in (line.words, small(line)):
            start = words.index("laconic") + 1 if "laconic" in words else 2
            with pytest.raises((Parsed, SystemExit)) as ended:
                main(words[start:])
            if isinstance(ended.value, SystemExit):
                assert ended.value.code == 0, line.text
            else:
                config = ended.value.args[0][:1]
                for method in getattr(config[0] if config else None, "optimizers", ()):
                    if "…" not in method:
                        parse_method(method, config[0].workers)


def test_every_exception_is_still_needed():
    text = "\n".join(line.text for path in HOW_TOS for line in command_lines(path))
    code = "\n".join(text for path in HOW_TOS for text in snippets(path))
    assert [part for part in (*LEFT_OUT, *ONLY_PARSED, *BY_LINE) if part not in text] == []
    assert [part for part in (*NOT_RUN, *SMALLER) if part not in code] == []
    assert len(LINES) > 40


def test_an_outer_optimizer_in_one_file_and_one_line():
    """What it then appears in is in test_own_optimizer.py, for the same file."""
    new_file = snippets(ROOT / "docs" / "extending.md")[0]
    assert new_file == (ROOT / "examples" / "own_optimizer.py").read_text()


def test_the_snippet_of_an_estimator_is_the_mean_of_two(at_home):
    scope: dict = {"__name__": __name__}
    page = snippets(ROOT / "docs" / "extending.md")
    exec(next(code for code in page if '"blended"' in code), scope)
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


def test_the_task_of_the_first_steps_is_the_example_that_runs():
    (text,) = [
        text for text in snippets(ROOT / "docs" / "getting-started.md") if "plain_task" in text
    ]
    example = (ROOT / "examples" / "own_task_plain.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            assert (ast.get_source_segment(text, node) or "?") in example
