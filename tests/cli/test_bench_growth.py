"""`laconic bench growth`: points of each axis, and the exponents fitted to them."""

import json
from functools import partial

import jax
import pytest

from laconic.bench import growth, timing
from laconic.bench.growth import AXES, GrowthConfig, exponent
from tests.cli.commands import assert_one_error, laconic
from tests.outer.trees import QUICK

SMALL = ["--parameters", "64", "256", "--workers", "1", "2", "--local-steps", "1", "2"]
SMALL += ["--seeds", "1", "2", "--tasks", "1", "2", "--repeats", "1"]


def test_exponents_of_known_curves():
    at = [1.0, 10.0, 100.0, 1000.0]
    assert exponent(at, [3 * x**1.5 for x in at]) == pytest.approx(1.5)
    assert exponent(at, [7.0] * 4) == pytest.approx(0.0)
    assert exponent(at, [1000.0, 1000.0, 50.0, 500.0]) == pytest.approx(1.0)  # the upper half
    assert exponent([5.0], [1.0]) is None
    assert exponent(at, [1.0, 1.0, 0.0, 1.0]) is None


@pytest.mark.slow
def test_every_axis_has_points_and_exponents(monkeypatch, capfd, tmp_path, standard_promotion):
    monkeypatch.setattr(timing, "LEAST", 0.0)
    monkeypatch.setattr(growth, "ROUNDS", 2)
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
    for name, axis in AXES.items():
        monkeypatch.setitem(AXES, name, axis._replace(lines=axis.lines[:1]))
    code, out, _ = laconic(capfd, "bench", "growth", *SMALL, "--out", tmp_path)
    assert code == 0
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "growth.json").read_text())["figures"]
    assert {figure["axis"] for figure in figures.values()} == set(AXES)
    assert len(figures) == 2 * len(AXES)
    for name, figure in figures.items():
        assert name in out
        assert figure["seconds"] > 0
        assert figure["bytes"] > 0
        assert ("time_exponent" in figure) == (figure["at"] in (256, 2))
    adamw = figures["parameters 256 AdamW"]  # four copies of 256 numbers, and a count
    assert adamw["bytes"] >= 4 * 4 * 256
    assert figures["seeds 2 local-sgd"]["bytes"] > figures["seeds 1 local-sgd"]["bytes"]


def test_what_cannot_be_measured_is_refused(capfd, raises_clearly):
    assert_one_error(capfd, ["bench", "growth", "--axes", "depth"], ["axis", "depth"])
    with raises_clearly("workers"):
        GrowthConfig(workers=()).check()
    with raises_clearly("seeds"):
        GrowthConfig(seeds=(0, 1)).check()
    with raises_clearly("repeats"):
        GrowthConfig(repeats=0).check()
