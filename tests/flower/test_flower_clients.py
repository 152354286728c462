"""Flower's clients need neither JAX nor laconic."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
sys.modules["jax"] = sys.modules["laconic"] = None  # importing either is an error
sys.path.insert(0, sys.argv[1])
import client_app
print(type(client_app.app).__name__, "jaxlib" in sys.modules)
"""


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
