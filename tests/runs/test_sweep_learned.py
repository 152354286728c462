"""Points of a learned optimizer's grid against the runs that a comparison would make of them."""

from dataclasses import asdict

import numpy as np
import pytest

from laconic import zoo
from laconic.local import LocalOptimizer
from laconic.method import Setting
from laconic.methods import definition_of
from laconic.runs.grid import Sweep
from laconic.runs.sweep import SweepConfig, sweep
from tests.runs.test_sweep import by_compare, curves_of, least_squares, quick
from tests.tiny import lenient
from tests.zoo.made import LAGG_A, LOPT_A, a_card, weights

__all__ = ["quick"]  # of every test here: compiling is most of the time
POINTS = [
    {"gamma": 0.1, "scale": 1.0, "weight_decay": 0.0},
    {"gamma": 0.03, "scale": 0.5, "weight_decay": 0.01},
]
LOCALS = {
    "clipped": LocalOptimizer("sgd", 0.07, weight_decay=0.01, clip=0.05),
    "annealed": LocalOptimizer("sgd", 0.07, decay_steps=10),
}


def setting(workers):
    return Setting(workers, 2, 4, 12, (0, 1), 6)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Published ones: of the mean delta with two kinds of workers, and one for eight workers."""
    folder = tmp_path / "weights"
    monkeypatch.setattr("laconic.zoo.file.WEIGHTS", folder)
    for name, local in LOCALS.items():
        zoo.publish(
            folder / f"{name}.safetensors",
            LOPT_A,
            weights(),
            a_card(name=name, local=asdict(local)),
        )
    local = {"local": asdict(LOCALS["clipped"])}
    zoo.publish(
        folder / "eight.safetensors", LAGG_A, weights(LAGG_A), a_card(LAGG_A, name="eight", **local)
    )
    return folder


@pytest.mark.parametrize(("method", "workers"), [("clipped", 2), ("annealed", 2), ("eight", 8)])
def test_a_point_is_the_run_that_compare_would_make(method, workers, shelf):
    task = least_squares()
    with lenient(method == "annealed"):  # optax's schedule
        outcome = Sweep(task, method, setting(workers)).run(POINTS, 2)
        singles = [by_compare(task, method, p, setting(workers)) for p in POINTS]
        expected = [curves_of(single) for single in singles]
    np.testing.assert_allclose(outcome.curves, expected, rtol=1e-5)
    assert (
        np.abs(outcome.curves[0] - outcome.curves[1]).max(axis=1) > 1e-4
    ).all()  # the points do differ


def test_workers_are_those_of_the_card_unless_a_point_says_otherwise(shelf):
    task, own = least_squares(), {"clip": 1.0, "decay": 0.3}
    outcome = Sweep(task, "clipped", setting(2)).run([{**POINTS[0], **own}], 1)
    single = by_compare(task, "clipped", {**POINTS[0], **own}, setting(2))
    np.testing.assert_allclose(outcome.curves[0], curves_of(single), rtol=1e-5)
    plain = Sweep(task, "clipped", setting(2)).run(POINTS[:1], 1)
    assert (np.abs(outcome.curves[0] - plain.curves[0]).max(axis=1) > 1e-4).all()


def test_the_hyper_parameters_are_options_of_the_method(shelf):
    for method in ("clipped", "eight", str(shelf / "clipped.safetensors")):
        found = definition_of(method)
        assert set(found.swept) <= set(found.options)


def test_a_sweep_of_a_file_into_a_folder(shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = ("gamma=0.1,0.03", "scale=1,0.5", "weight_decay=0,0.01")
    config = SweepConfig(
        method="weights/clipped.safetensors",
        grid=grid,
        workers=2,
        local_steps=2,
        batch=4,
        rounds=12,
    )
    folder, records = sweep(config, least_squares())
    assert folder.parent.name == "runs"
    assert folder.name.startswith("sweep-clipped-")
    assert len(records) == 10
    assert "weights/clipped.safetensors:gamma=" in records[-1]["best"]
    assert (folder / "ranking.png").is_file()


@pytest.mark.parametrize(
    ("method", "point", "parts"),
    [
        ("clipt", {}, ["clipt", "Did you mean 'clipped'?"]),
        ("clipped", {"gamma": 0.1}, ["give scale, weight_decay too"]),
        ("clipped", {"gamma": 0.1, "scale": 0.0, "weight_decay": 0.0}, ["scale must be positive"]),
        ("clipped", {"gamma": 0.1, "scale": 1.0, "weight_decay": 1.0}, ["weight_decay", "below 1"]),
        ("gone.safetensors", {"gamma": 0.1}, ["gone.safetensors is not a file"]),
    ],
)
def test_a_bad_point_is_refused(method, point, parts, shelf, raises_clearly):
    with raises_clearly(*parts):
        definition_of(method, "sweep").check_points([point])


def test_another_number_of_workers_and_a_missing_file_are_refused(shelf, raises_clearly):
    with raises_clearly("eight", "cannot serve 2"):
        Sweep(least_squares(), "eight", setting(2))
    with raises_clearly("gone.safetensors"):
        Sweep(least_squares(), "gone.safetensors", setting(2))
