"""How numbers are written, and a table as Markdown, for terminals and in a page."""

import io
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from laconic.show import page
from laconic.show import table as texts
from laconic.show.curves import Style
from laconic.show.table import Table

# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, "–"), (0, "0 s"), (0.00032, "0.32 ms"), (0.32, "320 ms"), (0.9996, "1 s")),
        *((3.2, "3.2 s"), (59.4, "59 s"), (59.7, "1 min"), (240, "4 min"), (273, "4.5 min")),
        *((3599, "1 h"), (5400, "1.5 h"), (86400 * 2.4, "2.4 d"), (86400 * 1500, "1,500.0 d")),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert texts.duration(seconds) == text


@settings(deadline=None)
@given(st.floats(1e-4, 1e8))
def test_durations_are_within_their_rounding(seconds):
    value, unit = texts.duration(seconds).replace(",", "").split()
    assert math.isclose(float(value) * dict(texts.UNITS)[unit], seconds, rel_tol=0.06)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "–"), (0, "0"), (0.0525, "0.0525"), (0.99961, "1.00"), (2.3, "2.30")),
        *((131.26, "131"), (999.7, "1,000"), (123456.7, "123,457")),
        *((1.5e7, "1.50e+07"), (2.5e-7, "2.50e-07")),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert texts.number(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.0525, 0.0012, "0.0525 ± 0.0012"),
        (0.0525, 0.00001, "0.0525 ± 1e-05"),
        (0.0525, None, "0.0525"),
        (0.0525, 0.0, "0.0525"),
        (None, None, "–"),
        (2.3, 0.04, "2.30 ± 0.04"),
        (1.5e7, 2.0e6, "1.50e+07 ± 2.0e+06"),
    ],
)
def test_errors_share_the_decimals_of_their_value(value, error, text):
    assert texts.with_error(value, error) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.5, "+0.500"), (-31, "−31.0"), (0, "±0")]
)
def test_differences_have_a_sign(value, text):
    assert texts.signed(value) == text


# --- tables ---------------------------------------------------------------------------------------

ROWS = [["A | 1", "x", "1"], ["B", "x <i>", "3"], ["A | 1", "y", "2"]]
GROUPED = Table("T", ["panel", "method", "ours"], ROWS, "n", frozenset({(2, 2)}), 2, grouped=True)


def test_markdown_escapes_what_would_be_markup():
    head, rule, *rows = GROUPED.markdown().splitlines()
    assert (head, rule) == ("| panel | method | ours |", "| --- | --- | ---: |")
    assert rows == ["| A \\| 1 | x | 1 |", "| B | x &lt;i> | 3 |", "| A \\| 1 | y | **2** |"]
    assert GROUPED.markdown(aligned=False).splitlines()[1] == "| --- | --- | --- |"


def test_a_terminal_shows_cells_as_they_are():
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(Table("[b]T", ["name", "loss"], [["[red]x", "0.5"]]))
    shown = console.export_text()
    assert all(text in shown for text in ("[b]T", "name", "[red]x", "0.5"))


def test_a_terminal_shows_the_best_in_bold_and_the_note():
    rows = [["x", "0.5"], ["y", "0.25"]]
    shown = Table("", ["name", "loss"], rows, "Lower [is] better.", frozenset({(1, 1)}))
    file = io.StringIO()
    Console(width=60, force_terminal=True, file=file, color_system="standard").print(shown)
    text = file.getvalue()
    assert "\x1b[1m0.25\x1b[0m" in text
    assert "\x1b[1m0.5" not in text
    assert "Lower [is] better." in text


def shown_at(width, table):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_a_table_fits_its_terminal_without_breaking_a_number(width):
    numbers = ["474", "2.63× ± 0.04", "0.0903 ± 0.0029", "88.0 %", "0.457", "473", "1,473"]
    headers = ["method", "rounds to 0.200", "speedup", "final train loss", "test accuracy"]
    headers += ["test loss", "MB sent", "MB received"]
    rows = [["SlowMo 0.3 / 1.67 / 0.8, top-k 10%", *numbers], ["x" * 90, *numbers]]
    table = Table("T", headers, rows, "A note.", spare=["speedup", "MB sent", "MB received"])
    text = shown_at(width, table)
    assert max(map(len, text.splitlines())) <= width
    left_out = re.findall(r"In a wider terminal also: ([^.]*)", " ".join(text.split()))
    gone = left_out[0].split(", ") if left_out else []
    for name, cell in zip(headers[1:], numbers, strict=True):
        assert (cell in text) == (name not in gone), name
    assert ("MB received" in gone) == (width < 100)
    assert "A note." in text


def test_words_share_a_terminal_that_is_too_narrow_for_them():
    rows = [["lopt-a-fmnist", "a long sentence about it " * 3, "12"], ["日本語" * 20, "x", "3"]]
    text = shown_at(50, Table("", ["name", "summary", "K"], rows, left=2))
    assert all(cell_len(line) <= 50 for line in text.splitlines())
    assert "lopt-a-fmnist" in text
    assert " ".join(text.split()).count("sentence") == 3


def test_rows_that_belong_together_are_a_table_with_their_name_above():
    text = page.html([GROUPED])
    assert re.findall(r"<h5>(.*?)</h5>", text) == ["A | 1", "B"]
    assert text.count("<table") == 2
    assert text.count('<th scope="col">method</th>') == 2
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", text)
    assert [re.sub(r"<[^>]*>", "", row) for row in rows] == ["x1", "y2", "x &lt;i&gt;3"]
    assert text.count('<td class="best">2</td>') == 1
    assert Table("T", ["a"], [["1"]]).groups() == [Table("T", ["a"], [["1"]])]


def test_groups_keep_the_samples_of_their_rows():
    looks = [Style("#000001"), Style("#000002"), Style("#000003")]
    first, second = Table(
        "T", ["g", "m"], [r[:2] for r in ROWS], grouped=True, styles=looks
    ).groups()
    assert (first.styles, second.styles) == ([looks[0], looks[2]], [looks[1]])


def test_blocks_as_markdown():
    blocks = [page.Text("a *b*"), page.Verdict("It won.", ["One seed."]), page.Facts([("x", "1")])]
    blocks += [page.Notes(["p|q"]), page.Command("laconic ```"), page.Panels([]), GROUPED]
    text = page.markdown(blocks, aligned=False)
    assert text.startswith("a \\*b\\*\n\nIt won.\n\n- One seed.\n\n- x: 1\n\n- p\\|q\n\n```\n")
    assert text.count("```") == 2
    assert text.endswith(GROUPED.markdown(aligned=False).strip())


def test_a_picture_is_a_png_and_drawn_when_it_is_needed():
    with pytest.raises(ValueError, match="PNG"):
        page.html([page.Picture(b"", "nothing")])
    png = b"\x89PNG\r\n\x1a\n" + bytes(8) + (800).to_bytes(4, "big")
    text = page.html([page.Picture(lambda: png, "<b>", lambda: png)])
    assert "&lt;b&gt;" in text
    assert (text.count("<source"), text.count("<img")) == (1, 1)
