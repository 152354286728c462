"""`laconic bench`: what is measured, the record, the picture, and the comparison with an earlier
record."""

import json
import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.bench import meta_train, overhead, server_step, timing
from laconic.bench.meta_train import MetaTrainConfig
from laconic.bench.server_step import MODELS
from laconic.cli.bench import BENCHMARKS, EXAMPLES, _options
from laconic.data.feed import Streamed
from laconic.outer.kernels import Tuning
from tests.cli.commands import assert_one_error, laconic
from tests.outer.trees import QUICK


@pytest.fixture
def small(monkeypatch):
    """A model small enough to be measured in a test."""
    monkeypatch.setitem(MODELS, "small", MODELS["mlp"]._replace(shapes=[(8, 6), (6,)]))
    monkeypatch.setattr(timing, "LEAST", 0.0)
    monkeypatch.setattr(server_step, "bandwidth", lambda: 2e9)
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


def test_without_a_name_it_teaches(capfd):
    code, out, _ = laconic(capfd, "bench")
    assert code == 0
    assert all(name in out for name in BENCHMARKS)
    assert "laconic bench server-step --sizes vit-b" in out


def test_parameter_counts_are_the_models_own():
    """Published counts: torchvision's ResNet-50 and ViT-B/16, and GPT-2 medium."""
    counts = {name: model.parameters for name, model in MODELS.items()}
    assert counts["resnet50"] == 25_557_032
    assert counts["vit-b"] == 86_567_656
    assert counts["gpt2-medium"] == 354_823_168
    assert counts["mlp"] == 118_282


def test_server_step_writes_a_record_and_a_picture(small, capfd, tmp_path, standard_promotion):
    argv = [
        "bench",
        "server-step",
        "--sizes",
        "small",
        "--workers",
        "2",
        "--repeats",
        "1",
        "--out",
        tmp_path,
    ]
    code, out, _ = laconic(capfd, *argv)
    assert code == 0
    assert "small lagg-a" in out
    made = json.loads((tmp_path / "server-step.json").read_text())
    assert (tmp_path / "server-step.png").read_bytes().startswith(b"\x89PNG")
    assert {"commit", "versions", "device", "started", "config"} <= set(made)
    assert made["config"]["tuning"][0] == Tuning().lanes
    step = made["figures"]["small lagg-a"]
    assert step["parameters"] == 54
    assert step["bytes_per_parameter"] == 4 * (1 + 8 + 13)
    assert step["share_of_memory_floor"] == pytest.approx(88 * 54 / 2e9 / step["seconds"])
    assert step["ratio_to_adamw"] == pytest.approx(
        step["seconds"] / made["figures"]["small adamw"]["seconds"]
    )
    assert step["temporary_bytes_per_parameter"] >= 0


def test_a_slower_machine_is_told(small, capfd, tmp_path, standard_promotion):
    argv = [
        "bench",
        "server-step",
        "--sizes",
        "small",
        "--steppers",
        "adamw",
        "--repeats",
        "1",
        "--out",
        tmp_path,
    ]
    laconic(capfd, *argv)
    path = tmp_path / "server-step.json"
    earlier = json.loads(path.read_text())
    earlier["figures"]["small adamw"]["seconds"] = 1e-12
    (tmp_path / "fast.json").write_text(json.dumps(earlier))
    code, out, _ = laconic(capfd, *argv, "--compare", tmp_path / "fast.json")
    assert code == 1
    assert "slower: small adamw" in out
    earlier["figures"]["small adamw"]["seconds"] = 1e6
    (tmp_path / "slow.json").write_text(json.dumps(earlier))
    code, out, _ = laconic(capfd, *argv, "--compare", tmp_path / "slow.json")
    assert code == 0
    assert "nothing got more than 5% slower" in out


def test_comparing_takes_a_figure_as_the_same_within_five_percent(raises_clearly, tmp_path):
    made = lambda **seconds: {
        "benchmark": "round",
        "figures": {n: {"seconds": s} for n, s in seconds.items()},
    }
    old, new = made(a=1.0, b=1.0, c=1.0, gone=1.0), made(a=1.04, b=1.06, c=0.9, new=1.0)
    assert [row[3] for row in timing.compare(new, old)] == ["same", "slower", "faster"]
    with raises_clearly("'round'", "'overhead'"):
        timing.compare(new | {"benchmark": "overhead"}, old)
    with raises_clearly("no figure in common"):
        timing.compare(made(x=1.0), old)
    (tmp_path / "other.json").write_text("[1]")
    with raises_clearly("other.json", "figures"):
        timing.load_record(tmp_path / "other.json")
    with raises_clearly("missing.json"):
        timing.load_record(tmp_path / "missing.json")


def test_what_was_not_the_same_is_told(small, capfd, tmp_path, standard_promotion):
    """Names of figures do not say with which settings; a setting that a record has another name for
    is left out."""
    argv = [
        "bench",
        "server-step",
        "--sizes",
        "small",
        "--steppers",
        "lopt-a",
        "--repeats",
        "1",
        "--out",
        tmp_path,
    ]
    laconic(capfd, *argv)
    earlier = json.loads((tmp_path / "server-step.json").read_text())
    earlier["config"] |= {"accumulators": "bfloat16", "calls": 7}
    earlier["tuning"]["lanes"] = 64
    (tmp_path / "other.json").write_text(json.dumps(earlier))
    _, out, _ = laconic(capfd, *argv, "--compare", tmp_path / "other.json")
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: accumulators was bfloat16 and is float32.",
        "note: lanes was 64 and is 128.",
    ]


@pytest.mark.parametrize("figure", [3, {"seconds": "fast"}, None])
def test_a_record_without_seconds_is_refused(raises_clearly, tmp_path, figure):
    (tmp_path / "odd.json").write_text(
        json.dumps({"benchmark": "round", "figures": {"adamw": figure}})
    )
    with raises_clearly("odd.json", "'adamw'"):
        timing.load_record(tmp_path / "odd.json")


def test_a_stream_of_other_batches_is_not_timed(raises_clearly):
    stream = Streamed({}, lambda: iter([{"x": np.zeros((16, 2)), "y": np.zeros(16)}]))
    task: Any = SimpleNamespace(feed=stream)
    assert overhead._batch(task, 16)["x"].shape == (16, 2)
    with raises_clearly("16 examples", "8"):
        overhead._batch(task, 8)


def test_flags_of_the_examples_and_of_the_docs_are_there():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "server-step.md").read_text()
    assert all(
        (root / word).is_file()
        for line in EXAMPLES
        for word in line.split()
        if word.startswith("results/")
    )
    for command in [*EXAMPLES, *re.findall(r"`(laconic bench [^`]* --[^`]*)`", page)]:
        name, *argv = command.split()[2:]
        _options(BENCHMARKS[name].config, argv, command, "")
    for flags in re.findall(r"with `(--[^`]*)`", page):
        _options(BENCHMARKS["server-step"].config, flags.split(), flags, "")


def test_overhead_adds_up(monkeypatch):
    """A local step of 10 ms, 8 of it forward and backward; server steps of 1, 2 and 3 ms."""
    times = iter([0.008, 0.010, 0.001, 0.002, 0.003])
    monkeypatch.setattr(overhead, "_one", lambda step, config, tick: next(times))
    for part in ("_gradient", "_local", "_server"):
        monkeypatch.setattr(overhead, part, lambda *args: None)
    found = overhead.measure(overhead.OverheadConfig(local_steps=(8, 16), restarts=1))
    step = found["figures"]["H=8 lopt-a"]
    assert step["seconds"] == pytest.approx(0.010 + 0.002 / 8)
    assert step["optimizer_seconds"] == pytest.approx(0.002 + 0.002 / 8)
    assert step["overhead"] == pytest.approx((0.010 + 0.002 / 8) / (0.010 + 0.001 / 8))
    assert found["figures"]["H=16 local-sgd"]["overhead"] == 1.0
    assert found["parameters"] == 8_970


def test_parts_that_are_known_are_not_timed_again(monkeypatch):
    timed, kept = [], []
    monkeypatch.setattr(overhead, "_one", lambda step, config, tick: timed.append(step) or 0.5)
    for part in ("_gradient", "_local"):
        monkeypatch.setattr(overhead, part, lambda *args, part=part: part)
    monkeypatch.setattr(overhead, "_server", lambda task, name, config: name)
    known = {"forward-backward": 0.1, "lopt-a": 0.2}
    found = overhead.measure(
        overhead.OverheadConfig(), known=known, keep=lambda *part: kept.append(part)
    )
    assert timed == ["_local"] * 3 + ["local-sgd"] * 3 + ["lagg-a"] * 3
    assert kept == [("local step", 0.5), ("local-sgd", 0.5), ("lagg-a", 0.5)]
    assert found["parts_seconds"] == known | {name: 0.5 for name, _ in kept}


@pytest.mark.slow
def test_overhead_of_a_task(capfd, tmp_path):
    argv = [
        "bench",
        "overhead",
        "--task",
        "digits-mlp",
        "--local-steps",
        "8",
        "--steps",
        "3",
        "--last",
        "2",
    ]
    code, out, _ = laconic(
        capfd, *argv, "--restarts", "1", "--batch", "16", "--workers", "2", "--out", tmp_path
    )
    assert code == 0
    assert "H=8 lagg-a" in out
    made = json.loads((tmp_path / "overhead.json").read_text())
    assert made["figures"]["H=8 local-sgd"]["overhead"] == 1.0
    assert set(made["parts_seconds"]) == {
        "forward-backward",
        "local step",
        "local-sgd",
        "lopt-a",
        "lagg-a",
    }


def timed(monkeypatch, durations, config, inner=1):
    """What `overhead` makes of calls that last so long."""
    clock_now, left = [0.0], iter(durations)
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: clock_now[0])

    def call(state: int) -> int:
        clock_now[0] += next(left)
        return state + 1

    return overhead._one(timing.Step(call, 0, (), None, inner), config, lambda: None)


def test_the_last_calls_count(monkeypatch):
    config = overhead.OverheadConfig(steps=5, last=3)
    assert timed(monkeypatch, [100.0, 9.0, 9.0, 1.0, 3.0, 2.0], config) == 2.0


def test_every_restart_begins_from_the_first_state():
    seen, config = [], overhead.OverheadConfig(steps=2, last=1)
    step = timing.compiled(lambda x: x + 1.0, jnp.zeros(3))
    watched = step._replace(call=lambda x: seen.append(float(x[0])) or step.call(x))
    for _ in range(2):
        overhead._one(watched, config, lambda: None)
    assert seen == [0.0, 1.0, 2.0] * 2


def test_the_clock_takes_medians_of_chained_calls(monkeypatch):
    seen = []
    step = timing.compiled(lambda x: x + 1.0, jnp.zeros(3))
    watched = step._replace(call=lambda x: seen.append(float(x[0])) or step.call(x))
    monkeypatch.setattr(timing, "LEAST", 0.0)
    assert timing.medians({"one": watched}, 3)["one"] > 0
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0]  # each call takes what the last one gave
    assert timing.compiled(lambda x: x + 1.0, jnp.zeros(3), inner=4).call(jnp.zeros(3))[0] == 4.0


def test_a_cut_that_does_not_compile_is_not_chosen(monkeypatch):
    def refuse_many_lanes(architecture, shapes, K, path, accumulators, tuning, inner):
        if tuning.lanes > 64:
            raise jax.errors.JaxRuntimeError("out of registers")
        return tuning

    monkeypatch.setattr(server_step, "learned_step", refuse_many_lanes)
    monkeypatch.setattr(
        server_step, "medians", lambda steps, repeats, tick: dict.fromkeys(steps, 1.0)
    )
    best, tried = server_step.tuned(server_step.ServerStepConfig(), lambda name: None)
    assert best.lanes == 64
    assert math.inf in tried.values()


def test_tuning_keeps_the_fastest_of_each_knob(monkeypatch):
    want = {"lanes": 64, "rows": 16, "sum_warps": 8}
    asked = []

    def pretend(architecture, shapes, K, path, accumulators, tuning, inner):
        asked.append(tuning)
        return tuning

    wrong = lambda tuning: sum(getattr(tuning, knob) != value for knob, value in want.items())
    monkeypatch.setattr(server_step, "learned_step", pretend)
    monkeypatch.setattr(
        server_step,
        "medians",
        lambda steps, repeats, tick: {n: 1.0 + wrong(t) for n, t in steps.items()},
    )
    best, tried = server_step.tuned(server_step.ServerStepConfig(), lambda name: None)
    assert {knob: getattr(best, knob) for knob in want} == want
    assert len(tried) == len(asked) < 20


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["bench", "server-steps"], ["unknown benchmark", "server-step"]),
        (["bench", "server-step", "--sizes", "vit-c"], ["'vit-c'", "vit-b"]),
        (["bench", "server-step", "--steppers", "adam"], ["'adam'", "adamw"]),
        (["bench", "server-step", "--path", "fast"], ["'fast'", "passes"]),
        (["bench", "server-step", "--precision", "fp8"], ["'fp8'", "bf16x3"]),
        (["bench", "server-step", "--tune"], ["--tune", "no GPU"]),
        (["bench", "server-step", "--path", "passes"], ["--path passes", "no GPU"]),
        (["bench", "server-step", "--precisions", "half"], ["--precisions", "no GPU"]),
        (["bench", "server-step", "--sizes"], ["sizes is empty"]),
        (["bench", "server-step", "--steppers"], ["steppers is empty"]),
        (["bench", "overhead", "--local-steps"], ["local_steps is empty"]),
        (["bench", "meta-train", "--architectures"], ["architectures is empty"]),
        (["bench", "overhead", "--batch", "0"], ["batch", "0"]),
        (["bench", "meta-train", "--pairs", "0"], ["pairs", "0"]),
        (["bench", "round", "--rounds", "0"], ["rounds", "0"]),
        (["bench", "round", "--compare", "nowhere.json"], ["nowhere.json"]),
    ],
)
def test_bad_words_are_one_line(capfd, argv, parts):
    assert_one_error(capfd, argv, parts)


def test_defaults_of_meta_training_suit_the_platform(monkeypatch):
    both = ("lopt-a", "lagg-a")
    one: Any = partial(MetaTrainConfig, False, "fmnist-mlp2", both, 8, 4, 128, "sgd", 0)
    assert MetaTrainConfig(pairs=4).filled() == one(4, 5, 3, 1)
    both = ("lopt-r", "lopt-a")
    many: Any = partial(MetaTrainConfig, True, "mlp-64-32-10", both, 4, 8, 32)
    assert MetaTrainConfig(True, local="adamw").filled() == many("adamw", 3, 32, 5, 3, 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert MetaTrainConfig().filled() == one(8, 50, 5, 10)
    assert MetaTrainConfig(True, spread=0).filled() == many("sgd", 0, 256, 20, 5, 10)


def test_a_population_counts_local_steps_and_says_how_many_are_taken(standard_promotion):
    sizes: Any = {"workers": 2, "local_steps": 3, "batch": 4, "pairs": 2, "truncation": 2}
    config = MetaTrainConfig(True, architectures=("lopt-r",), repeats=1, **sizes)
    found = meta_train.measure(config)
    figure = found["figures"]["lopt-r"]
    assert figure["local_steps_per_second"] == pytest.approx(6 * figure["rounds_per_second"], 1e-3)
    assert figure["rounds_per_second"] * figure["seconds"] == pytest.approx(2 * 2 * 2, rel=1e-3)
    assert 1 / 3 <= figure["steps_taken"] <= 1  # K is 2, and H 1 to 3
    assert found["inner"]["spread"] == 3


def test_a_call_of_several_steps_counts_as_their_mean(monkeypatch):
    config = overhead.OverheadConfig(steps=10, last=6, inner=2)
    assert config.at_once == 2
    found = timed(monkeypatch, [100.0, 9.0, 9.0, 2.0, 6.0, 4.0], config, inner=2)
    assert found == 2.0  # 2, 6 and 4 s for two each


def test_what_the_state_does_not_change_is_worked_out_in_every_step():
    """A product of the rest alone stays in the loop's body: none is left before it."""
    step = timing.compiled(
        lambda x, w: (w @ w)[0] + 0.0 * x, jnp.zeros(8), jnp.ones((8, 8)), inner=3
    )
    entry = step.call.as_text().split("ENTRY")[1]
    assert "dot" not in entry
    assert step.call(jnp.zeros(8), jnp.ones((8, 8)))[0] == 8.0


@pytest.mark.parametrize(("field", "value"), [("inner", 0), ("steps", 0), ("precision", "quarter")])
def test_overhead_refuses_what_cannot_be_measured(raises_clearly, field, value):
    with raises_clearly(field):
        overhead.OverheadConfig(**{field: value}).check()
