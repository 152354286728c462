"""How long a run takes and how much memory it needs: told once, in time, honestly, and without
changing what is computed."""

import math
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from laconic.method import Setting
from laconic.methods import parse_method
from laconic.runs import estimate
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.estimate import (
    Forecast,
    Outlook,
    Program,
    alike,
    changed,
    compiled,
    of_methods,
    smaller,
)
from laconic.runs.meta_train import meta_train
from laconic.runs.simulate import Simulation
from laconic.runs.sweep import SweepConfig, sweep
from laconic.runs.train import TrainConfig, train
from laconic.tasks.catalog import make_task
from tests.runs.meta_runs import TINY
from tests.runs.notes import Notes
from tests.runs.test_compare import timeless
from tests.runs.test_sweep import least_squares, quick

__all__ = ["quick"]  # of every test here: compiling is most of the time
COMPARE = CompareConfig(
    task="digits-mlp:width=4",
    optimizers=("local-sgd", "slowmo:gamma=0.1"),
    workers=2,
    local_steps=2,
    batch=4,
    rounds=6,
    seeds=2,
    evaluate_every=3,
)
SWEEP = SweepConfig(
    task="digits-mlp:width=4", grid=("gamma=0.1,0.2",), workers=2, batch=4, rounds=6
)
TRAIN = TrainConfig(task="digits-mlp:width=4", optimizer="local-sgd", workers=2, rounds=6)
UNITS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}


def seconds_in(note):
    number, unit = re.search(r"takes about ([\d.]+) (\w+) on this machine", note).groups()
    return float(number) * UNITS[unit]


def outlook(notes, work=0.0, rounds=1000, command="laconic train digits"):
    forecast = Forecast(notes, command, {"rounds": rounds})
    return Outlook(forecast, lambda: work, lambda done, each, look: (rounds - done) * each)


@pytest.mark.parametrize(
    ("durations", "told"),
    [
        ([12.0], "10000 s"),  # a long first round is enough: 2 s of it were compiling
        ([4.9, 1.0, 1.0], None),  # a first round is slow, and two seconds are too few to go by
        ([4.9, 1.0, 1.0, 1.0], "1000 s"),
        ([4.9, 0.1] + [0.11] * 40, None),  # done in less than two minutes: not a word
        ([9.0, 0.1] + [1e9] * 3, "7000 s"),  # told once
    ],
)
def test_rounds_are_extrapolated_once_enough_of_them_were_timed(durations, told):
    notes = Notes()
    made = outlook(notes)
    made.ready(0, Program(2.0, 3_100_000_000), trial=None)
    for seconds in durations:
        made.took(1, seconds)
    assert len(notes.notes) == (told is not None)
    if told is not None:
        wanted = float(told.split()[0]) + 2.0
        assert seconds_in(notes.notes[0]) == pytest.approx(wanted, rel=0.06)
        assert f"({estimate.machine()}), 3.1 GB of memory" in notes.notes[0]


def test_one_round_is_tried_where_the_first_look_is_long_in_coming():
    notes = Notes()
    made = outlook(notes, work=1e15)
    made.ready(400, Program(5.0, 0), trial=lambda: (12.0, 0.0))
    assert seconds_in(notes.notes[0]) == pytest.approx(600 * 12 + 5, rel=0.06)
    made.ready(0, Program(5.0, 0), trial=None)
    made.took(1, 1e6)
    assert len(notes.notes) == 1


@pytest.mark.parametrize(
    ("seconds", "once", "sizes", "wanted"),
    [
        (2400.0, 0.0, {"seeds": 5, "rounds": 1000}, ({"seeds": 1, "rounds": 100}, 48.0)),
        (150.0, 30.0, {"seeds": 2, "rounds": 50}, ({"seeds": 1, "rounds": 40}, 90.0)),
        (1e6, 0.0, {"rounds": 100}, ({"rounds": 10}, 1e5)),
        (1e6, 9.0, {"rounds": 4}, ({}, 1e6 + 9)),
        (300.0, 9.0, {}, ({"minutes": 1}, 60.0)),
        (3000.0, 9.0, {}, ({"minutes": 5}, 300.0)),
    ],
)
def test_the_smaller_setting(seconds, once, sizes, wanted):
    assert smaller(seconds, once, sizes) == wanted


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("laconic compare", "laconic compare --seeds 1 --rounds 50"),
        (
            "laconic compare x --seeds 3 --rounds=9 --out 'a b' --batch 4",
            "laconic compare x --batch 4 --seeds 1 --rounds 50",
        ),
        (
            "python mine.py compare --first-seed 3 --out=a",
            "python mine.py compare --first-seed 3 --seeds 1 --rounds 50",
        ),
        ("laconic.compare, from Python", "seeds=1, rounds=50"),
    ],
)
def test_a_command_with_fewer(command, wanted):
    assert changed(command, {"seeds": 1, "rounds": 50}) == wanted


RUNS = {
    "compare": (compare, COMPARE, None),
    "sweep": (sweep, SWEEP, None),
    "train": (train, TRAIN, None),
    "meta-train": (meta_train, replace(TINY, steps=4), "minutes"),
}


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    ("command", "tried"),
    [
        ("compare", True),
        ("compare", False),
        ("sweep", True),
        ("train", False),
        pytest.param("train", True, marks=pytest.mark.slow),
        pytest.param("meta-train", True, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_told_of_once_and_computes_the_same_bits(command, tried, tmp_path, monkeypatch):
    run, config, flag = RUNS[command]
    monkeypatch.setattr(estimate, "LONG", -1.0)
    monkeypatch.setattr(estimate, "ENOUGH", 0.0)
    monkeypatch.setattr(estimate, "WAIT", 0.0 if tried else math.inf)
    notes = Notes()
    _, told = run(replace(config, out=tmp_path / "told"), observer=notes)
    found = [note for note in notes.notes if "this takes about" in note]
    assert len(found) == 1
    assert re.search(r"\(\d+ CPU cores?\), [\d.]+ [MG]B of memory\. About", found[0])
    if flag:
        assert f"{flag}=" in found[0]
    else:
        assert f"laconic {command}" in found[0]
    monkeypatch.undo()
    silent = Notes()
    _, plain = run(replace(config, out=tmp_path / "plain"), observer=silent)
    assert not [note for note in silent.notes if "takes about" in note]
    drop = {"committed_at", "at", "loss_at", "longest_gap_seconds", "workers", "init_sha256"}
    bare = lambda records: [
        {k: v for k, v in record.items() if k not in drop} for record in timeless(records)
    ]
    assert bare(told) == bare(plain)


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_that_of_the_program():
    n = 3000  # 36 MB for the result and as much for the product in between
    x = jnp.ones((n, n))
    before = estimate._resident()
    program = compiled(jax.jit(lambda x: (x @ x) @ x), x)
    assert 72e6 <= program.memory - before <= 150e6


def test_a_compiled_program_is_not_compiled_again():
    compilations = []
    listen = lambda event, seconds, **_: compilations.append("backend_compile" in event)
    jax.monitoring.register_event_duration_secs_listener(listen)
    simulation = Simulation(
        least_squares(), parse_method("local-sgd", 2), Setting(2, 2, 4, 4, (0,), 2)
    )
    state = simulation.start()
    ready = lambda program, trial: compilations.clear()
    for _ in simulation.run(state, ready=ready):
        pass
    assert not any(compilations)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "command", ["compare", "sweep", "train", pytest.param("meta-train", marks=pytest.mark.slow)]
)
def test_what_does_not_fit_is_refused_before_it_is_begun(
    command, tmp_path, monkeypatch, raises_clearly
):
    run, config, _ = RUNS[command]
    monkeypatch.setenv("LACONIC_MEMORY", "0.0001")
    with raises_clearly("fit in", "memory", "are needed", "LACONIC_MEMORY=N"):
        run(replace(config, out=tmp_path / "run"))


@pytest.mark.parametrize("text", ["lots", "-1", "0", "nan"])
def test_memory_that_is_no_number_is_refused(text, monkeypatch, raises_clearly):
    monkeypatch.setenv("LACONIC_MEMORY", text)
    with raises_clearly("LACONIC_MEMORY", "positive number of GB", repr(text)):
        estimate.free_memory()


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        ({}, (5 + 2) * 2**20),
        ({"max": "max", "current": "77"}, (5 + 2) * 2**20),
        ({"max": str(2**22), "current": str(2**21)}, 2**21 + 4096),
    ],
)
def test_free_memory_is_that_of_the_container(group, wanted, tmp_path, monkeypatch):
    files = {"/proc/meminfo": "MemAvailable:   5120 kB\nSwapFree:  2048 kB\nDirect: x\n"}
    files |= {f"/sys/fs/cgroup/memory.{name}": text for name, text in group.items()}
    files |= {"/sys/fs/cgroup/memory.stat": "anon 9\ninactive_file 4096\n"} if group else {}

    def read_text(path):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert estimate.free_memory() == wanted


# --- counted work ---------------------------------------------------------------------------------


def test_operations_are_those_of_the_layers():
    task, B = make_task("digits-mlp:width=32"), 16
    sizes = [(64, 32), (32, 10)]  # weights of the layers
    forward = [2 * B * m * n for m, n in sizes]
    products = 3 * sum(forward) - forward[0]  # images need no gradient
    assert products <= estimate.step_operations(task, B) <= 2 * products


def test_dearer_methods_are_told_to_take_longer():
    task, setting = make_task("digits-mlp:width=4"), Setting(2, 2, 4, 1000, (0,), 50)
    methods = [Simulation(task, parse_method(name, 2), setting) for name in ("local-sgd", "lopt-a")]
    times = []
    for chosen in (methods[:1], [methods[0]] * 2, methods):
        notes = Notes()
        made = of_methods(Forecast(notes, "laconic compare", {"rounds": 1000}), chosen)
        made.took(50, 10.0)
        times.append(seconds_in(notes.notes[0]))
    assert times[:2] == pytest.approx([200, 400], rel=0.06)
    assert times[2] > 2 * times[1]  # 2,402 weights for each of 302 parameters


@pytest.mark.slow
@pytest.mark.parametrize("tried", [True, False])
def test_the_estimate_holds_within_a_factor_of_two(tried, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "LONG", 1.0)
    monkeypatch.setattr(estimate, "WAIT", 0.0 if tried else math.inf)
    config = CompareConfig(
        task="digits-mlp:width=256",
        optimizers=("local-sgd", "slowmo:gamma=0.1,beta=0.8"),
        batch=128,
        rounds=400,
        seeds=1,
        evaluate_every=10,
        out=tmp_path / "run",
    )
    notes = Notes()
    _, records = compare(config, observer=notes)
    took = sum(record["seconds"] for record in records if record["kind"] == "method")
    assert took / 2 < seconds_in(notes.notes[0]) < took * 2


def test_methods_are_counted_only_where_an_outer_step_may_matter():
    """A thousand local steps outweigh any outer step; a few of them, or other numbers, do not."""

    def simulations(specs, local_steps):
        task = make_task("digits-mlp:width=4")
        setting = Setting(4, local_steps, 64, 6)
        return [Simulation(task, parse_method(spec, 4), setting) for spec in specs]

    assert alike(simulations(["local-sgd", "slowmo:gamma=0.1"], 1000))
    assert not alike(simulations(["local-sgd", "slowmo:gamma=0.1"], 1))
    assert not alike(simulations(["local-sgd", "adam:alpha=0.1"], 1000))  # takes no local steps
