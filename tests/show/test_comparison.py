"""What a comparison comes to in words: its table, its verdict and its notes."""

import re

import pytest

from laconic.show import metrics
from laconic.show.comparison import panels
from laconic.show.summary import curves_of, summary_table, table_of
from laconic.show.table import number
from laconic.show.verdict import notes, verdict
from tests.show.made_up import LINK, diverging, usual

FIELDS = ("label", "final_train", "final_train_error", "test_loss", "test_accuracy")
FIELDS += ("rounds_to_target", "rounds_interval", "speedup", "speedup_interval")
FIELDS += ("sent_megabytes", "received_megabytes", "seconds_to_target", "diverged")
SGD = ("local-sgd", 0.2241, 0.0031, 0.4, 0.871)
SGD += (984, [966.0, None], 1.0, None, 437.5, 437.5, 240.0, 0)
SLOWMO = ("slowmo", 0.1139, 0.001, 0.35, 0.893)
SLOWMO += (210, [203.0, 1001.0], 984 / 210, [4.31, 4.9012], 4.375, 437.5, 51.2, 0)
FEDADAM = ("fedadam", None, None, None, 0.9, None, None, None, None, 0.0, 437.5, None, 2)
ROWS = [dict(zip(FIELDS, values, strict=True)) for values in (SGD, SLOWMO, FEDADAM)]
SUMMARY = {"kind": "summary", "target_loss": 0.2239, "reference": "local-sgd", "rows": ROWS}


def test_the_table_says_each_number_once_and_missing_ones_as_dashes():
    shown = table_of(SUMMARY, link_given=True)
    assert dict(zip(shown.headers, zip(*shown.rows, strict=True), strict=True)) == {
        "method": ("local-sgd", "slowmo", "fedadam"),
        "rounds to 0.224": ("984 [966, –]", "210 [203, 1,001]", "–"),
        "speedup": ("1.00×", "4.69× [4.31, 4.90]", "–"),
        "time to 0.224": ("4 min", "51 s", "–"),
        "final train loss": ("0.224 ± 0.003", "0.114 ± 0.001", "–"),
        "test accuracy": ("87.1 %", "89.3 %", "90.0 %"),
        "test loss": ("0.400", "0.350", "–"),
        "MB sent": ("438", "4.38", "0"),
        "MB received": ("438", "438", "438"),
        "diverged seeds": ("0", "0", "2"),
    }


def test_columns_that_say_nothing_are_left_out():
    bare = [{**row, "test_loss": None, "test_accuracy": None, "diverged": 0} for row in ROWS]
    summary = {"target_loss": None, "reference": None, "rows": bare}
    assert table_of(summary, link_given=False).headers == [
        "method",
        "final train loss",
        "MB sent",
        "MB received",
    ]


def test_best_marks_ignore_diverged_methods_bounds_and_ties():
    shown = table_of(SUMMARY, link_given=True)
    best = {(i, shown.headers[j]) for i, j in shown.best}
    assert best == {(1, name) for name in (*shown.headers[1:7], "MB sent")}
    without = table_of(SUMMARY, True, frozenset({"slowmo"}))
    assert not without.best  # one row left: nothing to be better than


def test_the_best_test_loss_and_accuracy_stand_beside_the_end_with_their_rounds():
    records = usual(rounds=60, seeds=2)
    method = next(r for r in records if r["kind"] == "method")
    looks = len(method["evaluated_at"])
    loss = [[1.0] * looks, [1.0] * looks]
    loss[0][1] = loss[1][1] = 0.25
    loss[0][2] = None  # a look without a number in one seed is none
    loss[1][2] = 0.0
    accuracy = [[0.5] * looks, [0.5] * looks]
    accuracy[0][0] = 0.9
    method["heldout"] = {"loss": loss, "accuracy": accuracy}
    table = summary_table(records)
    cell = lambda name: table.rows[0][list(table.headers).index(name)]
    first, second = method["evaluated_at"][:2]
    assert cell("best test loss (round)") == f"0.250 ({second})"
    assert cell("best accuracy (round)") == f"70.0 % ({first})"


def test_markdown_keeps_pipes_and_backticks_inside_their_cell():
    records = usual(rounds=30, seeds=2, labels=("local-sgd", "a|b`c<d>\n**"))
    lines = summary_table(records).markdown().splitlines()
    assert len(lines) == 4
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {len(re.split(r"\|", lines[0]))}
    assert lines[3].startswith("| `a\\|b'c<d> **` | ")
    assert sum("**" in cell for cell in lines[3].split(" | ")[1:]) > 0


# --- the verdict ----------------------------------------------------------------------------------


def judged(rounds, target=None, reference: str | None = "local-sgd", **changes):
    """The verdict where method i needs rounds[i] to the target."""
    labels = ("local-sgd", "slowmo", "diloco")[: len(rounds)]
    records = usual(rounds=30, seeds=2, labels=labels)
    records[0]["config"] |= {"rounds": 1000, "target_loss": target}
    for i, (row, n) in enumerate(zip(records[-1]["rows"], rounds, strict=True)):
        row |= {
            "rounds_to_target": n,
            "speedup": 3.0,
            "speedup_interval": [2.8, 3.2],
            "rounds_interval": None,
            "final_train": 0.5 - 0.1 * i,
            **changes,
        }
    records[-1] |= {"reference": reference, "target_loss": 0.224 if target is None else target}
    return records


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (
            judged([984, 210, 500]),
            "SlowMo reached local SGD's best training loss (0.224) in 210 rounds instead of 984: "
            "4.7 times fewer.",
        ),
        (
            judged([984, 820, None]),
            "SlowMo reached local SGD's best training loss (0.224) in 820 rounds instead of 984: "
            "17 % fewer.",
        ),
        (
            judged([984, 983, None]),
            "SlowMo reached local SGD's best training loss (0.224) in 983 rounds instead of 984: 1 "
            "fewer.",
        ),
        (
            judged([984, 210], speedup=1.2, speedup_interval=[0, 1.4]),
            "SlowMo reached local SGD's best training loss (0.224) in 210 rounds instead of 984: "
            "4.7 times fewer, "
            "though the 95 % interval of that gain over seeds (never to 1.40 times) leaves open "
            "whether it is one at all.",
        ),
        (
            judged([984, None, None]),
            "No method reached local SGD's best training loss (0.224) in fewer rounds than "
            "local SGD, which took 984.",
        ),
        (
            judged([None, 151, None], target=0.1),
            "SlowMo reached the target training loss (0.100) in 151 rounds; local SGD did not in "
            "1,000.",
        ),
        (
            judged([None, None, None], target=0.01),
            "No method reached the target training loss (0.0100) in 1,000 rounds. "
            "After 1,000 rounds DiLoCo has the lowest training loss, 0.300.",
        ),
        (
            judged([406, 151, 152], target=0.1, reference=None),
            "SlowMo reached the target training loss (0.100) first, in 151 rounds; the next, "
            "DiLoCo, took 152, though the 95 % interval of that gain over seeds (1.00 to 1.00 "
            "times) leaves open whether it is one at all.",  # on these curves neither gets there
        ),
        (
            judged([None, 151, None], target=0.1, reference=None),
            "Only SlowMo reached the target training loss (0.100), in 151 rounds of 1,000.",
        ),
        (judged([984]), "local SGD ended at a training loss of 0.500 after 1,000 rounds."),
        (judged([None, None], final_train=None), "No method reached local SGD's best training loss "
                                                 "(0.224) in 1,000 "
         "rounds. Every method diverged."),
    ],
)  # fmt: skip
def test_the_verdict_says_who_won_or_that_nobody_did(records, sentence):
    assert verdict(records) == sentence


def test_without_a_target_the_verdict_falls_back_on_the_final_loss():
    records = judged([1, 1, 1], reference=None)
    records[-1]["target_loss"] = None
    assert verdict(records) == "After 1,000 rounds DiLoCo has the lowest training loss, 0.300."


def test_a_diverged_method_never_wins():
    records = judged([984, 210, 5])
    records[0]["config"]["link"] = LINK
    for row, seconds in zip(records[-1]["rows"], (240.0, 51.0, 2.0), strict=True):
        row["seconds_to_target"] = seconds
    records[-1]["rows"][2]["diverged"] = 1
    assert verdict(records).startswith("SlowMo reached local SGD's best training loss")
    assert notes(records)[0].endswith("takes SlowMo 51 s and local SGD 4 min.")
    records[-1]["rows"][1]["diverged"] = 1
    assert verdict(records).startswith("No method reached local SGD's best training loss (0.224)")
    records[-1]["rows"][0]["diverged"] = 1
    assert verdict(records) == "Every method diverged."


def test_the_note_says_which_loss_the_speedup_is_to():
    records = usual(seeds=2, rounds=30)
    lowest = number(metrics.minimum_loss(curves_of(records[1])))
    assert (
        f" Speedup: to local SGD's lowest training loss ({lowest})." in summary_table(records).note
    )


def test_the_last_summary_counts():
    records = usual(seeds=2, rounds=30)
    old = {**records[-1], "target_loss": 123.0, "reference": None}
    shown = panels([*records[:-1], old, records[-1]])
    assert [panel.target for panel in shown] == [panel.target for panel in panels(records)]


def test_a_bound_is_no_rival():
    records = judged([984, 210, 5])
    records[3] |= {
        "workers": 1,
        "traffic": {"sent_bits": 0, "received_bits": 0, "topology": "one worker"},
    }
    assert verdict(records).startswith(
        "SlowMo reached local SGD's best training loss (0.224) in 210 rounds"
    )
    assert "DiLoCo runs on one worker and sends nothing: a bound, not a rival." in notes(records)


def test_notes_tell_time_on_the_link_lone_seeds_and_divergence():
    records = judged([984, 210, 5])
    records[0]["config"]["link"] = LINK
    for row, seconds in zip(records[-1]["rows"], (240.0, 51.0, None), strict=True):
        row["seconds_to_target"] = seconds
    few = "2 seeds were run: intervals of so few are too narrow."
    link = "On a 100Mbit/20ms link that takes SlowMo 51 s and local SGD 4 min."
    assert notes(records) == [link, few]
    assert notes(diverging())[-1] == "FedAdam diverged in 2 of 3 seeds."
    assert notes(usual(seeds=5, rounds=30)) == []
    assert notes(usual(seeds=1))[0].startswith("One seed was run")
