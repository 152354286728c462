"""The independent check of published numbers: it shares nothing with the package, agrees with it,
and names what is wrong."""

import ast
import json
import subprocess
import sys

import numpy as np
import pytest

from evidence import cards, chains, check, measures, prose, provenance, seeds, sources
from evidence.numbers import agrees
from evidence.pages import Page, tokens
from evidence.records import ROOT
from evidence.records import cards as cards_on_record
from laconic.show import intervals, metrics
from laconic.store.records import PACKAGE, sources_sha256
from laconic.zoo import load, published

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
    page = Page(ROOT / "README.md", raw.replace("| 344 [", "| 343 [").replace("(0.226)", "(0.236)"))
    (wrong,) = check.check_tables(page, sources.sources())
    for part in ("README.md:", "SlowMo", "rounds to train loss 0.2", "343 [319, 349]", "give 344"):
        assert part in wrong
    (wrong,) = check.check_prose(page, prose.claims()["README.md"])
    assert "printed 0.236, the records give 0.226" in wrong


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


def test_a_card_that_tells_another_goal_or_chain_is_named(monkeypatch):
    card = cards_on_record()["lopt-a-fmnist"]
    words = "By goal: for the best test loss stop at round 100 on fmnist-mlp2, where it is 0.373."
    more = "over a chain of 4 meta-trainings, of which the last gave 1,500 steps."
    changed = card | {"outer_steps": 1500, "results": card["results"], "limits": [words, more]}
    monkeypatch.setattr(cards, "cards", lambda: {"lopt-a-fmnist": changed})
    wrong, _ = cards.check()
    assert [text.partition(": ")[2] for text in wrong] == [
        "the round of the best test loss is 80 by the records, not 100",
        "the best test loss is 0.372 by the records, not 0.373",
        "the number of outer steps is 9200 by the records, not 1500",
        "the last link's steps is 1,000 by the records, not 1,500",
    ]


def test_every_published_optimizer_has_its_chain():
    assert set(chains.CHAINS) == set(published())


# --- seeds ----------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Writes the header of a record below a results/ of its own, which has one headline."""

    def write(folder, first, count, grid=False, **header):
        config = {"task": "digits-mlp", "workers": 8, "local_steps": 4}
        config |= {"first_seed": first, "seeds": count}
        config |= {"grid": ["gamma=1"]} if grid else {}
        config |= header.pop("config", {})
        (tmp_path / folder).mkdir(parents=True)
        record = {"kind": "run", "config": config, **header}
        (tmp_path / folder / "records.jsonl").write_text(json.dumps(record) + "\n")

    text = lambda folder: (tmp_path / folder / "records.jsonl").read_text()
    monkeypatch.setattr(seeds, "RESULTS", tmp_path)
    monkeypatch.setattr(seeds, "read", lambda folder: [json.loads(text(folder))])
    monkeypatch.setattr(seeds, "HEADLINES", ("headline",))
    monkeypatch.setattr(seeds, "TOLD", {})
    write("headline", 300, 10)
    return write


def test_no_headline_stands_on_seeds_that_something_was_tuned_or_chosen_on():
    assert seeds.check() == []


def test_a_headline_on_the_seeds_of_a_sweep_is_refused(recorded):
    recorded("sweeps/here", 309, 1, grid=True)
    (wrong,) = seeds.check()
    assert wrong == "headline reports seeds that sweeps/here is for tuning on"


def test_a_headline_on_the_seeds_of_a_choice_is_refused(recorded):
    recorded("chosen", 295, 6, config={"seeds_for": "choice"})
    (wrong,) = seeds.check()
    assert wrong == "headline reports seeds that chosen is for choice on"


@pytest.mark.parametrize(
    "other",
    [
        {"first": 310, "count": 5, "seeds_for": "tuning"},
        {"first": 300, "count": 5, "config": {"seeds_for": "report"}},
        {"first": 300, "count": 5, "grid": True, "config": {"task": "fmnist-mlp2"}},
        {"first": 300, "count": 5, "grid": True, "config": {"local_steps": 8}},
    ],
    ids=["other seeds", "another report", "another task", "another H"],
)
def test_other_seeds_other_settings_and_reports_are_no_clash(recorded, other):
    recorded("other", **other)
    assert seeds.check() == []


def test_a_headline_is_no_record_of_a_choice(recorded, monkeypatch):
    recorded("second", 0, 5, seeds_for="tuning")
    monkeypatch.setattr(seeds, "HEADLINES", ("second",))
    (wrong,) = seeds.check()
    assert wrong == "second is a headline, and its seeds are for tuning"


# --- provenance -----------------------------------------------------------------------------------


def test_records_were_made_by_the_sources_and_optimizers_that_they_name():
    wrong, counts = provenance.check()
    assert wrong == []
    assert counts["optimizers"] > 0


def test_the_package_counts_its_sources_as_the_check_does(tmp_path, monkeypatch):
    files = {
        path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in PACKAGE.rglob("*.py")
    }
    assert provenance.digest_of(files) == sources_sha256(PACKAGE)
    folder = tmp_path / "laconic" / "inner"
    folder.mkdir(parents=True)
    (folder / "b.py").write_text("b = 1\n")
    (tmp_path / "laconic" / "a.py").write_text("")
    (tmp_path / "laconic" / "page.css").write_text("none of it")
    named = {"a.py": b"", "inner/b.py": b"b = 1\n"}
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    provenance.at_commit.cache_clear()
    assert provenance.at_commit("HEAD") == provenance.digest_of(named)
    assert provenance.at_commit("HEAD") == sources_sha256(tmp_path / "laconic")
    assert provenance.at_commit("0" * 40) is None
    (folder / "b.py").write_text("b = 2\n")
    sources_sha256.cache_clear()
    assert sources_sha256(tmp_path / "laconic") != provenance.at_commit("HEAD")
    provenance.at_commit.cache_clear()
    sources_sha256.cache_clear()


def test_other_sources_than_the_named_commits_are_named(monkeypatch):
    monkeypatch.setattr(provenance, "at_commit", lambda commit: "one" if commit == "c" else None)
    wrong, counts = [], {"sources": 0, "sources_unknown": 0}
    for said, commit, dirty in (
        ("one", "c", False),
        ("two", "c", None),
        ("two", "c", True),  # it says itself that its files differed
        ("two", "d", False),  # git does not have that commit
    ):
        made = {"sources_sha256": said, "commit": commit, "dirty": dirty}
        provenance._sources("folder", {"provenance": made}, wrong, counts)
    assert wrong == ["folder: its sources are not those of c, as is said of it"]
    assert counts == {"sources": 2, "sources_unknown": 1}


def test_an_optimizers_hash_is_the_packages():
    for name in published():
        path = provenance.WEIGHTS / f"{name}.safetensors"
        assert provenance.optimizer_digest(path) == load(name).sha256
