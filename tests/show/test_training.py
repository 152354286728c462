"""What several processes wrote of one training, put together; all of it made up, so that the
answers are known."""

import json

import numpy as np
import pytest

from laconic.show.report import collect, html_page, markdown_page
from laconic.show.training import (
    Life,
    agreement,
    facts,
    of_lives,
    panels,
    write_curves,
)
from tests.show.trainings import SECONDS, a_life, a_row, an_end, records


def test_an_undisturbed_run():
    lives = [a_life(w, 10.0 + w / 10, range(1, 13), end=an_end(12)) for w in range(3)]
    rounds, summary = of_lives(lives)
    assert rounds["round"] == list(range(1, 13))
    assert rounds["committed_at"] == [10.0 + r for r in range(1, 13)]  # of the first who did
    assert rounds["digest"] == [f"state {r}" for r in range(1, 13)]
    assert summary["rounds"] == 12
    assert summary["loss"] == pytest.approx(np.mean([1 / r for r in range(3, 13)]))
    assert (summary["final_digests"], summary["rounds_apart"]) == (["state 12"], [])
    assert summary["longest_gap_seconds"] == pytest.approx(1.0)
    assert summary["seconds"] == pytest.approx(12.2)
    assert summary["heldout"] == {"accuracy": 0.9, "loss": 0.5}
    worker = summary["workers"]["1"]
    assert worker == {
        "rounds": 12,
        "starts": 1,
        "finished": True,
        "healed": 0,
        "gathered_again": 0,
        "sent": 1200,
        "received": 1080,
        "seconds": {name: 12 * value for name, value in SECONDS.items()},
    }


def test_different_states_are_found_and_named():
    one, two = (a_life(w, 0.0, range(1, 6), end=an_end(5)) for w in range(2))
    two.rows[2] = a_row(3, 4.0, "astray")
    assert of_lives([one, two])[1]["rounds_apart"] == [3]
    two.end["digest"] = "another"
    summary = of_lives([one, two])[1]
    assert summary["final_digests"] == ["another", "state 5"]
    assert "DIFFERENT" in agreement(summary)


def test_who_commits_and_dies_unheard_leaves_the_round_to_the_rest():
    """The other one took the round without it, so their states differ, and no harm is done."""
    dead = a_life(1, 0.0, [1, 2, 3])
    dead.rows[-1]["digest"] = "unheard"
    back = a_life(1, 6.0, [7, 8], at=[7.5, 8.5], end=an_end(8))
    rounds, summary = of_lives([a_life(0, 0.0, range(1, 9), end=an_end(8)), dead, back])
    assert summary["rounds_apart"] == []
    assert rounds["digest"][2] == "state 3"
    assert summary["workers"]["1"]["starts"] == 2
    alone = of_lives([dead])[0]
    assert alone["digest"] == ["state 1", "state 2", "unheard"]  # better than nothing


def test_rounds_that_a_resumed_run_took_again_count_once():
    """All were stopped after round 6, checkpoints were of round 4; the second time worker 1 was
    late for round 5."""
    before = [a_life(w, 0.0, range(1, 7), "before") for w in range(2)]
    after = [
        a_life(0, 100.0, range(5, 9), "after", an_end(8)),
        a_life(1, 100.0, [6, 7, 8], "after", an_end(8)),
    ]
    rounds, summary = of_lives([*before, *after])
    assert rounds["digest"] == ["before"] * 4 + ["after"] * 4
    assert summary["rounds_apart"] == []
    assert summary["longest_gap_seconds"] == pytest.approx(101.0 - 6.0)  # the restart included
    assert summary["seconds"] == pytest.approx(6.0 + 4.0)


def test_the_longest_gap_is_the_outsiders():
    """All processes die twice; what they did in vain was done, and nobody's life spans a gap."""
    lives = [a_life(w, 0.0, range(1, 9)) for w in range(2)]  # commits at 1 … 8
    lives += [a_life(w, 20.0, [5, 6]) for w in range(2)]  # from the checkpoint of round 4
    lives += [a_life(w, 60.0, range(5, 9), end=an_end(8)) for w in range(2)]
    _, summary = of_lives(lives)
    assert summary["longest_gap_seconds"] == pytest.approx(61.0 - 22.0)


@pytest.mark.parametrize("ahead", [3600.0, -7.5])
def test_a_machine_with_a_wrong_clock_falsifies_nothing(ahead):
    """Worker 1's clock is wrong, also after its restart, and it held another state once."""
    lives = [a_life(0, 0.0, range(1, 21), end=an_end(20)), a_life(1, 0.0, range(1, 9))]
    lives.append(a_life(1, 11.0, range(12, 21), end=an_end(20)))
    lives[1].rows[2] = a_row(3, 4.0, "astray")
    rounds, summary = of_lives(lives)
    wrong = [lives[0], *(life.moved(-ahead) for life in lives[1:])]
    assert wrong[1].rows[0]["committed_at"] == 1.0 + ahead
    found, told = of_lives(wrong)
    assert told.pop("clocks_ahead") == {"1": ahead}
    assert told == summary
    assert found == rounds
    assert summary["rounds_apart"] == [3]
    assert "clocks_ahead" not in summary


def test_no_round_gets_lost_where_a_later_process_went_past_it():
    """All die after round 9; some begin again at round 3, until one comes back that holds the state
    of round 8."""
    before = [a_life(w, 0.0, range(1, 10), "before") for w in range(2)]
    after = [a_life(w, 100.0, [3, 4, 9, 10], "after", an_end(10)) for w in range(2)]
    rounds, _ = of_lives([*before, *after])
    assert rounds["round"] == list(range(1, 11))
    assert rounds["digest"] == ["before"] * 2 + ["after"] * 2 + ["before"] * 4 + ["after"] * 2


def test_one_who_was_stopped_and_commits_late_takes_nothing_back():
    late = a_life(1, 0.0, [1, 2, 6], at=[1.0, 5.5, 6.0], end=an_end(6))
    rounds, _ = of_lives([a_life(0, 0.0, range(1, 7), end=an_end(6)), late])
    assert rounds["round"] == [1, 2, 3, 4, 5, 6]


def test_bad_messages_count_once_and_strangers_as_often_as_one_saw_them():
    lives = [a_life(w, 0.0, [1, 2], end=an_end(2, refused={"a stranger": 3 + w})) for w in range(2)]
    for life in lives:
        life.rows[0]["excluded"] = {1: "norm", 2: "finite"}
        life.rows[1]["excluded"] = {1: "norm"}
    summary = of_lives(lives)[1]
    assert summary["excluded"] == {"norm": 2, "finite": 1}
    assert summary["refused"] == {"a stranger": 4}


def test_a_run_in_which_nothing_was_done():
    rounds, summary = of_lives([Life(0, 3.0, [], {})])
    assert rounds["round"] == []
    assert (summary["loss"], summary["longest_gap_seconds"], summary["rounds"]) == (None, None, 0)


def test_facts_in_words():
    found = dict(facts(records()))
    assert found["optimizer"] == "slowmo:beta=0.5, int8"
    assert found["workers, local steps, batch"] == "K = 2, H = 4, B = 8, engine: torchft"
    assert found["test accuracy"] == "90.0 %"
    assert found["state"] == "state 12 on 2 of 2 workers; hashes equal after every round"
    assert found["sent a round and worker"] == "100 bytes; a message is 100"
    assert "restarted" not in found
    lives = [
        a_life(0, 0.0, [1, 2, 3], end=an_end(3, refused={"a stranger": 2})),
        a_life(1, 0.0, [1]),
    ]
    lives += [a_life(1, 2.5, [3], at=[4.0], end=an_end(3))]
    lives[-1].rows[0]["healed"] = True
    lives[0].rows[1]["excluded"] = {1: "norm"}
    found = dict(facts(records(lives)))
    assert found["restarted"] == "1; caught up from a peer: 1"
    assert (found["messages left out"], found["refused"]) == ("1 × norm", "2 × a stranger")
    alone = dict(facts(records([a_life(0, 0.0, [1, 2], end=an_end(2))])))
    assert alone["state"] == "state 2"
    assert "longest time without a commit" not in alone


def test_the_curve_is_the_losses(tmp_path):
    (panel,) = panels(records())
    np.testing.assert_allclose(panel.curves[0].x, range(1, 13))
    np.testing.assert_allclose(panel.curves[0].y, [1 / r for r in range(1, 13)])
    write_curves(records(), tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_of_everything_shows_a_training(tmp_path):
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "records.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records())
    )
    write_curves(records(), folder / "loss.png")
    report = collect(tmp_path)
    assert [run.kind for run in report.runs] == ["training"]
    text, left = html_page(report)
    assert left.skipped == ()
    assert "hashes equal after every round" in text
    assert "<svg" in text
    markdown = markdown_page(report, tmp_path)
    assert "trained/loss.png" in markdown
    assert "hashes equal after every round" in markdown
