"""Cards: what they hold, what they refuse, and what people read."""

import dataclasses
import json
import re

import pytest

import laconic
from laconic import zoo
from laconic.client import LocalOptimizer
from laconic.zoo.card import CARD, LOCAL, Card, from_json, to_json, to_markdown
from tests.zoo.made import LAGG_A, LEARNED, LOPT_R, a_card, fields, weights


@pytest.mark.parametrize("learned", LEARNED, ids=lambda spec: spec.architecture)
def test_a_card_survives_json(learned):
    card = a_card(learned)
    assert to_json(card) == fields(learned)
    assert from_json(json.loads(json.dumps(to_json(card), allow_nan=False)), "x") == card


def test_the_schema_knows_every_field():
    assert list(CARD) == [field.name for field in dataclasses.fields(Card)]
    assert list(LOCAL) == [field.name for field in dataclasses.fields(LocalOptimizer)]


def test_a_card_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_card().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("field", CARD)
def test_a_missing_field_is_named(raises_clearly, field):
    data = fields()
    del data[field]
    with raises_clearly("somewhere.safetensors: card lacks the field " + field):
        from_json(data, "somewhere.safetensors")


def test_an_unknown_field_is_named(raises_clearly):
    with raises_clearly("x: card has the unknown field 'surprise'"):
        from_json(fields(surprise=1), "x")


ROW, RESULT = fields()["trained_on"][0], fields()["results"][0]
WRONG = [
    ({"name": "../up"}, "card.name must be a name of lower-case letters"),
    ({"name": "x.safetensors"}, "card.name"),
    ({"name": "a" * 65}, "card.name"),
    ({"name": "good\n"}, "card.name"),
    ({"summary": "two\nlines"}, "card.summary must be one line of text"),
    ({"summary": "\x1b[31mred"}, "card.summary"),
    ({"summary": " "}, "card.summary"),
    ({"summary": "\ud800"}, "card.summary"),
    (
        {"architecture": ["lopt-a"]},
        "card.architecture must be one of lopt-a, lagg-a, lopt, lagg, lopt-r",
    ),
    ({"architecture": "adam"}, "card.architecture"),
    ({"workers": 0}, "card.workers must be a whole number from 1 or null"),
    ({"workers": True}, "card.workers"),
    ({"local": []}, "card.local must be a dictionary"),
    (
        {"local": {**fields()["local"], "name": "rmsprop"}},
        "card.local: unknown local optimizer 'rmsprop'",
    ),
    (
        {"local": {**fields()["local"], "learning_rate": 0.0}},
        "card.local: the local learning rate must be positive",
    ),
    ({"local": {**fields()["local"], "learning_rate": float("inf")}}, "card.local.learning_rate"),
    ({"local": {**fields()["local"], "decay_steps": 0.5}}, "card.local.decay_steps"),
    ({"local": {"name": "sgd"}}, "card.local lacks the field learning_rate"),
    ({"trained_on": ROW}, "card.trained_on must be a list"),
    ({"trained_on": [ROW, "digits"]}, "card.trained_on[1] must be a dictionary"),
    (
        {"trained_on": [{**ROW, "workers": "8"}]},
        "card.trained_on[0].workers must be a whole number from 1, got '8'",
    ),
    (
        {"trained_on": [{**ROW, "dropout": 1.0}]},
        "card.trained_on[0].dropout must be a number from 0 to below 1",
    ),
    ({"trained_on": [{**ROW, "compress": None}]}, "card.trained_on[0].compress"),
    ({"outer_steps": 1.0}, "card.outer_steps"),
    ({"outer_steps": 10**300}, "card.outer_steps"),
    ({"pairs": 0}, "card.pairs"),
    ({"truncation": None}, "card.truncation"),
    ({"horizon": [100]}, "card.horizon must be [min, max]"),
    ({"horizon": [1000, 100]}, "card.horizon"),
    ({"horizon": [100, True]}, "card.horizon"),
    ({"horizon": (100, 1000)}, "card.horizon"),
    ({"meta_seed": 2**32}, "card.meta_seed must be a whole number from 0 to 4294967295"),
    ({"seconds": float("nan")}, "card.seconds must be a finite number of at least 0, got nan"),
    ({"seconds": -1.0}, "card.seconds"),
    ({"seconds": 10**400}, "card.seconds"),
    ({"commit": None}, "card.commit must be one line of text, got None"),
    ({"versions": {"jax": 1}}, "card.versions"),
    ({"versions": []}, "card.versions"),
    (
        {"results": [{**RESULT, "value": "fast"}]},
        "card.results[0].value must be a finite number or null",
    ),
    ({"results": [{**RESULT, "value": float("-inf")}]}, "card.results[0].value"),
    *[
        (
            {"results": [RESULT, {**RESULT, "record": path}]},
            "card.results[1].record must be a path relative to",
        )
        for path in (
            "/etc/passwd",
            "../x",
            "a/../b",
            "results/x",
            "results",
            ".",
            "./a",
            "a//b",
            "a\\b",
            "",
            7,
        )
    ],
    ({"limits": "none"}, "card.limits must be a list"),
    ({"limits": [1]}, "card.limits[0] must be one line of text, got 1"),
    ({"license": ""}, "card.license"),
    ({"created": "yesterday"}, "card.created must be a date as YYYY-MM-DD"),
    ({"created": "20250131"}, "card.created"),
    ({"created": "2025-02-30"}, "card.created"),
]


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(raises_clearly, change, says):
    with raises_clearly(says):
        Card(**fields(**change))
    with raises_clearly(f"a/file.safetensors: {says}"):
        from_json(fields(**change), "a/file.safetensors")


@pytest.mark.parametrize("data", [None, [], "card", 3])
def test_a_card_that_is_no_dictionary(raises_clearly, data):
    with raises_clearly("x: card must be a dictionary"):
        from_json(data, "x")


def test_an_error_never_repeats_a_whole_novel(raises_clearly):
    with raises_clearly("card.created") as info:
        from_json(fields(created="x" * 10**6), "x")
    assert len(str(info.value)) < 200


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("learned", LEARNED, ids=lambda spec: spec.architecture)
def test_the_page_says_all_that_the_card_does(learned):
    page = to_markdown(a_card(learned))
    shown = page.replace("\\|", "|").replace("&lt;", "<").replace("&amp;", "&")
    for leaf in leaves(fields(learned)):
        if isinstance(leaf, str):
            assert leaf in shown
        elif leaf is not None:
            assert re.search(rf"(?<![\d.]){re.escape(repr(leaf))}(?![\d.]\d)", shown), leaf


def test_the_page_is_a_heading_a_snippet_tables_and_limits():
    page = to_markdown(a_card())
    assert page.startswith("# made-up\n")
    assert re.findall("^## (.*)$", page, re.M) == ["Training", "Results", "Limits"]
    assert page.count("\n- ") == 2
    for block in page.split("\n\n"):
        if block.startswith("|"):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block
    assert sum(block.startswith("| ") for block in page.split("\n\n")) == 3
    assert "| rounds to train loss 0.001 | – |" in page
    assert "<" not in page


@pytest.mark.parametrize(
    "learned", [LEARNED[0], LAGG_A, LOPT_R], ids=lambda spec: spec.architecture
)
def test_the_snippet_on_the_page_runs(monkeypatch, tmp_path, learned):
    monkeypatch.setattr("laconic.zoo.file.WEIGHTS", tmp_path)
    monkeypatch.setattr(laconic, "load", zoo.load, raising=False)
    zoo.publish(tmp_path / "made-up.safetensors", learned, weights(learned), a_card(learned))
    (snippet,) = re.findall("```python\n(.*?)```", to_markdown(a_card(learned)), re.S)
    assert len(snippet.splitlines()) == 3
    names = {}
    exec(snippet, names)
    assert names["published"].name == "made-up"
    assert callable(names["tx"].update)
