"""The report as a browser lays it out, on a phone and on a desk: nothing fetched, nothing cut off,
letters to read.

The page may run no scripts, so another page holds it in frames of both widths, measures it there
and writes down what it found.
"""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from laconic.cli import dispatch
from laconic.show.figures import png_bytes
from laconic.show.page import Notes, Picture, Text
from laconic.show.report import report_folder
from laconic.show.sweep import sweep_figure
from laconic.show.table import Table
from laconic.store.records import read
from tests.show.made_up import usual

RESULTS = Path(__file__).parents[2] / "results"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path is not None), None)
PHONE, DESK = 390, 1280
SMALLEST = 10.0  # CSS pixels: the size of letters in a plot

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser is installed here (one of {', '.join(BROWSERS)})"
)

MEASURE = """<!DOCTYPE html><meta charset="utf-8"><title>measured</title>
<body style="margin:0"><script>
const found = {}, widths = [WIDTHS]; let left = widths.length;
const hidden = node => node.getClientRects().length === 0;
const inBox = node => node.closest('.scroll') !== null;
function measure(width, frame) {
  frame.contentDocument.querySelectorAll('details').forEach(folded => { folded.open = true; });
  const page = frame.contentDocument, root = page.documentElement,
    all = [...page.querySelectorAll('body *')];
  found[width] = {
    viewport: root.clientWidth, whole: root.scrollWidth, height: root.scrollHeight,
      title: page.title,
    out: all.filter(n => !hidden(n) && !inBox(n) &&
      n.getBoundingClientRect().right > root.clientWidth + 0.5)
      .map(n => n.tagName + ' ' + n.textContent.trim().slice(0, 60)).slice(0, 5),
    fetched: frame.contentWindow.performance.getEntriesByType('resource').map(e => e.name)
      .filter(name => !name.startsWith('data:')),
    images: [...page.images].map(i => ({loaded: i.complete && i.naturalWidth > 0,
      pixels: i.naturalWidth,
      width: i.getBoundingClientRect().width, box: i.closest('.scroll').clientWidth})),
    plots: [...page.querySelectorAll('figure')].map(f => ({name: f.querySelector('h3').textContent,
      key: [...f.querySelectorAll('.key li')].filter(n => !hidden(n)).length,
      letters: Math.min(...[...f.querySelectorAll('svg[role=img] text')].map(t => {
        const svg = t.ownerSVGElement,
          scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return scale * parseFloat(frame.contentWindow.getComputedStyle(t).fontSize); }))})),
    over: [...page.querySelectorAll('th .name span')].filter(n =>
      n.getBoundingClientRect().right > n.closest('th').getBoundingClientRect().right)
      .map(n => n.textContent),
    boxes: [...page.querySelectorAll('.scroll')].map(n => ({inside: n.scrollWidth,
      box: n.clientWidth})),
  };
  if (--left === 0) {
    const text = document.createElement('pre');
    text.id = 'found';
    text.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
    document.body.append(text);
  }
}
for (const width of widths) {
  const frame = document.createElement('iframe');
  frame.style = `width: ${width}px; height: 3000px; border: 0`;
  frame.onload = () => measure(width, frame);
  frame.src = 'report.html';
  document.body.append(frame);
}
</script></body>
"""


def browse(folder, *words):
    """The browser's stdout; the network is shut off, so that whatever is needed must be in the
    page."""
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
    ]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--allow-file-access-from-files",
        "--proxy-server=127.0.0.1:9",
    ]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(folder):
    (folder / "measure.html").write_text(MEASURE.replace("WIDTHS", f"{PHONE}, {DESK}"))
    out = browse(
        folder, "--virtual-time-budget=20000", "--dump-dom", (folder / "measure.html").as_uri()
    )
    text = re.search(r'<pre id="found">([^<]*)</pre>', out)
    assert text is not None, out[-2000:]
    return {int(width): page for width, page in json.loads(base64.b64decode(text[1])).items()}


def experiment(folder):
    """Records of an experiment whose command is hard to fit."""
    folder.mkdir(parents=True)
    run = {"kind": "run", "name": "made-up", "scale": "smoke", "command": f"laconic {'x' * 300}"}
    run |= {"provenance": usual(2, 12)[0]["provenance"]}
    end = {"kind": "experiment", "name": "made-up", "title": "A title that is " + "long " * 30}
    lines = (json.dumps(record) + "\n" for record in (run, end))
    (folder / "records.jsonl").write_text("".join(lines))


def shown(records, folder):
    """What is hard to fit: long words, a wide table, a wide figure and its narrow twin."""
    row = ["a method", *(["0.123 ± 0.004"] * 12)]
    headers = ["panel", "method", *(f"a column {i}" for i in range(12))]
    table = Table("T", headers, [[f"Panel {g}", *row] for g in (1, 2)], grouped=True)
    note = f"Data: sha256:{'0123456789abcdef' * 8}."
    wide, narrow = (
        png_bytes(sweep_figure(read(RESULTS / "sweeps" / name / "records.jsonl")))
        for name in ("fmnist-slowmo", "fmnist-adam")
    )
    figure = Picture(wide, "a figure", narrow)
    return [Text(records[-1]["title"], "lead"), table, Notes([note]), figure]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """What the browser found at each width, for a run of every kind; measured once."""
    folder = tmp_path_factory.mktemp("browser")
    comparisons, sweeps = (
        ("fmnist-compress", "fmnist-learned"),
        ("sweeps/fmnist-slowmo", "sweeps/fmnist-adam"),
    )
    for name in (*comparisons, *sweeps, "meta/lopt-a-digits"):
        shutil.copytree(RESULTS / name, folder / "results" / name)
    shutil.copytree(RESULTS / "benchmarks", folder / "results" / "benchmarks")
    shutil.copy(RESULTS / "README.md", folder / "results")
    experiment(folder / "results" / "reproduce" / "made-up")
    _, skipped = report_folder(
        folder / "results", folder / "report.html", renderers={"experiment": shown}
    )
    assert not skipped
    return measured(folder)


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_never_scrolls_sideways(pages, width):
    page = pages[width]
    assert page["title"] == "laconic: all results"
    assert page["viewport"] == width
    assert page["out"] == []
    assert page["whole"] == width
    assert page["height"] > 5000


def test_what_is_wide_scrolls_in_a_box_of_its_own(pages):
    wide = [box for box in pages[PHONE]["boxes"] if box["inside"] > box["box"]]
    assert len(wide) >= 6
    assert all(box["box"] < PHONE for box in pages[PHONE]["boxes"])


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_no_name_of_a_row_covers_its_numbers(pages, width):
    assert pages[width]["over"] == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_is_fetched_and_every_picture_is_there(pages, width):
    assert pages[width]["fetched"] == []
    assert len(pages[width]["images"]) == 2
    assert all(image["loaded"] for image in pages[width]["images"])


def test_a_phone_shows_the_narrow_figure_whole_and_a_desk_the_wide_one(pages):
    (on_phone, _), (on_desk, _) = (pages[width]["images"] for width in (PHONE, DESK))
    assert on_phone["pixels"] < on_desk["pixels"]
    assert on_phone["width"] <= on_phone["box"]


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_every_plot_can_be_read(pages, width):
    plots = pages[width]["plots"]
    assert len(plots) >= 8
    small = {plot["name"]: plot["letters"] for plot in plots if plot["letters"] < SMALLEST}
    assert not small
    if width == PHONE:  # on a desk the plots of a comparison stand under one legend
        assert all(plot["key"] >= 1 for plot in plots)


@pytest.mark.slow
def test_the_report_of_everything_on_record_is_small_and_fits_a_phone(tmp_path):
    out = tmp_path / "report.html"
    assert dispatch(["report", "--results", str(RESULTS), "--out", str(out)]) == 0
    assert out.stat().st_size < 3_000_000
    for width, page in measured(tmp_path).items():
        assert (page["out"], page["whole"], page["over"]) == ([], width, [])
        assert all(image["loaded"] for image in page["images"])


def test_the_measuring_sees_a_page_that_is_too_wide(tmp_path):
    wide, image = (
        '<p style="width: 600px">wide</p>',
        '<img src="https://example.invalid/x.png" class="scroll">',
    )
    (tmp_path / "report.html").write_text(f"<!DOCTYPE html><title>x</title>{wide}{image}")
    page = measured(tmp_path)[PHONE]
    assert page["whole"] > page["viewport"] == PHONE
    assert page["out"][0].startswith("P wide")
    assert [image["loaded"] for image in page["images"]] == [False]
    assert page["fetched"] == ["https://example.invalid/x.png"]
