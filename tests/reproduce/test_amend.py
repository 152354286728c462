"""Rows that are added to an experiment that is done, or changed: the others are neither run again
nor lost."""

import shutil
from dataclasses import replace

import jax
import pytest

from laconic.reproduce.panel import REPLACED, Panel, Use
from laconic.reproduce.run import carry_out
from laconic.show.report import collect
from laconic.store import records
from laconic.store.records import read, rewrite
from tests.reproduce.made import DIGITS, SMALL, Watch, quickly

THEN = {"commit": "a" * 40, "dirty": False}


@pytest.fixture(scope="module", autouse=True)
def quick():
    with jax.numpy_dtype_promotion("standard"), quickly():
        yield


def with_methods(*optimizers):
    """An experiment of one panel with these methods."""
    panel = replace(DIGITS.of(Panel)[1], config=replace(SMALL, optimizers=optimizers))
    return replace(DIGITS, parts=(panel,), averaged=())


LOCAL, SLOWMO = SMALL.optimizers
FEDAVG = "fedavg:gamma=0.2,label=FedAvg"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Local SGD and SlowMo, as if by another commit → the folder."""
    folder, _ = carry_out(
        with_methods(LOCAL, SLOWMO), "full", tmp_path_factory.mktemp("before") / "out"
    )
    path = folder / "panels" / "two" / "records.jsonl"
    header, *rest = read(path)
    rewrite(path, [{**header, "provenance": {**header["provenance"], **THEN}}, *rest])
    return folder


@pytest.fixture
def folder(before, tmp_path):
    shutil.copytree(before, tmp_path / "out")
    return tmp_path / "out"


def panel_of(folder):
    return read(folder / "panels" / "two" / "records.jsonl")


def methods(folder):
    return {record["label"]: record for record in panel_of(folder) if record["kind"] == "method"}


def numbers(method):
    return {key: value for key, value in method.items() if key != "provenance"}


def test_a_new_row_is_run_alone_and_the_others_stay(folder):
    old, watch = methods(folder), Watch()
    _, record = carry_out(with_methods(LOCAL, SLOWMO, FEDAVG), "full", folder, watching=watch)
    assert [label for _, label, _ in watch.begun] == ["FedAvg"]
    now = methods(folder)
    assert list(now) == ["Local SGD", "SlowMo", "FedAvg"]
    assert [numbers(now[label]) for label in old] == list(old.values())
    assert {row["label"] for row in record["rows"]} == set(now)
    assert not (folder / "panels" / "two" / REPLACED).exists()


def test_the_rows_are_what_one_comparison_of_all_would_have_given(folder, tmp_path):
    asked = with_methods(LOCAL, SLOWMO, FEDAVG)
    _, amended = carry_out(asked, "full", folder)
    _, whole = carry_out(asked, "full", tmp_path / "whole")
    assert amended["rows"] == whole["rows"]
    theirs = panel_of(tmp_path / "whole")[0]
    ours = panel_of(folder)[0]
    assert {**ours["config"], "out": None} == {**theirs["config"], "out": None}
    assert ours["command"] == theirs["command"].replace(str(tmp_path / "whole"), str(folder))
    assert (folder / "panels" / "two" / "command.txt").read_text() == ours["command"] + "\n"


def test_each_row_says_what_made_it(folder):
    carry_out(with_methods(LOCAL, SLOWMO, FEDAVG), "full", folder)
    header, *_ = panel_of(folder)
    found, now = methods(folder), records.provenance()["commit"]
    assert header["provenance"]["commit"] == THEN["commit"] != now
    assert [label for label in found if "provenance" in found[label]] == ["FedAvg"]
    assert found["FedAvg"]["provenance"]["commit"] == now
    (of_panel,) = collect(folder / "panels").runs
    assert of_panel.about["commit"].split("; ")[0] == THEN["commit"]
    assert str(now or "–") in of_panel.about["commit"].split("; ")[1]
    assert THEN["commit"] in (folder / "table.md").read_text()


def test_a_row_with_other_values_is_run_again_and_its_old_record_kept(folder):
    old, watch = methods(folder), Watch()
    carry_out(with_methods(LOCAL, "slowmo:gamma=0.2,label=SlowMo"), "full", folder, watching=watch)
    assert [label for _, label, _ in watch.begun] == ["SlowMo"]
    assert methods(folder)["SlowMo"]["train"] != old["SlowMo"]["train"]
    (replaced,) = read(folder / "panels" / "two" / REPLACED)
    assert numbers(replaced) == old["SlowMo"]
    assert replaced["provenance"]["commit"] == THEN["commit"]


def test_a_row_by_another_optimizer_of_that_name_is_run_again(tmp_path):
    asked, folder, watch = (
        with_methods(LOCAL, "lopt-a-digits:label=LOpt-A"),
        tmp_path / "out",
        Watch(),
    )
    carry_out(asked, "full", folder)
    header, local, learned, *rest = panel_of(folder)
    assert local["optimizer_sha256"] is None
    before = {**learned, "optimizer_sha256": "0" * 64}
    rewrite(folder / "panels" / "two" / "records.jsonl", [header, local, before, *rest])
    carry_out(asked, "full", folder, watching=watch)
    assert [label for _, label, _ in watch.begun] == ["LOpt-A"]
    assert methods(folder)["LOpt-A"]["optimizer_sha256"] == learned["optimizer_sha256"]
    (replaced,) = read(folder / "panels" / "two" / REPLACED)
    assert numbers(replaced) == before


def test_death_between_the_two_files_doubles_nothing(folder, monkeypatch):
    changed = with_methods(LOCAL, "slowmo:gamma=0.2,label=SlowMo")

    def dies(path, records):
        if path.name == "records.jsonl":
            raise KeyboardInterrupt
        rewrite(path, records)

    with monkeypatch.context() as patch:
        patch.setattr("laconic.reproduce.panel.rewrite", dies)
        with pytest.raises(KeyboardInterrupt):
            carry_out(changed, "full", folder)
    carry_out(changed, "full", folder)
    assert len(read(folder / "panels" / "two" / REPLACED)) == 1
    assert list(methods(folder)) == ["Local SGD", "SlowMo"]


def test_rows_in_another_order_are_run_no_more(folder):
    watch = Watch()
    carry_out(with_methods(SLOWMO, LOCAL), "full", folder, watching=watch)
    assert watch.begun == []
    assert panel_of(folder)[-1]["kind"] == "summary"


def test_a_new_row_stands_where_it_was_asked_for(folder):
    _, record = carry_out(with_methods(LOCAL, FEDAVG, SLOWMO), "full", folder)
    assert list(methods(folder)) == ["Local SGD", "FedAvg", "SlowMo"]
    assert [row["label"] for row in panel_of(folder)[-1]["rows"]] == [
        "Local SGD",
        "FedAvg",
        "SlowMo",
    ]
    assert list(dict.fromkeys(row["label"] for row in record["rows"])) == [
        "Local SGD",
        "FedAvg",
        "SlowMo",
    ]


def test_a_row_that_is_gone_is_refused_and_nothing_is_touched(folder, raises_clearly):
    before = panel_of(folder)
    with raises_clearly("other optimizers", "SlowMo", "--out"):
        carry_out(with_methods(LOCAL, FEDAVG), "full", folder)
    assert panel_of(folder) == before


REFUSED = [
    ((LOCAL, SLOWMO, "slowmo:gamma=0.2,label=SlowMo"), ["same label"]),
    ((LOCAL, SLOWMO, "slomo"), ["slomo"]),
]


@pytest.mark.parametrize(("optimizers", "parts"), REFUSED)
def test_what_could_not_be_run_is_refused_and_nothing_is_touched(
    optimizers, parts, folder, raises_clearly
):
    before = panel_of(folder)
    with raises_clearly(*parts):
        carry_out(with_methods(*optimizers), "full", folder)
    assert panel_of(folder) == before
    assert not (folder / "panels" / "two" / REPLACED).exists()


def test_other_data_is_refused_and_nothing_is_touched(folder, raises_clearly):
    path = folder / "panels" / "two" / "records.jsonl"
    header, *rest = panel_of(folder)
    rewrite(path, [{**header, "task": {**header["task"], "source": "elsewhere"}}, *rest])
    before = panel_of(folder)
    with raises_clearly("was begun on", "elsewhere"):
        carry_out(with_methods(LOCAL, SLOWMO, FEDAVG), "full", folder)
    assert panel_of(folder) == before


def test_panels_that_are_not_asked_for_stay_as_they_are(folder):
    asked = with_methods(LOCAL, SLOWMO, FEDAVG)
    another = replace(asked.of(Panel)[0], name="three", config=replace(SMALL, optimizers=(LOCAL,)))
    before, watch = panel_of(folder), Watch()
    _, record = carry_out(
        replace(asked, parts=(*asked.parts, another)),
        "full",
        folder,
        panels=["three"],
        watching=watch,
    )
    assert panel_of(folder) == before
    assert [label for _, label, _ in watch.begun] == ["Local SGD"]
    assert {(row["panel"], row["label"]) for row in record["rows"]} >= {
        ("two", "SlowMo"),
        ("three", "Local SGD"),
    }


def test_a_checkpoint_that_was_left_over_is_cleared_away(folder):
    path = folder / "panels" / "two" / "records.jsonl"
    rewrite(path, panel_of(folder)[:-1])  # died before the summary
    (folder / "panels" / "two" / "checkpoint.safetensors").touch()
    carry_out(with_methods(LOCAL, SLOWMO), "full", folder)
    assert not (folder / "panels" / "two" / "checkpoint.safetensors").exists()


def test_a_method_under_way_is_finished_first(folder, raises_clearly):
    (folder / "panels" / "two" / "checkpoint.safetensors").touch()
    before = panel_of(folder)
    with raises_clearly("under way", "--resume", "delete checkpoint.safetensors"):
        carry_out(with_methods(LOCAL, SLOWMO, FEDAVG), "full", folder)
    assert panel_of(folder) == before


def test_a_method_that_another_commit_runs_says_so(folder, monkeypatch):
    path = folder / "panels" / "two" / "records.jsonl"
    rewrite(path, panel_of(folder)[:2])  # Local SGD is done, and all else lost
    now = {**records.provenance(), "commit": "b" * 40}
    monkeypatch.setattr("laconic.runs.folder.provenance", lambda: now)
    carry_out(with_methods(LOCAL, SLOWMO), "full", folder)
    assert methods(folder)["SlowMo"]["provenance"] == now
    assert "provenance" not in methods(folder)["Local SGD"]


def test_a_learned_row_may_have_options():
    uses = (
        *DIGITS.of(Panel)[0].learned,
        Use("LOpt (half)", DIGITS.of(Panel)[0].learned[0].learned, "scale=0.5,gamma=0.1"),
    )
    config = replace(DIGITS.of(Panel)[0], learned=uses).comparison({"lopt-digits": "zoo"}, {})
    assert config.optimizers[-2:] == ("zoo:label=LOpt", "zoo:scale=0.5,gamma=0.1,label=LOpt (half)")
