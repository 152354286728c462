"""An optimizer of one's own, as the documentation shows it: one file, one registry line, and it is
in every table."""

import json
import runpy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from laconic.method import Setting
from laconic.methods import definition_of, parse_method
from laconic.outer import OUTER, Entry
from laconic.recipes.sweeps import SWEEPS, sweeps
from laconic.reproduce import EXPERIMENTS, named_experiment
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.panel import Panel
from laconic.reproduce.run import resume_experiment
from laconic.reproduce.sweep_panel import SweepPanel
from laconic.runs.grid import Sweep
from laconic.runs.settings import resume_command
from laconic.runs.simulate import Simulation
from laconic.runs.sweep import SweepConfig
from laconic.tasks.catalog import make_task
from tests.outer.trees import QUICK, random_tree
from tests.reproduce.made import DIGITS, SMALL

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_optimizer.py"
NAME = "sign-momentum"
SWEEP_SMALL = ["--workers", "2", "--local-steps", "1", "--batch", "4", "--rounds", "6"]


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """`command("compare", …)` runs the file as a person would → what it printed; afterwards all is
    forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(OUTER, NAME, None)  # so that what the file registers is taken out again
    monkeypatch.delitem(OUTER, NAME)
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))

    def run(*words):
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        printed = capfd.readouterr()
        assert end.value.code == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def registered(command):
    command("--version")
    return OUTER[NAME]


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


# --- the file -------------------------------------------------------------------------------------


def test_it_takes_one_registry_line():
    lines = EXAMPLE.read_text().splitlines()
    assert len([line for line in lines if line.startswith("OUTER[")]) == 1
    assert len(lines) < 50


def test_the_step_is_the_one_in_its_docstring(registered):
    shapes = {"w": (3, 2), "b": (4,)}
    deltas = [random_tree(shapes, seed) for seed in range(5)]
    m = {name: np.zeros(s) for name, s in shapes.items()}
    tx = registered.make(rate=0.25, beta=0.5).tx
    state = tx.init(deltas[0])
    for delta in deltas:
        step, state = tx.update(delta, state, delta)
        m = {name: 0.5 * m[name] + 0.5 * delta[name].astype(np.float64) for name in m}
        for name in m:
            np.testing.assert_array_equal(step[name], -0.25 * np.sign(m[name]))


# --- comparisons ----------------------------------------------------------------------------------


def test_it_is_compared(command, tmp_path):
    words = "--task digits-mlp:width=4 --rounds 4 --seeds 1 --workers 2 --local-steps 1 --out run"
    out = command("compare", "--optimizers", "local-sgd", f"{NAME}:rate=0.5", *words.split())
    assert f"{NAME} rate 0.5" in out
    found = records(tmp_path / "run")
    assert [row["label"] for row in found[-1]["rows"]] == ["local-sgd", f"{NAME}:rate=0.5"]
    assert f"{NAME}:rate=0.5" in (tmp_path / "run" / "report.html").read_text().replace("<wbr>", "")
    one, other = (np.asarray(r["train"]) for r in found if r["kind"] == "method")
    assert np.isfinite(other).all()
    # The first round begins from the same weights, and takes one local step.
    assert one[0, 0] == other[0, 0]
    assert (one[0, 1:] != other[0, 1:]).all()


def test_a_comparison_names_the_script_that_can_resume_it(command, tmp_path, monkeypatch):
    words = "--task digits-mlp:width=4 --rounds 2 --seeds 1 --workers 2 --local-steps 1 --out run"
    command("compare", "--optimizers", NAME, *words.split())
    begun = (tmp_path / "run" / "command.txt").read_text()
    assert begun == f"python {EXAMPLE} compare --optimizers {NAME} {words}\n"
    assert resume_command("compare", Path("run")) == f"python {EXAMPLE} compare --resume run"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/laconic", "compare"])
    assert resume_command("compare", Path("run")) == "laconic compare --resume run"
    monkeypatch.setattr(sys, "argv", ["mine.py"])  # which calls laconic.compare
    assert resume_command("compare", Path("run")) == "laconic compare --resume run"


def test_it_is_listed_with_its_options(command):
    (line,) = [line for line in command("optimizers").splitlines() if line.startswith(NAME)]
    assert "steps along the sign" in line
    assert "(gamma=0.1, rate=0.01, beta=0.9)" in line


def test_its_options_are_checked_like_those_of_others(registered, raises_clearly):
    assert definition_of(NAME).defaults == {"gamma": 0.1, "rate": 0.01, "beta": 0.9}
    with raises_clearly("unknown option of sign-momentum 'rates'", "Did you mean 'rate'?"):
        parse_method(f"{NAME}:rates=1", 2)
    with raises_clearly("unknown optimizer 'sign-momentun'", f"Did you mean '{NAME}'?"):
        parse_method("sign-momentun", 2)
    with raises_clearly("unknown method of a sweep", f"Did you mean '{NAME}'?"):
        definition_of("sign-momentun", "sweep")


def test_every_kind_of_option_reaches_the_optimizer(monkeypatch, raises_clearly):
    got = {}

    def mine(gamma: float = 0.2, nesterov: bool = True, every: int = 2, how: str = "up"):
        got.update(gamma=gamma, nesterov=nesterov, every=every, how=how)
        return OUTER["average"].make()

    monkeypatch.setitem(OUTER, "mine", Entry(mine, "one of each", row=""))
    assert definition_of("mine").swept == ("gamma",)
    parse_method("mine", 2)
    assert got == {"gamma": 0.2, "nesterov": True, "every": 2, "how": "up"}
    parse_method("mine:gamma=0.7,nesterov=false,every=3,how=down", 2)
    assert got == {"gamma": 0.7, "nesterov": False, "every": 3, "how": "down"}
    parse_method("mine:nesterov=True", 2)
    assert got["nesterov"] is True
    with raises_clearly("nesterov must be true or false", "'0'"):
        parse_method("mine:nesterov=0", 2)
    with raises_clearly("gamma must be positive"):
        parse_method("mine:gamma=-1", 2)


@pytest.mark.parametrize("option", ["compress", "label", "K"])
def test_an_option_that_every_method_has_is_refused(option, monkeypatch, raises_clearly):
    made = {"compress": lambda compress="": None, "label": lambda label="": None}
    made["K"] = lambda K=2: None
    monkeypatch.setitem(OUTER, "mine", Entry(made[option], "not possible", row=""))
    with raises_clearly("'mine'", repr(option), "another name"):
        parse_method("mine", 2)


# --- sweeps ---------------------------------------------------------------------------------------


def test_its_own_grid_is_swept(command, tmp_path):
    command("sweep", NAME, "--task", "digits-mlp:width=4", *SWEEP_SMALL, "--out", "grid")
    found = records(tmp_path / "grid")
    points = [record for record in found if record["kind"] == "point"]
    assert len(points) == 2 * 3 * 2 == found[0]["grid_points"]
    assert {point["label"].partition(":")[0] for point in points} == {NAME}
    assert (tmp_path / "grid" / "ranking.png").is_file()
    assert NAME in (tmp_path / "grid" / "ranking.md").read_text()


def test_a_point_is_the_run_that_compare_would_make(registered):
    task, setting = make_task("digits-mlp:width=4"), Setting(2, 2, 8, 6, (3,), 6)
    points = [{"gamma": 0.3, "rate": 0.02, "beta": 0.5}, {"gamma": 0.1, "rate": 0.01, "beta": 0.9}]
    outcome = Sweep(task, NAME, setting).run(points, 2)
    for i, point in enumerate(points):
        single = Simulation(task, parse_method(definition_of(NAME).spec(point), 2), setting)
        expected = np.concatenate(
            [chunk.losses.mean(axis=2) for chunk in single.run(single.start())], axis=1
        )
        np.testing.assert_allclose(outcome.curves[i], expected, rtol=1e-5)


# --- experiments ----------------------------------------------------------------------------------


def test_it_is_in_every_panel_and_every_table_of_tuned_values(registered):
    assert sweeps()[NAME] == (
        f"the grid of {NAME}: 12 points",
        SweepConfig(method=NAME, grid=registered.grid),
    )
    seen = 0
    for name, plain in EXPERIMENTS.items():
        found = named_experiment(name)
        for before, after in zip(plain.of(Panel), found.of(Panel), strict=True):
            row = f"{NAME}:rate=0.003,label={NAME}"
            assert after.config.optimizers == (*before.config.optimizers, row)
            assert replace(after, config=before.config) == before
            seen += 1
        more = found.of(SweepPanel)[len(plain.of(SweepPanel)) :]
        of = lambda c, rank_by: (c.task, c.workers, c.local_steps, c.federated, rank_by)
        settings = {of(row.config, row.rank_by) for row in plain.of(SweepPanel)}
        settings = {setting for setting in settings if setting[1] > 1}
        assert found.of(SweepPanel)[: len(plain.of(SweepPanel))] == plain.of(SweepPanel)
        assert {of(x.config, x.rank_by) for x in more} == settings
        assert len(more) == len(settings)
        assert {(row.config.method, row.config.grid) for row in more} <= {(NAME, registered.grid)}
        assert all(row.title.endswith(f"loss: {NAME}") for row in more)
        seen += len(more)
    assert seen > 30


def test_without_it_experiments_are_as_they_were(registered, monkeypatch):
    monkeypatch.delitem(OUTER, NAME)
    assert all(named_experiment(name) is found for name, found in EXPERIMENTS.items())
    assert sweeps() == SWEEPS


def test_a_row_may_say_its_own_label(registered, monkeypatch):
    monkeypatch.setitem(OUTER, NAME, registered._replace(row="label=Signs"))
    assert named_experiment("fig-ablation").parts[0].config.optimizers[-1] == f"{NAME}:label=Signs"
    monkeypatch.setitem(OUTER, NAME, registered._replace(row=""))
    assert named_experiment("fig-ablation").parts[0].config.optimizers[-1] == f"{NAME}:label={NAME}"


def test_an_experiment_is_carried_out_with_it(command, tmp_path, monkeypatch, raises_clearly):
    small = replace(SMALL, optimizers=SMALL.optimizers[:1])
    panels = (replace(DIGITS.of(Panel)[1], config=small, shown=("train", "test-accuracy")),)
    monkeypatch.setitem(EXPERIMENTS, "digits", replace(DIGITS, parts=panels, averaged=()))
    out = command("reproduce", "digits", "--scale", "full", "--out", "digits")
    folder = tmp_path / "digits"
    assert NAME in out
    last = records(folder)[-1]
    assert {row["label"] for row in last["rows"]} == {"Local SGD", NAME}
    wanted = (NAME, "final_train")
    ours = [row["ours"] for row in last["rows"] if (row["label"], row["metric"]) == wanted]
    assert len(ours) == 1
    assert np.isfinite(ours).all()
    assert f"| Two | {NAME} | " in (folder / "table.md").read_text()
    assert NAME in (folder / "figure.svg").read_text()
    monkeypatch.delitem(OUTER, NAME)  # whoever goes on without the file is told what has changed
    with raises_clearly("other optimizers"):
        resume_experiment(folder)


def test_tuned_values_are_found_for_it(command, tmp_path, monkeypatch):
    sizes = {"workers": 2, "local_steps": 1, "batch": 4, "rounds": 6}
    config = SweepConfig(task="digits-mlp:width=4", grid=("gamma=0.5,0.1",), **sizes)
    title = "Digits, K = 2, train loss"
    row = SweepPanel(
        "digits-local-sgd", f"{title}: Local SGD", config, "minimum", {"gamma": 0.5}, title
    )
    monkeypatch.setitem(EXPERIMENTS, "tuned", Experiment("tuned", "Tuned", "tuned values", (row,)))
    command("reproduce", "tuned", "--scale", "full", "--out", "tuned")
    first, second = records(tmp_path / "tuned")[-1]["rows"]
    assert first["panel"] == f"{title}: Local SGD"
    assert second["panel"] == f"{title}: {NAME}"
    assert set(second["ours"]) == {"gamma", "rate", "beta"}
    assert np.isfinite(second["loss"])
    assert second["paper"] == {}
    assert second["difference"] is None
    assert f"| {title} | {NAME} |" in (tmp_path / "tuned" / "table.md").read_text()
