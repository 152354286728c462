"""The report of everything: from the repository's own records, and from folders that are broken on
purpose."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from laconic.cli import dispatch
from laconic.errors import LaconicError
from laconic.show.book import MADE_BY, markdown_page, write_book
from laconic.show.book_markdown import marked
from laconic.show.book_page import page, picture
from laconic.show.book_panels import meta_panels, sweep_panel
from laconic.show.book_records import SMOKE_NOTE, collect
from laconic.show.summary import duration
from laconic.store.archive import record_files
from laconic.store.runlog import read
from tests.show.made_up import usual

RESULTS = Path(__file__).parents[2] / "results"
VOID = {"meta", "img", "source", "wbr", "br", "hr", "link", "input"}
COMMAND = "laconic reproduce table-speedup --scale smoke"
ORIGIN = usual(2, 12)[0]["provenance"]


class Page(HTMLParser):
    """What a page holds, and that its tags are balanced and its attributes harmless."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.articles, self.styles = [], [], [], {}, []
        self.tags, self.text = {}, []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.ids += [found["id"]] if "id" in found else []
        self.links += [
            found[name] for name in ("src", "srcset", "href", "xlink:href") if name in found
        ]
        if "style" in found and tag != "svg":
            self.styles.append((found["style"], "scroll" in " ".join(c for _, c in self.open)))
        if tag not in VOID:
            self.open.append((tag, found.get("class") or ""))

    def handle_startendtag(self, tag, attrs):
        if tag in ("path", "g", "svg", "circle", "text", "rect"):  # in SVG a tag may close itself
            self.handle_starttag(tag, attrs)
            self.open.pop()
        else:
            assert tag in VOID, tag
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if not any(tag == "style" for tag, _ in self.open):
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())


def lines(path):
    return read(path)


def written(folder, records):
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def experiment(folder, scale="full"):
    run = {
        "kind": "run",
        "name": "table-speedup",
        "scale": scale,
        "command": COMMAND,
        "provenance": ORIGIN,
    }
    end = {
        "kind": "experiment",
        "name": "table-speedup",
        "title": "Speedup <over> local SGD",
        "rows": [],
    }
    return written(folder, [run, end])


@pytest.fixture(scope="module")
def whole():
    """The page of the repository's own records, made once."""
    text, book = page(collect(RESULTS))
    return text, book.skipped


# --- the repository's own records -----------------------------------------------------------------


def test_every_run_on_record_is_there_with_command_commit_and_device(whole):
    text, skipped = whole
    articles = {}
    for article in text.split("<article ")[1:]:
        name, _, _ = article.partition("<h3>")[2].partition("</h3>")
        articles[name.replace("<wbr>", "")] = article
    nested = ("meta", "reproduce", "missing-workers", "federated-variants", "sweeps")
    files = [
        path
        for path in record_files(RESULTS)
        if len(path.relative_to(RESULTS).parts)
        == 2 + (path.relative_to(RESULTS).parts[0] in nested)
    ]
    assert len(files) >= 21
    unfinished = [
        path
        for path in files
        if not {"summary", "ranking", "experiment"} & {r["kind"] for r in lines(path)}
    ]
    assert sorted(reason.partition(":")[0] for reason in skipped) == sorted(
        path.relative_to(RESULTS).as_posix() for path in unfinished
    )
    for path in set(files) - set(unfinished):
        header, article = lines(path)[0], articles.pop(path.parent.relative_to(RESULTS).as_posix())
        found = Page("<article " + article.partition("</article>")[0] + "</article>").words
        assert " ".join(header["command"].split()) in found
        for part in (
            header["provenance"]["commit"] or "commit–",
            header["provenance"]["device"]["kind"],
        ):
            assert part in found
        assert header["provenance"]["started"] in found
    for path in [*RESULTS.glob("benchmarks/*.json"), *RESULTS.glob("benchmarks/*.jsonl")]:
        record, article = (
            json.loads(
                path.read_text().splitlines()[0] if path.suffix == ".jsonl" else path.read_text()
            ),
            "",
        )
        article = articles.pop(f"benchmarks/{path.stem}")
        origin = record.get("provenance", record)
        assert origin["commit"] in article
        assert origin["device"]["kind"] in article
        script = f"benchmarks/{record['benchmark'].replace('-', '_')}.py"
        command = (
            script
            if (RESULTS.parent / script).is_file()
            else f"laconic bench {record['benchmark']}"
        )
        found = Page("<article " + article.partition("</article>")[0] + "</article>").words
        assert record.get("command", command) in found
    assert not articles


def test_the_page_is_sound_html_that_needs_nothing_else(whole):
    found = Page(whole[0])
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#")} == set(found.ids)
    assert not {"script", "link", "iframe", "object", "use", "image"} & set(found.tags)
    assert not re.search(r"url\(|@import", whole[0])
    assert "default-src 'none'" in whole[0]
    assert found.tags["svg"] > 40
    assert found.tags["img"] >= 1


def test_every_plot_has_axes_a_legend_and_bands_where_seeds_are_on_record(whole):
    plots = re.findall(r"<figure>.*?</figure>", whole[0], re.DOTALL)
    assert len(plots) > 40
    with_bands = 0
    for plot in plots:
        y, x = re.search(r'aria-label="[^"]*?: ([^"]*?) against ([^".]*)', plot).groups()
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", plot)
        assert x in texts
        assert y in texts
        assert len(texts) >= 6  # ticks beside the two labels
        assert re.search(r'<ul class="key"><li><svg class="swatch".*?</svg><span>\S', plot)
        with_bands += "opacity: 0.16" in plot
    comparisons = whole[0].partition("<h2>Comparisons</h2>")[2].partition("</section>")[0]
    _, *parts = re.split(r"rounds, (\d+) seeds?</p>", comparisons)
    figures = [
        (int(n), part.count("<figure>")) for n, part in zip(parts[::2], parts[1::2], strict=True)
    ]
    assert all(count > 0 for _, count in figures), figures
    assert (
        sum(n == 1 for n, _ in figures) == 1
    )  # how step lengths do on a small ViT; all else has several seeds
    several = sum(count for n, count in figures if n > 1)
    assert with_bands >= several + whole[0].count("Meta-loss of the runs under way</h3>")


def test_nothing_is_wider_than_a_phone_unless_it_scrolls(whole):
    found = Page(whole[0])
    assert found.styles
    seen = set()
    for style, scrolls in found.styles:
        widths = [float(w) for w in re.findall(r"(?:--least|(?<!max-)width):\s*([\d.]+)px", style)]
        seen |= {scrolls for width in widths if width > 400}
    assert seen == {True}
    sheet = whole[0].partition("<style>")[2].partition("</style>")[0]
    assert all(float(width) <= 400 for width in re.findall(r"(?<!max-)width:\s*([\d.]+)px", sheet))
    assert not re.search(r'<(table|svg|img|div|td|th)[^>]* width="', whole[0])


def test_the_numbers_are_the_records(whole):
    found = Page(whole[0]).words
    summary = lines(RESULTS / "fmnist-learned" / "records.jsonl")[-1]
    for row in summary["rows"]:
        if row["rounds_to_target"] is not None:
            cells = f"{row['label']}{row['rounds_to_target']}{row['speedup']:.3g}"
            assert cells[:-1] in found.replace(" ", "")
    end = lines(RESULTS / "meta" / "lopt-a-fmnist" / "records.jsonl")[-1]
    assert f"{end['best_score']:.3g} at step {end['best_step']:,}" in found
    best = lines(RESULTS / "sweeps" / "fmnist-slowmo" / "records.jsonl")[-1]["best"]
    assert f"The best: {best}" in found
    speed = json.loads((RESULTS / "benchmarks" / "round-h200.json").read_text())
    assert f"{speed['simulator_steps_per_second']:,.6g}" in found


def test_what_is_drawn_of_meta_training_is_what_was_recorded():
    records = lines(RESULTS / "meta" / "lopt-a-fmnist" / "records.jsonl")
    panels = {panel.name: panel for panel in meta_panels(records)}
    assert set(panels) == {"meta-loss", "score", "heldout"}
    raw = np.concatenate([np.asarray(r["loss"])[:, 0] for r in records if r["kind"] == "progress"])
    (loss,) = panels["meta-loss"].curves
    assert len(loss.x) == records[0]["config"]["steps"] == len(raw)
    for t in (1, 49, 50, 777, len(raw)):
        assert loss.y[t - 1] == pytest.approx(raw[max(0, t - 50) : t].mean(), rel=1e-9)
        assert loss.error[t - 1] == pytest.approx(raw[max(0, t - 50) : t].std(), abs=1e-6)
    judged = [r for r in records if r["kind"] == "judged"]
    expected = [r["score"] for r in judged if r["which"] == "theta"]
    np.testing.assert_array_equal(panels["score"].curves[0].y, expected)
    best = min(judged, key=lambda r: r["score"])
    np.testing.assert_array_equal(panels["heldout"].curves[-1].y, best["losses"][0])


def test_the_markdown_page_names_the_same_runs(tmp_path):
    book = collect(RESULTS)
    text = markdown_page(book, tmp_path)
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == [run.name for run in book.runs]
    for run in book.runs:
        assert run.origin.command in text
        assert run.origin.commit in text
    pictures = re.findall(r"!\[.*?\]\(<(.*?)>\)", text)
    assert len(pictures) >= 13
    assert all((tmp_path / path).resolve().is_file() for path in pictures)


# --- experiments, smoke runs and runs inside runs -------------------------------------------------


def test_an_experiment_shows_its_table_and_figure_and_hides_its_parts(tmp_path):
    folder = experiment(tmp_path / "reproduce" / "table-speedup-smoke")
    head = (
        "# Speedup <over> local SGD\n\nA sentence.\n\n**smoke scale: shows that it "
        "works**\n\n![x](figure.png)\n\n"
    )
    (folder / "table.md").write_text(
        head + "| method | ours |\n| --- | ---: |\n| `LOpt-A` | **9.9×** |\n| a\\|b <i> | 1 |\n"
    )
    shutil.copy(RESULTS / "sweeps" / "fmnist-sgd" / "ranking.png", folder / "figure.png")
    written(folder / "panels" / "one", usual(2, 12))
    book = collect(tmp_path)
    assert [(run.name, run.kind, run.smoke) for run in book.runs] == [
        ("reproduce/table-speedup-smoke", "experiment", True)
    ]
    text, book = page(book)
    found = Page(text)
    assert not book.skipped
    for words in (
        COMMAND,
        ORIGIN["commit"],
        "Abacus 3000",
        "Speedup <over> local SGD",
        "a|b <i>",
        SMOKE_NOTE,
    ):
        assert words in found.words
    assert '<td class="best">9.9×</td>' in text
    assert found.tags["img"] == 1
    assert found.words.count("Speedup <over> local SGD") == 1
    assert "![" not in text
    chapter = markdown_page(book, tmp_path)
    assert "| `LOpt-A` | **9.9×** |" in chapter
    assert chapter.count("![") == 1  # the picture by its place, not as the table names it
    assert "(<reproduce/table-speedup-smoke/figure.png>)" in chapter
    assert "# Speedup" not in chapter


def test_an_experiment_took_as_long_as_the_runs_inside_it(tmp_path):
    folder = experiment(tmp_path / "reproduce" / "table")
    assert collect(tmp_path).runs[0].origin.took == "–"
    one = written(folder / "panels" / "one", usual(2, 12))
    meta = {"kind": "summary", "seconds": 7200.0}
    written(folder / "optimizers" / "lopt", [{"kind": "run"}, {"kind": "progress"}, meta])
    seconds = 7200 + sum(
        record["seconds"] for record in lines(one / "records.jsonl") if record["kind"] == "method"
    )
    assert collect(tmp_path).runs[0].origin.took == duration(seconds)


@pytest.mark.parametrize(
    "begun", [[], [{"kind": "run"}], [{"kind": "run"}, {"kind": "point", "seconds": 9.0}]]
)
def test_a_run_under_way_inside_an_experiment_does_not_hide_what_is_done(begun, tmp_path):
    folder = experiment(tmp_path / "table")
    written(folder / "sweeps" / "two", begun)
    book = collect(tmp_path)
    assert [(run.name, run.origin.took) for run in book.runs] == [("table", "–")]
    written(
        folder / "optimizers" / "lopt",
        [{"kind": "progress"}, {"kind": "summary", "seconds": 7200.0}],
    )
    assert collect(tmp_path).runs[0].origin.took == duration(7200)
    assert book.skipped == ()


def test_a_phone_is_given_the_narrow_figure(tmp_path):
    folder = experiment(tmp_path / "table")
    for name in ("figure.png", "figure-narrow.png"):
        shutil.copy(RESULTS / "sweeps" / "fmnist-sgd" / "ranking.png", folder / name)
    found = Page(page(collect(tmp_path))[0])
    assert (found.tags["picture"], found.tags["source"], found.tags["img"]) == (1, 1, 1)
    (folder / "figure-narrow.png").write_bytes(b"GIF89a")
    with pytest.raises(LaconicError, match="no PNG"):
        page(collect(tmp_path))


@pytest.mark.parametrize(
    ("name", "scale", "times"), [("a", "full", 0), ("a-smoke", "full", 1), ("a", "smoke", 1)]
)
def test_only_smoke_runs_are_marked(name, scale, times, tmp_path):
    experiment(tmp_path / "reproduce" / name, scale)
    assert page(collect(tmp_path))[0].count(SMOKE_NOTE) == times


# --- what is broken -------------------------------------------------------------------------------


@pytest.fixture
def good(tmp_path):
    written(tmp_path / "results" / "good", usual(2, 12))
    return tmp_path / "results"


def bad_json(folder):
    folder.mkdir()
    text = "".join(json.dumps(record) + "\n" for record in usual(2, 12))
    (folder / "records.jsonl").write_text(text.replace('"kind": "method"', '"kind": "meth', 1))


def no_run(folder):
    written(folder, usual(2, 12)[1:])


def unfinished(folder):
    written(folder, usual(2, 12)[:-1])


def no_provenance(folder):
    run, *rest = usual(2, 12)
    written(folder, [{**run, "provenance": None}, *rest])


def wrong_curves(folder):
    run, first, *rest = usual(2, 12)
    written(folder, [run, {**first, "train": "none"}, *rest])


def empty(folder):
    written(folder, [])


def not_text(folder):
    folder.mkdir()
    (folder / "records.jsonl").write_bytes(bytes(range(256)) * 4 + b"\n")


@pytest.mark.parametrize(
    "spoil", [bad_json, no_run, unfinished, no_provenance, wrong_curves, empty, not_text]
)
def test_what_is_damaged_is_named_in_one_line_and_skipped(spoil, good, capsys):
    spoil(good / "broken")
    out = good.parent / "report.html"
    assert dispatch(["report", "--results", str(good), "--out", str(out), "--markdown"]) == 0
    text, (said, shown) = out.read_text(), capsys.readouterr()[::-1]
    bar, line = said.splitlines()
    assert bar.startswith("runs ")
    assert line.startswith("skipped: broken/records.jsonl: ")
    assert line.removeprefix("skipped: ") in Page(text).words
    assert line.removeprefix("skipped: ") in " ".join(out.with_suffix(".md").read_text().split())
    assert re.findall(r'<article id="([^"]*)"', text) == ["run-good"]
    assert str(out) in shown


def test_a_broken_benchmark_is_named_too(good):
    (good / "benchmarks").mkdir()
    (good / "benchmarks" / "round.json").write_text("{")
    (good / "benchmarks" / "list.json").write_text("[]")
    (good / "benchmarks" / "notes.txt").write_text("not a record")
    _, book = page(collect(good))
    assert [line.partition(":")[0] for line in book.skipped] == [
        "benchmarks/list.json",
        "benchmarks/round.json",
    ]


def test_a_sweep_without_its_picture_is_drawn_from_its_records(tmp_path):
    run, *rest = lines(RESULTS / "sweeps" / "fmnist-slowmo" / "records.jsonl")
    points = [r for r in rest if r["kind"] == "point" and r["index"] < 11]
    order = [i for i in rest[-1]["order"] if i < 11]
    folder = written(
        tmp_path / "sweep", [{**run, "grid_points": 11}, *points, {**rest[-1], "order": order}]
    )
    assert Page(page(collect(tmp_path))[0]).tags["img"] == 1
    (folder / "ranking.png").write_bytes(b"GIF89a")
    with pytest.raises(LaconicError, match="no PNG"):
        page(collect(tmp_path))


def test_a_sweep_of_one_number_is_a_curve_of_its_points():
    records = lines(RESULTS / "sweeps" / "fmnist-adam" / "records.jsonl")
    panel = sweep_panel(records)
    assert panel is not None
    points = sorted((r["numbers"]["alpha"], r["minimum"]) for r in records if r["kind"] == "point")
    (curve,) = panel.curves
    assert list(zip(curve.x, curve.y, strict=True)) == points
    assert curve.label == "adam, one seed"
    assert (panel.x_label, panel.y_label) == ("alpha", "lowest train loss (10-round mean)")
    spoilt = [{**r, "diverged": [True]} if r.get("index") in (0, 3) else r for r in records]
    spoilt_panel = sweep_panel(spoilt)
    assert spoilt_panel is not None
    assert "2 diverged or never there" in spoilt_panel.curves[0].label
    assert np.isnan(spoilt_panel.curves[0].y).sum() == 2
    assert sweep_panel(lines(RESULTS / "sweeps" / "fmnist-slowmo" / "records.jsonl")) is None


@pytest.mark.parametrize("there", [True, False])
def test_nothing_to_report_is_one_clear_error(there, tmp_path, raises_clearly):
    if there:
        (tmp_path / "none").mkdir()
    with raises_clearly(str(tmp_path / "none"), "records" if there else "no folder"):
        write_book(tmp_path / "none", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_nothing_but_damage_is_an_error_that_names_it(tmp_path, raises_clearly):
    bad_json(tmp_path / "broken")
    with raises_clearly("broken/records.jsonl", "line 2"):
        write_book(tmp_path, tmp_path / "report.html")


# --- the files ------------------------------------------------------------------------------------


def test_an_older_report_is_replaced_and_any_other_file_is_not(good, raises_clearly):
    out = good.parent / "report.html"
    paths, _ = write_book(good, out, markdown=True)
    assert paths == [out, out.with_suffix(".md")]
    first = out.read_bytes()
    write_book(good, out, markdown=True)
    assert out.read_bytes() == first
    out.write_text("mine")
    with raises_clearly(str(out)):
        write_book(good, out)
    assert out.read_text() == "mine"
    out.unlink()
    out.with_suffix(".md").write_text(f"mine{' ' * 3000}{MADE_BY}")
    with raises_clearly("report.md"):
        write_book(good, out, markdown=True)
    assert not out.exists()
    with raises_clearly(".html"):
        write_book(good, good.parent / "page.md")


def test_drawing_is_told_run_by_run_and_shown_as_a_bar(good, capsys):
    told = []
    write_book(good, good.parent / "page.html", tell=lambda name, total: told.append((name, total)))
    runs = [run.name for run in collect(good).runs]
    assert told == [(name, len(runs)) for name in runs]
    assert (
        dispatch(["report", "--results", str(good), "--out", str(good.parent / "page.html")]) == 0
    )
    said = capsys.readouterr()
    assert f"{len(runs)}/{len(runs)}" in said.err
    assert said.out == f"report: {(good.parent / 'page.html').resolve()}\n"


def test_hostile_names_stay_text(tmp_path):
    run, *rest = usual(2, 12, labels=("local-sgd", "<script>alert(1)</script>"))
    run = {**run, "command": "laconic compare '</pre><script>x</script>' ```"}
    written(tmp_path / "<b>&", [run, *rest])
    found = Page(page(collect(tmp_path))[0])
    assert "script" not in found.tags
    assert "<script>alert(1)</script>" in found.words
    assert markdown_page(collect(tmp_path), tmp_path).count("```") == 2


def test_little_markdown():
    text = marked(
        "# Title <x>\n\nsome `code`\nand **bold**\n\n- one\n  more\n- two\n\n| a | b |\n| --- | "
        "--- |\n| 1 | 2 |"
    )
    assert "<h3>Title &lt;x&gt;</h3>" in text
    assert "<p>some <code>code</code> and bold</p>" in text
    assert re.sub(r"\s+", " ", text).count("<li>one more</li><li>two</li>") == 1
    assert "<td>2</td>" in text
    Page(text)
    with pytest.raises(ValueError, match="PNG"):
        picture(b"", "nothing")


@pytest.mark.parametrize(
    ("table", "names", "rows"),
    [
        (
            "| panel | method | ours |\n|---|---|---|\n| A \\| 1 | x | 1 |\n| A \\| 1 | y | **2** "
            "|\n| B | x | 3 |",
            ["A | 1", "B"],
            ["x1", "y2", "x3"],
        ),
        (
            "| configuration | ours |\n|---|---|\n| P: 1, loss: x | 1 |\n| Q: 2, loss: x | 3 |\n| "
            "P: 1, loss: y | 2 |",
            ["P: 1, loss", "Q: 2, loss"],
            ["x1", "y2", "x3"],
        ),
    ],
)
def test_rows_that_belong_together_are_a_table_with_their_name_above(table, names, rows):
    text = marked(table, level=4)
    Page(text)
    assert [name.replace("<wbr>", "") for name in re.findall(r"<h5>(.*?)</h5>", text)] == names
    assert text.count("<table") == 2
    assert text.count('<th scope="col">method</th>') == 2
    found = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", text)
    assert [re.sub(r"<[^>]*>", "", row) for row in found] == rows
