import itertools
import re
import struct
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from laconic.show import comparison as report
from laconic.show import curves, table
from laconic.show.page import CSS
from laconic.show.summary import methods_of, summary_table
from laconic.show.verdict import notes, verdict
from tests.show.html import Page
from tests.show.made_up import (
    DENSE,
    LABELS,
    LINK,
    STEP,
    comparison,
    diverging,
    oracle_smooth,
    usual,
)

# --- files ----------------------------------------------------------------------------------------


def test_files_are_whole_alone_and_the_same_again(tmp_path):
    records = usual(link=LINK)
    paths = report.write_report(tmp_path, records)
    assert [path.name for path in paths] == ["curves.png", "curves.svg", "report.html"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    png = paths[0].read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG")
    assert width > 1800 < 6 * height
    pixels = (imread(BytesIO(png))[..., :3] * 255).round().astype(int) @ [65536, 256, 1]
    assert np.sum(pixels == 0xFFFFFF) > 0.5 * pixels.size
    for colour in ("#0072b2", "#d55e00", "#009e73", "#cc79a7", curves.INK):
        assert np.sum(pixels == int(colour[1:], 16)) > 200, colour
    assert ElementTree.parse(paths[1]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    before = [path.read_bytes() for path in paths]
    report.write_report(tmp_path, records)
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("kind", ["run", "method", "summary"])
def test_unfinished_records_are_refused_and_nothing_is_written(kind, tmp_path, raises_clearly):
    with raises_clearly(repr(kind), "finish"):
        report.write_report(tmp_path, [r for r in usual(rounds=20) if r["kind"] != kind])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "label", ["_hidden", "$x^$", "日本語 🚀", "a\x00\x1bb\ud800", "x" * 300, "", "<script>"]
)
def test_any_label_can_be_drawn_and_written(label, tmp_path):
    records = usual(seeds=2, rounds=25, labels=("local-sgd", label))
    png, svg, page = report.write_report(tmp_path, records)
    assert png.stat().st_size > 10_000
    text = " ".join("".join(ElementTree.parse(svg).getroot().itertext()).split())
    shown = " ".join(curves.drawable(label).split())
    assert (shown if len(label) < 50 else "x" * 43 + "…") in text
    assert "local-sgd" in page.read_text(encoding="utf-8")


# --- the page -------------------------------------------------------------------------------------

FORBIDDEN = "script link img iframe object embed base form image use foreignobject"


def assert_self_contained(text):
    page = Page(text)
    used = {tag for tag, _ in page.tags}
    assert not used & set(FORBIDDEN.split())
    for tag, attributes in page.tags:
        assert not {"src", "href", "xlink:href", "action", "srcset", "id"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    for forbidden in ("url(", "@import", "http://", "https://", "javascript:"):
        assert forbidden not in text
    return page


def cases():
    one = usual(seeds=1)
    compressed = usual(link=LINK)
    compressed[2]["traffic"]["sent_bits"] = DENSE // 50
    return {
        "link": usual(link=LINK),
        "compressed": compressed,
        "diverged": diverging(),
        "one seed": one,
        "no test": usual(heldout=()),
        "no reference": comparison(usual()[1:-1], reference=None),
        "target": comparison(usual()[1:-1], target=0.5),
        "no step time": usual(link=LINK, step_seconds=None),
        "one method": usual(labels=LABELS[:1]),
    }


@pytest.mark.parametrize("name", cases())
def test_the_page_stands_alone_and_holds_every_method_and_number(name):
    records = cases()[name]
    page = assert_self_contained(report.report_page(records))
    shown = summary_table(records)
    assert page.tables[0] == [shown.headers, *shown.rows]
    assert verdict(records) in page.text.replace("\xa0", " ")
    for note in notes(records):
        assert note in page.text
    assert not re.search(r"\b(null|nan|NaN|None|inf)\b", page.text)
    drawings = [a["aria-label"] for tag, a in page.tags if tag == "svg" and a.get("role") == "img"]
    assert len(drawings) == len(report.panels(records)) + (name == "compressed")
    for drawing in drawings:
        assert all(method["label"] in drawing for method in methods_of(records))
    assert page.values("lang") == ["en"]
    assert {a.get("scope") for tag, a in page.tags if tag == "th"} == {"col", "row"}


def test_the_page_says_where_the_numbers_come_from():
    text = Page(report.report_page(usual(link=LINK))).text
    origins = ["109,386 parameters", "bundled digits", "laconic 0.1.0", "optax –", "6.2 min"]
    origins += ["2 × Abacus 3000 (gpu), 16 CPU cores", "2031-02-03T04:05:06+00:00"]
    origins += ["3f2c9a7d5e5b0c0d, with uncommitted changes"]
    said = ["laconic compare --rounds 300 --seeds 10", "95 % interval over seeds"]
    for part in [*origins, *LABELS, *said]:
        assert part in text
    records = usual()
    records[0]["provenance"] |= {"commit": None, "dirty": None}
    assert "with uncommitted changes" not in report.report_page(records)


def test_a_population_is_told_in_words_and_left_out_if_there_is_none():
    records = usual()
    records[0]["config"]["federated"] = {"clients": 0, "alpha": None, "epochs": 1}
    assert "federated" not in Page(report.report_page(records)).text
    records[0]["config"]["federated"] |= {"clients": 40, "alpha": 0.1, "dropout": 0.2}
    text = Page(report.report_page(records)).text
    assert "clients=40, alpha=0.1, dropout=0.2" in text
    assert "{" not in text


def test_times_on_the_link_match_rounds_times_the_seconds_of_a_round():
    records = usual(link=LINK)
    records[2] |= {"step_seconds": None}
    head, *body = Page(report.report_page(records)).tables[1]
    target = records[-1]["target_loss"]
    losses = [target if "target" in name else float(name.removeprefix("to ")) for name in head[2:]]
    assert losses == sorted(losses, reverse=True)
    assert target in losses
    assert len(losses) in (4, 5, 6)
    per_round = 4 * STEP + 2 * 0.02 + 2 * DENSE / 1e8
    assert body[1][1:] == ["–"] * (1 + len(losses))
    for method, row in zip(records[1:-1], body, strict=True):
        if method["step_seconds"] is not None:
            smooth = oracle_smooth(np.mean(method["train"], axis=0))
            rounds = [
                next((t + 1 for t in range(9, 120) if smooth[t] <= loss * (1 + 1e-12)), None)
                for loss in losses
            ]
            expected = [None if n is None else n * per_round for n in rounds]
            assert row[1:] == [table.duration(per_round), *map(table.duration, expected)]
    assert "worth on a" not in report.report_page(usual())
    assert "worth on a" not in report.report_page(usual(link=LINK, step_seconds=None))


NASTY = "<script>alert('x')</script>\"&\"><img src=x onerror=alert(1)>"


def test_everything_from_outside_is_escaped():
    records = usual(labels=("local-sgd", NASTY), rounds=30, link=LINK)
    run = records[0]
    run["command"] = run["task"]["source"] = run["task"]["name"] = run["config"]["compress"] = NASTY
    run["provenance"] |= {"commit": NASTY, "started": NASTY, "versions": {NASTY: NASTY}}
    run["provenance"]["device"] |= {"kind": NASTY, "platform": NASTY}
    records[2]["traffic"]["topology"] = NASTY
    page = assert_self_contained(report.report_page(records))
    pre, title = (
        next(data for tag, data in page.texts if tag == kind) for kind in ("pre", "title")
    )
    assert pre == NASTY
    assert title == f"{NASTY} – laconic compare"
    assert page.text.count(NASTY) >= 12
    assert page.tables[0][2][0] == NASTY


def test_the_command_can_be_copied_letter_for_letter():
    records = usual(rounds=20)
    records[0]["command"] = (
        "laconic compare --task 'a  b' --optimizers slowmo:gamma=0.1 --on-nan continue  --x=--y"
    )
    text = report.report_page(records)
    page = Page("<pre>" + text.partition("<pre>")[2].partition("</pre>")[0] + "</pre>")
    assert page.text == records[0]["command"]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_light_and_dark():
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in CSS.split("@media", 2)[:2]
    )
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        for text, behind in itertools.product(("ink", "muted"), ("page", "card", "best")):
            low, high = sorted((luminance(theme[text]), luminance(theme[behind])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)
        for drawn in ("blue", "mark"):
            low, high = sorted((luminance(theme[drawn]), luminance(theme["card"])))
            assert (high + 0.05) / (low + 0.05) >= 3


def test_the_page_fits_a_phone_and_follows_the_theme():
    text = report.report_page(usual(rounds=20))
    page = Page(text)
    views = [found["content"] for _, found in page.tags if found.get("name") == "viewport"]
    assert views == ["width=device-width, initial-scale=1"]
    assert text.count("prefers-color-scheme: dark") == 1
    assert page.count("table") == text.count('class="scroll" role="region"')
    # ink in figures is the page's own, so it shows in the dark
    assert curves.INK not in text.partition("</style>")[2]
