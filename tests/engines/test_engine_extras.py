"""The engine needs no extra; its benchmarks end with one JSON object."""

import importlib
import json
import subprocess
import sys

import pytest

from tests.engines.cluster import ROOT


def test_the_engine_needs_no_extra(monkeypatch):
    """It carries its own bytes, and its Lighthouse is its own."""
    for name in ("lighthouse", "elastic", "links", "meeting"):
        monkeypatch.delitem(sys.modules, f"laconic.engines.{name}", raising=False)
    for missing in ("torch", "torchft"):
        monkeypatch.setitem(sys.modules, missing, None)
    for name in ("lighthouse", "elastic"):
        importlib.import_module(f"laconic.engines.{name}")


def figures(*command: str) -> dict:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_split_of_a_round_is_printed():
    found = figures(
        "benchmarks/engine_round.py", "--workers", "2", "--parameters", "4000", "--rounds", "10"
    )
    found = found["runs"]["4000"]["2"]
    median = found["median_ms"]
    assert set(median) == {"compute", "gather", "outer", "check", "quorum", "rest", "engine"}
    assert all(value > 0 for value in median.values())
    message = 16 + 192 + 4 * 64 + 4 * 63 * 63 + (-4 * 63 * 63) % 64
    assert (found["sent_bytes"] - message) % 16 == 0  # signs of life
    assert message <= found["sent_bytes"] < 1.5 * message
    assert found["exchange"] == "gather"
    assert found["equal_hashes"]
    assert found["cpu_seconds"] > 0
    assert found["peak_bytes"] > 1e7


@pytest.mark.slow
def test_a_short_soak_passes():
    """Half a minute of trouble; the full five are for a record."""
    found = figures("benchmarks/churn.py", "--minutes", "0.4", "--every", "2", "--pace", "0.02")
    assert found["kills"] + found["stops"] >= 3
    assert found["passed"], found
