"""The examples run; a task of one's own takes under 15 lines."""

import runpy
import sys
from pathlib import Path

import jax
import pytest

from laconic.zoo import load

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
    ("name", "extra"), [("jax", None), ("flax", "flax"), ("equinox", None), ("torch", "torch")]
)
def test_a_training_loop(name, extra, monkeypatch):
    """The files fit together; the page that shows them runs their code (test_docs.py)."""
    if extra is not None:
        pytest.importorskip(extra, reason=f"not installed: pip install 'laconic[{extra}]'")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for module in ("loop_digits", "loop_jax"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    scope = runpy.run_path(str(EXAMPLES / f"loop_{name}.py"))
    if name == "torch":
        assert len(scope["X"]) + len(scope["TEST_X"]) == 1797
    else:
        params, _ = jax.eval_shape(scope["make_task"]().init, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 64 * 64 + 64 + 64 * 10 + 10


def test_the_optimizer_of_the_loops_is_named_once():
    """And works for any K, as a first one should."""
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("loop_*.py"))]
    name = runpy.run_path(str(EXAMPLES / "loop_digits.py"))["OPTIMIZER"]
    assert sum(text.count(f'"{name}"') for text in texts) == 1
    assert load(name).card.workers is None
