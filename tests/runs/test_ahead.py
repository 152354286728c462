"""Programs compiled while others run: found compiled, with the same outcome, and errors where they
belong."""

import logging
from dataclasses import replace
from functools import partial

import jax
import pytest

from laconic.runs import ahead, compare
from laconic.runs.folder import Interrupted
from laconic.runs.simulate import Simulation
from tests.runs.test_compare import timeless
from tests.runs.test_estimate import COMPARE
from tests.runs.test_sweep import quick

__all__ = ["quick"]
THREE = replace(COMPARE, optimizers=("local-sgd", "slowmo:gamma=0.1", "slowmo:gamma=0.1,beta=0.5"))


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(ahead, "idle_threads", lambda: 2)


@pytest.fixture
def chunks_compiled(caplog):
    """Names of the threads in which programs of rounds were compiled so far."""
    before = jax.config.jax_log_compiles
    jax.config.update("jax_log_compiles", True)
    caplog.set_level(logging.WARNING)

    def found():
        return [
            record.threadName
            for record in caplog.records
            if "Finished XLA compilation of jit(_chunk)" in record.getMessage()
        ]

    yield found
    jax.config.update("jax_log_compiles", before)


def outcome(config, folder, **given):
    return timeless(compare.compare(replace(config, out=folder), **given)[1])


@pytest.mark.usefixtures("quick")
def test_programs_are_compiled_once_and_give_the_same(chunks_compiled, monkeypatch, tmp_path):
    plain = outcome(THREE, tmp_path / "plain")
    assert chunks_compiled() == ["MainThread"] * 3
    monkeypatch.setattr(ahead, "idle_threads", lambda: 2)
    found = outcome(THREE, tmp_path / "ahead")
    first, *others = chunks_compiled()[3:]
    assert first == "MainThread"  # alone, so that kernels are timed on an idle device
    assert len(others) == 2
    assert "MainThread" not in others
    assert found[1:] == plain[1:]


@pytest.mark.usefixtures("two_threads", "quick")
def test_a_stop_leaves_nothing_running_and_what_fails_is_the_callers(tmp_path, monkeypatch):
    asked = []

    def fails(simulation):
        asked.append(simulation.method.label)
        raise RuntimeError("no room to compile")

    monkeypatch.setattr(Simulation, "compile_first", fails)
    found = outcome(THREE, tmp_path / "whole")
    assert sorted(asked) == ["slowmo:gamma=0.1", "slowmo:gamma=0.1,beta=0.5"]
    assert [record["kind"] for record in found] == ["run", *["method"] * 3, "summary"]
    with pytest.raises(Interrupted):
        outcome(THREE, tmp_path / "stopped", stop=lambda: True)


def test_a_cpu_is_busy_and_one_program_waits_for_none():
    assert ahead.idle_threads() == 0
    simulation = partial(pytest.fail, "compiled")
    with ahead.compiled_ahead([simulation, simulation]) as nothing:
        nothing.begin()
        nothing.wait("anything")
    assert nothing.pool is None
