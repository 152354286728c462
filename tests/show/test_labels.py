"""Labels that people read: short, never two alike, the same wherever a method is shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.methods import METHODS, parse_method
from laconic.recipes.comparisons import RECIPES
from laconic.show import comparison, page
from laconic.show.labels import TITLES, labels_of, numbers_meant
from laconic.show.summary import summary_table
from laconic.tuned import CHOSEN_BEFORE, TUNED
from tests.show.made_up import usual

LONG = "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8"
SHORT = "SlowMo 0.3 / 1.67 / 0.8"


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("local-sgd", "local SGD"),
        ("local-sgd:gamma=0.5", "local SGD 0.5"),
        (LONG, SHORT),
        ("slowmo:beta=0.8,gamma=0.30,alpha=1e-1", "SlowMo 0.3 / 0.1 / 0.8"),
        ("slowmo:gamma=0.3,beta=0.8", "SlowMo γ 0.3, β 0.8"),
        ("slowmo:compress=topk:0.01+ef", "SlowMo top-k 1% + ef"),
        (f"{LONG},compress=topk:0.1+int8,clip=1", f"{SHORT}, top-k 10% + int8, clip 1"),
        ("diloco:gamma=0.01,lr=0.4,momentum=0.8,local=sgd", "DiLoCo 0.01 / 0.4 / 0.8, local sgd"),
        ("optax:name=lion,lr=0.001", "optax lion, lr 0.001"),
        ("lopt-a-fmnist", "lopt-a-fmnist"),
        ("lagg-a-fmnist:fill=zero", "lagg-a-fmnist fill zero"),
        ("/home/me/runs/mine/best.safetensors:gamma=0.5", "mine/best γ 0.5"),
        *((own, own) for own in ("", "My own: best", "slowmo:fast", "a b:c=1", "slowmo:=1", "x:")),
        *((f"sgd:alpha={odd}", f"SGD {odd}") for odd in ("1.2.3", "nan?", "½")),
    ],
)
def test_a_word_has_a_label_that_people_read(word, label):
    assert labels_of([word]) == {word: label}


def test_labels_that_would_be_alike_say_more():
    near = LONG.replace("1.6666666666666667", "1.6666")
    found = labels_of(
        [LONG, near, "slowmo", "SlowMo", "a/x/best.safetensors", "b/x/best.safetensors"]
    )
    assert found[LONG] == "SlowMo 0.3 / 1.6666666666666667 / 0.8"
    assert found[near] == "SlowMo 0.3 / 1.6666 / 0.8"
    assert (found["slowmo"], found["SlowMo"]) == ("slowmo", "SlowMo")
    assert found["a/x/best.safetensors"] == "a/x/best.safetensors"


PIECES = ["slowmo", "SlowMo", "sgd", "SGD", ":", "gamma=", "alpha=", "0.5", "0.50", "1", ",", " "]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), unique=True))
def test_no_two_labels_are_the_same(words):
    found = labels_of(words)
    assert list(found) == words
    assert len(set(found.values())) == len(words)


def test_every_method_has_a_title_unless_its_name_is_one():
    learned = {name for name in METHODS if name.startswith(("lopt", "lagg"))}
    assert set(TITLES) == set(METHODS) - learned - {"optax"}


def test_what_numbers_stand_for_is_told_once():
    words = [LONG, "slowmo:gamma=0.1,alpha=1,beta=0.9", "adam:alpha=0.1", "diloco", "mine"]
    assert numbers_meant(words) == "SlowMo: γ / α / β"
    assert numbers_meant(["fedadam:gamma=1,eta=2"]) == "FedAdam: γ / η"


def test_terminal_markdown_page_and_figure_show_the_same_label():
    records = usual(seeds=2, rounds=30, labels=("local-sgd", LONG))
    records[0]["task"]["name"] = "fmnist-mlp2"  # not where these numbers were tuned
    table = summary_table(records)
    assert [row[0] for row in table.rows] == ["local SGD", SHORT]
    assert f'| <abbr title="{LONG}">{SHORT}</abbr> |' in table.markdown()
    assert f'<div class="name" title="{LONG}">' in page.table(table)
    assert comparison.legend(records)[1][1] == SHORT
    assert {curve.label for panel in comparison.panels(records) for curve in panel.curves} == {
        "local SGD",
        SHORT,
    }
    assert LONG in comparison.report_page(records).partition("How each method was run")[2]


def test_rows_tuned_on_the_task_say_so():
    words = ("local-sgd", *TUNED["digits-mlp"], "lopt-a-digits", "lopt-r")
    assert RECIPES["digits"][1].optimizers == words
    assert all(parse_method(word, K=8) for word in words)
    table = summary_table(usual(seeds=2, rounds=30, labels=words))
    marked = [row[0].endswith(" *") for row in table.rows]
    assert marked == [False, True, True, True, True, True, False]
    assert "* Its numbers were chosen, or it was meta-trained, on digits-mlp." in table.note
    older = usual(seeds=2, rounds=30, labels=("local-sgd", *CHOSEN_BEFORE["digits-mlp"]))
    assert [row[0].endswith(" *") for row in summary_table(older).rows] == [False, True, True, True]
    records = usual(seeds=2, rounds=30, labels=words)
    records[0]["task"]["name"] = "fmnist-mlp2"
    assert "*" not in summary_table(records).markdown().replace("**", "")
