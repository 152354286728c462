"""The runner of meta-training: what it leaves behind, stopping and going on to the same bits, and
refusals."""

import json
import math
import shutil
from dataclasses import asdict, replace
from functools import partial

import jax
import numpy as np
import pytest

from laconic import zoo
from laconic.client import LocalOptimizer
from laconic.meta.train import MetaTrainer
from laconic.outer.learned import LearnedOptimizer
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.folder import CHECKPOINT, Interrupted, RunFolder
from laconic.runs.meta_config import MetaConfig, parse_inner
from laconic.runs.meta_train import _prepare, meta_train, resume_meta_train
from laconic.show.meta import history
from laconic.store import checkpoint
from laconic.store.records import RECORDS, read
from laconic.tasks.catalog import make_task
from tests.outer.trees import QUICK, assert_close
from tests.runs.meta_runs import TINY, Clock, Watcher, assert_same_bits, weights
from tests.zoo.made import LAGG_A, LOPT_A, a_card
from tests.zoo.made import weights as made_up_weights


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Little compiling; and optax's AdamW, which strict promotion forbids."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, records, watcher) of an uninterrupted run."""
    watcher = Watcher()
    out = tmp_path_factory.mktemp("whole") / "run"
    return *meta_train(replace(TINY, out=out), observer=watcher, name="tiny"), watcher


@pytest.fixture(scope="module")
def by_hand():
    """The same training without the runner: φ after each step, its losses and norms, and the
    trainer."""
    outer, inner = TINY.outer(), parse_inner("digits-mlp", TINY)
    trainer = MetaTrainer([make_task("digits-mlp")], TINY.learned(), [inner], outer)
    state, thetas, seen = trainer.start(TINY.seed), [], []
    for _ in range(TINY.steps):
        state, progress = trainer.advance(state)
        thetas.append(jax.device_get(state.theta))
        seen.append((float(progress.loss[0]), float(progress.norm[0])))
    return trainer, thetas, np.array(seen)


def timeless(records):
    drop = {"seconds", "rounds_per_second"}
    return [
        {key: value for key, value in r.items() if key not in drop}
        for r in records
        if r["kind"] != "run"
    ]


# --- what a run leaves behind ---------------------------------------------------------------------


def test_the_records_tell_the_whole_run(whole, by_hand):
    folder, records, watcher = whole
    kinds = ["run", "progress", "judged", "progress", "progress", "judged", "progress", "summary"]
    assert [r["kind"] for r in records] == kinds
    assert records == read(folder / RECORDS)
    run = records[0]
    assert run["recipe"] == "tiny"
    assert run["command"].startswith("laconic.meta_train(laconic.MetaConfig(")
    assert "judge_every=4" in run["command"]
    assert run["run"] == "meta-train"
    assert run["config"] == {
        **asdict(TINY),
        "tasks": ["digits-mlp"],
        "judge_tasks": [],
        "left_out": [],
        "trained": [],
        "out": str(folder),
    }
    assert len(run["sources"]) == 1
    assert {"commit", "versions", "device", "started"} <= set(run["provenance"])
    spans = [(r["begin"], r["end"]) for r in records if r["kind"] == "progress"]
    assert spans == [(0, 2), (2, 4), (4, 6), (6, 8)]
    loss, norm = history(records)
    np.testing.assert_allclose(
        np.hstack([loss, norm]), by_hand[2], rtol=1e-5
    )  # records keep 6 digits
    np.testing.assert_array_equal(np.stack([watcher.losses, watcher.norms], axis=1), by_hand[2])
    assert watcher.begun == (0, 2 * 2 * 2)
    assert (records[-1]["steps"], watcher.notes) == (8, [])
    assert records[-1]["seconds"] > 0


def test_the_judge_scores_whole_runs_on_its_own_seeds(whole, by_hand):
    _, records, watcher = whole
    trainer, thetas, _ = by_hand
    expected = []
    for step in (4, 8):
        (curves,) = trainer.judge(thetas[step - 1], 1)
        assert curves.shape == (1, 8)
        means = [
            float(curves[0, :end].astype(np.float64).mean()) for end in (4, 5, 6, 8)
        ]  # geometric from 4 to 8
        expected.append(np.mean(means) / math.log(10))
    judged = [r for r in records if r["kind"] == "judged"]
    assert [r["step"] for r in judged] == [4, 8]
    assert {r["which"] for r in judged} == {"theta"}
    np.testing.assert_allclose([r["score"] for r in judged], expected, rtol=1e-6)
    assert expected[0] < expected[1]
    assert [r["best"] for r in judged] == [True, False]
    assert [(r["step"], r["score"], r["best"]) for r in judged] == watcher.judgements
    assert (records[-1]["best_step"], records[-1]["best_score"]) == (4, judged[0]["score"])


def test_the_files_hold_phi(whole, by_hand):
    (folder, _, _), thetas, best_step = whole, by_hand[1], 4
    meta = checkpoint.peek(folder / CHECKPOINT)
    assert (meta["done"], meta["best_step"]) == (8, best_step)
    saved = weights(folder / CHECKPOINT)
    for name in thetas[0]:
        np.testing.assert_array_equal(saved[f"['state'].theta['{name}']"], thetas[7][name])
        np.testing.assert_array_equal(
            weights(folder / "last.safetensors")[f"['{name}']"], thetas[7][name]
        )
        np.testing.assert_array_equal(
            weights(folder / "best.safetensors")[f"['{name}']"], thetas[best_step - 1][name]
        )
    card = zoo.load(folder / "best.safetensors").card
    assert (card.name, card.outer_steps, card.horizon, card.pairs) == ("best", best_step, [4, 8], 2)
    assert (card.truncation, card.meta_seed, card.estimator) == (2, 3, "pes")
    assert card.local["learning_rate"] == TINY.gamma
    assert zoo.load(folder / "last.safetensors").card.outer_steps == 8
    picture = (folder / "learning-curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    names = {RECORDS, CHECKPOINT, "best.safetensors", "last.safetensors", "learning-curve.png"}
    names.add("command.txt")
    assert {path.name for path in folder.iterdir()} == names


OTHER = "digits-mlp:width=16,activation=tanh@workers=3"


def test_a_relative_optimizer_is_judged_on_other_tasks_against_its_nominal_step(tmp_path):
    spread = {"spread": 3.0, "judge_tasks": (OTHER, "digits-mlp@workers=2")}
    config = replace(TINY, architecture="lopt-r", estimator="nres", nominal_rate=0.7, **spread)
    folder, records = meta_train(replace(config, steps=4, out=tmp_path / "run"))
    best = zoo.load(folder / "best.safetensors")
    assert (best.card.architecture, best.learned.rate) == ("lopt-r", 0.7)
    assert best.card.outer_steps == 4
    assert np.any(np.asarray(best.theta["w1"]))
    trainer, _ = _prepare(config, {})
    learned = trainer.learned
    nominal = learned.init(jax.random.key(0))
    curves = [trainer.judge(theta, seeds=1) for theta in (best.theta, nominal)]
    (judged,) = [r for r in records if r["kind"] == "judged"]
    each = [np.mean(a - b) for a, b in zip(*curves, strict=True)]
    expected = max(each) if max(each) > 0 else np.mean(each)
    np.testing.assert_allclose(judged["score"], expected, atol=1e-5)
    assert judged["score"] != 0
    assert trainer.score(curves[1]) == 0
    other = make_task(OTHER.partition("@")[0])
    apart = MetaTrainer([other], learned, config.judged()[:1], config.outer())
    np.testing.assert_allclose(apart.judge(best.theta, seeds=1)[0], curves[0][0], rtol=1e-5)


def test_several_tasks_and_an_average_are_recorded_apart(tmp_path):
    tasks = ("digits-mlp:width=4@workers=1", "digits-mlp:width=4@workers=3,gamma=0.2")
    config = replace(
        TINY, architecture="lopt", tasks=tasks, average=0.5, steps=2, judge_every=2, out=tmp_path
    )
    watcher = Watcher()
    folder, records = meta_train(config, observer=watcher)
    loss, norm = history(records)
    assert loss.shape == norm.shape == (2, 2)
    np.testing.assert_allclose(watcher.losses, loss.mean(axis=1), rtol=1e-5)
    judged = [r for r in records if r["kind"] == "judged"]
    assert [r["which"] for r in judged] == ["theta", "average"]
    assert all(len(r["final_losses"]) == 2 for r in judged)
    assert records[-1]["best_score"] == min(r["score"] for r in judged)
    assert watcher.begun == (0, 2 * 2 * 2 * 2)
    assert [row["workers"] for row in zoo.load(folder / "best.safetensors").card.trained_on] == [
        1,
        3,
    ]


# --- stopping and going on ------------------------------------------------------------------------


def test_a_stopped_run_goes_on_to_the_same_bits(whole, tmp_path):
    watcher, folder = Watcher(leave_at=4), tmp_path / "run"
    with pytest.raises(Interrupted, match=r"asked to stop after outer step \d of 8") as info:
        meta_train(replace(TINY, out=folder), observer=watcher, stop=watcher.stop)
    assert info.value.folder == folder
    done = len(watcher.losses)
    assert 4 <= done < 8
    assert checkpoint.peek(folder / CHECKPOINT)["done"] == done
    assert zoo.load(folder / "last.safetensors").card.outer_steps == done
    again = Watcher()
    assert resume_meta_train(folder, observer=again)[0] == folder
    assert again.begun[0] == done
    assert again.losses == whole[2].losses  # those from before the stop are shown again
    assert again.judgements == whole[2].judgements
    assert again.notes == []
    for name in ("last.safetensors", "best.safetensors"):
        assert_same_bits(folder / name, whole[0] / name)
    assert timeless(read(folder / RECORDS))[-1] == timeless(whole[1])[-1]
    for ours, theirs in zip(history(read(folder / RECORDS)), history(whole[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_run_that_dies_leaves_a_file_as_young_as_its_checkpoint(tmp_path):
    class Dies(Watcher):
        def progress(self, label, done, loss, norm=None):
            super().progress(label, done, loss, norm)
            if done == 7:
                raise ConnectionError("the machine is gone")

    folder = tmp_path / "run"
    with pytest.raises(ConnectionError):
        meta_train(replace(TINY, checkpoint_every=3, out=folder), observer=Dies())
    assert checkpoint.peek(folder / CHECKPOINT)["done"] == 6
    assert zoo.load(folder / "last.safetensors").card.outer_steps == 6


def test_a_stop_before_the_first_judgement_judges(whole, tmp_path):
    watcher, folder = Watcher(leave_at=1), tmp_path / "run"
    with pytest.raises(Interrupted):
        meta_train(replace(TINY, out=folder), observer=watcher, stop=watcher.stop)
    done = len(watcher.losses)
    assert done < 4
    records = read(folder / RECORDS)
    assert [(r["kind"], r.get("step")) for r in records[-2:]][-1] == ("judged", done)
    assert zoo.load(folder / "best.safetensors").card.outer_steps == done
    assert_same_bits(folder / "best.safetensors", folder / "last.safetensors")
    text = (folder / RECORDS).read_text()
    (folder / RECORDS).write_text(text.replace('"python": "3', '"python": "2', 1))
    _, again = resume_meta_train(folder)
    assert_same_bits(folder / "best.safetensors", whole[0] / "best.safetensors")
    assert [r["step"] for r in again if r["kind"] == "judged"] == [4, 8]
    later = [r for r in again if r["kind"] == "progress" and r["begin"] >= done]
    assert all("versions" in r["provenance"] for r in later)  # others than the header's


@pytest.mark.parametrize("lost", [(), (CHECKPOINT,), (CHECKPOINT, "best.safetensors")])
def test_going_on_with_a_finished_run_changes_nothing(lost, whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    for name in lost:
        (folder / name).unlink()
    before, watcher = contents(folder), Watcher()
    assert resume_meta_train(folder, observer=watcher) == (folder, whole[1])
    assert contents(folder) == before
    (note,) = watcher.notes
    assert "is finished" in note


def test_a_best_that_is_lost_comes_back_from_the_checkpoint(whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    (folder / "best.safetensors").unlink()
    text = (folder / RECORDS).read_text()
    (folder / RECORDS).write_text(text.replace('"python": "3', '"python": "2'))
    before, watcher = (folder / RECORDS).read_bytes(), Watcher()
    _, records = resume_meta_train(folder, observer=watcher)
    assert (folder / RECORDS).read_bytes() == before
    assert records[1:] == whole[1][1:]
    assert_same_bits(folder / CHECKPOINT, whole[0] / CHECKPOINT)
    assert_same_bits(folder / "best.safetensors", whole[0] / "best.safetensors")
    (note,) = watcher.notes
    assert note.startswith("versions was")


def test_steps_whose_checkpoint_is_lost_are_kept(whole, tmp_path, raises_clearly):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    (folder / CHECKPOINT).unlink()
    RunFolder(folder).rewrite(whole[1][:-1])
    before = contents(folder)
    with raises_clearly(f"no {CHECKPOINT}", "outer step 8", "nothing was changed", "--out"):
        resume_meta_train(folder)
    assert contents(folder) == before


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_begins_from_given_weights_also_if_it_died_at_once(whole, tmp_path, raises_clearly):
    config = replace(TINY, init=str(whole[0] / "best.safetensors"), out=tmp_path / "run")
    first, again = Watcher(1), Watcher(1)
    with pytest.raises(Interrupted):
        meta_train(config, observer=first, stop=first.stop)
    (tmp_path / "run" / CHECKPOINT).unlink()
    RunFolder(tmp_path / "run").rewrite(read(tmp_path / "run" / RECORDS)[:1])
    with pytest.raises(Interrupted):
        resume_meta_train(tmp_path / "run", observer=again, stop=again.stop)
    assert again.losses == first.losses
    assert first.losses[0] != whole[2].losses[0]
    (tmp_path / "run" / CHECKPOINT).unlink()
    header = read(tmp_path / "run" / RECORDS)[0]
    RunFolder(tmp_path / "run").rewrite([header | {"init_sha256": "another"}])
    with raises_clearly("was begun from another", "best.safetensors", "--out"):
        resume_meta_train(tmp_path / "run")


@pytest.mark.slow
def test_minutes_stop_a_run_and_lose_nothing(whole, tmp_path, monkeypatch, raises_clearly):
    clock, folder = Clock(), tmp_path / "a run"
    monkeypatch.setattr("laconic.runs.meta_train.time", clock)
    with raises_clearly(
        "1 minutes are too few", "took 100.0 s", f"--resume '{folder}' --minutes 3.4"
    ) as info:
        meta_train(replace(TINY, minutes=1, out=folder), observer=Watcher(clock=clock, seconds=100))
    assert not isinstance(info.value, Interrupted)
    assert checkpoint.peek(folder / CHECKPOINT)["done"] == 1
    assert [r["kind"] for r in read(folder / RECORDS)] == ["run", "progress"]
    watcher = Watcher(clock=clock, seconds=50)
    # three bursts of one step take 150 s, and two of them less than 1.7 minutes
    with pytest.raises(Interrupted, match=r"the 1\.7 minutes are over after outer step 4 of 8"):
        resume_meta_train(folder, observer=watcher, minutes=1.7)
    _, records = resume_meta_train(folder, observer=Watcher())
    assert_same_bits(folder / "last.safetensors", whole[0] / "last.safetensors")
    assert timeless(records)[-1] == timeless(whole[1])[-1]


# --- devices --------------------------------------------------------------------------------------


# a ReLU may be on the other side of its corner in another program
TANH = "digits-mlp:width=4,activation=tanh"


def test_eight_devices_give_the_gradient_of_one():
    """Differences of losses are divided by 2σ², so with σ = 0.1 rounding grows 50-fold only, and
    1e-5 is a fair bound.

    At σ = 0.01 it would grow 5000-fold. The first moment of AdamW is 0.1 of the gradient, here not
    clipped.
    """
    config = replace(TINY, architecture="lopt", tasks=(TANH,), pairs=8, sigma=0.1, clip=0.0)
    found = []
    for devices in (1, 8):
        trainer, _ = _prepare(replace(config, devices=devices), {})
        state, progress = trainer.advance(trainer.start(7))
        assert len(state.estimators[0].clock.done.sharding.device_set) == devices
        found.append(
            jax.device_get((state.adamw[0].mu, state.theta, progress, state.estimators[0].clock))
        )
    (mu_1, theta_1, progress_1, clock_1), (mu_8, theta_8, progress_8, clock_8) = found
    assert float(progress_1.norm[0]) > 0
    assert_close(mu_8, mu_1, 1e-5)
    assert_close(theta_8, theta_1, 1e-5)
    np.testing.assert_allclose(progress_8.norm, progress_1.norm, rtol=1e-5)
    np.testing.assert_allclose(progress_8.loss, progress_1.loss, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, clock_8, clock_1)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"tasks": ()}, ["at least one task"]),
        ({"tasks": ("digits-mpl",)}, ["unknown task", "Did you mean 'digits-mlp'?"]),
        (
            {"tasks": ("digits-mlp@wokers=2",)},
            ["option of task digits-mlp", "Did you mean 'workers'?"],
        ),
        ({"tasks": ("digits-mlp@workers",)}, ["'workers' is not option=value"]),
        ({"tasks": ("digits-mlp@workers=two",)}, ["workers must be a number", "'two'"]),
        ({"tasks": ("digits-mlp@workers=0",)}, ["workers must be positive"]),
        ({"tasks": ("digits-mlp@dropout=1",)}, ["dropout", "below 1"]),
        ({"tasks": ("digits-mlp@objective=test",)}, ["objective", "'test'"]),
        (
            {"architecture": "lagg-a", "tasks": ("digits-mlp@workers=2", "digits-mlp@workers=3")},
            ["lagg-a", "K = 2", "set for 3", "the same K"],
        ),
        ({"architecture": "lopt-b"}, ["unknown architecture"]),
        ({"estimator": "luck"}, ["unknown estimator"]),
        ({"judge_tasks": ("digits-mpl",)}, ["unknown task"]),
        ({"judge_tasks": ("digits-mlp@spread=2", "digits-mlp")}, ["all have a spread, or none"]),
        ({"architecture": "lopt-r", "nominal_momentum": 0.8}, ["nominal momentum", "0.8"]),
        ({"compress": "gzip"}, ["unknown compressor"]),
        ({"pairs": 0}, ["pairs must be positive"]),
        ({"steps": 0}, ["steps must be positive"]),
        ({"sigma": 0.0}, ["sigma must be positive"]),
        ({"truncation": 9}, ["truncation of 9 rounds", "longest run, 8"]),
        ({"shortest": 9}, ["shortest ≤ longest"]),
        ({"devices": 3}, ["2 pairs do not divide over 3 devices"]),
        ({"devices": 99}, ["mesh of 99 devices"]),
        ({"devices": 0}, ["devices must be positive"]),
        ({"judge_every": 0}, ["judge_every", "positive"]),
        ({"minutes": 0.0}, ["minutes must be positive, got 0"]),
        ({"minutes": -1.0}, ["minutes must be positive, got -1"]),
        ({"minutes": math.nan}, ["minutes must be positive, got nan"]),
        ({"seed": -1}, ["seed must be between 0"]),
        ({"init": "nowhere.safetensors"}, ["nowhere.safetensors is not a file"]),
    ],
)
def test_bad_settings_are_refused_before_anything_is_made(changes, parts, raises_clearly, tmp_path):
    with raises_clearly(*parts):
        meta_train(replace(TINY, out=tmp_path / "run", **changes), observer=Watcher())
    assert not (tmp_path / "run").exists()


def test_weights_of_another_kind_or_damaged_are_refused(whole, tmp_path, raises_clearly):
    path = tmp_path / "other.safetensors"

    def begin(**changes):
        meta_train(
            replace(TINY, init=str(path), out=tmp_path / "run", **changes), observer=Watcher()
        )

    zoo.publish(path, LAGG_A, made_up_weights(LAGG_A), a_card(LAGG_A))
    with raises_clearly("other.safetensors", "its architecture is lagg-a", "this run's is lopt-a"):
        begin()
    with raises_clearly("its workers is 8", "this run's is 2"):
        begin(architecture="lagg-a")
    paper = LearnedOptimizer("lopt-a", time="paper")
    zoo.publish(path, paper, made_up_weights(paper), a_card(paper))
    with raises_clearly("its time is paper", "this run's is shifted"):
        begin()
    zoo.publish(path, LOPT_A, made_up_weights(), a_card())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with raises_clearly("other.safetensors is damaged"):
        begin()
    path.write_bytes(bytes(data[:100]))
    with raises_clearly("other.safetensors", "damaged"):
        begin()
    assert not (tmp_path / "run").exists()


def test_a_used_folder_is_not_touched(whole, tmp_path, raises_clearly):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with raises_clearly("not empty", "--out", f"--resume {folder}"):
        meta_train(replace(TINY, out=folder), observer=Watcher())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_without_meta_training_cannot_go_on(tmp_path, raises_clearly):
    with raises_clearly("nothing to resume"):
        resume_meta_train(tmp_path / "nowhere", observer=Watcher())
    with raises_clearly("cannot read"):
        resume_meta_train(tmp_path / ("x" * 300), observer=Watcher())
    for line in (
        "{}",
        '{"kind": "run"}',
        '{"kind": "run", "config": [], "sources": [], "provenance": {}}',
    ):
        (tmp_path / RECORDS).write_text(line + "\n")
        with raises_clearly("no records of a meta-training"):
            resume_meta_train(tmp_path, observer=Watcher())
    other = tmp_path / "other"
    compare(
        CompareConfig(optimizers=("local-sgd",), workers=2, rounds=2, seeds=1, batch=2, out=other)
    )
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    with raises_clearly("holds a comparison, not a meta-training", "laconic compare --resume"):
        resume_meta_train(other, observer=Watcher())
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"config": {"steps": "8"}}, ["steps", "wrong type"]),
        ({"config": {"tasks": "digits-mlp"}}, ["tasks", "wrong type"]),
        ({"config": {"colour": 1}}, ["have colour,", "start anew"]),
        ({"sources": ["elsewhere"]}, ["was begun on", "'elsewhere'", "start anew"]),
    ],
)
def test_a_run_goes_on_only_as_it_was_begun(change, parts, whole, tmp_path, raises_clearly):
    header = json.loads(json.dumps(whole[1][0]))
    for key, value in change.items():
        header[key] = {**header[key], **value} if isinstance(value, dict) else value
    (tmp_path / RECORDS).write_text(json.dumps(header) + "\n")
    with raises_clearly(*parts):
        resume_meta_train(tmp_path, observer=Watcher())


def test_a_checkpoint_of_other_settings_is_refused(whole, tmp_path, raises_clearly):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    text = (folder / RECORDS).read_text().replace('"pairs": 2', '"pairs": 3', 1)
    (folder / RECORDS).write_text(text[: text.index('{"line": 8')])
    with raises_clearly("does not fit", CHECKPOINT):
        resume_meta_train(folder, observer=Watcher())


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", META_RECIPES)
def test_a_recipe_is_valid(name):
    summary, config = META_RECIPES[name]
    assert summary
    outer, inners, learned = config.outer(), config.inners(), config.learned()
    assert outer.truncation <= outer.horizon.longest
    assert name.removeprefix("fed").startswith(
        config.architecture.removesuffix("-a" if "fed" in name else "")
    )
    assert config.federated.active == name.startswith("fed")
    assert learned.workers == (
        inners[0].workers if config.architecture.startswith("lagg") else None
    )
    assert config.out is None


def test_a_task_says_its_own_numbers():
    config = MetaConfig(workers=8, gamma=0.1)
    inner = parse_inner(
        "digits-mlp:width=4@workers=3,gamma=0.2,local=adamw,compress=topk:0.1+ef,dropout=0.5",
        config,
    )
    assert (inner.task, inner.workers, inner.local_steps, inner.batch) == (
        "digits-mlp:width=4",
        3,
        4,
        128,
    )
    assert (inner.local.name, inner.local.learning_rate) == ("adamw", 0.2)
    assert (inner.compress, inner.dropout, inner.objective) == ("topk:0.1+ef", 0.5, "train")
    assert parse_inner("digits-mlp", config).workers == 8


def test_workers_that_clip_and_decay():
    config = MetaConfig(local_clip=1.5, local_decay=0.01)
    assert parse_inner("digits-mlp", config).local == LocalOptimizer(
        "sgd", 0.3, weight_decay=0.01, clip=1.5
    )
    own = parse_inner("digits-mlp@local_clip=0,local_decay=0.2", config).local
    assert (own.clip, own.weight_decay) == (0.0, 0.2)
