"""Which method to take for which goal."""

import numpy as np

from laconic.show.advice import advice
from laconic.show.summary import summarise
from tests.show.made_up import comparison, method_record, plain, usual

LABELS = ("local-sgd", "slowmo", "diloco")
SEEDS = np.array([-1.0, 0.0, 0.0, 1.0])


def records(*methods, target=0.5, tested=True):
    """A comparison of lines from 1 down that reach 0.5 in these rounds and stay at these losses;
    seeds are apart by a spread each."""
    heldout = ("loss", "accuracy") if tested else ()
    made = usual(seeds=len(SEEDS), rounds=120, labels=LABELS, heldout=heldout)
    for method, (rounds, loss, spread, test) in zip(made[1:-1], methods, strict=True):
        falling = 1 - 0.5 * (np.arange(1, 121) + 4.5) / rounds
        curves = np.maximum(falling, loss) + spread * SEEDS[:, None]
        method |= {"train": plain(curves), "method": method["label"], "compressor": "dense"}
        if tested:
            method["heldout"] = {
                "loss": (test + 0.02 * SEEDS)[:, None].tolist(),
                "accuracy": np.full((len(SEEDS), 1), 0.9).tolist(),
            }
    return [*made[:-1], {"kind": "summary", **summarise(made[1:-1], target)}]


def cells(made):
    return {row[0]: row[1:] for row in advice(made).rows}


def test_each_goal_has_its_method_and_those_level_with_it():
    # spreads of slowmo and diloco differ, so that means of the same draws do too
    found = records((90, 0.4, 0.01, 0.20), (30, 0.1, 0.00, 0.22), (31, 0.12, 0.05, 0.2002))
    assert cells(found) == {
        "fewest rounds to train loss 0.500": ["SlowMo", "30 rounds", "DiLoCo"],
        "lowest train loss": ["SlowMo", "0.100", "DiLoCo"],
        "best test loss": ["local SGD", "0.200 (90.0 %)", "–"],  # apart in every seed
    }
    found = records((90, 0.4, 0.01, 0.20), (30, 0.1, 0.00, 0.22), (40, 0.2, 0.05, 0.2))
    assert cells(found)["lowest train loss"] == ["SlowMo", "0.100", "–"]
    assert cells(found)["fewest rounds to train loss 0.500"] == ["SlowMo", "30 rounds", "–"]
    assert cells(found)["best test loss"][2] == "DiLoCo"


def test_one_seed_tells_nothing_of_chance():
    found = usual(seeds=1, rounds=30, labels=LABELS)
    assert {row[-1] for row in advice(found).rows} == {"–"}


def test_a_goal_nobody_can_be_judged_by_is_left_out():
    found = records(*[(30, 0.4 - 0.1 * i, 0.0, None) for i in range(3)], tested=False, target=0.0)
    found[-1]["target_loss"] = 0.01
    assert cells(found) == {"lowest train loss": ["DiLoCo", "0.200", "–"]}
    found[-1]["rows"][2]["diverged"] = 1
    assert cells(found) == {"lowest train loss": ["SlowMo", "0.300", "–"]}
    assert advice(comparison([method_record(0, "local-sgd", 2, 30)])) is None
