"""Flower is imported here once: typer, which it imports, uses names that click has deprecated, and
warns."""

import importlib.util
import warnings
from functools import partial

import jax
import pytest

from tests.outer.trees import QUICK

if importlib.util.find_spec("flwr") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flwr.serverapp.strategy  # noqa: F401


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Most of the time here is compiling, and no test looks at speed."""
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
