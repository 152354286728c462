"""Early stopping by held-out loss: the rule against a plain loop, and runs that stop, are cut off
and go on."""

import math
from dataclasses import replace

import numpy as np
import pytest

from laconic.cli.train import shared_config
from laconic.runs.compare import CompareConfig, compare, resume_compare
from laconic.runs.early import Looks
from laconic.runs.folder import Interrupted
from laconic.runs.train import TrainConfig, resume_train, train
from laconic.show.summary import summary_table
from laconic.show.verdict import notes
from laconic.store import checkpoint
from tests.runs.killed import dying
from tests.runs.meta_runs import assert_same_bits
from tests.runs.notes import Notes
from tests.runs.test_compare import timeless
from tests.tiny import task as without_heldout

COMPARE = CompareConfig(
    task="digits-mlp:width=4",
    optimizers=("local-sgd:gamma=3", "local-sgd:gamma=0.03,label=slow"),
    workers=2,
    local_steps=2,
    batch=4,
    rounds=40,
    seeds=2,
    evaluate_every=4,
    patience=2,
)
TRAIN = TrainConfig(
    "digits-mlp:width=4",
    "local-sgd:gamma=3",
    workers=2,
    local_steps=2,
    batch=4,
    rounds=60,
    patience=2,
    evaluate_every=4,
    checkpoint_every=3,
)


def plainly(losses, patience):
    """The rule as Keras has it: → (index of the best look, index of the last)."""
    best, best_at, wait = math.inf, None, 0
    for i, loss in enumerate(losses):
        if loss < best:
            best, best_at, wait = loss, i, 0
        else:
            wait += 1
        if wait >= patience:
            return best_at, i
    return best_at, None


@pytest.mark.parametrize("seed", range(60))
def test_the_rule_is_that_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    losses = np.round(np.cumsum(rng.normal(size=12)), 0)  # with many equals
    losses[rng.random(12) < 0.2 * (seed % 3)] = rng.choice([np.nan, np.inf])
    for patience in (1, 2, 5):
        best, stopped = plainly(losses, patience)
        for n in range(1, 13 if stopped is None else stopped + 2):
            looks = Looks(range(10, 10 + 10 * n, 10), losses[:n].tolist(), patience)
            assert looks.over == (stopped is not None and n - 1 == stopped)
        facts = looks.facts("loss")
        at = lambda i: None if i is None else 10 + 10 * i
        assert (facts["best_round"], facts["stopped"]) == (at(best), at(stopped))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    told = Notes()
    folder = tmp_path_factory.mktemp("whole") / "run"
    return *compare(replace(COMPARE, out=folder), observer=told), told


def test_each_method_stops_by_the_mean_over_its_seeds(compared):
    _, records, told = compared
    wild, slow = [record for record in records if record["kind"] == "method"]
    for method in (wild, slow):
        mean = np.mean(np.array(method["heldout"]["valid_loss"], np.float64), axis=0)
        best, stopped = plainly(mean, 2)
        early, at = method["early"], method["evaluated_at"]
        assert early["watched"] == "valid_loss"
        assert early["best_round"] == at[best]
        assert early["best_loss"] == pytest.approx(mean[best], rel=1e-6)
        assert early["stopped"] == (None if stopped is None else at[stopped])
        assert len(method["train"][0]) == at[-1] == (early["stopped"] or 40)
    assert wild["early"]["stopped"] < 40
    rows = records[-1]["rows"]
    there = np.mean(np.array(wild["heldout"]["loss"], float), axis=0)
    look = wild["evaluated_at"].index(wild["early"]["best_round"])
    assert rows[0]["best_test_loss"] == pytest.approx(there[look], rel=1e-6)
    said = f"stopped after round {wild['early']['stopped']}: validation loss was lowest after round"
    assert [said in note for note in told.notes] == [True]
    assert said in " ".join(notes(records))
    table = summary_table(records)
    column = list(table.headers).index("best valid. loss")
    assert f"(round {wild['early']['best_round']})" in table.rows[0][column]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_comparison_that_was_cut_off_stops_where_it_would_have(stop_after, compared, tmp_path):
    _, whole, _ = compared
    watched = Notes()
    with pytest.raises(Interrupted):
        compare(
            replace(COMPARE, out=tmp_path / "cut"),
            observer=watched,
            stop=lambda: watched.calls >= stop_after,
        )
    _, records = resume_compare(tmp_path / "cut")
    assert timeless(records)[1:] == timeless(whole)[1:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(replace(TRAIN, out=tmp_path_factory.mktemp("whole") / "run"))


def test_a_training_stops_and_keeps_its_best_weights(trained):
    folder, records = trained
    early = records[-1]["early"]
    rows = [
        (at, look["valid_loss"], look["loss"])
        for record in records
        if record["kind"] == "rounds"
        for at, look in zip(record["round"], record.get("heldout") or [], strict=False)
        if look
    ]
    best, stopped = plainly([loss for _, loss, _ in rows], 2)
    assert (early["best_round"], early["stopped"]) == (rows[best][0], rows[stopped][0])
    assert records[-1]["rounds"] == early["stopped"] < 60
    kept = checkpoint.peek(folder / "best.safetensors")
    assert (kept["round"], kept["loss"]) == (early["best_round"], rows[best][2])


@pytest.mark.parametrize("point", [1, 5, 9, "end"])
def test_a_training_that_was_cut_off_stops_where_it_would_have(
    point, trained, tmp_path, monkeypatch
):
    folder, whole = trained
    cut = tmp_path / "cut"

    with dying(monkeypatch, point):
        train(replace(TRAIN, out=cut))
    _, records = resume_train(cut)
    assert records[-1]["early"] == whole[-1]["early"]
    assert records[-1]["final_digests"] == whole[-1]["final_digests"]
    for name in ("best.safetensors", "weights.safetensors"):
        assert_same_bits(cut / name, folder / name)


@pytest.mark.parametrize(
    ("patience", "parts"),
    [
        (0, ("at least 1", "got 0")),
        (-3, ("got -3",)),
        (True, ("got True",)),
        (1.5, ("got 1.5",)),
        (10, ("can never stop", "10 looks")),
    ],
)
@pytest.mark.parametrize("command", ["compare", "train"])
def test_senseless_patience_is_refused(command, patience, parts, tmp_path, raises_clearly):
    out = tmp_path / "run"
    with raises_clearly("patience", *parts):
        if command == "compare":
            compare(replace(COMPARE, patience=patience, out=out))
        else:
            train(replace(TRAIN, rounds=40, patience=patience, out=out))
    assert not out.exists()


def test_what_cannot_stop_early_is_refused(tmp_path, raises_clearly):
    with raises_clearly("tiny has no held-out data", "patience"):
        compare(replace(COMPARE, out=tmp_path / "run"), without_heldout())
    with raises_clearly("patience is for a training in one process"):
        shared_config(["train", "digits", "--patience", "2", "--rounds", "100"], 4)
    with raises_clearly("evaluate_every must be positive"):
        train(replace(TRAIN, evaluate_every=0, out=tmp_path / "run"))
