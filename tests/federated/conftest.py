"""Compiling is most of these tests' time."""

from functools import partial

import jax
import pytest

from tests.outer.trees import QUICK


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
