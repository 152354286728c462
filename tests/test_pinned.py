"""Published numbers stay: those that records lead to, and those that tables print."""

import math

import pytest

from tests.claims import all_claims, differences, numbers_in, pinned, printed_rows, rows_in, write

FIRST = 10  # differences to name


def test_records_lead_to_the_numbers_they_led_to():
    found = differences(pinned()[0], all_claims())
    assert not found, f"{len(found)} claims, among them:\n" + "\n".join(found[:FIRST])


def test_tables_still_print_the_numbers_they_printed():
    gone = sorted(pinned()[1] - printed_rows())
    first = "\n".join(" ‖ ".join((*row[:2], " ".join(row[2]))) for row in gone[:FIRST])
    assert not gone, f"{len(gone)} rows are in no table any more, among them:\n{first}"


def test_what_is_written_is_read_back(tmp_path):
    claims = {"a: loss": 0.1 + 0.2, "a: rounds to 1": math.nan, "a: bits": 2**40}
    rows = {("method | loss", "sgd", ("0.3", "1000"))}
    write(tmp_path / "pins", claims, rows)
    assert differences(pinned(tmp_path / "pins")[0], claims) == []
    assert pinned(tmp_path / "pins")[1] == rows


def test_differences_are_named():
    before = {"same": math.nan, "gone": 1.0, "moved": 1.0, "close": 1.0, "lost": 2.0}
    now = {
        "same": math.nan,
        "new": 3.0,
        "moved": 1.0 + 1e-9,
        "close": 1.0 + 1e-14,
        "lost": math.nan,
    }
    found = differences(before, now)
    assert [line.split()[1] for line in found] == ["gone", "moved", "lost", "new"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,234 ± 0.5 | 10.5× | 88.6 %", ["0.5", "10.5", "1234", "88.6"]),
        ("−0.03 | +2 | 1e-05 | –", ["-0.03", "1e-05", "2"]),
        ("lopt-a-h16, mlp2", []),
    ],
)
def test_numbers_are_found_in_text(text, numbers):
    assert numbers_in(text) == numbers


def test_rows_are_known_by_header_and_first_cell():
    table = "| [a](x.md) | **b** |\n| --- | ---: |\n| `m` | **0.5** |\n| n | see 3 |\n"
    page = f"{table}\ntext\n| no | 1 |"
    assert list(rows_in(page)) == [("a | b", "m", ("0.5",))]
