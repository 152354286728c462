"""`laconic sweep` killed again and again: every point is computed and recorded once."""

import random

import pytest

from laconic.store.records import read
from tests.runs.killed import count, finish, kill, recorded, without_times

POINTS, AT_ONCE, KILLS = 12, 2, 3
GRID = f"gamma={','.join(str(i / 100) for i in range(1, POINTS + 1))}"
SIZES = {
    "task": "digits-mlp:width=8",
    "workers": 2,
    "local-steps": 2,
    "batch": 8,
    "rounds": 500,
    "seeds": 2,
}
RUN = [
    "sweep",
    "local-sgd",
    *(word for name, value in SIZES.items() for word in (f"--{name}", value)),
]
RUN += ["--grid", GRID, "--points-at-once", AT_ONCE, "--out", "run"]


@pytest.mark.slow
def test_a_sweep_killed_at_random_points_ends_like_an_undisturbed_one(tmp_path):
    whole, cut, chance = tmp_path / "whole", tmp_path / "cut", random.Random(4)
    whole.mkdir()
    cut.mkdir()
    finish(whole, *RUN)
    begun, command = recorded(cut), RUN
    for least in sorted(chance.sample(range(1, POINTS - 2 * AT_ONCE), KILLS)):
        kill(cut, max(least, count(cut) + 1), chance.uniform(0, 0.2), *command)
        left = recorded(cut)
        assert b'"ranking"' not in left["run/records.jsonl"], "it had finished before it was killed"
        assert all(left[path].startswith(text) for path, text in begun.items()), (
            "a finished point was run again"
        )
        begun, command = left, ["sweep", "--resume", "run"]
    finish(cut, *command)
    assert recorded(cut)["run/records.jsonl"].startswith(begun["run/records.jsonl"])
    assert without_times(cut) == without_times(whole)
    records = read(cut / "run" / "records.jsonl")
    assert [r["index"] for r in records if r["kind"] == "point"] == list(range(POINTS))
    assert [r["kind"] for r in records] == ["run", *["point"] * POINTS, "ranking"]
    for name in ("ranking.md", "ranking.png"):
        assert (cut / "run" / name).is_file()
