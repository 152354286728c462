"""Populations through configs, folders and cards: written down, read back, and gone on with to the
same bits."""

import json
import shlex
from dataclasses import replace

import pytest
import tyro

from laconic.federated.options import Federated, in_words, read_federated
from laconic.methods import parse_method
from laconic.recipes.comparisons import RECIPES
from laconic.reproduce.scale import compiled_for
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.folder import Interrupted
from laconic.runs.meta_train import meta_train, resume_meta_train
from laconic.runs.resume import resume
from laconic.runs.settings import command_line
from laconic.store.records import RECORDS, plain, read
from laconic.zoo import load
from tests.runs.meta_runs import TINY

SMALL = CompareConfig(
    task="digits-mlp:width=4",
    optimizers=("fedavg", "scaffold:compress=topk:0.5+ef"),
    workers=3,
    batch=10,
    federated=Federated(30, 0.1, dropout=0.2, least_work=0.5),
    rounds=4,
    seeds=1,
    evaluate_every=2,
)


@pytest.fixture
def quick():
    """Compiling is most of the time here."""
    with compiled_for("smoke", []):
        yield


def test_the_command_gives_the_config_back():
    for config in (
        SMALL,
        RECIPES["federated-fmnist"][1],
        replace(SMALL, federated=Federated(7, weighting="fednova")),
    ):
        words = shlex.split(command_line("compare", config))
        assert "--federated.clients" in words
        assert tyro.cli(CompareConfig, args=words[2:]) == config


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("federated-")])
def test_recipes_are_of_methods_that_there_are(name):
    config = RECIPES[name][1]
    assert config.federated.alpha == 0.1
    assert len({parse_method(spec, config.workers).label for spec in config.optimizers}) == len(
        config.optimizers
    )


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_to_the_same_bits(tmp_path, quick):
    looks = iter([False, True])
    with pytest.raises(Interrupted):
        compare(replace(SMALL, out=tmp_path / "cut"), stop=lambda: next(looks, True))
    _, records = resume(tmp_path / "cut")
    _, whole = compare(replace(SMALL, out=tmp_path / "whole"))
    digests = [
        [r["params_sha256"] for r in found if r["kind"] == "method"] for found in (records, whole)
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2
    assert records[0]["config"]["local_steps"] == 4  # what the data gives
    assert [r["local_steps"] for r in records if r["kind"] == "method"] == [4, 4]
    assert in_words(records[0]["config"]) == ", of 30 clients, Dirichlet(0.1)"
    sent = [r["traffic"]["sent_bits"] for r in whole if r["kind"] == "method"]
    assert sent[1] > sent[0]  # half of Δ, and the whole change of a control variate


def test_records_from_before_there_were_populations_have_none():
    assert read_federated({"task": "x"}, "r") == {"task": "x", "federated": Federated()}
    assert in_words({"task": "x"}) == ""
    there = plain({"federated": SMALL.federated})
    assert read_federated(there, "r")["federated"] == SMALL.federated
    assert in_words({"federated": {"clients": 5}}) == ", of 5 clients, dealt at random"


@pytest.mark.parametrize(
    "bad",
    [
        {"alfa": 1},
        {"alpha": "0.1"},
        {"clients": [4]},
        {"clients": None},
        {"spread": None},
        ["alpha"],
        "alpha",
    ],
)
def test_a_population_that_cannot_be_read_is_refused(bad, tmp_path, raises_clearly):
    with raises_clearly(
        "r", next(iter(bad)) if isinstance(bad, dict) else "no table of settings", "start anew"
    ):
        read_federated({"federated": bad}, "r")


@pytest.mark.usefixtures("standard_promotion", "quick")  # optax's Adam
@pytest.mark.slow
def test_a_learned_servers_card_says_which_population_it_was_trained_on(tmp_path):
    population = Federated(20, 0.5, dropout=0.2)
    config = replace(
        TINY, federated=population, workers=3, steps=2, judge_every=1, out=tmp_path / "m"
    )
    folder, records = meta_train(config)
    card = load(str(folder / "best.safetensors")).card
    (row,) = card.trained_on
    assert row["task"] == f"{config.tasks[0]}@clients=20,alpha=0.5"
    assert row["local_steps"] == 60 // config.batch
    assert row["dropout"] == 0.2
    assert "clients=20,alpha=0.5" in card.summary
    assert resume_meta_train(folder)[1][-1]["kind"] == "summary"  # its settings read back
    header = json.loads((folder / RECORDS).read_text().splitlines()[0])
    assert header["config"]["federated"]["clients"] == 20
    assert read(folder / RECORDS)[-1]["kind"] == records[-1]["kind"]
