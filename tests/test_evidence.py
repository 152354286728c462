"""The independent check of published numbers: it shares nothing with the package, agrees with it,
and names what is wrong."""

import ast
import sys

import numpy as np
import pytest

from evidence import check, measures, prose, sources
from evidence.numbers import agrees
from evidence.pages import Page, tokens
from evidence.records import ROOT
from laconic.show import intervals, metrics

ALLOWED = {*sys.stdlib_module_names, "numpy", "evidence"}


def test_it_imports_numpy_and_the_standard_library_only():
    for path in (ROOT / "evidence").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= ALLOWED, path.name


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/results/ablation.md"])
def test_pages_say_what_the_records_say(name):
    page = Page(ROOT / name)
    assert [*check.check_tables(page, sources.sources())] == []
    assert [*check.check_prose(page, prose.claims()[name])] == []
    assert len(page.checked) > 0.7 * len(page.numbers)


def test_a_wrong_number_is_named_with_page_row_and_both_numbers():
    raw = (ROOT / "README.md").read_text()
    page = Page(ROOT / "README.md", raw.replace("| 329 [", "| 328 [").replace("0.228", "0.238"))
    (wrong,) = check.check_tables(page, sources.sources())
    for part in ("README.md:", "SlowMo", "rounds to train loss 0.2", "328 [321, 334]", "give 329"):
        assert part in wrong
    (wrong,) = check.check_prose(page, prose.claims()["README.md"])
    assert "printed 0.238, the records give 0.22" in wrong


def test_words_that_are_gone_are_named():
    page = Page(ROOT / "README.md", "Nothing of it.")
    wrong = [*check.check_prose(page, prose.claims()["README.md"])]
    assert len(wrong) == len(prose.claims()["README.md"])
    assert all("not there any more" in text for text in wrong)


def test_what_is_not_covered_is_listed():
    page = Page(ROOT / "README.md", "A table of 3 and 4.5 s, not H200, 2-layer or `7`.\n9\n")
    assert page.left() == [(1, "3 4.5"), (2, "9")]
    page.cover(0, page.raw.index("4.5"))
    assert page.left() == [(1, "4.5"), (2, "9")]


@pytest.mark.parametrize(
    ("printed", "value", "same"),
    [
        ("0.0374", 0.037449, True),
        ("0.0374", 0.03746, False),
        ("1,473", 1473.4, True),
        ("473", 473.6, False),
        ("6.62e-05", 6.6249e-5, True),
        ("6.62e-05", 6.63e-5, False),
        ("−31.0", -31.04, True),
        ("+0.500", 0.5001, True),
        ("±0", 0.0, True),
        ("–", float("nan"), True),
        ("–", 3.0, False),
        ("3", float("nan"), False),
    ],
)
def test_a_printed_number_agrees_with_what_it_rounds(printed, value, same):
    assert agrees(printed, value) is same


def test_numbers_of_a_cell():
    assert tokens("10.5× [10.2, –]") == ["10.5", "10.2", "–"]
    assert tokens("0.0903 ± 0.0029") == ["0.0903", "0.0029"]
    assert tokens("1,000 (−31.0)") == ["1,000", "−31.0"]


@pytest.mark.parametrize(("S", "T"), [(2, 40), (10, 80), (3, 6)])
def test_it_agrees_with_the_package(S, T):
    rng = np.random.default_rng(S)
    reference, ours = (
        2 * np.exp(-rate * np.arange(T)) + 0.1 * rng.normal(size=(S, T)) for rate in (0.03, 0.06)
    )
    target = metrics.minimum_loss(reference)
    assert measures.lowest(reference) == pytest.approx(target, rel=1e-12)
    assert measures.rounds_to(ours, target) == metrics.rounds_to_loss(ours, target)
    assert measures.speedup(reference, ours) == metrics.speedup(reference, ours)
    assert measures.final(ours)[0] == pytest.approx(metrics.final_loss(ours), rel=1e-12)
    for mine, its in (
        (measures.rounds_interval(ours, target), intervals.rounds_interval(ours, target)),
        (measures.speedup_interval(reference, ours), intervals.speedup_interval(reference, ours)),
    ):
        assert its is not None
        known = [np.nan if end == 0 or np.isinf(end) else end for end in its]
        np.testing.assert_allclose(mine, known, rtol=1e-12)
