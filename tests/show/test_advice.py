"""Which method to take for which goal."""

from laconic.show.advice import advice
from tests.show.made_up import comparison, method_record, usual

LABELS = ("local-sgd", "slowmo", "diloco")


def records(*rows, tested=True):
    """A comparison whose rows have these rounds, train losses ± errors and test losses."""
    heldout = ("loss", "accuracy") if tested else ()
    made = usual(seeds=2, rounds=30, labels=LABELS, heldout=heldout)
    for row, method, (rounds, loss, error, test) in zip(
        made[-1]["rows"], made[1:-1], rows, strict=True
    ):
        row |= {"rounds_to_target": rounds, "speedup": rounds and 90 / rounds, "speedup_error": 0.1}
        row |= {"final_train": loss, "final_train_error": error, "test_accuracy": 0.9}
        row["test_loss"] = test if tested else None
        if tested:  # the standard error of a - d and a + d is d
            method["heldout"]["loss"] = [[test - 0.01], [test + 0.01]]
    made[-1]["target_loss"] = 0.5
    return made


def cells(made):
    return {row[0]: row[1:] for row in advice(made).rows}


def test_each_goal_has_its_method_and_those_level_with_it():
    found = records((90, 0.4, 0.01, 0.20), (30, 0.1, 0.03, 0.22), (31, 0.15, 0.04, 0.30))
    assert cells(found) == {
        "fewest rounds to train loss 0.500": ["SlowMo", "30 rounds", "DiLoCo"],  # 1 ≤ 2·√2·1
        "lowest train loss": ["SlowMo", "0.100", "DiLoCo"],  # 0.05 ≤ 2·0.05
        "best test loss": ["local SGD", "0.200 (90.0 %)", "SlowMo"],  # 0.02 ≤ 2·√2·0.01
    }
    found[-1]["rows"][2] |= {"final_train": 0.2001, "rounds_to_target": None}
    assert cells(found)["lowest train loss"] == ["SlowMo", "0.100", "–"]
    assert cells(found)["fewest rounds to train loss 0.500"] == ["SlowMo", "30 rounds", "–"]


def test_a_goal_nobody_can_be_judged_by_is_left_out():
    found = records(*[(None, 0.4 - 0.1 * i, None, None) for i in range(3)], tested=False)
    assert cells(found) == {"lowest train loss": ["DiLoCo", "0.200", "–"]}
    found[-1]["rows"][2]["diverged"] = 1
    assert cells(found) == {"lowest train loss": ["SlowMo", "0.300", "–"]}
    assert advice(comparison([method_record(0, "local-sgd", 2, 30)])) is None
