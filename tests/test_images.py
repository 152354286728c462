"""The pictures of README and docs/ come from records, by the table in docs/images.py."""

import io
import re
import runpy

import numpy as np
import pytest
from PIL import Image

from tests.recorded import PUBLISHED, ROOT

SCRIPT = runpy.run_path(str(ROOT / "docs" / "images.py"), run_name="images")
PICTURES = SCRIPT["PICTURES"]


def test_each_picture_on_a_page_has_its_line_and_each_line_its_picture():
    named = re.findall(r"!\[[^\]]*\]\((?:\.\./|docs/)?images/([\w-]+)\.png\)", PUBLISHED)
    files = [path.stem for path in SCRIPT["IMAGES"].iterdir()]
    assert set(named) == set(PICTURES) == set(files)
    assert sum(path.stat().st_size for path in SCRIPT["IMAGES"].iterdir()) < 700_000


@pytest.mark.parametrize("name", PICTURES)
def test_a_pictures_records_exist(name):
    assert len([*PICTURES[name].path.glob("records.jsonl*")]) == 1


def test_the_methods_shown_are_those_of_readmes_table():
    shown = [x["label"] for x in SCRIPT["chosen"](PICTURES["home"].path) if x["kind"] == "method"]
    assert tuple(shown) == SCRIPT["SHOWN"]
    _, _, table = (ROOT / "README.md").read_text().partition("| method | rounds to train loss")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(shown)


def test_an_unknown_picture_is_one_clear_error(capsys):
    before = {path: path.read_bytes() for path in SCRIPT["IMAGES"].iterdir()}
    assert SCRIPT["main"](["home", "nonesuch"]) == 1
    assert capsys.readouterr().err.startswith("error: no picture is named 'nonesuch'; there are ")
    assert before == {path: path.read_bytes() for path in SCRIPT["IMAGES"].iterdir()}


@pytest.mark.slow
def test_a_picture_drawn_again_is_the_one_on_the_page():
    source = PICTURES["home"]
    again = Image.open(io.BytesIO(source.draw(source.path))).convert("RGB")
    there = Image.open(SCRIPT["IMAGES"] / "home.png").convert("RGB")
    assert again.size == there.size
    apart = np.abs(np.asarray(again, float) - np.asarray(there, float)).mean()
    assert apart < 1.0  # of 255: other versions of the libraries smooth letters otherwise
