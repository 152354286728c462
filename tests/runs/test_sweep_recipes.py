"""Sweeps by name and from text: the paper's grids, a run in its folder, going on again, and
refusals."""

import itertools
import json
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from laconic.data.feed import Resident
from laconic.method import Setting
from laconic.methods import METHODS, parse_method
from laconic.recipes.sweeps import SWEEPS
from laconic.runs import sweep as recipe
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.folder import Interrupted, Observer
from laconic.runs.grid import parse_grid
from laconic.runs.settings import command_line
from laconic.runs.simulate import Simulation
from laconic.runs.sweep import SweepConfig, resume_sweep, sweep
from laconic.show.sweep import setting_of
from laconic.store.records import RECORDS
from laconic.tasks.base import plain_task
from tests.outer.trees import QUICK
from tests.tiny import lenient

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5)).astype(np.float32)
Y = (X @ np.arange(1, 6, dtype=np.float32) / 5).astype(np.float32)
SMALL = SweepConfig(
    method="slowmo",
    grid=("gamma=0.05,0.2", "alpha=0.05/gamma,0.02/gamma", "beta=0,0.5"),
    points=(
        "gamma=1e4,alpha=1,beta=0.5",
        "gamma=0.05,alpha=0.05/gamma,beta=0",
    ),  # one diverges, one is on the grid
    workers=2,
    local_steps=2,
    batch=8,
    rounds=12,
    seeds=2,
    first_seed=3,
    points_at_once=4,
)
BY_HAND = [(g, a / g, b) for g in (0.05, 0.2) for a in (0.05, 0.02) for b in (0.0, 0.5)] + [
    (1e4, 1.0, 0.5)
]


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
        yield


@pytest.fixture(scope="module")
def task():
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    feed = Resident({"train": {"x": X[:60], "y": Y[:60]}, "valid": {"x": X[60:], "y": Y[60:]}})
    return plain_task("fit", lambda key: {"w": jax.random.normal(key, (5,))}, loss, feed)


class Watcher(Observer):
    def __init__(self, leave_at=10**9):
        self.seen, self.notes, self.leave_at = 0, [], leave_at

    def begin(self, label, rounds, done):
        pass

    def progress(self, label, done, loss):
        self.seen += 1

    def note(self, text):
        self.notes.append(text)

    def stop(self):
        return self.seen >= self.leave_at


@pytest.fixture(scope="module")
def finished(task, tmp_path_factory):
    return sweep(replace(SMALL, out=tmp_path_factory.mktemp("whole") / "run"), task)


def interrupted(task, folder, leave_at=1):
    watcher = Watcher(leave_at)
    with pytest.raises(Interrupted):
        sweep(replace(SMALL, out=folder), task, observer=watcher, stop=watcher.stop)


def timeless(records):
    drop = {"seconds", "provenance", "config"}
    return [{key: value for key, value in record.items() if key not in drop} for record in records]


def test_the_folder_holds_what_was_promised(finished):
    folder, records = finished
    assert [r["kind"] for r in records] == ["run", *["point"] * 9, "ranking"]
    assert {path.name for path in folder.iterdir()} == {
        RECORDS,
        "command.txt",
        "ranking.md",
        "ranking.png",
    }
    assert all(path.stat().st_size > 0 for path in folder.iterdir())
    run = records[0]
    found = dict(run["task"])
    assert len(found.pop("data_sha256")) == len(found.pop("functions_sha256")) == 64
    known = {"name": "fit", "parameters": 5, "classes": None, "source": "given by the caller"}
    assert found == known
    assert run["grid_points"] == 8
    assert (run["config"]["method"], run["config"]["seeds"]) == ("slowmo", 2)
    assert {"versions", "device", "commit", "started"} <= set(run["provenance"])
    assert [tuple(r["numbers"].values()) for r in records[1:-1]] == BY_HAND
    assert all(r["seeds"] == [3, 4] for r in records[1:-1])
    json.dumps(records, allow_nan=False)


def test_the_ranking_is_that_of_single_runs(finished, task):
    _, records = finished
    points, diverged, ranking = records[1:-2], records[-2], records[-1]
    for record in points[::3]:
        single = Simulation(
            task, parse_method(record["label"], 2), Setting(2, 2, 8, 12, (3, 4), 12)
        )
        curve = next(single.run(single.start())).losses.astype(float).mean(axis=(0, 2))
        assert record["minimum"] == pytest.approx(
            min(curve[t - 9 : t + 1].mean() for t in (9, 10, 11)), rel=1e-5
        )
    assert [record["diverged"] for record in points] == [[False, False]] * 8
    assert (diverged["diverged"], diverged["final"]) == ([True, True], None)
    lowest = [record["minimum"] for record in points]
    assert ranking["order"] == [*np.argsort(lowest).tolist(), 8]
    assert (ranking["diverged"], ranking["best"]) == (1, points[int(np.argmin(lowest))]["label"])


@pytest.mark.parametrize("leave_at", [1, 2])
def test_a_stopped_sweep_goes_on_to_the_same_records(leave_at, finished, task, tmp_path):
    interrupted(task, tmp_path / "run", leave_at)
    watcher = Watcher()
    folder, records = resume_sweep(tmp_path / "run", task, observer=watcher)
    assert folder == tmp_path / "run"
    assert watcher.seen == 3 - leave_at
    assert watcher.notes == []
    assert timeless(records) == timeless(finished[1])
    assert (folder / "ranking.png").read_bytes() == (finished[0] / "ranking.png").read_bytes()


def test_going_on_with_a_finished_sweep_changes_nothing(finished, task):
    folder, records = finished
    before = (folder / RECORDS).read_bytes()
    assert resume_sweep(folder, task) == (folder, records)
    assert (folder / RECORDS).read_bytes() == before


# --- grids ----------------------------------------------------------------------------------------


def test_a_grid_is_a_product():
    found = parse_grid(["gamma=1,0.3", "alpha=1,0.5/gamma", "beta=0.9"])
    oracle = [{"gamma": g, "alpha": a, "beta": 0.9} for g in (1.0, 0.3) for a in (1.0, 0.5 / g)]
    assert found == oracle


def test_the_papers_grids_are_complete():
    rates = [1, 0.5, 0.1, 0.05, 0.01, 5e-3, 1e-3, 5e-4, 1e-4, 5e-5, 1e-5]
    betas = [0.99, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5]
    gammas = [1, 0.5, 0.3, 0.1]
    _, _, grid, extra = recipe._parsed(SWEEPS["slowmo"][1])
    assert [tuple(p.values()) for p in grid] == [
        (g, r / g, b) for g, r, b in itertools.product(gammas, rates, betas)
    ]
    assert [tuple(p.values()) for p in extra] == [(0.3, 0.01, 0.8), (0.1, 5, 0.3), (0.3, 1.66, 0.9)]
    for name in ("sgd", "adam"):
        assert recipe._parsed(SWEEPS[name][1])[2:] == ([{"alpha": rate} for rate in rates], [])
    assert recipe._parsed(SWEEPS["local-sgd"][1])[2:] == (
        [{"gamma": gamma} for gamma in gammas],
        [],
    )
    coarse, short = (
        recipe._parsed(SWEEPS[name][1])[2] for name in ("slowmo-coarse", "slowmo-short")
    )
    assert (len(coarse), len(short)) == (80, 48)
    assert all(point in grid for point in [*coarse, *short])


@pytest.mark.parametrize(("name", "share"), [("tenth", "0.1"), ("hundredth", "0.01")])
def test_the_papers_grids_under_top_k_are_those_of_dense_messages(name, share):
    for method in ("local-sgd", "slowmo"):
        (_, sparse), (_, dense) = SWEEPS[f"{method}-{name}"], SWEEPS[method]
        assert sparse == replace(dense, compress=f"topk:{share}+ef")
    best = {"0.1": (0.3, 1.66, 0.8), "0.01": (0.1, 5, 0.3)}[share]  # what the paper reports
    _, _, grid, extra = recipe._parsed(SWEEPS[f"slowmo-{name}"][1])
    assert any(np.allclose(list(point.values()), best, rtol=0.01) for point in [*grid, *extra])


def test_options_of_the_method_are_the_same_at_every_point(task, tmp_path):
    """Its points are runs of `slowmo:local=adamw`, and both `local` and `decay` reach them."""
    config = replace(
        SMALL,
        method="slowmo:local=adamw,beta=0.5",
        grid=("gamma=0.05,0.2", "alpha=1", "decay=0.3"),
        points=(),
        out=tmp_path / "run",
    )
    with lenient(True):  # optax's Adam
        folder, records = sweep(config, task)
    points = [record for record in records if record["kind"] == "point"]
    assert [record["numbers"] for record in points] == [
        {"gamma": gamma, "alpha": 1.0, "decay": 0.3} for gamma in (0.05, 0.2)
    ]
    first = points[0]
    assert first["label"] == "slowmo:local=adamw,beta=0.5,gamma=0.05,alpha=1.0,decay=0.3"
    with lenient(True):
        single = Simulation(task, parse_method(first["label"], 2), Setting(2, 2, 8, 12, (3, 4), 12))
        curve = next(single.run(single.start())).losses.astype(float).mean(axis=(0, 2))
    assert first["final"] == pytest.approx(curve[-10:].mean(), rel=1e-5)
    assert resume_sweep(folder, task)[1] == records


def test_a_sweep_of_compressed_messages_says_so(task, tmp_path):
    config = replace(SMALL, compress="topk:0.5+ef", out=tmp_path / "run")
    folder, records = sweep(config, task)
    labels = [record["label"] for record in records if record["kind"] == "point"]
    assert all(parse_method(label, 2).compressor.name == "topk:0.5+ef" for label in labels)
    assert ",compress=topk:0.5+ef`" in (folder / "ranking.md").read_text()
    assert setting_of(records[0]["config"]).endswith(", messages topk:0.5+ef")
    assert resume_sweep(folder, task)[1] == records


@pytest.mark.parametrize("name", SWEEPS)
def test_a_recipe_is_valid_and_says_its_size(name):
    summary, config = SWEEPS[name]
    setting, _, grid, extra = recipe._parsed(config)
    size = f"{len(grid)} + {len(extra)}" if extra else f"{len(grid)}"
    assert summary.endswith(f": {size} points")
    federated = config.federated.active  # a setting of its own, in which the data decides H
    assert (config.task, config.seeds) == ("fmnist-mlp2", 3 if federated else 1)
    K = 1 if name == "snoo" else 8
    assert (setting.workers, setting.batch) == ((10, 20) if federated else (K, 128))
    assert setting.rounds == (300 if name == "slowmo-short" else 1000)
    assert setting.local_steps == 4
    assert set(setting.chunks) == {100}


def test_every_method_that_can_be_swept_has_a_recipe():
    swept = {name for name, found in METHODS.items() if "sweep" not in found.cannot}
    methods = {config.method.partition(":")[0] for _, config in SWEEPS.values()}
    assert methods - {"fedlopt-fmnist"} == swept
    assert swept <= set(SWEEPS)


@pytest.mark.parametrize(
    ("rounds", "lengths"), [(7, {7}), (240, {80}), (101, {100, 1}), (1000, {100})]
)
def test_segments_have_one_length_where_they_can(rounds, lengths):
    assert set(recipe._parsed(replace(SMALL, rounds=rounds))[0].chunks) == lengths


def test_the_command_gives_the_config_back():
    for config in (
        SMALL,
        SWEEPS["slowmo"][1],
        SWEEPS["fedprox"][1],
        SWEEPS["slowmo-tenth"][1],
        replace(SMALL, rank_by="rounds", target_loss=0.2, out=Path("a b")),
    ):
        words = shlex.split(command_line("sweep", config))
        assert words[:2] == ["laconic", "sweep"]
        assert tyro.cli(SweepConfig, args=words[2:]) == config


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"method": "local-sdg"}, ["method", "Did you mean 'local-sgd'?"]),
        ({"method": "lopt-a"}, ["lopt-a cannot be swept"]),
        ({"method": "slowmo:compress=int8"}, ["unknown option of slowmo 'compress'"]),
        ({"method": "local-sgd:gamma=1"}, ["unknown hyper-parameter of local-sgd 'gamma'"]),
        ({"method": "local-sgd:local=adma"}, ["local optimizer", "Did you mean 'adamw'?"]),
        ({"method": "snoo", "grid": ("gamma=1", "lr=1", "momentum=0")}, ["snoo is for one worker"]),
        ({"grid": ("gama=1",)}, ["gama", "Did you mean 'gamma'?"]),
        ({"grid": ("gamma=1,0",)}, ["gamma must be positive", "0"]),
        ({"grid": ("gamma=-1",)}, ["gamma must be positive", "-1"]),
        ({"grid": ()}, ["grid is empty"]),
        ({"grid": ("gamma=",)}, ["'gamma='", "gives no values"]),
        ({"grid": ("gamma=1,,2",)}, ["gives no values"]),
        ({"grid": ("0.1,0.2",)}, ["name=value"]),
        ({"grid": ("gamma=1", "gamma=2")}, ["gamma twice"]),
        ({"grid": ("gamma=fast",)}, ["number", "fast"]),
        ({"grid": ("gamma=1/alpha",)}, ["'alpha'", "before gamma"]),
        ({"grid": ("gamma=1/",)}, ["before gamma"]),
        ({"compress": "topk:2"}, ["topk:2"]),
        ({"compress": "topl:0.1"}, ["compressor", "topl:0.1"]),
        ({"method": "slowmo"}, ["give alpha, beta too"]),
        (
            {"method": "slowmo", "grid": ("gamma=0", "alpha=1/gamma", "beta=0")},
            ["alpha", "1/gamma"],
        ),
        ({"points": ("gamma=0",)}, ["gamma must be positive"]),
        ({"points": ("gamma",)}, ["name=value"]),
        ({"points_at_once": 0}, ["points_at_once", "positive"]),
        ({"rank_by": "rounds"}, ["target loss"]),
        ({"rank_by": "luck"}, ["luck"]),
        ({"target_loss": float("inf")}, ["finite"]),
        ({"workers": 0}, ["workers", "positive"]),
        ({"rounds": 0}, ["rounds", "positive"]),
        ({"rounds": -100}, ["rounds", "positive"]),
        ({"seeds": 0}, ["seeds", "positive"]),
        ({"first_seed": -1}, ["seed must be between 0"]),
        ({"task": "digit-mlp"}, ["task", "Did you mean 'digits-mlp'?"]),
    ],
)
def test_bad_settings_are_refused_before_anything_is_made(changes, parts, raises_clearly, tmp_path):
    with raises_clearly(*parts):
        sweep(replace(SweepConfig(out=tmp_path / "run", task="digits-mlp"), **changes))
    assert not (tmp_path / "run").exists()


def test_a_used_folder_is_not_touched(task, tmp_path, raises_clearly):
    (tmp_path / "mine.txt").write_text("precious")
    with raises_clearly("not empty", "--out"):
        sweep(replace(SMALL, out=tmp_path), task)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_ranking_by_a_split_that_is_not_there_is_refused(tmp_path, raises_clearly):
    bare = plain_task(
        "bare",
        lambda key: {"w": jnp.zeros(5)},
        lambda params, batch: params["w"].sum(),
        {"x": X, "y": Y},
    )
    with raises_clearly("bare", "validation split"):
        sweep(replace(SMALL, rank_by="valid", out=tmp_path / "run"), bare)
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_sweep_cannot_go_on(task, finished, tmp_path, raises_clearly):
    with raises_clearly("nothing to resume"):
        resume_sweep(tmp_path)
    for line in (
        "{}",
        '{"kind": "run"}',
        '{"kind": "run", "grid_points": 1, "config": [], "task": {}}',
    ):
        (tmp_path / RECORDS).write_text(line + "\n")
        with raises_clearly("cannot be resumed"):
            resume_sweep(tmp_path)
    other = tmp_path / "other"
    compare(
        CompareConfig(
            optimizers=("local-sgd:gamma=0.05",), workers=2, rounds=4, seeds=1, out=other
        ),
        task,
    )
    with raises_clearly("holds a comparison, not a sweep", f"laconic compare --resume {other}"):
        resume_sweep(other, task)


def test_a_damaged_line_is_named_and_what_is_deleted_is_run_again(
    finished, task, tmp_path, raises_clearly
):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    lines = (folder / RECORDS).read_text().splitlines(keepends=True)

    def with_third(*instead):
        (folder / RECORDS).write_text("".join([*lines[:2], *instead, *lines[3:]]))

    with_third('{"kind": "point"}\n')
    with raises_clearly("line 3", "has no index, label", "delete that line"):
        resume_sweep(folder, task)
    with_third(lines[3])
    with raises_clearly("line 4", "point 2 a second time", "delete that line"):
        resume_sweep(folder, task)
    with_third()
    records = resume_sweep(folder, task)[1]
    assert sorted(r["index"] for r in records if r["kind"] == "point") == list(range(9))
    assert records[-1]["order"] == finished[1][-1]["order"]


def test_a_sweep_goes_on_only_as_it_was_begun(task, tmp_path, raises_clearly):
    folder = tmp_path / "run"
    interrupted(task, folder)
    with raises_clearly("task of its own"):
        resume_sweep(folder)
    with raises_clearly("was begun on", "start anew"):
        resume_sweep(folder, replace(task, name="other"))
    text = (folder / RECORDS).read_text()
    (folder / RECORDS).write_text(text.replace('"workers": 2', '"workers": "2"'))
    with raises_clearly("workers", "wrong type"):
        resume_sweep(folder, task)
    (folder / RECORDS).write_text(text.replace('"workers": 2', '"worker": 2'))
    with raises_clearly("have worker,", "start anew"):
        resume_sweep(folder, task)
    text = text.replace('"compress": "dense", ', "")  # as before there was a choice
    (folder / RECORDS).write_text(text.replace('"python": "3', '"python": "2'))
    watcher = Watcher()
    resume_sweep(folder, task, observer=watcher)
    assert len(watcher.notes) == 1
    assert watcher.notes[0].startswith("versions was")
