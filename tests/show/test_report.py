"""The report of everything: from the repository's own records, and from folders that are broken on
purpose."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from laconic.cli import dispatch
from laconic.errors import LaconicError
from laconic.reproduce.outcome import experiment_blocks
from laconic.show.figures import png_bytes
from laconic.show.labels import labels_of
from laconic.show.meta import panels as meta_panels
from laconic.show.page import Notes, Picture, Text, thinned
from laconic.show.report import (
    MADE_BY,
    SMOKE_NOTE,
    collect,
    html_page,
    markdown_page,
    report_folder,
)
from laconic.show.sweep import line_panel, sweep_figure
from laconic.show.table import Table, duration
from laconic.store.archive import record_files
from laconic.store.records import read
from tests.show.html import LINKS, Page
from tests.show.made_up import usual

RESULTS = Path(__file__).parents[2] / "results"
COMMAND = "laconic reproduce table-speedup --scale smoke"
ORIGIN = usual(2, 12)[0]["provenance"]


def text_of(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def written(folder, records):
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text(text_of(records))
    return folder


def experiment(folder, scale="full"):
    run = {"kind": "run", "scale": scale, "command": COMMAND, "provenance": ORIGIN}
    end = {"kind": "experiment", "title": "Speedup <over> local SGD", "rows": []}
    return written(folder, [{"name": "table-speedup", **record} for record in (run, end)])


@pytest.fixture(scope="module")
def whole():
    """The page of the repository's own records, made once."""
    text, report = html_page(collect(RESULTS))
    return text, report.skipped


# --- the repository's own records -----------------------------------------------------------------


def test_every_run_on_record_is_there_with_command_commit_and_device(whole):
    text, skipped = whole
    articles = {}
    for article in text.split("<article>")[1:]:
        name, _, _ = article.partition("<h3>")[2].partition("</h3>")
        whole_article = f"<article>{article.partition('</article>')[0]}</article>"
        articles[name.replace("<wbr>", "")] = Page(whole_article).words
    nested = ("meta", "reproduce", "missing-workers", "federated-variants", "sweeps")
    below = [path.relative_to(RESULTS) for path in record_files(RESULTS)]
    files = [path for path in below if len(path.parts) == 2 + (path.parts[0] in nested)]
    assert len(files) >= 21
    ends = {"summary", "ranking", "experiment"}
    unfinished = [p for p in files if not ends & {r["kind"] for r in read(RESULTS / p)}]
    named = sorted(reason.partition(":")[0] for reason in skipped)
    assert named == sorted(path.as_posix() for path in unfinished)
    for path in set(files) - set(unfinished):
        header, found = read(RESULTS / path)[0], articles.pop(path.parent.as_posix())
        assert " ".join(header["command"].split()) in found
        origin = header["provenance"]
        for part in (origin["commit"] or "commit–", origin["device"]["kind"], origin["started"]):
            assert part in found
    for path in [*RESULTS.glob("benchmarks/*.json"), *RESULTS.glob("benchmarks/*.jsonl")]:
        text = path.read_text()
        record = json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)
        found = articles.pop(f"benchmarks/{path.stem}")
        origin = record.get("provenance", record)
        command = f"benchmarks/{record['benchmark'].replace('-', '_')}.py"
        if not (RESULTS.parent / command).is_file():
            command = f"laconic bench {record['benchmark']}"
        for part in (origin["commit"], origin["device"]["kind"], record.get("command", command)):
            assert part in found
    assert not articles


def test_the_page_is_sound_html_that_needs_nothing_else(whole):
    found = Page(whole[0])
    ids, links = found.values("id"), found.values(*LINKS)
    assert len(ids) == len(set(ids))
    assert all(link.startswith(("data:image/webp;base64,",)) for link in links)
    assert not {"script", "link", "iframe", "object", "use", "image"} & {t for t, _ in found.tags}
    assert not re.search(r"url\(|@import", whole[0])
    assert "default-src 'none'" in whole[0]
    assert found.count("svg") > 40
    assert found.count("img") >= 1


def test_the_page_is_small_opens_with_the_headline_and_folds_the_rest(whole):
    text, _ = whole
    assert len(text.encode()) < 2_900_000
    opening = text[: text.index("<details>")]
    assert re.findall(r"<article><h3>(.*?)</h3>", opening) == [
        "fmnist-fresh",
        "reproduce/<wbr>table-speedup-full",
    ]
    assert "<figure>" in opening
    assert text.count("<details>") == text.count("<article>") - 2


def test_a_thinned_line_stays_within_its_tolerance():
    rng = np.random.default_rng(0)
    points = np.stack([np.arange(500.0), np.cumsum(rng.normal(size=500))], axis=1)
    kept = thinned(points, 0.7)
    assert len(kept) < 400
    off = np.abs(np.interp(points[:, 0], *kept.T) - points[:, 1])
    slope = np.interp(points[:-1, 0], kept[:-1, 0], np.diff(kept[:, 1]) / np.diff(kept[:, 0]))
    assert off.max() < 0.7 * np.sqrt(1 + np.abs(slope).max() ** 2) + 1e-9
    assert (kept[[0, -1]] == points[[0, -1]]).all()


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
        with_bands += "opacity:0.16" in plot
    comparisons = whole[0].partition("<h2>Comparisons (")[2].partition("</section>")[0]
    _, *parts = re.split(r"rounds, (\d+) seeds?</p>", comparisons)
    figures = [
        (int(n), part.count("<figure>")) for n, part in zip(parts[::2], parts[1::2], strict=True)
    ]
    assert all(count > 0 for _, count in figures), figures
    # how step lengths do on a small ViT; all else has several seeds
    assert sum(n == 1 for n, _ in figures) == 1
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
    summary = read(RESULTS / "fmnist-learned" / "records.jsonl")[-1]
    shown = labels_of(row["label"] for row in summary["rows"])
    for row in summary["rows"]:
        if row["rounds_to_target"] is not None:
            label = shown[row["label"]].replace(" ", "")
            assert f"{label}{row['rounds_to_target']}[" in found.replace(" ", "")
            assert f"{row['speedup']:#.3g}× [" in found
    end = read(RESULTS / "meta" / "lopt-a-fmnist" / "records.jsonl")[-1]
    assert f"{end['best_score']:.3g} at step {end['best_step']:,}" in found
    best = read(RESULTS / "sweeps" / "fmnist-slowmo" / "records.jsonl")[-1]["best"]
    assert f"The best: {best}" in found
    speed = json.loads((RESULTS / "benchmarks" / "round-h200.json").read_text())
    assert f"{speed['simulator_steps_per_second']:,.6g}" in found


def test_what_is_drawn_of_meta_training_is_what_was_recorded():
    records = read(RESULTS / "meta" / "lopt-a-fmnist" / "records.jsonl")
    panels = {panel.name: panel for panel in meta_panels(records)}
    assert set(panels) == {"meta-loss", "norm", "score", "heldout"}
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
    report = collect(RESULTS)
    text = markdown_page(report, tmp_path)
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == [run.name for run in report.runs]
    for run in report.runs:
        assert run.command in text
        assert run.about["commit"] in text


def test_the_report_shows_an_experiment_of_the_paper_from_its_records():
    report = collect(RESULTS / "reproduce" / "fig-ablation-full")
    text, left = html_page(report, renderers={"experiment": experiment_blocks})
    assert left.skipped == ()
    found = Page(text)
    assert [found.count(tag) for tag in ("picture", "source", "img")] == [1, 1, 1]
    last = report.runs[0].records[-1]
    for row in (row for row in last["rows"] if row["metric"] == "speedup" and row["ours"]):
        assert f"{row['ours']:.3g}"[:4] in found.text
    assert last["title"] in found.words


# --- experiments, smoke runs and runs inside runs -------------------------------------------------


def paper(records, folder):
    """What a package that knows experiments hands in: blocks from an experiment's records."""
    rows = [["A | 1", "`LOpt-A`", "9.9×"], ["B", "a|b <i>", "1"]]
    table = Table("T", ["panel", "method", "ours"], rows, best=frozenset({(0, 2)}), grouped=True)
    draw = lambda: png_bytes(sweep_figure(read(RESULTS / "sweeps/fmnist-sgd/records.jsonl")))
    figure = Picture(draw, f"{folder.name}: its figure", draw)
    return [Text(records[-1]["title"], "lead"), table, Notes(["a note"]), figure]


def test_an_experiment_shows_its_table_and_figure_and_hides_its_parts(tmp_path):
    folder = experiment(tmp_path / "reproduce" / "table-speedup-smoke")
    (folder / "figure.png").touch()
    written(folder / "panels" / "one", usual(2, 12))
    report = collect(tmp_path)
    assert [(run.name, run.kind, run.smoke) for run in report.runs] == [
        ("reproduce/table-speedup-smoke", "experiment", True)
    ]
    text, report = html_page(report, renderers={"experiment": paper})
    found = Page(text)
    assert not report.skipped
    title = "Speedup <over> local SGD"
    for words in (COMMAND, ORIGIN["commit"], "Abacus 3000", title, "a|b <i>", "a note", SMOKE_NOTE):
        assert words in found.words
    assert '<td class="best">9.9×</td>' in text
    assert [found.count(tag) for tag in ("picture", "source", "img")] == [1, 1, 1]
    assert found.words.count(title) == 1
    chapter = markdown_page(report, tmp_path, {"experiment": paper})
    assert "| A \\| 1 | `LOpt-A` | **9.9×** |" in chapter
    assert chapter.count("![") == 1
    assert "(<reproduce/table-speedup-smoke/figure.png>)" in chapter


def test_without_a_renderer_an_experiment_shows_its_title(tmp_path):
    experiment(tmp_path / "table")
    text, report = html_page(collect(tmp_path))
    assert Page(text).words.count("Speedup <over> local SGD") == 1
    assert "Speedup &lt;over> local SGD" in markdown_page(report, tmp_path)


def test_a_picture_that_is_none_is_named_and_skipped(tmp_path):
    experiment(tmp_path / "table")
    bad = {"experiment": lambda records, folder: [Picture(b"GIF89a", "x")]}
    with pytest.raises(LaconicError, match="neither a PNG"):
        html_page(collect(tmp_path), renderers=bad)


def test_an_experiment_took_as_long_as_the_runs_inside_it(tmp_path):
    folder = experiment(tmp_path / "reproduce" / "table")
    assert collect(tmp_path).runs[0].about["took"] == "–"
    one = written(folder / "panels" / "one", usual(2, 12))
    meta = {"kind": "summary", "seconds": 7200.0}
    written(folder / "optimizers" / "lopt", [{"kind": "run"}, {"kind": "progress"}, meta])
    methods = [r for r in read(one / "records.jsonl") if r["kind"] == "method"]
    seconds = 7200 + sum(record["seconds"] for record in methods)
    assert collect(tmp_path).runs[0].about["took"] == duration(seconds)


@pytest.mark.parametrize(
    "begun", [[], [{"kind": "run"}], [{"kind": "run"}, {"kind": "point", "seconds": 9.0}]]
)
def test_a_run_under_way_inside_an_experiment_does_not_hide_what_is_done(begun, tmp_path):
    folder = experiment(tmp_path / "table")
    written(folder / "sweeps" / "two", begun)
    report = collect(tmp_path)
    assert [(run.name, run.about["took"]) for run in report.runs] == [("table", "–")]
    meta = {"kind": "summary", "seconds": 7200.0}
    written(folder / "optimizers" / "lopt", [{"kind": "progress"}, meta])
    assert collect(tmp_path).runs[0].about["took"] == duration(7200)
    assert report.skipped == ()


@pytest.mark.parametrize(
    ("name", "scale", "times"), [("a", "full", 0), ("a-smoke", "full", 1), ("a", "smoke", 1)]
)
def test_only_smoke_runs_are_marked(name, scale, times, tmp_path):
    experiment(tmp_path / "reproduce" / name, scale)
    assert html_page(collect(tmp_path))[0].count(SMOKE_NOTE) == times


# --- what is broken -------------------------------------------------------------------------------


@pytest.fixture
def good(tmp_path):
    written(tmp_path / "results" / "good", usual(2, 12))
    return tmp_path / "results"


RUN, FIRST, *REST = usual(2, 12)
WHOLE = text_of([RUN, FIRST, *REST])
BROKEN = {
    "bad JSON": WHOLE.replace('"kind": "method"', '"kind": "meth', 1),
    "no run": text_of([FIRST, *REST]),
    "unfinished": text_of([RUN, FIRST, *REST[:-1]]),
    "no provenance": text_of([{**RUN, "provenance": None}, FIRST, *REST]),
    "wrong curves": text_of([RUN, {**FIRST, "train": "none"}, *REST]),
    "empty": "",
    "nested too deeply": '{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
    "not text": bytes(range(256)).decode("latin-1") * 4 + "\n",
}


def broken(folder, how):
    folder.mkdir()
    (folder / "records.jsonl").write_bytes(BROKEN[how].encode("latin-1"))


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_damaged_is_named_in_one_line_and_skipped(how, good, capsys):
    broken(good / "broken", how)
    out = good.parent / "report.html"
    assert dispatch(["report", "--results", str(good), "--out", str(out), "--markdown"]) == 0
    text, (said, shown) = out.read_text(), capsys.readouterr()[::-1]
    bar, line = said.splitlines()
    assert bar.startswith("runs ")
    assert line.startswith("skipped: broken/records.jsonl: ")
    assert line.removeprefix("skipped: ") in Page(text).words
    assert line.removeprefix("skipped: ") in " ".join(out.with_suffix(".md").read_text().split())
    assert re.findall(r"<article><h3>(.*?)</h3>", text) == ["good"]
    assert str(out) in shown


def test_a_broken_benchmark_is_named_too(good):
    (good / "benchmarks").mkdir()
    (good / "benchmarks" / "round.json").write_text("{")
    (good / "benchmarks" / "list.json").write_text("[]")
    (good / "benchmarks" / "deep.json").write_text("[" * 100_000)
    (good / "benchmarks" / "notes.txt").write_text("not a record")
    _, report = html_page(collect(good))
    names = [line.partition(":")[0] for line in report.skipped]
    assert names == [f"benchmarks/{name}.json" for name in ("deep", "list", "round")]


def test_a_benchmarks_lists_of_entries_are_counted_not_spelled(good):
    record = json.loads((RESULTS / "benchmarks" / "round-cpu.json").read_text())
    record["numbers"] = [1, 2]
    record["blows"] = [{"kind": "kill", "gap_s": 0.25}] * 3
    (good / "benchmarks").mkdir()
    (good / "benchmarks" / "blows.jsonl").write_text(json.dumps(record) + "\n")
    text, report = html_page(collect(good))
    assert not report.skipped
    assert "3 entries" in text
    assert "gap_s" not in text
    assert "[1, 2]" in text


def test_a_sweep_is_drawn_from_its_records(tmp_path):
    run, *rest = read(RESULTS / "sweeps" / "fmnist-slowmo" / "records.jsonl")
    points = [r for r in rest if r["kind"] == "point" and r["index"] < 11]
    order = [i for i in rest[-1]["order"] if i < 11]
    written(tmp_path / "sweep", [{**run, "grid_points": 11}, *points, {**rest[-1], "order": order}])
    assert Page(html_page(collect(tmp_path))[0]).count("img") == 1


def test_a_sweep_of_one_number_is_a_curve_of_its_points():
    records = read(RESULTS / "sweeps" / "fmnist-adam" / "records.jsonl")
    panel = line_panel(records)
    assert panel is not None
    points = sorted((r["numbers"]["alpha"], r["minimum"]) for r in records if r["kind"] == "point")
    (curve,) = panel.curves
    assert list(zip(curve.x, curve.y, strict=True)) == points
    assert curve.label == "adam, one seed"
    assert (panel.x_label, panel.y_label) == ("alpha", "lowest train loss (10-round mean)")
    spoilt = [{**r, "diverged": [True]} if r.get("index") in (0, 3) else r for r in records]
    spoilt_panel = line_panel(spoilt)
    assert spoilt_panel is not None
    assert "2 diverged or never there" in spoilt_panel.curves[0].label
    assert np.isnan(spoilt_panel.curves[0].y).sum() == 2
    assert line_panel(read(RESULTS / "sweeps" / "fmnist-slowmo" / "records.jsonl")) is None


@pytest.mark.parametrize("there", [True, False])
def test_nothing_to_report_is_one_clear_error(there, tmp_path, raises_clearly):
    if there:
        (tmp_path / "none").mkdir()
    with raises_clearly(str(tmp_path / "none"), "records" if there else "no folder"):
        report_folder(tmp_path / "none", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_nothing_but_damage_is_an_error_that_names_it(tmp_path, raises_clearly):
    broken(tmp_path / "broken", "bad JSON")
    with raises_clearly("broken/records.jsonl", "line 2"):
        report_folder(tmp_path, tmp_path / "report.html")


# --- the files ------------------------------------------------------------------------------------


def test_an_older_report_is_replaced_and_any_other_file_is_not(good, raises_clearly):
    out = good.parent / "report.html"
    paths, _ = report_folder(good, out, markdown=True)
    assert paths == [out, out.with_suffix(".md")]
    first = out.read_bytes()
    report_folder(good, out, markdown=True)
    assert out.read_bytes() == first
    out.write_text("mine")
    with raises_clearly(str(out)):
        report_folder(good, out)
    assert out.read_text() == "mine"
    out.unlink()
    out.with_suffix(".md").write_text(f"mine{' ' * 3000}{MADE_BY}")
    with raises_clearly("report.md"):
        report_folder(good, out, markdown=True)
    assert not out.exists()
    with raises_clearly(".html"):
        report_folder(good, good.parent / "page.md")


def test_drawing_is_told_run_by_run_and_shown_as_a_bar(good, capsys):
    told, out = [], good.parent / "page.html"
    report_folder(good, out, progress=lambda name, total: told.append((name, total)))
    runs = [run.name for run in collect(good).runs]
    assert told == [(name, len(runs)) for name in runs]
    assert dispatch(["report", "--results", str(good), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"{len(runs)}/{len(runs)}" in said.err
    assert said.out == f"report: {out.resolve()}\n"


def test_hostile_names_stay_text(tmp_path):
    run, *rest = usual(2, 12, labels=("local-sgd", "<script>alert(1)</script>"))
    run = {**run, "command": "laconic compare '</pre><script>x</script>' ```"}
    written(tmp_path / "<b>&", [run, *rest])
    found = Page(html_page(collect(tmp_path))[0])
    assert found.count("script") == 0
    assert "<script>alert(1)</script>" in found.words
    assert markdown_page(collect(tmp_path), tmp_path).count("```") == 2


def test_the_readme_of_the_records_is_shown_as_it_is(good):
    (good / "README.md").write_text("# Title <x>\n\nsome `code`\n\n- one\n- two\n")
    text = html_page(collect(good))[0]
    assert "Title <x>" in Page(text).words
    assert '<p class="plain">- one\n- two\n</p>' in text
