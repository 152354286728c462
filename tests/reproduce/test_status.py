"""How far each experiment has been run is what the records say, and what the docs say."""

import re

import pytest

from laconic.reproduce import EXPERIMENTS
from laconic.reproduce.status import statuses
from laconic.store.records import append
from tests.recorded import ROOT

ON_RECORD = statuses(ROOT / "results")
INDEX = (ROOT / "docs" / "results.md").read_text()
ROWS = re.findall(r"^\| (`laconic reproduce .*?) \| (.*?) \|", INDEX, re.MULTILINE)


def test_without_records_nothing_was_run(tmp_path):
    assert set(statuses(tmp_path).values()) == {"not run"}


def test_parts_that_are_left_and_small_runs_are_told(tmp_path):
    place = tmp_path / "reproduce"
    append(place / "table-rounds-full" / "records.jsonl", "experiment", left=["h8", "h16"])
    append(place / "fig-ablation-full" / "records.jsonl", "experiment")
    append(place / "fig-workers-smoke" / "records.jsonl", "experiment")
    found = statuses(tmp_path)
    assert found["table-rounds"] == "partial, 1 of 3"
    assert found["fig-ablation"] == "full"
    assert found["fig-workers"] == "smoke"
    assert found["fig-local-steps"] == "partial, 1 of 3"  # the curves behind that table
    assert found["fig-large"] == "not run"


def test_every_experiment_is_in_the_index_of_results():
    assert {name for words, _ in ROWS for name in re.findall(r"[a-z]+-[a-z0-9-]+", words)} == set(
        EXPERIMENTS
    )


@pytest.mark.parametrize(("words", "said"), ROWS)
def test_the_index_of_results_says_what_the_records_say(words, said):
    for name in re.findall(r"[a-z]+-[a-z0-9-]+", words):
        assert said.startswith(ON_RECORD[name]), name
