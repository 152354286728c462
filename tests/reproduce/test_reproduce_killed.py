"""`laconic reproduce` killed without warning: in meta-training, in comparisons, in a sweep, and
between them."""

import random

import pytest

from laconic.store.records import read
from tests.runs.killed import count, finish, kill, recorded, without_times

CODE = """
from dataclasses import replace
from laconic.cli import main
from laconic.runs.sweep import SweepConfig
from laconic.reproduce.experiment import Experiment
from laconic.reproduce.sweep_panel import SweepPanel
from laconic.reproduce import EXPERIMENTS
from tests.reproduce.made import DIGITS, SMALL

names = ("task", "workers", "local_steps", "batch", "rounds", "seeds")
sizes = {name: getattr(SMALL, name) for name in names}
config = SweepConfig(**sizes, grid=("gamma=0.4,0.3,0.2,0.1",), points_at_once=1)
slowmo = replace(config, method="slowmo", grid=("gamma=0.2,0.1", "alpha=1", "beta=0.5,0.9"))
sweeps = {"local-sgd": config, "slowmo": slowmo}
panels = tuple(SweepPanel(name, name, config, "minimum", {}) for name, config in sweeps.items())
EXPERIMENTS["digits"] = DIGITS
EXPERIMENTS["swept"] = Experiment("swept", "Swept, for tests", "two sweeps", panels)
main()
"""
KEYS = ("kind", "label", "index", "end", "step", "which")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [("digits", 4), ("swept", 2)])
def test_an_experiment_killed_at_random_points_ends_like_an_undisturbed_one(name, kills, tmp_path):
    run = ["reproduce", name, "--scale", "full", "--out", "run"]
    whole, cut, chance = tmp_path / "whole", tmp_path / "cut", random.Random(8)
    whole.mkdir()
    cut.mkdir()
    finish(whole, *run, code=CODE)
    finished, command = {}, run
    for least in sorted(chance.sample(range(1, count(whole) - 3), kills)):
        kill(cut, max(least, count(cut) + 1), chance.uniform(0, 0.5), *command, code=CODE)
        left = recorded(cut)
        assert all(left[path] == text for path, text in finished.items()), (
            "a finished run was run again"
        )
        finished = {path: text for path, text in left.items() if done(cut / path)}
        command = chance.choice([run, ["reproduce", "--resume", "run"]])
    assert "run/records.jsonl" not in finished, "it had finished before it was killed"
    finish(cut, *command, code=CODE)
    assert all(recorded(cut)[path] == text for path, text in finished.items())
    assert without_times(cut) == without_times(whole)
    for path in recorded(cut):
        keys = [tuple(record.get(key) for key in KEYS) for record in read(cut / path)]
        assert len(set(keys)) == len(keys), path
    for name in ("table.md", "table.html", "figure.png", "figure.svg"):
        assert (cut / "run" / name).is_file()


def done(path):
    return read(path)[-1:] and read(path)[-1]["kind"] in ("summary", "ranking", "experiment")
