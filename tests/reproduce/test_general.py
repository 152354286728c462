"""The suite of a general optimizer: its scores by hand, its page, and whose local rate ours has."""

from pathlib import Path

import numpy as np
import pytest

from laconic.methods import parse_method
from laconic.reproduce import EXPERIMENTS
from laconic.reproduce.general import (
    LARGE,
    MEAN,
    NOMINAL,
    OURS,
    SMALL,
    Contest,
    best_rival,
    heldout_score,
    score_row,
    train_score,
)
from laconic.runs.grid import parse_grid
from laconic.tasks.catalog import parse_spec

PAGE = Path(__file__).parents[2] / "docs" / "suite.md"


def method(label, train, test=None):
    """A record of one seed; tested every 10 rounds."""
    looks = None if test is None else [test]
    at = [10 * (i + 1) for i in range(len(test or ()))]
    heldout = {} if looks is None else {"loss": looks}
    return {
        "kind": "method",
        "label": label,
        "train": [list(map(float, train))],
        "heldout": heldout,
        "evaluated_at": at,
    }


def line(last, rounds=100):
    """A loss that falls in a line from 10, whose last 10-round mean is `last`."""
    return 10 - (10 - last) * np.arange(1, rounds + 1) / (rounds - 4.5)


def test_twice_as_steep_a_curve_has_twice_the_score():
    rival, ours = method("a", line(1.0)), method(OURS, 2 * line(1.0) - 10)
    # ours is at 1 in the mean of its rounds 43.25 … 52.25, so in round 53
    assert train_score(rival, ours) == pytest.approx(100 / 53)
    assert train_score(rival, rival) == 1
    assert train_score(ours, rival) == 0.5  # never there


def test_losses_below_a_thousandth_count_as_equal():
    rival = method("a", [1.0] * 20 + [5e-4] * 10 + [1e-9] * 70)
    ours = method(OURS, [1.0] * 5 + [9e-4] * 95)
    assert train_score(rival, ours) == 30 / 15
    assert best_rival([method("b", [1.0] * 50 + [0.0] * 50), rival])["label"] == "a"


def test_a_rival_that_diverged_is_not_the_best():
    bad = method("bad", [0.1] * 50 + [float("nan")] * 50)
    assert best_rival([bad, method("a", line(1.0))])["label"] == "a"


def test_the_test_score_is_of_the_rivals_best_test_loss():
    rival = method("a", line(1.0), [3.0, 2.0, 1.5, 1.7])
    assert heldout_score(rival, method(OURS, line(1.0), [1.9, 1.5, 4.0, 4.0])) == 30 / 20
    assert heldout_score(rival, method(OURS, line(1.0), [1.9, 1.6, 4.0, 4.0])) == 0.5
    assert heldout_score(rival, method(OURS, line(1.0))) is None


def test_nesterov_untuned_is_no_rival():
    nominal = method(NOMINAL, line(0.1))
    row = score_row("p", [nominal, method("a", line(1.0)), method(OURS, line(1.0))])
    assert (row["rival"], row["train"], row["test"]) == ("a", 1.0, None)


def test_ours_has_the_rate_of_the_rival_that_tuned_best():
    panel = SMALL[0]
    point = lambda label, gamma, final: {
        "kind": "point",
        "index": 0,
        "label": label,
        "numbers": {"gamma": gamma},
        "final": final,
        "minimum": final,
        "diverged": [final == 0.1],
    }
    finals = (0.4, 0.2, 0.1, None)
    sweeps = {
        panel.sweep_path(tuning): [point(f"slowmo:gamma={i + 1}", float(i + 1), finals[i])]
        for i, tuning in enumerate(panel.tuned)
    }
    specs = panel.comparison({OURS: OURS}, sweeps).optimizers
    assert len(specs) == 6
    assert [parse_method(str(spec), 8).label for spec in specs[4:5]] == [NOMINAL]
    assert specs[4] == f"diloco:local=sgd,gamma=2,lr=0.7,momentum=0.9,label={NOMINAL}"
    assert specs[5] == f"{OURS}:local=sgd,gamma=2,label={OURS}"


def test_every_rival_is_tuned_over_at_least_12_points_and_a_third_of_the_length():
    for panel in (*SMALL, *LARGE):
        assert len(panel.tuned) == 4
        for tuning in panel.tuned:
            assert len(parse_grid(tuning.config.grid)) >= 12
            assert tuning.config.rounds == panel.config.rounds // 3
            assert tuning.config.seeds == 1
        assert panel.config.seeds == 3


def test_the_page_lists_the_small_half():
    page = PAGE.read_text()
    for panel in SMALL:
        config = panel.config
        numbers = (config.workers, config.local_steps, config.batch, config.rounds)
        words = "AdamW" if panel.local == "adamw" else "SGD"
        assert f"| {words} | {' | '.join(map(str, numbers))} |" in page
        assert parse_spec(config.task)[0] in page
    assert {panel.name for panel in EXPERIMENTS["fig-general"].of(Contest)} == {
        panel.name for panel in (*SMALL, *LARGE)
    }


def test_scores_are_a_table_with_their_geometric_mean():
    rows = [
        score_row(panel.name, [method("a", line(1.0)), method(OURS, line(1.0))]) for panel in SMALL
    ]
    total = {
        "panel": MEAN,
        "label": OURS,
        "metric": "score",
        "rival": None,
        "train": 1.0,
        "test": None,
    }
    table = Contest.tables(EXPERIMENTS["fig-general"], [*rows, total | {"panels": 12}])[0]
    assert len(table.rows) == 13
    assert table.rows[-1][0] == f"{MEAN} of 12"
