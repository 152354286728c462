"""The short tables of the results pages are made of the records, and the appendix pages too."""

import importlib.util
import re

import pytest

from tests.recorded import PUBLISHED, ROOT

spec = importlib.util.spec_from_file_location("appendix", ROOT / "docs" / "appendix.py")
assert spec is not None
assert spec.loader is not None
appendix = importlib.util.module_from_spec(spec)
spec.loader.exec_module(appendix)
PAGES = appendix.pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_appendix_is_what_the_records_give(name):
    assert (ROOT / "docs" / "results" / name).read_text() == PAGES[name]


def cells_of(name: str, table: int = 0) -> list[list[str]]:
    """The formatted rows of an experiment's table."""
    folder = ROOT / "results" / "reproduce" / f"{name}-full"
    lines = appendix.experiment_tables(folder)[table].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def beside(ours: str, paper: str) -> str:
    """A number with the paper's in brackets, both without their errors and
    intervals."""
    short = re.split(r" ±| \[", ours)[0]
    return f"{short} ({paper.partition(' ±')[0]})" if paper.strip(" –") else short


def across(name: str, column: int, labels: list[str], panels: dict[str, str]) -> str:
    """A row a method and a column a panel; the paper's number is in the next column."""
    found = {(row[0], row[1]): beside(row[column], row[column + 1]) for row in cells_of(name)}
    rows = [[label, *(found[panel, label] for panel in panels)] for label in labels]
    return appendix.markdown(["method", *panels.values()], rows)


def speedups() -> str:
    panels = {
        "Fashion-MNIST, 2-layer MLP": "Fashion-MNIST, MLP",
        "CIFAR-10, 2-layer MLP": "CIFAR-10, MLP",
        "ImageNet at 32×32, 3-layer MLP": "Tiny-ImageNet, MLP",
        "average of the columns here": "average of these three",
        "CIFAR-10, CNN": "CIFAR-10, CNN",
    }
    return across("table-speedup", 2, ["SlowMo", "Adam", "LOpt-A", "LAgg-A"], panels)


def rounds() -> str:
    labels = ["Local SGD", "SlowMo", "Adam", "SGD (K·H steps)", "LOpt-A", "LAgg-A"]
    return across("table-rounds", 2, labels, {f"H = {H}": f"H = {H}" for H in (4, 8, 16)})


def large() -> str:
    labels = ["SlowMo", "Adam", "SGD (K·H steps)", "LOpt-A (general)", "LOpt-A", "LAgg-A"]
    panels = {"ResNet-50": "ResNet-50", "ViT of DeiT-tiny's size": "ViT"}
    return across("fig-large", 2, labels, panels | {"Decoder, 12 layers": "decoder"})


def overhead() -> str:
    cells = cells_of("table-overhead")
    models = list(dict.fromkeys(row[0] for row in cells))
    rows = [
        [
            model,
            label,
            *(beside(row[7], row[8]) for row in cells if row[0] == model and row[2] == label),
        ]
        for model in models
        for label in ("LOpt-A", "LAgg-A")
    ]
    return appendix.markdown(["model", "method", *(f"H = {H}" for H in (8, 16, 32, 64))], rows)


def accuracies() -> str:
    """The best baseline of each setting and window beside FedLOpt."""
    ours = ("FedLOpt", "FedLOpt (tuned)")
    cells = cells_of("fig-federated")
    rows = []
    for panel in dict.fromkeys(row[0] for row in cells):
        here = [row for row in cells if row[0] == panel]
        for window, column in (("181–200", 2), ("951–1000", 3)):
            best = max((row for row in here if row[1] not in ours), key=lambda row: row[column])
            learned = [next(row[column] for row in here if row[1] == label) for label in ours]
            rows.append([panel, window, f"{best[1]}, {best[column]}", *learned])
    headers = ["setting", "rounds", "best tuned baseline", "FedLOpt, as published", ours[1]]
    return appendix.markdown(headers, rows)


TABLES = {f.__name__: f for f in (speedups, rounds, large, overhead, accuracies)}


@pytest.mark.parametrize("name", TABLES)
def test_a_short_table_shows_the_records(name):
    assert TABLES[name]() in PUBLISHED


CLAIMS = ROOT / "docs" / "results.md"
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+? \| \[.+?\]\((\S+?)\) \|$", CLAIMS.read_text(), re.M)


def test_the_page_of_claims_begins_with_what_is_missing():
    headings = re.findall(r"^## (.*)$", CLAIMS.read_text(), re.M)
    assert headings[0] == "What was not run, and what was not reproduced"
    assert len(ROWS) >= 15


@pytest.mark.parametrize(("claim", "numbers", "link"), ROWS)
def test_a_claims_numbers_are_on_its_page(claim, numbers, link):
    page = (CLAIMS.parent / link.partition("#")[0]).read_text()
    for number in re.findall(r"\d[\d.]*\d|\d", numbers):
        assert number in page, f"{claim}: {number}"


def test_the_papers_numbers_stand_beside_ours():
    page = (ROOT / "docs" / "results" / "not-reproduced.md").read_text()
    assert appendix.beside_the_paper() in page


def test_the_flower_page_shows_what_attackers_leave():
    assert appendix.attacks() in (ROOT / "docs" / "flower.md").read_text()
