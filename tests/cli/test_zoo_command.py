"""`laconic zoo` on a shelf of the test's own."""

import json
from functools import partial

import pytest

from laconic import zoo
from laconic.store.records import append
from laconic.zoo.card import to_json
from tests.cli.commands import assert_one_error, laconic
from tests.zoo.made import LAGG_A, LOPT_A, a_card, weights


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setattr("laconic.zoo.file.WEIGHTS", folder)
    return folder


@pytest.fixture
def two(shelf):
    zoo.publish(shelf / "made-up.safetensors", LOPT_A, weights(), a_card())
    card = a_card(LAGG_A, name="other", summary="for [bold]eight[/bold] :smile:")
    zoo.publish(shelf / "other.safetensors", LAGG_A, weights(LAGG_A), card)
    return shelf


def test_the_list_has_a_line_each(two, capfd):
    code, out, _ = laconic(capfd, "zoo", "list")
    assert code == 0
    assert out.startswith("Start here: lopt-r")
    assert "Goal: the loss" in out
    table = out[out.index("\nname ") :]
    head, made_up, other = [line for line in table.splitlines() if line.strip(" ─━")][:3]
    assert head.split() == ["name", "K", "H", "local", "rate", "goal", "trained", "on", "summary"]
    assert made_up.split()[:2] == ["made-up", "any"]
    assert "fmnist-mlp2, fmnist-mlp3" in made_up
    assert other.split()[:2] == ["other", "8"]
    assert "for [bold]eight[/bold] :smile:" in other


def test_an_empty_shelf_says_so(shelf, capfd):
    code, out, _ = laconic(capfd, "zoo", "list")
    assert code == 0
    assert "No optimizer is published" in out
    assert "laconic meta-train" in out


@pytest.mark.parametrize("by_path", [False, True])
def test_a_card_is_shown(two, capfd, by_path):
    name = two / "made-up.safetensors" if by_path else "made-up"
    code, out, _ = laconic(capfd, "zoo", "show", name)
    assert code == 0
    for part in (
        "made-up",
        "laconic.load",
        "4500",
        "Diverges after 2000 rounds <sometimes>.",
        "NVIDIA H200",
    ):
        assert part in out
    assert "|---|" not in out  # it is rendered
    code, out, _ = laconic(capfd, "zoo", "show", name, "--json")
    assert code == 0
    assert json.loads(out) == to_json(a_card())


def test_an_export_prints_its_paths(two, tmp_path, capfd):
    folder = tmp_path / "a" / "b"
    code, out, _ = laconic(capfd, "zoo", "export", "made-up", "--out", folder)
    assert code == 0
    assert out.splitlines() == [
        str(folder / f"made-up.{end}") for end in ("safetensors", "md", "json")
    ]
    assert zoo.load(folder / "made-up.safetensors").card == a_card()
    assert json.loads((folder / "made-up.json").read_text()) == to_json(a_card())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert_one_error(capfd, ["zoo", "export", "made-up", "--out", folder], ["would be overwritten"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["lst"], ["unknown zoo command", "Did you mean 'list'?"]),
        (["list", "all"], ["takes no arguments"]),
        (["show", "made-dup"], ["unknown published optimizer", "Did you mean 'made-up'?"]),
        (["show", "./nowhere.safetensors"], ["nowhere.safetensors is not a file"]),
        (["export", "./nowhere.safetensors", "--out", "x"], ["nowhere.safetensors is not a file"]),
        (["export", "made-up", "--out", "/dev/null/x"], ["cannot write"]),
    ],
)
def test_errors_are_one_line(two, argv, parts, capfd, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert_one_error(capfd, ["zoo", *argv], parts)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.fixture
def run(tmp_path):
    """A folder of meta-training."""
    zoo.publish(tmp_path / "meta" / "best.safetensors", LOPT_A, weights(), a_card(name="best"))
    return tmp_path / "meta"


def measured(folder, **heldout):
    """Records of a comparison in which `mine` was measured."""
    record = partial(append, folder / "records.jsonl")
    setting = {"workers": 4, "local_steps": 8, "batch": 16, "rounds": 2, "seeds": 1}
    more = {"task": "digits-mlp", "compress": "dense", "first_seed": 100}
    record("run", config={**setting, **more})
    record("method", label="mine", heldout=heldout or {"accuracy": [[0.5, 0.75]]})
    row = {"label": "mine", "rounds_to_target": 1, "speedup": 2.0, "final_train": 0.25}
    rows = [{**row, "diverged": 0}]
    record("summary", rows=rows, target_loss=0.3, reference="local-sgd")
    return folder


def test_a_run_is_published_under_its_name(run, tmp_path, capfd, monkeypatch):
    """With results from records, limits, and the steps of the run that it began from."""
    monkeypatch.chdir(tmp_path)
    comparison = measured(tmp_path / "results" / "mine")
    about = ["--summary", "Ours.", "--limits", "K = 4 only.", "Slow <sometimes>."]
    old = ["--before", run / "best.safetensors", "--results", comparison]
    code, out, _ = laconic(capfd, "zoo", "publish", run, "--name", "mine", *about, *old)
    assert code == 0
    assert str(tmp_path / "mine.safetensors") in out
    found = zoo.load("mine.safetensors")
    assert (found.card.name, found.card.summary) == ("mine", "Ours.")
    assert found.card.limits == ["K = 4 only.", "Slow <sometimes>."]
    assert found.card.outer_steps == 2 * a_card().outer_steps
    assert {r["record"] for r in found.card.results} == {"mine/records.jsonl"}
    numbers = {r["metric"]: r["value"] for r in found.card.results}
    assert numbers["speedup over local-sgd"] == 2.0
    assert numbers["best test accuracy over rounds"] == 0.75


def test_a_task_without_accuracy_is_published_by_its_test_loss(run, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    comparison = measured(tmp_path / "results" / "mine", loss=[[2.0, 1.5, 1.75]])
    code, _, _ = laconic(capfd, "zoo", "publish", run, "--name", "mine", "--results", comparison)
    assert code == 0
    numbers = {r["metric"]: r["value"] for r in zoo.load("mine.safetensors").card.results}
    assert numbers["best test loss over rounds"] == 1.5


def test_a_published_name_is_that_of_the_folder(run, tmp_path, capfd):
    code, _, _ = laconic(capfd, "zoo", "publish", run, "--out", tmp_path / "shared")
    assert code == 0
    card = zoo.load(tmp_path / "shared" / "meta.safetensors").card
    assert card.summary == a_card().summary
    assert card.results == card.limits == []


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["nowhere"], ["nowhere/best.safetensors is not a file", "meta-training"]),
        (["meta/none.safetensors"], ["none.safetensors is not a file"]),
        (["meta", "--name", "No Name"], ["name", "lower-case"]),
        (["meta", "--name", "best", "--out", "meta"], ["best.safetensors exists", "--name"]),
        (["meta", "--results", "meta"], ["meta"]),
        (["meta", "--results", "compared"], ["no method labelled 'meta'"]),
    ],
)
def test_publishing_refuses_in_one_line(run, tmp_path, argv, parts, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measured(tmp_path / "compared")
    before = sorted(tmp_path.rglob("*"))
    assert_one_error(capfd, ["zoo", "publish", *argv], parts)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_on_an_empty_shelf_is_an_error(shelf, capfd):
    assert_one_error(
        capfd, ["zoo", "show", "made-up"], ["no optimizer is published", ".safetensors"]
    )


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_file_is_an_error(two, capfd):
    damage(two / "other.safetensors")
    assert_one_error(capfd, ["zoo", "show", "other"], ["other.safetensors is damaged"])


def about(out):
    """The words of each line that is about one of the two."""
    return [
        words for words in map(str.split, out.splitlines()) if words[:1] in (["made-up"], ["other"])
    ]


@pytest.mark.parametrize("argv", [["zoo", "list"], ["optimizers"]], ids=" ".join)
def test_lists_survive_a_damaged_file(two, capfd, argv):
    code, whole, err = laconic(capfd, *argv)
    assert (code, err) == (0, "")
    (made_up, _) = about(whole)
    damage(two / "other.safetensors")
    code, rest, err = laconic(capfd, *argv)
    assert code == 0
    (note,) = err.splitlines()
    assert note.startswith("note: other is left out: ")
    assert f"{two / 'other.safetensors'} is damaged" in note
    assert about(rest) == [made_up]


def test_a_shelf_of_damaged_files_is_empty(two, capfd):
    for path in two.iterdir():
        damage(path)
    assert zoo.cards() == {}
    assert list(zoo.faults()) == zoo.published() == ["made-up", "other"]
    code, out, err = laconic(capfd, "zoo", "list")
    assert code == 0
    assert "No optimizer is published" in out
    assert len(err.splitlines()) == 2


def test_help_teaches(capfd):
    for argv in ((), ("--help",)):
        code, out, _ = laconic(capfd, "zoo", *argv)
        assert code == 0
        assert all(
            f"laconic zoo {action}" in out for action in ("list", "show", "export", "publish")
        )
    code, out, _ = laconic(capfd, "zoo", "publish", "--help")
    assert code == 0
    for word in ("--name", "--results", "--limits", "zoo publish RUN --name my-optimizer"):
        assert word in out
    code, out, _ = laconic(capfd, "zoo", "show", "--help")
    assert code == 0
    assert "--json" in out
