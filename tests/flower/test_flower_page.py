"""The snippets of the page on Flower run, and clients need neither JAX nor laconic."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

from laconic.flower import LearnedStrategy

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
sys.modules["jax"] = sys.modules["laconic"] = None  # importing either is an error
sys.path.insert(0, sys.argv[1])
import client_app
print(type(client_app.app).__name__, "jaxlib" in sys.modules)
"""


def test_the_snippets_run():
    page = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    names: dict = {}
    for text in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(compile(text, "snippet", "exec"), names)
    assert isinstance(names["strategy"], LearnedStrategy)
    assert str(names["strategy"].checkpoint) == "server.safetensors"


@pytest.mark.parametrize("app", ["examples/flower", "tests/flower/app"])
def test_clients_need_neither_jax_nor_laconic(app):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(ROOT / app)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "ClientApp False\n", done.stderr
