"""A comparison into a folder: records, resume to the same bits, divergence, refusals."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from safetensors.numpy import save_file

from laconic.client import LocalOptimizer
from laconic.errors import LaconicError
from laconic.method import Setting, local_method
from laconic.outer import LearnedOptimizer
from laconic.recipes.comparisons import RECIPES
from laconic.runs.compare import CompareConfig, Options, _parsed, compare, prepare, run_comparison
from laconic.runs.folder import CHECKPOINT, Interrupted, RunFolder
from laconic.runs.resume import resume
from laconic.runs.settings import command_line
from laconic.runs.simulate import Simulation
from laconic.show import metrics
from laconic.show.summary import curves_of
from laconic.store.records import RECORDS, plain, provenance
from laconic.tasks.base import plain_task
from tests.runs.notes import Notes

pytestmark = pytest.mark.usefixtures("standard_promotion")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 6)).astype(np.float32)
Y = (X @ np.linspace(-1, 1, 6)).astype(np.float32)
SMALL = CompareConfig(
    optimizers=(
        "local-sgd:gamma=0.02",
        "slowmo:gamma=0.02,beta=0.6",
        "diloco:compress=topk:0.5+ef",
    ),
    workers=4,
    local_steps=2,
    batch=8,
    rounds=40,
    seeds=3,
    evaluate_every=5,
)


@pytest.fixture(scope="module")
def task():
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)

    def init(key):
        return {"w": jnp.zeros(6), "b": jnp.zeros(1)}

    return plain_task("fit", init, loss, {"x": X, "y": Y}, test={"x": X[:32], "y": Y[:32]})


@pytest.fixture(scope="module")
def finished(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    with jax.numpy_dtype_promotion("standard"):
        return compare(_with(SMALL, out=folder), task)


def _with(config, **changes):
    return replace(config, **changes)


def timeless(records):
    drop = {"seconds", "rounds_per_second", "provenance", "command", "config"}
    return [{k: v for k, v in record.items() if k not in drop} for record in records]


def test_the_folder_holds_what_was_promised(finished):
    folder, records = finished
    assert [r["kind"] for r in records] == ["run", "method", "method", "method", "summary"]
    for name in (RECORDS, "report.html", "curves.png", "command.txt"):
        assert (folder / name).stat().st_size > 0
    assert not (folder / CHECKPOINT).exists()
    run = records[0]
    told = {name: value for name, value in run["task"].items() if not name.endswith("_sha256")}
    assert told == {
        "name": "fit",
        "parameters": 7,
        "classes": None,
        "source": "given by the caller",
    }
    assert {"versions", "device", "commit", "started"} <= set(run["provenance"])
    assert run["config"]["seeds"] == 3


def test_the_table_follows_from_the_curves(finished):
    _, records = finished
    methods = {r["label"]: r for r in records if r["kind"] == "method"}
    summary = records[-1]
    reference = curves_of(methods["local-sgd:gamma=0.02"])
    assert summary["reference"] == "local-sgd:gamma=0.02"
    assert summary["target_loss"] == pytest.approx(metrics.minimum_loss(reference), rel=1e-6)
    rows = {row["label"]: row for row in summary["rows"]}
    slow = rows["slowmo:gamma=0.02,beta=0.6"]
    assert slow["speedup"] == pytest.approx(
        metrics.speedup(reference, curves_of(methods[slow["label"]])), rel=1e-6
    )
    assert rows["local-sgd:gamma=0.02"]["speedup"] == 1.0
    assert slow["speedup"] > 1
    sparse = rows["diloco:compress=topk:0.5+ef"]
    assert sparse["sent_megabytes"] == pytest.approx(
        40 * (4 * 32 + 16) / 8e6
    )  # 4 of 7 values, 12 bits of indices
    assert sparse["received_megabytes"] == pytest.approx(40 * 7 * 32 / 8e6)
    last = np.array(methods[slow["label"]]["heldout"]["loss"])[:, -1]
    assert slow["test_loss"] == pytest.approx(last.mean(), rel=1e-6)
    assert slow["test_accuracy"] is None


@pytest.mark.parametrize("stop_after", [1, 3, 9, 23])
def test_stopping_and_resuming_gives_the_same_bits(stop_after, finished, task, tmp_path):
    folder, watcher = tmp_path / "run", Notes()
    with pytest.raises(Interrupted) as info:
        compare(
            _with(SMALL, out=folder),
            task,
            observer=watcher,
            stop=lambda: watcher.calls >= stop_after,
        )
    assert info.value.folder == folder
    assert (folder / CHECKPOINT).exists()
    again = Notes()
    _, records = resume(folder, task, observer=again)
    done = stop_after * 5 % 40
    assert again.begun[0][1] == done
    assert timeless(records) == timeless(finished[1])
    assert [r["params_sha256"] for r in records[1:-1]] == [
        r["params_sha256"] for r in finished[1][1:-1]
    ]


def test_a_stop_in_the_last_chunk_of_a_method_stops_before_the_next(task, tmp_path):
    one_chunk = _with(SMALL, rounds=5)
    whole = compare(_with(one_chunk, out=tmp_path / "whole"), task)[1]
    folder = tmp_path / "run"
    with pytest.raises(Interrupted, match=r"after local-sgd.*, before slowmo"):
        compare(_with(one_chunk, out=folder), task, stop=lambda: True)
    assert not (folder / CHECKPOINT).exists()
    with pytest.raises(Interrupted, match=r"after slowmo.*, before diloco"):
        resume(folder, task, stop=lambda: True)
    _, records = resume(folder, task, stop=lambda: True)  # nothing remains after the last
    assert timeless(records) == timeless(whole)


def test_a_summary_from_before_more_methods_is_replaced(task, tmp_path):
    config = _with(SMALL, rounds=5, seeds=1, optimizers=SMALL.optimizers[:2])
    folder, records = compare(_with(config, out=tmp_path / "run"), task)
    lines = (folder / RECORDS).read_text().splitlines()
    run, first, second, summary = map(json.loads, lines)
    RunFolder(folder).rewrite([run, first, summary, second])
    _, again = resume(folder, task)
    assert [record["kind"] for record in again] == [record["kind"] for record in records]
    assert timeless(again) == timeless(records)


def test_methods_are_prepared_once(task, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Simulation, "__init__", _counted(Simulation.__init__, made))
    compare(_with(SMALL, rounds=5, seeds=1, out=tmp_path / "run"), task)
    assert len(made) == len(SMALL.optimizers)


def _counted(init, made):
    def counted(self, *args, **options):
        made.append(self)
        init(self, *args, **options)

    return counted


def test_resuming_a_finished_run_changes_nothing(finished, task):
    folder, records = finished
    before = (folder / RECORDS).read_bytes()
    _, again = resume(folder, task)
    assert again == records
    assert (folder / RECORDS).read_bytes() == before


def test_missing_workers_are_in_the_config_the_run_and_the_report(task, tmp_path, raises_clearly):
    one = replace(SMALL, optimizers=("local-sgd:gamma=0.02",), rounds=3, seeds=1, missing=2)
    folder, records = compare(replace(one, out=tmp_path / "two"), task)
    _, everyone = compare(replace(one, missing=0, out=tmp_path / "none"), task)
    assert records[0]["config"]["missing"] == 2
    assert np.all(
        np.array(records[1]["train"]) != np.array(everyone[1]["train"])
    )  # already the first: of two only
    assert "2 missing from each round" in (folder / "report.html").read_text()
    with raises_clearly("4 workers", "0 to 3", "got 4"):
        compare(replace(one, missing=4, out=tmp_path / "all"), task)


def test_nan_stops_with_the_last_good_checkpoint_and_can_go_on(task, tmp_path):
    folder = tmp_path / "run"
    config = _with(SMALL, optimizers=("local-sgd:gamma=30",), out=folder, rounds=40)
    with pytest.raises(LaconicError) as info:
        compare(config, task)
    message = str(info.value)
    assert re.search(r"worker \d", message)
    assert re.search(r"round \d+", message)
    assert str(folder / CHECKPOINT) in message
    assert message.endswith(f"laconic compare --resume {folder} --on-nan continue")
    assert (folder / CHECKPOINT).exists()
    _, records = resume(folder, task, on_nan="continue")
    assert records[1]["diverged"] == [True, True, True]
    assert None in records[1]["train"][0]
    row = records[-1]["rows"][0]
    assert row["diverged"] == 3
    assert records[-1]["reference"] is None
    json.dumps(records, allow_nan=False)


def test_a_link_prices_the_rounds(task, tmp_path):
    config = _with(
        SMALL,
        link="1Mbit/10ms",
        step_time="2ms",
        out=tmp_path / "run",
        optimizers=SMALL.optimizers[:2],
    )
    _, records = compare(config, task)
    row = records[-1]["rows"][1]
    bits = 7 * 32
    a_round = 2 * 0.002 + 2 * 0.010 + 2 * bits / 1e6
    assert row["seconds_to_target"] == pytest.approx(row["rounds_to_target"] * a_round, rel=1e-6)


def test_the_step_is_measured_if_not_stated(task, tmp_path):
    config = _with(SMALL, link="1Mbit/10ms", out=tmp_path / "run", optimizers=SMALL.optimizers[:1])
    _, records = compare(config, task)
    assert 0 < records[1]["step_seconds"] < 5


def test_no_test_split_is_said(tmp_path):
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    task = plain_task("bare", lambda key: {"w": jnp.zeros(6)}, loss, {"x": X, "y": Y})
    watcher = Notes()
    config = _with(SMALL, optimizers=("local-sgd:gamma=0.02",), out=tmp_path / "run", rounds=10)
    _, records = compare(config, task, observer=watcher)
    assert any("no test split" in note for note in watcher.notes)
    assert records[-1]["rows"][0]["test_loss"] is None


def test_past_its_horizon_a_learned_optimizer_warns(task, tmp_path):
    learned = LearnedOptimizer("lopt-a")
    outer = learned(learned.init(jax.random.key(0)), scale=0.01, horizon=5)
    method = local_method("mine", LocalOptimizer("sgd", 0.01), outer)
    watcher = Notes()
    described = {"name": "fit", "parameters": 7, "classes": None, "source": "here"}
    header = {
        "config": plain(SMALL),
        "command": "none",
        "task": described,
        "provenance": provenance(),
    }
    folder = RunFolder(tmp_path)
    folder.append("run", **header)
    prepared = prepare(task, [method], Setting(2, 1, 4, 10, (0,), 5), Options())
    run_comparison(prepared, folder, observer=watcher)
    assert any("meta-trained for 5 rounds" in note for note in watcher.notes)


# --- refusals: nothing is overwritten, nothing is left half made ----------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"workers": 0}, ["workers", "positive", "0"]),
        ({"local_steps": -1}, ["local_steps", "positive", "-1"]),
        ({"batch": 0}, ["batch", "positive"]),
        ({"rounds": 0}, ["rounds", "positive"]),
        ({"seeds": 0}, ["seeds", "positive"]),
        ({"evaluate_every": 0}, ["evaluate_every", "positive"]),
        ({"optimizers": ("local-sdg",)}, ["Did you mean 'local-sgd'?"]),
        ({"optimizers": ()}, ["optimizers"]),
        ({"optimizers": ("local-sgd", "local-sgd")}, ["same label", "label=NAME"]),
        ({"task": "digit-mlp"}, ["task", "Did you mean 'digits-mlp'?"]),
        ({"compress": "topk:2"}, ["fraction"]),
        ({"link": "fast"}, ["100Mbit/20ms"]),
        ({"step_time": "soon"}, ["soon"]),
        ({"devices": 999}, ["devices", "999"]),
        ({"devices": 8, "workers": 4}, ["4 workers", "8 devices"]),
        ({"topology": "ring", "compress": "int8"}, ["ring"]),
        ({"link": ""}, ["100Mbit/20ms"]),
        ({"link": "1e400Mbit/1ms"}, ["1e400"]),
        ({"step_time": ""}, ["12ms"]),
        ({"target_loss": float("nan")}, ["target loss must be finite"]),
        ({"first_seed": 2**40}, ["seed must be between 0"]),
        ({"first_seed": -1}, ["seed must be between 0"]),
        ({"task": "digits-mlp:width=99999999999999999999"}, ["width"]),
        ({"devices": 2, "workers": 3}, ["3 workers", "2 devices"]),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(changes, parts, raises_clearly, tmp_path):
    folder = tmp_path / "run"
    with raises_clearly(*parts):
        compare(_with(CompareConfig(out=folder), **changes))
    assert not folder.exists()


def test_a_used_folder_is_not_touched(task, tmp_path, raises_clearly):
    (tmp_path / "mine.txt").write_text("precious")
    with raises_clearly("not empty", "--out"):
        compare(_with(SMALL, out=tmp_path), task)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize("where", ["/proc/laconic", "/dev/null/run", "/tmp/" + "x" * 300])
def test_an_unwritable_folder_is_refused(where, task, raises_clearly):
    with raises_clearly("cannot write", where):
        compare(_with(SMALL, out=Path(where)), task)


def test_nothing_to_resume(tmp_path, raises_clearly):
    with raises_clearly("nothing to resume"):
        resume(tmp_path)


def interrupted(task, folder):
    watcher = Notes()
    with pytest.raises(Interrupted):
        compare(_with(SMALL, out=folder), task, observer=watcher, stop=lambda: watcher.calls >= 2)


def test_a_corrupted_checkpoint_is_refused_and_kept(task, tmp_path, raises_clearly):
    folder = tmp_path / "run"
    interrupted(task, folder)
    data = bytearray((folder / CHECKPOINT).read_bytes())
    data[-5] ^= 1
    (folder / CHECKPOINT).write_bytes(bytes(data))
    with raises_clearly(CHECKPOINT):
        resume(folder, task)
    assert (folder / CHECKPOINT).read_bytes() == bytes(data)


def test_a_foreign_checkpoint_is_refused(task, tmp_path, raises_clearly):
    folder = tmp_path / "run"
    interrupted(task, folder)
    save_file({"w": np.zeros(3, np.float32)}, folder / CHECKPOINT)
    with raises_clearly(CHECKPOINT):
        resume(folder, task)


def test_a_checkpoint_of_another_run_is_refused_and_kept(task, tmp_path, raises_clearly):
    interrupted(task, tmp_path / "one")
    interrupted(task, tmp_path / "two")
    foreign = (tmp_path / "two" / CHECKPOINT).read_bytes()
    (tmp_path / "one" / CHECKPOINT).write_bytes(foreign)
    with raises_clearly(CHECKPOINT, "another run"):
        resume(tmp_path / "one", task)
    assert (tmp_path / "one" / CHECKPOINT).read_bytes() == foreign


def test_other_data_is_refused(tmp_path, raises_clearly):
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(97, 123)) * 400)
    spec = f"lm-bytes:file={text},context=8,hidden=8,heads=1,layers=1"
    config = _with(
        SMALL, task=spec, optimizers=("local-sgd",), out=tmp_path / "run", seeds=1, rounds=10
    )
    watcher = Notes()
    with pytest.raises(Interrupted):
        compare(config, observer=watcher, stop=lambda: watcher.calls >= 1)
    text.write_bytes(bytes(range(98, 124)) * 400)
    with raises_clearly("was begun on", "start anew"):
        resume(tmp_path / "run")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "run"}',
        '{"kind": "run", "config": {}, "task": {}, "provenance": {}}',
        '{"kind": "other"}',
        "{}",
    ],
)
def test_foreign_records_are_refused(line, tmp_path, raises_clearly):
    (tmp_path / RECORDS).write_text(line + "\n")
    with raises_clearly("cannot be resumed"):
        resume(tmp_path)


def test_settings_of_a_wrong_type_are_refused(task, tmp_path, raises_clearly):
    interrupted(task, tmp_path / "run")
    path = tmp_path / "run" / RECORDS
    path.write_text(
        path.read_text().replace('"workers": 4, "local_steps"', '"workers": "4", "local_steps"', 1)
    )
    with raises_clearly("workers", "wrong type"):
        resume(tmp_path / "run", task)


def test_a_run_from_before_there_was_a_setting_goes_on_at_its_default(
    task, tmp_path, raises_clearly
):
    interrupted(task, tmp_path / "run")
    path = tmp_path / "run" / RECORDS
    text = path.read_text()
    path.write_text(text.replace(', "seeds_at_once": 0', "", 1))
    (tmp_path / "run" / CHECKPOINT).unlink()  # it belongs to the record as it was
    _, records = resume(tmp_path / "run", task)
    assert records[-1]["kind"] == "summary"
    path.write_text(text.replace('"seeds_at_once": 0', '"seeds_at_twice": 0', 1))
    with raises_clearly("seeds_at_twice", "start anew"):
        resume(tmp_path / "run", task)


def test_the_reference_is_local_sgd_by_name_not_by_label(task, tmp_path):
    optimizers = (
        "slowmo:gamma=0.02,label=local-sgd-like",
        "local-sgd:gamma=0.02,compress=topk:0.5+ef",
        "local-sgd:gamma=0.02,label=base",
    )
    _, records = compare(_with(SMALL, optimizers=optimizers, out=tmp_path / "run", rounds=10), task)
    assert records[-1]["reference"] == "base"


def test_a_resumed_run_keeps_the_measured_step(task, tmp_path):
    folder, watcher = tmp_path / "run", Notes()
    config = _with(SMALL, link="1Mbit/10ms", out=folder, optimizers=SMALL.optimizers[:2])
    with pytest.raises(Interrupted):
        compare(config, task, observer=watcher, stop=lambda: watcher.calls >= 10)
    _, records = resume(folder, task)
    steps = {record["step_seconds"] for record in records[:-1]}
    assert len(steps) == 1


def test_a_run_of_ones_own_task_needs_it_to_resume(task, tmp_path, raises_clearly):
    folder = tmp_path / "run"
    interrupted(task, folder)
    with raises_clearly("task of its own"):
        resume(folder)


def test_the_command_gives_the_config_back():
    config = _with(
        SMALL, link="100Mbit/20ms", target_loss=0.25, task="lm-bytes:context=32", out=Path("a b")
    )
    words = shlex.split(command_line("compare", config))
    assert words[:2] == ["laconic", "compare"]
    assert tyro.cli(CompareConfig, args=words[2:]) == config


def test_recipes_are_valid():
    for name, (summary, config) in RECIPES.items():
        setting, _, methods = _parsed(config)
        assert summary
        assert len(methods) == len(config.optimizers), name
        assert setting.rounds == config.rounds
